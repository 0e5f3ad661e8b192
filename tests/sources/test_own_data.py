"""Data of the user's own: tables, arrays, Hugging Face sets, and what a mistake is told."""

from __future__ import annotations

import io
import os
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest

from fewrounds.data import catalog, hf
from fewrounds.errors import DataError, FewroundsError, SettingError
from made_data import entries, png, save_hf_images, scaled

rng = np.random.default_rng(0)


# ---------------------------------------------------------------------- digits and files


def test_digits() -> None:
    data = catalog.load("digits", test_fraction=0.25, seed=3)
    assert data.train[0].shape[1:] == (64,)
    assert (data.train[0].dtype, data.train[1].dtype, data.classes) == (np.float32, np.int64, 10)
    assert data.fingerprint == catalog.load("digits", test_fraction=0.25, seed=3).fingerprint
    assert data.fingerprint != catalog.load("digits", test_fraction=0.25, seed=4).fingerprint
    assert catalog.load("digits", test_fraction=0).test is None


def frame(n: int = 60) -> pd.DataFrame:
    labels = [["cat", "ape", "dog"][i % 3] for i in range(n)]
    data = {"a": rng.normal(size=n), "flag": np.arange(n) % 2 == 0, "kind": labels, "site": np.arange(n) // 7 + 100}
    return pd.DataFrame(data)


def save_frame(table: pd.DataFrame, path: Path) -> Path:
    table.to_csv(path, index=False) if path.suffix == ".csv" else table.to_parquet(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_tables(suffix: str, tmp_path) -> None:
    table = frame()
    path = save_frame(table, tmp_path / f"data{suffix}")
    data = catalog.load(str(path), label="kind", id_column="site", test_fraction=0.25, seed=1)
    assert data.train[0].shape == (45, 2)
    assert (data.train[0].dtype, data.train[1].dtype, data.ids.dtype) == (np.float32, np.int64, np.int64)
    assert data.classes == 3
    assert np.bincount(data.train[1]).tolist() == [15, 15, 15], "stratified"
    assert np.bincount(data.test[1]).tolist() == [5, 5, 5]
    # Every row is where its features, its label and its id say: a is different in every row.
    where = {np.float32(value): row for row, value in enumerate(table["a"])}
    rows = [where[value] for value in data.train[0][:, 0]]
    assert [["ape", "cat", "dog"][c] for c in data.train[1]] == table["kind"][rows].tolist()
    assert data.ids.tolist() == table["site"][rows].tolist()
    again = catalog.load(str(path), label="kind", id_column="site", test_fraction=0.25, seed=1)
    other = catalog.load(str(path), label="kind", id_column="site", test_fraction=0.25, seed=2)
    assert data.fingerprint == again.fingerprint != other.fingerprint


def test_csv_and_parquet_of_one_table_are_the_same_data(tmp_path) -> None:
    table = frame()
    table["a"] = np.arange(60) / 4
    loaded = [catalog.load(str(save_frame(table, tmp_path / f"d{s}")), label="kind") for s in (".csv", ".parquet")]
    assert loaded[0].fingerprint == loaded[1].fingerprint


@pytest.mark.parametrize(
    ("labels", "numbered", "classes"),
    [
        ([30, 10, 20, 10], [2, 0, 1, 0], 3),
        ([-1, 1, 1, -1], [0, 1, 1, 0], 2),
        ([0, 1, 2, 1], [0, 1, 2, 1], 3),
        ([True, False, True, True], [1, 0, 1, 1], 2),
        (["b", "a", "10", "9"], [3, 2, 0, 1], 4),
        ([0.5, 2.0, 1.0, 3.25], [0.5, 2.0, 1.0, 3.25], 0),
    ],
)
def test_labels_become_class_numbers(labels, numbered, classes: int, tmp_path) -> None:
    path = save_frame(pd.DataFrame({"x": [1.0, 2.0, 3.0, 4.0], "y": labels}), tmp_path / "d.parquet")
    data = catalog.load(str(path), label="y", test_fraction=0)
    assert data.train[1].tolist() == numbered
    assert data.train[1].dtype == (np.int64 if classes else np.float32)
    assert (data.classes, data.test) == (classes, None)


def test_a_second_file_is_the_test_part(tmp_path) -> None:
    train = save_frame(
        pd.DataFrame({"a": [1, 2, 3], "b": [4, 5, 6], "y": ["r", "s", "r"], "who": list("uvw")}), tmp_path / "a.csv"
    )
    test = save_frame(pd.DataFrame({"y": ["q", "s"], "b": [8, 9], "a": [6, 7]}), tmp_path / "b.parquet")
    data = catalog.load(str(train), label="y", test=str(test), id_column="who")
    assert data.test[0].tolist() == [[6, 8], [7, 9]], "in the order of the train file"
    assert (data.train[1].tolist(), data.test[1].tolist(), data.classes) == ([1, 2, 1], [0, 2], 3)
    assert data.ids.tolist() == ["u", "v", "w"]


def test_numbers_too_large_for_float32_are_left_to_later_checks(tmp_path) -> None:
    path = save_frame(pd.DataFrame({"a": [1.0, 1e39], "y": [0, 1]}), tmp_path / "a.csv")
    assert np.isinf(catalog.load(str(path), label="y", test_fraction=0).train[0]).sum() == 1
    np.savez(tmp_path / "a.npz", x=np.array([[1.0], [1e39]]), y=Y2)
    assert np.isinf(catalog.load(str(tmp_path / "a.npz"), test_fraction=0).train[0]).sum() == 1


def test_nan_features_are_left_to_later_checks(tmp_path) -> None:
    path = save_frame(pd.DataFrame({"a": [1.0, None, 3.0], "y": [0, 1, 0]}), tmp_path / "a.csv")
    assert np.isnan(catalog.load(str(path), label="y", test_fraction=0).train[0]).sum() == 1


def test_npz_with_four_arrays(tmp_path) -> None:
    x, y = rng.normal(size=(12, 5)), np.arange(12) % 3 * 10
    np.savez(tmp_path / "d.npz", x_train=x, y_train=y[:, None], x_test=x[:4], y_test=y[:4], who=np.arange(12))
    data = catalog.load(str(tmp_path / "d.npz"), id_column="who")
    np.testing.assert_array_equal(data.train[0], x.astype(np.float32))
    assert (data.train[1].tolist(), data.classes) == ((np.arange(12) % 3).tolist(), 3)
    assert data.test[0].shape == (4, 5)
    assert data.ids.tolist() == list(range(12))


@pytest.mark.parametrize(
    ("shape", "axes"), [((20, 9, 8), None), ((20, 9, 8, 3), (0, 3, 1, 2)), ((20, 3, 9, 8), (0, 1, 2, 3))]
)
def test_npz_with_images(shape, axes, tmp_path) -> None:
    pixels = rng.integers(0, 256, size=shape, dtype=np.uint8)
    np.savez_compressed(tmp_path / "d.npz", x=pixels, y=np.arange(20) % 2)
    data = catalog.load(str(tmp_path / "d.npz"), test_fraction=0)
    expected = pixels[:, None] if axes is None else pixels.transpose(axes)
    np.testing.assert_allclose(data.train[0], scaled(expected), atol=1e-6)


def test_any_set_can_be_shared(tmp_path, cache) -> None:
    data = catalog.load(str(save_frame(frame(), tmp_path / "d.csv")), label="kind", id_column="site")
    shared = catalog.as_memory_maps(data)
    assert isinstance(shared.train[0], np.memmap)
    assert shared.fingerprint == data.fingerprint
    np.testing.assert_array_equal(shared.test[0], data.test[0])
    np.testing.assert_array_equal(shared.ids, data.ids)
    assert catalog.as_memory_maps(shared) is shared
    assert catalog.listing()[3].source.endswith("d.csv")


def test_a_class_never_goes_to_the_test_part_as_a_whole(tmp_path) -> None:
    path = save_frame(pd.DataFrame({"a": range(7), "y": [0, 0, 0, 0, 0, 0, 1]}), tmp_path / "d.csv")
    data = catalog.load(str(path), label="y", test_fraction=0.9)
    assert sorted(set(data.train[1].tolist())) == [0, 1]


# ---------------------------------------------------------------------- Hugging Face


@pytest.mark.parametrize("shape", [(24, 6, 5), (24, 6, 5, 3)])
def test_hf_images_from_disk(shape, tmp_path, cache) -> None:
    pixels = rng.integers(0, 256, size=shape, dtype=np.uint8)
    writers = [f"w{i % 5}" for i in range(24)]
    save_hf_images(tmp_path / "set", pixels, [i % 3 for i in range(24)], writer=writers)
    data = catalog.load(f"hf:{tmp_path / 'set'}", id_column="writer", test_fraction=0.25, progress=False)
    expected = pixels[:, None] if len(shape) == 3 else pixels.transpose(0, 3, 1, 2)
    assert data.train[0].shape == (18, *expected.shape[1:])
    assert isinstance(data.train[0], np.memmap)
    assert data.classes == 4, "the class that does not occur is a class"
    rows = [int(np.argmin(np.abs(scaled(expected) - x).sum(axis=(1, 2, 3)))) for x in data.train[0]]
    np.testing.assert_allclose(data.train[0], scaled(expected)[rows], atol=1e-6)
    assert data.train[1].tolist() == [row % 3 for row in rows]
    assert data.ids.tolist() == [writers[row] for row in rows]
    again = catalog.load(f"hf:{tmp_path / 'set'}", id_column="writer", test_fraction=0.25, progress=False)
    assert again.fingerprint == data.fingerprint
    assert len(entries(cache)) == 1
    catalog.load(f"hf:{tmp_path / 'set'}", progress=False)
    assert len(entries(cache)) == 2, "another reading is another entry"


def test_hf_set_that_has_changed_is_read_again(tmp_path) -> None:
    pixels = rng.integers(0, 256, size=(8, 4, 4), dtype=np.uint8)
    save_hf_images(tmp_path / "set", pixels, [0, 1] * 4)
    before = catalog.load(f"hf:{tmp_path / 'set'}", progress=False)
    save_hf_images(tmp_path / "other", 255 - pixels, [0, 1] * 4)
    os.rename(tmp_path / "set", tmp_path / "old")
    os.rename(tmp_path / "other", tmp_path / "set")
    assert catalog.load(f"hf:{tmp_path / 'set'}", progress=False).fingerprint != before.fingerprint


def test_hf_splits_and_tables(tmp_path) -> None:
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0], "b": [1, 0, 1, 0], "label": ["x", "y", "x", "z"]})
    splits = {
        name: datasets.Dataset.from_pandas(part) for name, part in (("train", table[:3]), ("validation", table[3:]))
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "set")
    data = catalog.load(f"hf:{tmp_path / 'set'}", progress=False)
    assert data.train[0].tolist() == [[1, 1], [2, 0], [3, 1]]
    assert (data.train[1].tolist(), data.test[1].tolist(), data.classes) == ([0, 1, 0], [2], 3)
    swapped = catalog.load(f"hf:{tmp_path / 'set'}", test="train", progress=False)
    assert swapped.train[1].tolist() == [2]


