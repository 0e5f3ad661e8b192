"""The commands beside whole experiments: what they print, and what a mistake is told."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fewrounds as fr
from experiments import SMALL, fewrounds, start, write


def test_partition_prints_and_draws_the_counts(tmp_path: Path) -> None:
    done = fewrounds("partition", write(tmp_path), "-o", tmp_path / "split.png")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if line and line.split()[0] == "3"]
    assert [int(n) for n in rows[0][1:]] == [2] * 10 + [20], "q = 0.1: two of every class"
    assert int(rows[1][1 + 3]) == 17
    assert sum(map(int, rows[1][1:-1])) == int(rows[1][-1]) == 20
    assert (tmp_path / "split.png").read_bytes().startswith(b"\x89PNG")


def test_help_is_quick_and_imports_no_torch() -> None:
    code = "import sys; sys.argv = ['fewrounds', '--help']\nfrom fewrounds.cli import main\ntry: main()\nexcept SystemExit: pass\nassert 'torch' not in sys.modules, 'torch was imported'"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in ("run", "report", "reproduce", "partition", "data"):
        assert command in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("tracker", ["tensorboard", "mlflow"])
def test_trackers_get_the_figures(tmp_path: Path, tracker: str) -> None:
    value = "true" if tracker == "tensorboard" else f'"{tmp_path / "mlruns"}"'
    text = (
        SMALL.replace("q = [0.1, 0.85]", "q = 0.5").replace('["local-sgd", "bvr-l-sgd"]', '"local-sgd"')
        + f"\n[track]\n{tracker} = {value}\n"
    )
    for _ in range(2):  # the second time nothing is logged twice
        environment = {**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"}
        done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out", env=environment)
        assert done.returncode == 0, done.stderr
    frame = fr.load_results(tmp_path / "out")
    if tracker == "tensorboard":
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folders = sorted((tmp_path / "out" / "tensorboard").iterdir())
        assert len(folders) == 4
        events = EventAccumulator(str(folders[0])).Reload()
        run = folders[0].name.rsplit("-", 1)[1]
        logged = [event.value for event in events.Scalars("train_loss")]
        assert logged == pytest.approx(frame.loc[frame["run"] == run, "train_loss"].tolist())
    else:
        files = (tmp_path / "mlruns").glob("*/*/metrics/train_loss")
        logged = [[float(line.split()[1]) for line in file.read_text().splitlines()] for file in files]
        assert sorted(logged) == sorted(group.tolist() for _, group in frame.groupby("run")["train_loss"])
        assert len(logged) == 4


# ---------------------------------------------------------------------- mistakes


def folder_with(path: Path, name: str, content: str) -> Path:
    path.mkdir()
    (path / name).write_text(content)
    return path


MISTAKES = {
    "missing file": (lambda t: ("run", t / "nowhere.toml"), "nowhere.toml: there is no such file"),
    "syntax": (lambda t: ("run", write(t, "name = ")), "experiment.toml: Invalid value (at end of document)"),
    "unknown key": (lambda t: ("run", write(t), "--set", "train.etta=1"), "unknown key 'train.etta'; did you mean 'eta'?"),
    "a file for a folder": (lambda t: ("run", write(t), "-o", write(t)), "experiment.toml is a file: choose a folder"),
    "a folder of something else": (
        lambda t: ("run", write(t), "-o", folder_with(t / "f", "thesis.tex", "x")),
        "is not empty and holds no results: choose another folder",
    ),
    "another version": (
        lambda t: ("run", write(t), "-o", folder_with(t / "f", "results.json", '{"format": 99}')),
        "has results of format 99, this version reads 1",
    ),
    "unwritable": (lambda t: ("run", write(t), "-o", "/proc/results"), "cannot use /proc/results for results: "),
    "too many workers": (
        lambda t: ("run", write(t), "-o", t / "o", "--set", "partition.workers=5000"),
        "there are 5000 workers, but only 200 samples",
    ),
    "unknown data": (lambda t: ("run", write(t), "-o", t / "o", "--set", "data.source=digit"), "did you mean 'digits'?"),
    "unknown rule": (lambda t: ("run", write(t), "-o", t / "o", "--set", "tuning.rule=pape"), "did you mean 'paper'?"),
    "no model": (lambda t: ("run", write(t), "-o", t / "o", "--set", "model.kind=mpl"), "model.kind = 'mpl': must be 'mlp', 'cnn'"),
    "budget too small": (lambda t: ("run", write(t), "-o", t / "o", "--set", "train.budget=1", "--set", "train.budget_mode=strict"), "budget = 1: too small for bvr-l-sgd"),
    "another experiment": (
        lambda t: ("run", write(t), "-o", folder_with(t / "f", "results.json", '{"format": 1, "name": "other", "created": ""}')),
        "has the results of 'other', not 'small': choose another folder",
    ),
    "an eta for one method": (lambda t: ("run", write(t), "--set", "methods.local-sgd.eta=0.1"), "methods.local-sgd.eta: step sizes belong in"),
    "a picture nowhere": (lambda t: ("partition", write(t), "-o", t / "no" / "p.png"), "cannot write the picture"),
    "report of nothing": (lambda t: ("report", t), "is no folder of results: run `fewrounds run FILE` first"),
    "no preset": (lambda t: ("reproduce", "--preset", "papr"), "there is no preset 'papr'; did you mean 'paper'?"),
    "data without a name": (lambda t: ("data",), "give the name of a data set, or --list"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_line_and_exit_code_2(tmp_path: Path, mistake: str) -> None:
    make, message = MISTAKES[mistake]
    arguments = make(tmp_path)
    before = sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name != "lock")
    done = fewrounds(*arguments)
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("fewrounds: ")
    assert message in lines[0]
    after = sorted(
        p for p in tmp_path.rglob("*") if p.is_file() and p.name not in ("lock", "results.json", "grid.json")
    )
    assert set(after) >= {p for p in before if p.name != "results.json"}


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    process = start("run", write(tmp_path), "-o", tmp_path / "out", "--no-compile", "--set", "train.rounds=5000")
    try:
        until = time.monotonic() + 60
        while not list((tmp_path / "out").glob("runs/*/checkpoint")) and time.monotonic() < until:
            time.sleep(0.1)
        done = fewrounds("run", write(tmp_path), "-o", tmp_path / "out")
        assert done.returncode == 2
        assert "is in use by another run: choose another folder" in done.stderr
    finally:
        process.kill()
        process.communicate()
