"""Alternating measurement: machines are noisy, so only ratios of times taken in one run are worth anything."""

from __future__ import annotations

import contextlib
import fcntl
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fewrounds as fr


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
    **options: Any,
) -> dict[str, float]:
    """Median seconds of a round of ours and of one call of each of the others, taken in turn.

    A round of ours is all that happens between two callbacks of `train`: the round, the ledger, the bookkeeping. The
    first round, in which steps are traced or loaded, is not counted.
    """
    times: dict[str, list[float]] = {"ours": [], **{name: [] for name in others}}
    last: float | None = None

    def after_round(record: fr.RoundRecord) -> None:
        nonlocal last
        if last is not None and 2 < record.round < record.rounds:  # the last round ends with an evaluation
            times["ours"].append(time.perf_counter() - last)
        for name, other in others.items():
            times[name].append(timed(other))
        last = time.perf_counter()

    never = 10**9
    with alone():
        fr.train(
            problem,
            workers,
            method,
            rounds + 3,
            evaluate_every=never,
            callbacks=[after_round],
            progress=False,
            **options,
        )
    return {name: statistics.median(values[1:] if name != "ours" else values) for name, values in times.items()}