@pytest.mark.parametrize("kind", ["csv", "images"])
def test_hf_folder_that_load_dataset_understands(kind: str, tmp_path, capfd) -> None:
    folder = tmp_path / "folder"
    if kind == "csv":
        folder.mkdir()
        save_frame(frame().drop(columns="site"), folder / "train.csv")
        data = catalog.load(f"hf:{folder}", label="kind", progress=False)
        assert data.train[0].shape == (48, 2)
    else:
        for number in range(12):
            (folder / "train" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
            pixels = np.full((3, 4, 3), number, dtype=np.uint8)
            (folder / "train" / "ab"[number % 2] / f"{number}.png").write_bytes(png(pixels)["bytes"])
        data = catalog.load(f"hf:{folder}", test_fraction=0, progress=False)
        assert data.train[0].shape == (12, 3, 3, 4)
        values = np.rint((data.train[0][:, 0, 0, 0] * 0.5 + 0.5) * 255).astype(int)
        assert (values % 2).tolist() == data.train[1].tolist()
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------- mistakes


def csv(tmp_path: Path, text: str) -> str:
    (tmp_path / "d.csv").write_text(text)
    return str(tmp_path / "d.csv")


def raw_file(name: str, data: bytes):
    def make(tmp_path: Path) -> str:
        (tmp_path / name).write_bytes(data)
        return str(tmp_path / name)

    return make


def npz(**arrays):
    def make(tmp_path: Path) -> str:
        np.savez(tmp_path / "d.npz", **arrays)
        return str(tmp_path / "d.npz")

    return make


def hf_table(**columns):
    def make(tmp_path: Path) -> str:
        datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "set")
        return f"hf:{tmp_path / 'set'}"

    return make


