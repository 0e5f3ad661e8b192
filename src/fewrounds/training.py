"""`train`: rounds, evaluation, checkpoints and callbacks around a method and an engine."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fewrounds.batch import Batch
from fewrounds.checkpoint import Checkpoints
from fewrounds.checks import can_vmap, check_labels, check_problem, example_of, probe
from fewrounds.data.shards import Shard, Source, share_small, signature
from fewrounds.data.sources import Cast, Stream, check_alike, load_workers, read_batch
from fewrounds.draws import Draws
from fewrounds.engine.in_process import InProcess
from fewrounds.engine.loop import Programs
from fewrounds.engine.programs import Policy
from fewrounds.engine.team import Team, team_of
from fewrounds.errors import DataError, SettingError, finite_number, kind_of, whole_number
from fewrounds.ledger import Ledger
from fewrounds.methods.base import Method
from fewrounds.problem import Problem
from fewrounds.rounds import RoundRecord, Rounds, default_cadence, evaluated_samples

if TYPE_CHECKING:
    import pandas

CACHE_BYTES = 2**20
"""Workers run side by side while their vectors fit in about this much memory, a CPU core's own cache."""


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
    if not isinstance(problem, Problem):
        raise SettingError(f"the problem is {kind_of(problem)}: expected a fewrounds.Problem")
    if not isinstance(method, Method):
        raise SettingError(f"the method is {kind_of(method)}: expected one such as LocalSGD(eta=0.1, K=16, b=16)")
    rounds = whole_number("rounds", rounds)
    if evaluate_every is not None:
        evaluate_every = whole_number("evaluate_every", evaluate_every)
    last = whole_number("evaluate_last", evaluate_last)
    if checkpoint_every is not None:
        checkpoint_every = whole_number("checkpoint_every", checkpoint_every)
    seed = whole_number("seed", seed, least=None)
    if checkpoint_seconds is not None:
        checkpoint_seconds = finite_number("checkpoint_seconds", checkpoint_seconds)
    if checkpoint is not None and not (isinstance(checkpoint, (str, Path)) and str(checkpoint)):
        raise SettingError(f"checkpoint = {checkpoint!r}: must be the path of a folder")
    if not isinstance(callbacks, Sequence) or not all(callable(callback) for callback in callbacks):
        raise SettingError("callbacks must be a list of functions that take a RoundRecord")

    team = team_of(engine, problem.device)
    draws = Draws(seed)
    cast = Cast(problem.dtype, problem.device, problem.has_model)
    sources, count = team.together(
        lambda: load_workers(
            workers,
            cast,
            num_workers=num_workers,
            evaluation_rng=lambda p: draws.generator("evaluation", 0, p),
            hosted=lambda p: team.owner(p) == team.rank,
        )
    )
    others = {
        "checkpoint": checkpoint is not None,
        "checkpoint_every": checkpoint_every,
        "checkpoint_seconds": checkpoint_seconds,
        "evaluate_every": evaluate_every,
        "evaluate_last": evaluate_last,
        "resume": resume,
        "trace": trace,
    }
    sizes, evaluated = team.together(
        lambda: _agree(team, problem, method, rounds, seed, weights, sources, count, others)
    )
    method.check(sizes)
    x_start = team.share(_start(problem, x0).cpu()).to(problem.device)

    def check() -> Source | None:
        """What each process can say of its own workers; rank 0 has the test set."""
        example = example_of(list(sources.values()))
        test_source = _test_source(test, cast, example) if test is not None and team.rank == 0 else None
        check_labels(problem, sources, test_source, example, x_start)
        check_problem(problem, example, x_start)
        return test_source

    test_source = team.together(check)
    example = example_of(list(sources.values()))
    problem.try_channels_last(x_start, example)
    rows = _rows_at_once(problem, rows_at_once, len(sources), example, x_start)
    if rows > 1:
        sources = share_small(sources)
    policy = compile if isinstance(compile, Policy) else Policy(compile)
    say = _say_once(progress and team.rank == 0)
    programs = Programs(problem, policy, rounds, say)
    processes = InProcess(problem, sources, sizes, draws, weights, rows, programs, team, test_source)

    every = team.share(
        evaluate_every or default_cadence(rounds, method.gradients_per_round(sizes), evaluated, test_source)
    )
    run = Rounds(method, processes, rounds, every, last, list(callbacks), trace, progress)
    if checkpoint is None:
        return Result(problem, method, *run.go(x_start, None, math.inf, math.inf))
    fingerprints = team.gather({p: source.fingerprint() for p, source in sources.items()})
    identity = {
        "problem": problem.description(),
        "start": hashlib.sha256(x_start.cpu().numpy().tobytes()).hexdigest(),
        "losses": probe(problem, example_of([sources[0]]), x_start) if team.rank == 0 else [],
        "method": {"name": method.name, **method.settings()},
        "workers": [fingerprints[team.owner(p)][p] for p in range(count)],
        "test": test_source.fingerprint() if test_source else None,
        "weights": weights,
        "seed": seed,
    }
    checkpoints = Checkpoints(checkpoint, identity, team)
    with checkpoints.locked():
        if team.share(not resume and checkpoints.exist()):
            raise SettingError(f"{checkpoint} has checkpoints already: choose another folder, or resume=True")
        seconds = math.inf if checkpoint_seconds is None else checkpoint_seconds
        return Result(problem, method, *run.go(x_start, checkpoints, checkpoint_every or math.inf, seconds))


