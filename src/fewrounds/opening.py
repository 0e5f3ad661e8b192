"""The engine for a problem and its workers: data are loaded, checked and agreed upon, and all is ready to work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewrounds.batch import Batch
from fewrounds.checks import can_vmap, check_labels, check_problem, example_of
from fewrounds.data.shards import Shard, Source, share_small, signature
from fewrounds.data.sources import Cast, Stream, check_alike, load_workers, read_batch
from fewrounds.draws import Draws
from fewrounds.engine.in_process import InProcess
from fewrounds.engine.loop import Programs
from fewrounds.engine.programs import Policy
from fewrounds.engine.team import Team, team_of
from fewrounds.errors import DataError, SettingError, kind_of, whole_number
from fewrounds.problem import Problem
from fewrounds.rounds import evaluated_samples

CACHE_BYTES = 2**20
"""Workers run side by side while their vectors fit in about this much memory, a CPU core's own cache."""


@dataclass(frozen=True)
class Ready:
    """An engine, and what is known of its workers."""

    engine: InProcess
    x: Tensor
    """The start."""
    sources: dict[int, Source]
    """Of the workers that this process holds."""
    evaluated: list[float]
    """By worker: how many samples are evaluated."""


def open_engine(
    problem: Problem,
    workers: Sequence[Any] | Callable[[int], Any],
    *,
    x0: Any = None,
    test: Any = None,
    seed: int = 0,
    weights: str = "uniform",
    num_workers: int | None = None,
    rows_at_once: int | None = None,
    compile: bool | str | Policy = "auto",
    rounds: int = 1,
    engine: str = "in-process",
    progress: bool = False,
    check: Callable[[Sequence[float]], None] = lambda sizes: None,
    settings: dict[str, Any] | None = None,
) -> Ready:
    """What the arguments mean says `fewrounds.train`. `check` may refuse the workers' sizes.

    The processes of a team must agree in `settings`, as in all else.
    """
    check_is_problem(problem)
    seed = whole_number("seed", seed, least=None)
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
    common = {"rounds": rounds, "seed": seed, "weights": weights, **(settings or {})}
    sizes, evaluated = _agree(team, problem, sources, count, common)
    team.together(lambda: check(sizes))
    x_start = team.share(team.together(lambda: _start(problem, x0).cpu())).to(problem.device)

    def set_up() -> Ready:
        """What each process can say of its own workers; rank 0 has the test set."""
        example = example_of(list(sources.values()))
        test_source = _test_source(test, cast, example) if test is not None and team.rank == 0 else None
        check_labels(problem, sources, test_source, example, x_start)
        check_problem(problem, example, x_start)
        problem.try_channels_last(x_start, example)
        rows = _rows_at_once(problem, rows_at_once, len(sources), example, x_start)
        held = share_small(sources) if rows > 1 else sources
        policy = compile if isinstance(compile, Policy) else Policy(compile)
        programs = Programs(problem, policy, rounds, _say_once(progress and team.rank == 0))
        opened = InProcess(problem, held, sizes, draws, weights, rows, programs, team, test_source)
        return Ready(opened, x_start, held, evaluated)

    return team.together(set_up)


def check_is_problem(problem: Any) -> None:
    if not isinstance(problem, Problem):
        raise SettingError(f"the problem is {kind_of(problem)}: expected a fewrounds.Problem")


def _agree(
    team: Team,
    problem: Problem,
    sources: dict[int, Source],
    count: int,
    settings: dict[str, Any],
) -> tuple[list[float], list[float]]:
    """What every process knows of all workers: their sizes, and how many samples of each are evaluated."""

    def own() -> tuple[dict[str, Any], dict[int, tuple[float, float]]]:
        if count < team.size:
            raise SettingError(f"there are {team.size} processes, but only {count} workers: start at most {count}")
        facts = {
            "problem": problem.description(),
            "number of workers": count,
            "kind of samples": signature(next(next(iter(sources.values())).everything())),
            **settings,
        }
        return facts, {p: (source.size, evaluated_samples(source)) for p, source in sources.items()}

    told = team.gather(team.together(own))

    def compare() -> None:
        for rank, (other, _) in enumerate(told):
            for name, value in other.items():
                if value != (mine := told[0][0][name]):
                    raise SettingError(f"rank {rank} has another {name} than rank 0: {value}, not {mine}")

    team.together(compare)
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