def hf_images(images, labels):
    def make(tmp_path: Path) -> str:
        save_hf_images(tmp_path / "set", images, labels)
        return f"hf:{tmp_path / 'set'}"

    return make


def hf_classes(tmp_path: Path) -> str:
    features = datasets.Features({name: datasets.ClassLabel(names=["a", "b"]) for name in ("fine", "coarse")})
    datasets.Dataset.from_dict({"fine": [0, 1], "coarse": [0, 0]}, features=features).save_to_disk(tmp_path / "set")
    return f"hf:{tmp_path / 'set'}"


def full_npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.ones((50, 4)), y=np.arange(50))
    return buffer.getvalue()


ONE = np.zeros((1, 4, 4), dtype=np.uint8)
X2, Y2 = np.ones((2, 3)), np.array([0, 1])

WRONG = {
    "a name": ("cifer10", {}, r"'cifer10' is no known data set; did you mean 'cifar10'\? known: cifar10, digits, fashion-mnist"),
    "a far name": ("imagenet", {}, "'imagenet' is no known data set; known: cifar10"),
    "no name": ("", {}, "'' is no known data set"),
    "a missing file": ("/no/such/data.csv", {"label": "y"}, "/no/such/data.csv: there is no such file"),
    "a missing npz": ("no_such.npz", {}, "no_such.npz: there is no such file"),
    "another ending": (raw_file("d.txt", b"1"), {"label": "y"}, r"d.txt: expected a file that ends in .csv, .parquet, .npz"),
    "a folder": (lambda t: str(t), {}, "expected a file that ends in"),
    "a folder called csv": (lambda t: str((t / "d.csv").mkdir() or t / "d.csv"), {"label": "y"}, "there is no such file"),
    "no label given": (lambda t: csv(t, "a,b\n1,2\n"), {}, "d.csv: which column holds the labels\\? give label = one of a, b"),
    "an unknown label": (lambda t: csv(t, "a,kind\n1,2\n"), {"label": "knid"}, "label = 'knid' is no column; did you mean 'kind'\\? known: a, kind"),
    "an unknown id": (lambda t: csv(t, "a,kind\n1,2\n"), {"label": "kind", "id_column": "site"}, "id_column = 'site' is no column; known"),
    "id is label": (lambda t: csv(t, "a,y\n1,2\n"), {"label": "y", "id_column": "y"}, "label and id_column are both 'y'"),
    "a text column": (lambda t: csv(t, "a,town,y\n1,Rome,0\n2,Oslo,1\n"), {"label": "y"}, "column 'town' does not hold numbers \\(row 0: 'Rome'\\)"),
    "one text cell": (lambda t: csv(t, "a,y\n1,0\n2x,1\n3,1\n"), {"label": "y"}, "column 'a' does not hold numbers \\(row 1: '2x'\\)"),
    "only a label": (lambda t: csv(t, "y\n1\n"), {"label": "y"}, "has no feature columns beside 'y'"),
    "no rows": (lambda t: csv(t, "a,y\n"), {"label": "y"}, "d.csv has no rows"),
    "a missing label": (lambda t: csv(t, "a,y\n1,0\n2,\n3,1\n"), {"label": "y"}, "d.csv: row 1 has no label"),
    "a missing text label": (lambda t: csv(t, "a,y\n1,u\n2,v\n3,\n"), {"label": "y"}, "d.csv: row 2 has no label"),
    "a missing id": (lambda t: csv(t, "a,y,w\n1,0,p\n2,1,\n"), {"label": "y", "id_column": "w"}, "'w': row 1 has no id"),
    "an empty csv": (lambda t: csv(t, ""), {"label": "y"}, "d.csv cannot be read as csv: No columns"),
    "a ragged csv": (lambda t: csv(t, "a,b\n1,2\n1,2,3,4\n"), {"label": "b"}, "d.csv cannot be read as csv"),
    "a binary csv": (raw_file("d.csv", bytes(range(128, 256)) * 4), {"label": "y"}, "d.csv cannot be read as csv"),
    "a broken parquet": (raw_file("d.parquet", b"PAR1 nothing PAR1"), {"label": "y"}, "d.parquet cannot be read as parquet"),
    "a broken npz": (raw_file("d.npz", b"PK\x03\x04 nothing"), {}, "d.npz cannot be read as npz"),
    "an npz cut short": (raw_file("d.npz", full_npz()[:700]), {}, "d.npz cannot be read as npz"),
    "an npz with flipped bytes": (raw_file("d.npz", full_npz().replace(b"\xf0\x3f", b"\xf1\x3f", 3)), {}, "d.npz cannot be read as npz: Bad CRC"),
    "an empty npz": (raw_file("d.npz", b""), {}, "d.npz cannot be read as npz"),
    "an npz of objects": (npz(x=np.array([{}, {}]), y=Y2), {}, "d.npz cannot be read as npz: Object arrays"),
    "an npz without labels": (npz(x=X2), {}, "d.npz has no 'y': expected x_train and y_train, or x and y; it has x"),
    "an npz without inputs": (npz(z=X2), {}, "d.npz has no 'x'"),
    "an npz with half a test": (npz(x_train=X2, y_train=Y2, x_test=X2), {}, "d.npz has no 'y_test'"),
    "an npz of text": (npz(x=np.array([["a"], ["b"]]), y=Y2), {}, "x does not hold numbers"),
    "an npz of one axis": (npz(x=np.ones(2), y=Y2), {}, r"x has shape \[2\], expected one row a sample"),
    "an npz of other lengths": (npz(x=X2, y=np.arange(3)), {}, r"y has shape \[3\], expected \[2\]"),
    "an npz with a label option": (npz(x=X2, y=Y2), {"label": "y"}, "label = 'y': an .npz has its labels under y"),
    "two test parts": (npz(x_train=X2, y_train=Y2, x_test=X2, y_test=Y2), {"test": __file__.replace(".py", ".npz")}, "there is no such file"),
    "a missing test file": (lambda t: csv(t, "a,y\n1,0\n"), {"label": "y", "test": "/no/t.csv"}, "/no/t.csv: there is no such file"),
    "a label for digits": ("digits", {"label": "y"}, "label = 'y': digits has its own labels"),
    "a test file for digits": ("digits", {"test": "t.csv"}, "test = 't.csv': digits has its own"),
    "a fraction of 1": ("digits", {"test_fraction": 1.0}, "test_fraction = 1.0: must be 0 or more, and less than 1"),
    "a fraction of nearly 1": ("digits", {"test_fraction": 0.999}, "test_fraction = 0.999: leaves no digits to train on"),
    "a fraction of text": ("digits", {"test_fraction": "a"}, "test_fraction = 'a': must be"),
    "a seed": ("digits", {"seed": -1}, "seed = -1: must be a whole number, 0 or more"),
    "hf nothing": ("hf:", {}, "hf: needs the name of a data set or the path"),
    "hf missing path": ("hf:/no/such", {}, "hf:/no/such could not be had: there is no such folder"),
    "hf out of reach": ("hf:some/name", {}, "hf:some/name could not be had: not reachable: offline mode is set"),
    "hf empty folder": (lambda t: f"hf:{t}", {}, "cannot be read: "),
    "hf file": (lambda t: f"hf:{csv(t, '1')}", {}, "it is a file, expected a folder"),
    "hf without labels": (hf_table(a=[1.0, 2.0], b=[1, 2]), {}, "which column holds the labels\\? give label = one of a, b"),
    "hf with two labels": (hf_classes, {}, "which column holds the labels\\? give label = one of fine, coarse"),
    "hf unknown label": (hf_table(a=[1.0], kind=[1]), {"label": "knid"}, "label = 'knid' is no column; did you mean 'kind'"),
    "hf unknown id": (hf_table(a=[1.0], label=[1]), {"id_column": "who"}, "id_column = 'who' is no column"),
    "hf unknown split": (hf_table(a=[1.0], label=[1]), {"test": "tset"}, "test = 'tset' is no split; known: train"),
    "hf text": (hf_table(a=["u", "v"], label=[0, 1]), {}, "column 'a' does not hold numbers"),
    "hf lists": (hf_table(a=[[1, 2], [3, 4]], label=[0, 1]), {}, "column 'a' does not hold numbers"),
    "hf labels of -1": (hf_images(np.repeat(ONE, 3, 0), [0, 1, -1]), {}, "row 2 has no label"),
    "hf images of two sizes": (hf_images([ONE[0], ONE[0, :3]], [0, 0]), {"test_fraction": 0}, "row 1 has an image of 3×4, row 0 one of 4×4"),
    "hf images of 16 bits": (hf_images(np.repeat(ONE, 2, 0).astype(np.uint16), [0, 1]), {}, "its images are of mode 'I;16'"),
    "not text": (7, {}, "a data set is a name, .* not a int"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_named_in_one_line(mistake: str, tmp_path, cache, capfd) -> None:
    spec, options, message = WRONG[mistake]
    spec = spec(tmp_path) if callable(spec) else spec
    capfd.readouterr()
    with pytest.raises(FewroundsError, match=message) as caught:
        catalog.load(spec, progress=False, **options)
    assert isinstance(caught.value, (DataError, SettingError))
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert entries(cache) == []


def test_mistakes_between_two_files(tmp_path) -> None:
    train = save_frame(pd.DataFrame({"a": [1, 2], "y": [0, 1]}), tmp_path / "a.csv")
    other = save_frame(pd.DataFrame({"b": [1, 2], "y": [0, 1]}), tmp_path / "b.csv")
    with pytest.raises(DataError, match="b.csv has no column 'a', which the train part has"):
        catalog.load(str(train), label="y", test=str(other))
    np.savez(tmp_path / "c.npz", x=X2, y=Y2)
    with pytest.raises(DataError, match=r"c.npz has samples of shape \[3\], but .*a.csv has \[1\]"):
        catalog.load(str(train), label="y", test=str(tmp_path / "c.npz"))
    np.savez(tmp_path / "d.npz", x_train=X2, y_train=Y2, x_test=X2, y_test=Y2)
    with pytest.raises(SettingError, match="d.npz has a test part already"):
        catalog.load(str(tmp_path / "d.npz"), test=str(tmp_path / "c.npz"))
    np.savez(tmp_path / "e.npz", x=X2[:, :1], y=Y2 / 2)
    with pytest.raises(DataError, match="the labels of one are whole numbers, of the other not"):
        catalog.load(str(train), label="y", test=str(tmp_path / "e.npz"))


def test_splits_of_a_hugging_face_set() -> None:
    rows = datasets.Dataset.from_dict({"a": [1.0], "label": [0]})
    with pytest.raises(DataError, match="hf:s: its split 'train' has no rows"):
        hf.choose_splits({"train": rows.select([]), "test": rows}, None, "hf:s")
    with pytest.raises(DataError, match="hf:s has no split 'train', but one, two"):
        hf.choose_splits({"one": rows, "two": rows}, None, "hf:s")
    assert hf.choose_splits({"one": rows}, None, "hf:s") == (rows, None)
    assert hf.choose_splits({"one": rows, "test": rows}, "test", "hf:s") == (rows, rows)


def test_mistakes_of_fetch() -> None:
    with pytest.raises(DataError, match="digits comes with scikit-learn"):
        catalog.fetch("digits")
    with pytest.raises(DataError, match="'fashon-mnist' cannot be fetched; did you mean 'fashion-mnist'"):
        catalog.fetch("fashon-mnist")


def test_a_wide_table_does_not_make_a_long_message(tmp_path) -> None:
    path = save_frame(
        pd.DataFrame(np.zeros((2, 800)), columns=[f"pixel{i}" for i in range(800)]), tmp_path / "d.parquet"
    )
    for label in (None, "pixle17"):
        with pytest.raises(DataError) as caught:
            catalog.load(str(path), label=label)
        assert len(str(caught.value)) < 400 + len(str(path))
