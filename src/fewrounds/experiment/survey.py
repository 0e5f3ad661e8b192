"""Measurements of an experiment's problems: at the start, and along a training. Each is saved, and none made twice."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fewrounds.errors import ResultsError, one_line
from fewrounds.experiment import grid
from fewrounds.experiment.config import Experiment
from fewrounds.experiment.grid import RunSpec
from fewrounds.experiment.store import Store, now, setting_columns, write_json
from fewrounds.experiment.work import data_digest, execute, method_of, problem_of, workers_of

if TYPE_CHECKING:
    from fewrounds.theory.estimate import Measurement

PROBLEM = ("weights", "dtype")
"""What of a run's training settings is part of the problem that is measured."""


@contextmanager
def one_thread() -> Iterator[None]:
    """Small products on several threads spend their time waiting for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def problems(experiment: Experiment) -> list[RunSpec]:
    """One spec for each problem in the grid, whatever the method and the budget; with the first seed's start."""
    out: dict[str, RunSpec] = {}
    for cell in grid.cells(experiment):
        out.setdefault(_key(experiment, cell), grid.with_values(cell, 1.0, experiment.train.seed[0], "measure"))
    return list(out.values())


def cells_of(experiment: Experiment, spec: RunSpec) -> list[RunSpec]:
    """The cells of the grid that are this problem, whatever the method and the budget."""
    return [cell for cell in grid.cells(experiment) if _key(experiment, cell) == _key(experiment, spec)]


def at_start(experiment: Experiment, store: Store, spec: RunSpec, wanted: Collection[str] | None = None) -> Measurement:
    """The measurement of the spec's problem at the start, from the folder if it is there: what advice needs, or these
    figures."""
    from fewrounds.theory.advise import NEEDED

    start = grid.with_values(spec, 1.0, experiment.train.seed[0], "measure")
    return _measured(experiment, store, start, 0, None, {}, NEEDED if wanted is None else wanted)


