"""A small experiment on digits for the tests of everything that runs one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pandas as pd
import psutil
import pytest

import fewrounds as fr

INTERRUPTED = "fewrounds: interrupted; the same command goes on from here"
SMALL = """
name = "small"

[data]
source = "digits"
limit = 20

[partition]
q = [0.1, 0.85]

[model]
hidden = [8]
l2 = 5e-3

[train]
method = ["local-sgd", "bvr-l-sgd"]
budget = 32
rounds = 12
evaluate_every = 4
seed = [1, 2]

[tuning]
eta = [0.05, 0.2]
last = 3
"""


def write(folder: Path, text: str = SMALL) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text)
    return path


def fewrounds(
    *arguments: str | Path, cwd: Path | None = None, timeout: float = 300, **options
) -> subprocess.CompletedProcess[str]:
    """The command, as a person runs it."""
    command = [sys.executable, "-m", "fewrounds", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=timeout, **options)


def tidy(folder: Path) -> pd.DataFrame:
    """The frame without what may differ between two runs of the same thing: the clock."""
    frame = fr.load_results(folder).drop(columns="seconds")
    return frame.sort_values(["run", "round"], ignore_index=True)


def _hear(hears: bool) -> None:
    """A shell's background is deaf to Ctrl-C, and what nohup started to a closed terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL if hears else signal.SIG_IGN)


def start(*arguments: str | Path, hears: bool = True) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fewrounds", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(_hear, hears),
    )


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_gone(pids: list[int], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until, "a process was left behind"
        time.sleep(0.1)


def catches(pid: int, number: int) -> bool:
    """Whether a process has set a handler for a signal."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)


def communicate_or_kill(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    try:
        return process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        pytest.fail(f"it did not end within {seconds:g} s")
