"""Alternating measurement: machines are noisy, so only ratios of times taken in one run are worth anything."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

import fewrounds as fr
from fewrounds.engine.base import Evaluation
from fewrounds.engine.in_process import InProcess


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Hold the lock that `FEWROUNDS_BENCH_LOCK` names, so that two benchmarks on a machine take turns."""
    path = os.environ.get("FEWROUNDS_BENCH_LOCK")
    if not path:
        yield
        return
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def without_evaluation() -> Iterator[None]:
    """`train` looks at the start and the end whatever it is told; the plain loops look at nothing."""

    def nothing(self: InProcess, x: Tensor, gradient: bool = True) -> Evaluation:
        return Evaluation(x.new_zeros(()), x.new_zeros(()), None)

    usual = InProcess.evaluate
    InProcess.evaluate = nothing  # type: ignore[method-assign]
    try:
        yield
    finally:
        InProcess.evaluate = usual  # type: ignore[method-assign]


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def against(
    others: dict[str, Callable[[], object]],
    problem: fr.Problem,
    workers: Sequence[Any],
    method: fr.Method,
    rounds: int,
    period: int = 1,
    **options: Any,
) -> dict[str, float]:
    """Median seconds of a round of ours and of one call of each of the others, taken in turn; and, as "ratio", the
    median ratio of a round of ours to the plain calls just before and after it, so that a spell in which the machine
    is slow touches both. With stages of `period` rounds, of which the first costs more, a ratio is that of a stage.

    A round of ours is all that happens between two callbacks of `train`: the round, the ledger, the bookkeeping. The
    first round, in which steps are traced or loaded, is not counted, and evaluation is switched off.
    """
    times: dict[str, list[float]] = {"ours": [], **{name: [] for name in others}}
    last: float | None = None

    def after_round(record: fr.RoundRecord) -> None:
        nonlocal last
        if last is not None and record.round > 2:
            times["ours"].append(time.perf_counter() - last)
        for name, other in others.items():
            times[name].append(timed(other))
        last = time.perf_counter()

    options = {"evaluate_every": 10**9, "progress": False, **options}
    with alone(), without_evaluation():
        fr.train(problem, workers, method, rounds + 2, callbacks=[after_round], **options)
    beside = [(before + after) / 2 for before, after in itertools.pairwise(times["plain"][1:])]
    stages = range(0, len(beside) - period + 1, period)
    ratios = [sum(times["ours"][i : i + period]) / sum(beside[i : i + period]) for i in stages]
    medians = {name: statistics.median(values[1:] if name != "ours" else values) for name, values in times.items()}
    return {"ratio": statistics.median(ratios), **medians}
