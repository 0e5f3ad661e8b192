"""The runs of an experiment: every combination of the values on its axes."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import inspect
import itertools
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from fewrounds.experiment.config import Experiment
from fewrounds.methods.base import method_class

FORMAT = 1


@dataclass(frozen=True)
class RunSpec:
    """One run, every setting a single value."""

    data: dict[str, Any]
    partition: dict[str, Any]
    model: dict[str, Any]
    train: dict[str, Any]
    """method, rounds, eta, budget, budget_mode, seed, weights, evaluate_every, evaluate_last, dtype"""
    settings: dict[str, Any]
    """Further settings of the method."""
    role: str = field(default="report", compare=False)

    def identity(self) -> dict[str, Any]:
        """All that decides the result."""
        return {
            "data": self.data,
            "partition": self.partition,
            "model": self.model,
            "train": self.train,
            "settings": self.settings,
        }

    def fingerprint(self, data: str) -> str:
        """The name of the run: a digest of its settings, its data and the code of its method."""
        code = [code_digest(self.train["method"]), model_digest(self.model["kind"])]
        content = {**self.identity(), "data_digest": data, "code": code, "format": FORMAT}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def cell(self) -> dict[str, Any]:
        """What tells this run from others but for eta and seed: runs of one cell are tuned and averaged together."""
        train = {key: value for key, value in self.train.items() if key not in ("eta", "seed")}
        return {**self.identity(), "train": train}

    def label(self, eta: bool = True) -> str:
        """A short name for progress lines, with eta and seed or without."""
        words = [self.train["method"], self.data["source"]]
        for key in ("q", "alpha"):
            if self.partition.get(key) is not None:
                words.append(f"{key}={self.partition[key]:g}")
        if self.train["budget"] is not None:
            words.append(f"budget={self.train['budget']}")
        if eta:
            words += [f"eta={self.train['eta']:g}", f"seed={self.train['seed']}"]
        return " ".join(words)


@cache
def code_digest(method: str) -> str:
    """A digest of the code that decides a method's iterates: its own file, and what methods share."""
    import fewrounds.draws
    import fewrounds.methods.budget
    import fewrounds.methods.stages
    import fewrounds.methods.tasks

    own = inspect.getmodule(method_class(method))
    shared = [fewrounds.draws, fewrounds.methods.budget, fewrounds.methods.stages, fewrounds.methods.tasks]
    digest = hashlib.sha256()
    for module in [own, *shared]:
        assert module is not None, "a registered method lives in a module"
        digest.update(inspect.getsource(module).encode())
    return digest.hexdigest()


@cache
def model_digest(kind: str) -> str:
    """A digest of the file that builds a model of the user's own; "" for the package's."""
    if ":" not in kind:
        return ""
    found = importlib.util.find_spec(kind.partition(":")[0])
    if found is None or found.origin is None:
        return ""
    return hashlib.sha256(Path(found.origin).read_bytes()).hexdigest()


def cells(experiment: Experiment) -> list[RunSpec]:
    """One spec for each combination of all axes but eta and seed, which are still to be filled in."""
    e = experiment
    last = e.tuning.last if e.tuning is not None and e.tuning.rule == "paper" else 1
    out = []
    for data, partition, model, train in itertools.product(
        _combinations(e.data),
        _combinations(e.partition),
        _combinations(e.model),
        _combinations(e.train, "eta", "eta_from", "seed"),
    ):
        train = {**train, "evaluate_last": min(last, train["rounds"])}
        for settings in _each(e.methods.get(train["method"], {})):
            out.append(RunSpec(data, _relevant(partition), model, train, settings))
    return _without_repeats(out)


def with_values(cell: RunSpec, eta: float, seed: int, role: str) -> RunSpec:
    return RunSpec(cell.data, cell.partition, cell.model, {**cell.train, "eta": eta, "seed": seed}, cell.settings, role)


def tuning_runs(experiment: Experiment, cell: RunSpec) -> list[RunSpec]:
    if experiment.tuning is None:
        return []
    tuning = experiment.tuning
    etas = dict.fromkeys([*tuning.eta, *tuning.more.get(cell.train["method"], [])])
    if tuning.evaluate_every is not None:
        cell = dataclasses.replace(cell, train={**cell.train, "evaluate_every": tuning.evaluate_every})
    return [with_values(cell, eta, seed, "tuning") for eta in etas for seed in tuning.seed]


def report_runs(experiment: Experiment, cell: RunSpec, eta: float | None) -> list[RunSpec]:
    """The reported runs of a cell; eta is the chosen one, or None to run every eta of the file."""
    etas = experiment.train.eta if eta is None else [eta]
    assert isinstance(etas, list), "without tuning or advice, train.eta is a list"
    # Only the choice of eta looks at every one of the last rounds.
    cell = dataclasses.replace(cell, train={**cell.train, "evaluate_last": 1})
    return [with_values(cell, eta, seed, "report") for eta in etas for seed in experiment.train.seed]


def _combinations(section: Any, *left_out: str) -> list[dict[str, Any]]:
    """Every combination of a section's axes, as plain values."""
    axes: dict[str, list[Any]] = {}
    for name, info in type(section).model_fields.items():
        if name in left_out:
            continue
        value = getattr(section, name)
        is_axis = isinstance(value, list) and "BeforeValidator" in repr(info)
        axes[name] = value if is_axis else [value]
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def _each(settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Every combination of a method's settings, of which a list is an axis."""
    values = [value if isinstance(value, list) else [value] for value in settings.values()]
    return [dict(zip(settings, one, strict=True)) for one in itertools.product(*values)]


RELEVANT = {
    "class-skew": {"q"},
    "dirichlet": {"alpha"},
    "shards": {"shards_per_worker"},
    "pathological": {"classes_per_worker"},
    "iid": set(),
    "natural": set(),
}


def _relevant(partition: dict[str, Any]) -> dict[str, Any]:
    """Only the settings this kind of split uses: another alpha makes no other class-skew split."""
    used = RELEVANT[partition["kind"]] | {"kind"}
    used |= set() if partition["kind"] == "natural" else {"workers", "seed"}
    return {key: value if key in used else None for key, value in partition.items()}


def _without_repeats(specs: list[RunSpec]) -> list[RunSpec]:
    seen: dict[str, RunSpec] = {}
    for spec in specs:
        seen.setdefault(json.dumps(spec.identity(), sort_keys=True), spec)
    return list(seen.values())
