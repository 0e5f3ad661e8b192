"""Whole experiments through `fewrounds run` on two cores: W1 and W3."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure
import numpy as np
import plain
import works
from common import alone_on_a_core
from plain import tensors

HERE = Path(__file__).parent

TURNS = 3
"""Plain processes before the grid, and as many after it: they differ by some ten percent."""

GRID = """
name = "bench"
[data]
source = "{source}"
[partition]
kind = "iid"
workers = 10
[model]
hidden = [100]
l2 = 0.005
[train]
method = "local-sgd"
rounds = {rounds}
eta = {eta}
seed = {seeds}
[methods.local-sgd]
K = {K}
b = {b}
"""


def grid_w1() -> dict[str, Any]:
    return grid("w1", works.W1, [0.01], [0, 1, 2, 3], rounds=500)


def grid_w3() -> dict[str, Any]:
    return grid("w3", works.W3, [0.005, 0.01, 0.05, 0.1, 0.5, 1.0], [0, 1, 2, 3, 4], rounds=1500)


def grid(name: str, work: works.Work, etas: list[float], seeds: list[int], rounds: int) -> dict[str, Any]:
    """A whole experiment through `fewrounds run`: starting processes, loading, evaluating and saving included."""
    data = tensors(work)
    few = 3 if name == "w1" else 40
    with tempfile.TemporaryDirectory() as folder, measure.alone():
        X, y = (np.concatenate([part[i].numpy() for part in data]) for i in (0, 1))
        fifth = len(y) // 5
        np.savez(Path(folder) / "data.npz", x_train=X, y_train=y, x_test=X[:fifth], y_test=y[:fifth])
        text = GRID.format(source=f"{folder}/data.npz", rounds=rounds, eta=etas, seeds=seeds, K=work.K, b=work.b)
        (Path(folder) / "bench.toml").write_text(text)
        command = [sys.executable, "-m", "fewrounds", "run", "bench.toml", "--compile", "-j", "2", "--output"]
        warm = [*command, "warm", "--set", "train.rounds=1", "--set", f"train.seed={seeds[:2]}"]
        quiet = {"cwd": folder, "check": True, "capture_output": True}
        subprocess.run(warm, **quiet)  # data into the cache, steps compiled
        plain_ones = [plain_processes(name, few, 1) for _ in range(TURNS)]
        seconds = measure.timed(lambda: subprocess.run([*command, "out"], **quiet))
        plain_ones += [plain_processes(name, few, 1) for _ in range(TURNS)]
        two = plain_processes(name, few, 2) / 2
    usual = float(np.median(plain_ones))
    runs = len(etas) * len(seeds)
    one = seconds / (runs * rounds)
    times = {"ours": one, "plain": usual, "two plain processes": two, "whole grid": seconds}
    found = {"ratio": one / usual, "ratios": sorted(one / plain_one for plain_one in plain_ones), "seconds": times}
    return {f"{name}, {runs} runs of {rounds} rounds": found}


def plain_processes(name: str, rounds: int, count: int) -> float:
    """Seconds a round of the plain loop takes in a process of its own, beside others that do the same."""
    command = [sys.executable, "-c", f"import grids; print(grids.plain_rounds({name!r}, {rounds}))"]
    started = [subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return sum(float(process.communicate()[0]) for process in started) / count


def plain_rounds(name: str, rounds: int) -> float:
    """Median seconds of a plain round."""
    alone_on_a_core()
    work, model = {"w1": (works.W1, plain.w1_model), "w3": (works.W3, plain.w3_model)}[name]
    loop = plain.LocalSGDLoop(model(), tensors(work), work)
    return float(np.median([measure.timed(loop.round) for _ in range(4 * rounds)][rounds:]))
