"""Results as one file: what is unpacked is what was packed, and a run goes on from it."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from pathlib import Path

import pandas as pd
import pytest
from pyarrow import parquet

import fewrounds as fr
from experiments import SMALL, fewrounds, tidy, write
from fewrounds.errors import ResultsError
from fewrounds.experiment.archive import KEY, pack, unpack
from fewrounds.experiment.store import Store


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A folder with `experiment.toml`, its results in `out`, and those packed in `small.parquet`."""
    folder = tmp_path_factory.mktemp("packed")
    text = SMALL.replace("q = [0.1, 0.85]", "q = 0.85").replace("seed = [1, 2]", "seed = [1]")
    done = fewrounds("run", write(folder, text), "-o", folder / "out")
    assert done.returncode == 0, done.stderr
    done = fewrounds("pack", folder / "out", folder / "small.parquet")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("6 runs in ")
    return folder


def test_what_is_unpacked_is_what_was_packed(finished: Path, tmp_path: Path) -> None:
    done = fewrounds("unpack", finished / "small.parquet", tmp_path / "new" / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"6 runs put in {tmp_path / 'new' / 'out'}\n"
    before, after = Store(finished / "out"), Store(tmp_path / "new" / "out")
    assert after.grid() == before.grid()
    assert after.check_version() == before.check_version()
    for run in before.grid()["runs"]:
        assert after.record(run) == before.record(run)
        pd.testing.assert_frame_equal(after.history(run), before.history(run))


def test_the_file_is_the_tidy_frame(finished: Path) -> None:
    frame = fr.load_results(finished / "out")
    pd.testing.assert_frame_equal(fr.load_results(finished / "small.parquet"), frame)
    plain = pd.read_parquet(finished / "small.parquet")
    assert len(plain) == len(frame)
    assert plain["train_loss"].tolist() == frame["train_loss"].tolist()


def test_a_run_goes_on_from_it(finished: Path, tmp_path: Path) -> None:
    """Half of the runs are packed; the others, and only they, are run where it is unpacked."""
    half = tmp_path / "half"
    shutil.copytree(finished / "out", half)
    lost = sorted((half / "runs").iterdir())[::2]
    for run in lost:
        shutil.rmtree(run)
    assert pack(half, tmp_path / "half.parquet") == 3
    assert unpack(tmp_path / "half.parquet", tmp_path / "out") == 3
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "runs").glob("*/run.json")}
    done = fewrounds("run", finished / "experiment.toml", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "none is run twice"
    pd.testing.assert_frame_equal(tidy(tmp_path / "out"), tidy(finished / "out"))


def test_what_a_folder_has_stays(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "out", tmp_path / "out")
    first = sorted((tmp_path / "out" / "runs").iterdir())[0]
    shutil.rmtree(first)
    (tmp_path / "out" / "grid.json").write_text(json.dumps({**Store(finished / "out").grid(), "updated": "now"}))
    assert unpack(finished / "small.parquet", tmp_path / "out") == 1
    assert Store(tmp_path / "out").record(first.name) == Store(finished / "out").record(first.name)
    assert Store(tmp_path / "out").grid()["updated"] == "now"
    assert unpack(finished / "small.parquet", tmp_path / "out") == 0


def test_measurements_travel_along(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "out", tmp_path / "out")
    (tmp_path / "out" / "measurements").mkdir()
    (tmp_path / "out" / "measurements" / "abc.json").write_text('{"round": 0}')
    pack(tmp_path / "out", tmp_path / "measured.parquet")
    unpack(tmp_path / "measured.parquet", tmp_path / "again")
    assert json.loads((tmp_path / "again" / "measurements" / "abc.json").read_text()) == {"round": 0}


def changed(file: Path, to: Path, change) -> Path:
    """The packed file with other contents in its metadata."""
    table = parquet.read_table(file)
    content = json.loads(zlib.decompress(base64.b64decode(table.schema.metadata[KEY])))
    change(content)
    packed = base64.b64encode(zlib.compress(json.dumps(content).encode()))
    parquet.write_table(table.replace_schema_metadata({**table.schema.metadata, KEY: packed}), to)
    return to


def test_a_file_from_elsewhere_writes_nowhere_else(finished: Path, tmp_path: Path) -> None:
    def outside(content) -> None:
        content["measurements"]["../../outside.json"] = {}

    file = changed(finished / "small.parquet", tmp_path / "evil.parquet", outside)
    with pytest.raises(ResultsError, match="is damaged: pack the results again"):
        unpack(file, tmp_path / "in" / "out")
    assert not list(tmp_path.glob("**/outside.json"))
    assert not (tmp_path / "in").exists()


def test_bad_files_are_named_in_one_line(finished: Path, tmp_path: Path) -> None:
    whole = (finished / "small.parquet").read_bytes()
    (tmp_path / "half.parquet").write_bytes(whole[: len(whole) // 2])
    pd.DataFrame({"run": [1]}).to_parquet(tmp_path / "other.parquet")

    def newer(content) -> None:
        content["results"]["format"] = 99

    def fewer(content) -> None:
        content["grid"]["runs"].popitem()

    changed(finished / "small.parquet", tmp_path / "newer.parquet", newer)
    changed(finished / "small.parquet", tmp_path / "fewer.parquet", fewer)
    expected = {
        "none.parquet": "there is no file",
        "half.parquet": "cannot be read",
        "other.parquet": "was not written by `fewrounds pack`",
        "newer.parquet": "has results of format 99, this version reads 1",
        "fewer.parquet": "is damaged: pack the results again",
    }
    for name, message in expected.items():
        done = fewrounds("unpack", tmp_path / name, tmp_path / "out")
        assert done.returncode == 2, name
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1, done.stderr
        assert not (tmp_path / "out").exists()
    shutil.copytree(finished / "out", tmp_path / "another")
    (tmp_path / "another" / "results.json").write_text('{"format": 1, "name": "else", "created": ""}')
    with pytest.raises(ResultsError, match="has the results of 'else', not 'small'"):
        unpack(finished / "small.parquet", tmp_path / "another")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResultsError, match="cannot write .*folder: Is a directory"):
        pack(finished / "out", tmp_path / "folder")
    assert not list(tmp_path.glob("*.tmp")), "and nothing is left behind"
    for bad in ("pack", "report"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = fewrounds(bad, tmp_path / "empty", *([tmp_path / "x.parquet"] if bad == "pack" else []))
        assert done.returncode == 2
        assert "is no folder of results" in done.stderr
