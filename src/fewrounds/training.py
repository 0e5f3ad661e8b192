"""`train`: rounds, evaluation, checkpoints and callbacks around a method and an engine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fewrounds.checkpoint import Checkpoints
from fewrounds.checks import example_of, probe
from fewrounds.engine.programs import Policy
from fewrounds.errors import SettingError, finite_number, kind_of, whole_number
from fewrounds.ledger import Ledger
from fewrounds.methods.base import Method
from fewrounds.opening import check_is_problem, open_engine
from fewrounds.problem import Problem
from fewrounds.rounds import RoundRecord, Rounds, default_cadence

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Result:
    """What `train` returns."""

    problem: Problem
    method: Method
    x: Tensor
    """The method's answer: the last iterate, unless the method's publication says otherwise."""
    rows: tuple[dict[str, float], ...]
    trace: Tensor | None
    """[rounds + 1, d]: every iterate, the start first (with trace=True)."""
    ledger: Ledger
    outcome: str
    """"finished", or "diverged" if the loss became infinite or NaN and the run ended there."""

    @cached_property
    def model(self) -> nn.Module:
        """The model with x as its parameters."""
        return self.problem.module(self.x)

    @cached_property
    def history(self) -> pandas.DataFrame:
        """One row per evaluated round; round 0 is the start. Cost columns are cumulative."""
        import pandas

        whole = ["round", "picked", "vectors_up", "vectors_down", "bytes_up", "bytes_down"]
        return pandas.DataFrame(list(self.rows)).astype(dict.fromkeys(whole, "int64"))


def train(
    problem: Problem,
    workers: Sequence[Any] | Callable[[int], Any],
    method: Method,
    rounds: int,
    *,
    x0: Any = None,
    test: Any = None,
    seed: int = 0,
    weights: str = "uniform",
    num_workers: int | None = None,
    evaluate_every: int | None = None,
    evaluate_last: int = 1,
    callbacks: Sequence[Callable[[RoundRecord], object]] = (),
    trace: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = 60.0,
    resume: bool = True,
    rows_at_once: int | None = None,
    compile: bool | str | Policy = "auto",
    engine: str = "in-process",
    progress: bool = True,
) -> Result:
    """Minimise the problem over the workers' data by the method, for a number of communication rounds.

    workers             one item a worker: an array or tensor, a tuple of them, a map-style dataset (read into memory
                        once) or a `Stream`; or a function worker(p), with num_workers
    x0                  the start; the model's own parameters by default, 0 for a plain loss
    test                data of the same form as a worker's, for the test columns
    seed                decides every draw: same seed, same samples, whatever the method
    weights             "uniform", or "size" to weigh the mean and the draw of p̂ by the workers' sizes
    evaluate_every      rounds between evaluations over all train and test data; by default about 100 in a run, or
                        fewer (at least 5), so that they take less than a tenth of the time. The start and the end are
                        always evaluated
    evaluate_last       the last rounds, all of which are evaluated; those that evaluate_every would leave out have no
                        gradient_norm, which takes as long as all the rest
    callbacks           each is called once after every round, with a `RoundRecord`
    trace               keep every iterate in `result.trace`
    checkpoint          a folder; the run is saved there every checkpoint_every rounds or checkpoint_seconds seconds,
                        whichever comes first, and at its end. Called again with the same folder, `train` continues
                        exactly where the newest checkpoint ends (with more rounds too; what a shorter run has
                        evaluated stays in the history); resume=False refuses a folder that has one
    rows_at_once        workers that are computed side by side; never changes the result beyond rounding
    compile             True compiles the local steps (which takes a while, once for a machine: it is kept on disk),
                        False does not, "auto" does if the run has enough of them; never changes the result beyond
                        rounding
    engine              "in-process", or "torchrun" in a script that torchrun has started: each of N ranks holds the
                        workers p with p mod N = rank, and loads only them if the workers are a function. The result is
                        the same on every rank; test data, callbacks and checkpoints are rank 0's alone
    progress            a bar on a terminal, a few lines otherwise
    """
    check_is_problem(problem)
    if not isinstance(method, Method):
        raise SettingError(f"the method is {kind_of(method)}: expected one such as LocalSGD(eta=0.1, K=16, b=16)")
    rounds = whole_number("rounds", rounds)
    if evaluate_every is not None:
        evaluate_every = whole_number("evaluate_every", evaluate_every)
    last = whole_number("evaluate_last", evaluate_last)
    if checkpoint_every is not None:
        checkpoint_every = whole_number("checkpoint_every", checkpoint_every)
    if checkpoint_seconds is not None:
        checkpoint_seconds = finite_number("checkpoint_seconds", checkpoint_seconds)
    if checkpoint is not None and not (isinstance(checkpoint, (str, Path)) and str(checkpoint)):
        raise SettingError(f"checkpoint = {checkpoint!r}: must be the path of a folder")
    if not isinstance(callbacks, Sequence) or not all(callable(callback) for callback in callbacks):
        raise SettingError("callbacks must be a list of functions that take a RoundRecord")

    ready = open_engine(
        problem, workers, x0=x0, test=test, seed=seed, weights=weights, num_workers=num_workers,
        rows_at_once=rows_at_once, compile=compile, rounds=rounds, engine=engine, progress=progress,
        check=method.check,
        settings={
            "method": repr(method),
            "checkpoint": checkpoint is not None,
            "checkpoint_every": checkpoint_every,
            "checkpoint_seconds": checkpoint_seconds,
            "evaluate_every": evaluate_every,
            "evaluate_last": evaluate_last,
            "resume": resume,
            "trace": trace,
        },
    )  # fmt: skip
    processes, x_start = ready.engine, ready.x
    team, sizes, test_source = processes.team, processes.sizes, processes.test
    every = team.share(
        evaluate_every or default_cadence(rounds, method.gradients_per_round(sizes), ready.evaluated, test_source)
    )
    run = Rounds(method, processes, rounds, every, last, list(callbacks), trace, progress)
    if checkpoint is None:
        return Result(problem, method, *run.go(x_start, None, math.inf, math.inf))
    fingerprints = team.gather(team.together(lambda: {p: own.fingerprint() for p, own in ready.sources.items()}))

    def identify() -> dict[str, Any]:
        return {
            "problem": problem.description(),
            "start": hashlib.sha256(x_start.cpu().numpy().tobytes()).hexdigest(),
            "losses": probe(problem, example_of([ready.sources[0]]), x_start) if team.rank == 0 else [],
            "method": {"name": method.name, **method.settings()},
            "workers": [fingerprints[team.owner(p)][p] for p in range(len(sizes))],
            "test": test_source.fingerprint() if test_source else None,
            "weights": weights,
            "seed": processes.draws.seed,
        }

    identity = team.together(identify)
    checkpoints = Checkpoints(checkpoint, identity, team)

    def refuse_old() -> None:
        if team.rank == 0 and not resume and checkpoints.exist():
            raise SettingError(f"{checkpoint} has checkpoints already: choose another folder, or resume=True")

    with checkpoints.locked():
        team.together(refuse_old)
        seconds = math.inf if checkpoint_seconds is None else checkpoint_seconds
        return Result(problem, method, *run.go(x_start, checkpoints, checkpoint_every or math.inf, seconds))
