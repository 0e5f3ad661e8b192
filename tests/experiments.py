"""A small experiment on digits for the tests of everything that runs one."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd

import fewrounds as fr

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


def _hear() -> None:
    """A shell's background is deaf to Ctrl-C, and what nohup started to a closed terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(*arguments: str | Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fewrounds", *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hear,
    )
