"""Experiments that are interrupted, and processes that end: real signals to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

import fewrounds as fr
from experiments import INTERRUPTED, SMALL, catches, communicate_or_kill, fewrounds, start, wait_gone, write
from fewrounds.experiment.store import Store

slow = partial(pytest.param, marks=pytest.mark.slow)


MODEL = """
import os, time, torch
from pathlib import Path

def build(shape, classes, seed):
    begun = Path(__file__).with_name(f"{seed}.pid")
    begun.with_suffix(".new").write_text(str(os.getpid()))
    begun.with_suffix(".new").rename(begun)
    time.sleep(SECONDS if seed == 1 else 0)
    return torch.nn.Linear(shape[0], classes)
"""


TwoRuns = Callable[..., tuple[subprocess.Popen[str], list[int]]]


@pytest.fixture
def two_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TwoRuns]:
    """Starts an experiment of two runs at once, of which that with seed 1 takes so many seconds to begin.

    Gives the process, and those that train, by seed. Of a test that fails nothing is left running.
    """
    started: list[subprocess.Popen[str]] = []
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    text = (
        SMALL.split("[tuning]")[0].replace("[0.1, 0.85]", "0.5").replace("evaluate_every", "eta = 0.1\nevaluate_every")
    )
    text = text.replace("hidden = [8]", 'kind = "mine:build"').replace('["local-sgd", "bvr-l-sgd"]', '"bvr-l-sgd"')

    def begin(seconds: float, rounds: int, hears: bool = True) -> tuple[subprocess.Popen[str], list[int]]:
        (tmp_path / "mine.py").write_text(MODEL.replace("SECONDS", str(seconds)))
        options = ["--jobs", "2", "--no-compile", "--set", f"train.rounds={rounds}"]
        process = start("run", write(tmp_path, text), "-o", tmp_path / "out", *options, hears=hears)
        started.append(process)
        begun = [tmp_path / f"{seed}.pid" for seed in (1, 2)]
        until = time.monotonic() + 120
        while not all(path.exists() for path in begun):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < until
            time.sleep(0.05)
        return process, [int(path.read_text()) for path in begun]

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def wait_until_they_train(pids: list[int]) -> None:
    """Until each has computed for five seconds more, long after it was prepared."""
    spent = {pid: sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids}
    until = time.monotonic() + 120
    while any(sum(psutil.Process(pid).cpu_times()[:2]) < spent[pid] + 5 for pid in pids):
        assert time.monotonic() < until
        time.sleep(0.1)


def checkpoints(folder: Path) -> set[Path]:
    return set(folder.glob("out/runs/*/checkpoint/*.safetensors"))


def runs_of(files: set[Path]) -> set[str]:
    return {path.parents[1].name for path in files}


ENDLESS = 1_000_000


@pytest.mark.parametrize("number", [slow(signal.SIGINT), slow(signal.SIGTERM), signal.SIGHUP])
def test_a_signal_to_all_processes_loses_nothing(two_runs: TwoRuns, tmp_path: Path, number: int) -> None:
    """A terminal sends Ctrl-C to every process, and its end, and so may a scheduler."""
    process, pids = two_runs(0, ENDLESS)
    wait_until_they_train(pids)
    before, both = checkpoints(tmp_path), {path.name for path in tmp_path.glob("out/runs/*")}
    assert len(both) == 2
    os.killpg(process.pid, number)
    _, errors = communicate_or_kill(process, 60)
    assert process.returncode == 130
    assert errors.splitlines() == [INTERRUPTED]
    assert runs_of(checkpoints(tmp_path) - before) == both
    wait_gone(pids)


@pytest.mark.parametrize("between", [slow(0.3), 3])
def test_a_second_ctrl_c_waits_for_nobody(two_runs: TwoRuns, tmp_path: Path, between: float) -> None:
    """Runs that do not answer are given up; one that follows at once is the same wish."""
    process, pids = two_runs(0, ENDLESS)
    wait_until_they_train(pids)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    before, both = checkpoints(tmp_path), {path.name for path in tmp_path.glob("out/runs/*")}
    assert len(both) == 2
    os.kill(process.pid, signal.SIGINT)
    time.sleep(between)
    os.kill(process.pid, signal.SIGINT)
    if between < 1:
        time.sleep(1)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    _, errors = communicate_or_kill(process, 60)
    assert process.returncode == 130
    assert errors.splitlines() == [INTERRUPTED]
    assert runs_of(checkpoints(tmp_path) - before) == (both if between < 1 else set())
    wait_gone(pids)


def test_what_is_being_prepared_is_not_waited_for(two_runs: TwoRuns, tmp_path: Path) -> None:
    process, pids = two_runs(600, ENDLESS)
    os.kill(process.pid, signal.SIGINT)
    _, errors = communicate_or_kill(process, 60)
    assert process.returncode == 130
    assert errors.splitlines() == [INTERRUPTED]
    wait_gone(pids)


@pytest.mark.parametrize("moment", [slow(0), 0.4, slow(0.8)])
def test_ctrl_c_before_anything_is_run(tmp_path: Path, moment: float) -> None:
    """A KeyboardInterrupt within an import can be lost, or leave half a module behind."""
    file = write(tmp_path)
    process = start("run", file, "-o", tmp_path / "out")
    while not catches(process.pid, signal.SIGHUP):  # which no Python does by itself
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(moment)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = communicate_or_kill(process, 60)
    assert process.returncode == 130
    assert errors.splitlines() == [INTERRUPTED]
    assert not list(tmp_path.glob("out/runs/*/run.json"))
    assert fewrounds("run", file, "-o", tmp_path / "out", "--set", "train.rounds=4").returncode == 0


def test_an_idle_process_that_dies_is_replaced(two_runs: TwoRuns, tmp_path: Path) -> None:
    """It waits for work with the queue's lock in its hands, for which the others would wait for ever."""
    process, (_, idle) = two_runs(6, 12)
    assert process.stderr.readline().startswith("[1/2] bvr-l-sgd ")
    os.kill(idle, signal.SIGKILL)
    _, errors = communicate_or_kill(process, 120)
    assert process.returncode == 0, errors
    assert set(fr.load_results(tmp_path / "out")["seed"]) == {1, 2}


def test_a_run_that_is_deaf_to_ctrl_c_goes_on(two_runs: TwoRuns, tmp_path: Path) -> None:
    """As in the background of a shell."""
    process, _ = two_runs(3, 12, hears=False)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = communicate_or_kill(process, 120)
    assert process.returncode == 0, errors
    assert set(fr.load_results(tmp_path / "out")["seed"]) == {1, 2}


def test_a_start_that_was_killed_between_two_lines_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("lock", "results.json.tmp"):
        (tmp_path / name).write_text("")
    with Store(tmp_path).open("small"):
        assert Store(tmp_path).check_version()["name"] == "small"