def _agree(
    team: Team,
    problem: Problem,
    method: Method,
    rounds: int,
    seed: int,
    weights: str,
    sources: dict[int, Source],
    count: int,
    others: dict[str, Any],
) -> tuple[list[float], list[float]]:
    """What every process knows of all workers: their sizes, and how many samples of each are evaluated."""
    if count < team.size:
        raise SettingError(f"there are {team.size} processes, but only {count} workers: start at most {count}")
    settings = {
        "problem": problem.description(),
        "method": repr(method),
        "rounds": rounds,
        "seed": seed,
        "weights": weights,
        "number of workers": count,
        "kind of samples": signature(next(next(iter(sources.values())).everything())),
        **others,
    }
    told = team.gather((settings, {p: (source.size, evaluated_samples(source)) for p, source in sources.items()}))
    for rank, (other, _) in enumerate(told):
        for name, value in other.items():
            if value != (mine := told[0][0][name]):
                raise SettingError(f"rank {rank} has another {name} than rank 0: {value}, not {mine}")
    known = {p: facts for _, own in told for p, facts in own.items()}
    return [known[p][0] for p in range(count)], [known[p][1] for p in range(count)]


def _say_once(show: bool) -> Callable[[str], None]:
    """Prints a line on standard error, unless it has been printed before or nothing is to be shown."""

    def say(text: str) -> None:
        if show and text not in _said:
            _said.add(text)
            print(f"fewrounds: {text}", file=sys.stderr, flush=True)

    return say


_said: set[str] = set()


def _start(problem: Problem, x0: Any) -> Tensor:
    if x0 is None:
        return problem.start
    try:
        start = torch.as_tensor(x0).detach().to(problem.device, problem.dtype).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"x0 is not a vector of numbers: {error}") from error
    if start.shape != (problem.dim,):
        raise SettingError(f"x0 has shape {list(start.shape)}, but the problem needs [{problem.dim}]")
    if not torch.isfinite(start).all():
        raise SettingError("x0 has a NaN or infinite value")
    return start


def _test_source(test: Any, cast: Cast, example: Batch) -> Source:
    if isinstance(test, Stream):
        raise DataError("the test set is a Stream: expected arrays or a map-style dataset, which have an exact loss")
    z = cast(read_batch(test, "the test set", has_target=cast.has_target), "the test set")
    check_alike(z, example, "the test set", "worker 0")
    return Shard(z)


def _rows_at_once(problem: Problem, wanted: int | None, workers: int, example: Batch, x: Tensor) -> int:
    """As asked, or: all workers for a small model or a GPU, one at a time for a model that would spill the cache."""
    if wanted is not None:
        wanted = whole_number("rows_at_once", wanted)
        if wanted > 1 and not can_vmap(problem, example, x):
            raise SettingError(f"rows_at_once = {wanted}: torch cannot vmap this problem, use 1")
        return min(wanted, workers)
    most = workers
    if problem.device.type == "cpu":
        most = max(1, min(workers, CACHE_BYTES // (x.element_size() * problem.dim)))
    return most if most > 1 and can_vmap(problem, example, x) else 1