def along(experiment: Experiment, store: Store, spec: RunSpec) -> Iterator[tuple[int, Measurement]]:
    """The rounds of [measure] and the measurements there, along a training from the same start."""
    from fewrounds.theory.advise import NEEDED
    from fewrounds.theory.estimate import FIGURES
    from fewrounds.theory.steps import step_size

    last = spec.train["rounds"]
    wanted = experiment.measure.rounds or sorted({0, max(1, last // 100), max(1, last // 10), last})
    later = sorted(set(wanted) - {0})
    only = experiment.measure.only or FIGURES
    start = at_start(experiment, store, spec, {*(only if 0 in wanted else ()), *(NEEDED if later else ())})
    if 0 in wanted:
        yield 0, start
    if not later:
        return
    train = {**spec.train, "method": experiment.measure.method, "rounds": max(later), "evaluate_last": 1}
    own = experiment.methods.get(experiment.measure.method, {})
    settings = {key: value[0] if isinstance(value, list) else value for key, value in own.items()}
    if train["budget"] is None and not settings:
        train["budget"] = 256
    run = RunSpec(spec.data, spec.partition, spec.model, train, settings)
    eta = step_size(start, method_of(run), max(later)).method.eta
    run = grid.with_values(run, eta, spec.train["seed"], "measure")
    code = grid.code_digest(train["method"])
    way = {"method": train["method"], "eta": eta, "rounds": max(later), **settings, "code": code}
    way |= {key: train[key] for key in ("budget", "budget_mode")}
    known = {round: _load(store, _name(experiment, spec, round, way), only) for round in later}
    points = {} if all(known.values()) else _points(run, later)
    for round in later:
        yield round, known[round] or _measured(experiment, store, spec, round, points[round], way, only)


def saved(store: Store) -> list[dict[str, Any]]:
    """All measurements in a folder: their settings, the round, and the figures."""
    found = []
    for path in (store.folder / "measurements").glob("*.json"):
        try:
            one = json.loads(path.read_text())
            found.append((one["round"], one["made"], one))
        except (OSError, ValueError, KeyError, TypeError):
            raise ResultsError(f"{path} cannot be read: delete it, and measure again") from None
    return [one for _, _, one in sorted(found, key=lambda entry: entry[:2])]


def advised_choice(experiment: Experiment, store: Store, cell: RunSpec) -> dict[str, Any]:
    """The step size for a cell, and what limits it."""
    from fewrounds.theory.steps import step_size

    method = method_of(grid.with_values(cell, 1.0, experiment.train.seed[0], ""))
    choice = step_size(at_start(experiment, store, cell), method, cell.train["rounds"])
    # three digits are more than it is known to, and what a table shows is then what was run
    eta = float(f"{choice.method.eta:.3g}")
    return {"eta": eta, "limit": choice.limit, "at_edge": False, "score": None, "scores": {}, "reason": ""}


def _measured(
    experiment: Experiment,
    store: Store,
    spec: RunSpec,
    round: int,
    x: Any,
    way: dict[str, Any],
    wanted: Collection[str],
) -> Measurement:
    """With these figures at least: none is lost that a saved measurement has."""
    from fewrounds.opening import open_engine
    from fewrounds.theory.estimate import FIGURES
    from fewrounds.theory.measure import How, measure_with

    name = _name(experiment, spec, round, way)
    if (known := _load(store, name, wanted)) is not None:
        return known
    saved = _load(store, name, ())
    only = tuple(one for one in FIGURES if one in wanted or (saved is not None and one in saved.costs))
    label = " ".join(part for part in spec.label(eta=False).split()[1:] if not part.startswith("budget="))
    print(f"measuring {label}, round {round}", file=sys.stderr, flush=True)
    with one_thread():
        ready = open_engine(
            problem_of(spec), workers_of(spec), x0=x, seed=spec.train["seed"], weights=spec.train["weights"],
            compile=False,
        )  # fmt: skip
        found = measure_with(ready.engine, ready.x, How(only=only, **experiment.measure.settings()))
    columns = {
        key: value
        for key, value in setting_columns(spec.identity()).items()
        if key not in ("method", "budget", "budget_mode", "rounds", *spec.settings)
    }
    content = {
        **columns,
        "round": round,
        "along": way,
        "problem": hashlib.sha256(_key(experiment, spec).encode()).hexdigest()[:16],
        "seed": spec.train["seed"],
        "made": now(),
        "measurement": found.to_json(),
    }
    with one_line(f"cannot write {store.folder}", ResultsError):
        (store.folder / "measurements").mkdir(parents=True, exist_ok=True)
        write_json(store.folder / "measurements" / f"{name}.json", content)
    return found


def _load(store: Store, name: str, wanted: Collection[str]) -> Measurement | None:
    """What was saved; nothing if it lacks one of these figures, as those of earlier versions or of advice may."""
    from fewrounds.theory.estimate import Measurement

    try:
        content = json.loads((store.folder / "measurements" / f"{name}.json").read_text())
        found = Measurement.from_json(content["measurement"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    there = set(found.costs) - ({"sigma2"} if math.isnan(found.sigma2_mean) else set())
    return found if set(wanted) <= there else None


def _points(run: RunSpec, rounds: list[int]) -> dict[int, Any]:
    """The iterates after these rounds of a training."""
    print(f"training {run.train['method']} for {max(rounds)} rounds", file=sys.stderr, flush=True)
    points: dict[int, Any] = {}

    def keep(record: Any) -> None:
        if record.round in rounds:
            points[record.round] = record.x

    with one_thread():
        result = execute(run, callbacks=(keep,))
    if result.outcome != "finished":
        raise ResultsError(
            f"{run.train['method']} diverged at the advised step size {run.train['eta']:.3g}: there is nothing to "
            "measure along its way; set measure.rounds = [0]"
        )
    return points


def _name(experiment: Experiment, spec: RunSpec, round: int, way: dict[str, Any]) -> str:
    content = [_key(experiment, spec), data_digest(spec), round, {**way} if round else {}]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _key(experiment: Experiment, cell: RunSpec) -> str:
    """What tells one problem from another."""
    train = {key: cell.train[key] for key in PROBLEM}
    how = experiment.measure.model_dump(mode="json", exclude={"rounds", "method", "only"})
    model = [cell.model, grid.model_digest(cell.model["kind"])]
    return json.dumps([cell.data, cell.partition, model, train, experiment.train.seed[0], how], sort_keys=True)
