"""One run of an experiment: its data, its problem, its method, and the training itself."""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fewrounds.data import partition
from fewrounds.errors import DataError, SettingError
from fewrounds.experiment.grid import RunSpec

if TYPE_CHECKING:
    from torch import nn

    from fewrounds.methods.base import Method
    from fewrounds.problem import Problem
    from fewrounds.rounds import RoundRecord
    from fewrounds.training import Result

LARGE = 50_000_000
"""Bytes from which on a data set that was read into memory is put in the cache instead."""

Rows = npt.NDArray[np.int64]
Arrays = tuple[npt.NDArray[Any], npt.NDArray[Any]]


@dataclass(frozen=True)
class Prepared:
    """A data set with the rows that an experiment uses."""

    train: Arrays
    test: Arrays | None
    rows: Rows
    """The training rows in use: all, or equally many of every class."""
    ids: npt.NDArray[Any] | None
    classes: int
    fingerprint: str

    @property
    def labels(self) -> npt.NDArray[Any]:
        return np.asarray(self.train[1])[self.rows]


def prepare(data: dict[str, Any]) -> Prepared:
    """Load a data set once in this process; its arrays are memory maps that processes share."""
    return _prepare(json.dumps(data, sort_keys=True))


@lru_cache(maxsize=4)
def _prepare(settings: str) -> Prepared:
    from fewrounds.data import catalog

    data = json.loads(settings)
    named = data["source"] in catalog.NAMES  # these have labels and a test part of their own
    found = catalog.load(
        data["source"],
        label=None if named else data["label"],
        test=None if named else data["test"],
        test_fraction=data["test_fraction"],
        id_column=None if named else data["id_column"],
        progress=multiprocessing.parent_process() is None,  # the first to ask shows the download
    )
    if not isinstance(found.train[0], np.memmap) and found.train[0].nbytes > LARGE:
        found = catalog.as_memory_maps(found)  # for all processes to share
    rows = np.arange(len(found.train[1]), dtype=np.int64)
    test = found.test
    if found.classes and data["equalise"]:
        rows = partition.equalise_classes(found.train[1])
        if test is not None:
            kept = partition.equalise_classes(test[1])
            test = test if len(kept) == len(test[1]) else (test[0][kept], test[1][kept])
    if data["limit"] is not None and not found.classes:
        raise SettingError("data.limit keeps samples of every class, but the data set has no classes: leave it out")
    if data["limit"] is not None:
        labels = np.asarray(found.train[1])[rows]
        rows = np.sort(np.concatenate([rows[labels == c][: data["limit"]] for c in np.unique(labels)]))
    digest = hashlib.sha256(f"{found.fingerprint}{data['equalise']}{data['limit']}".encode()).hexdigest()
    return Prepared(found.train, test, rows, found.ids, found.classes, digest)


def parts_of(spec: RunSpec) -> list[Rows]:
    """The training rows of each worker."""
    return _parts(json.dumps(spec.data, sort_keys=True), json.dumps(spec.partition, sort_keys=True))


@lru_cache(maxsize=16)
def _parts(data: str, settings: str) -> list[Rows]:
    prepared = _prepare(data)
    how = json.loads(settings)
    if not prepared.classes and how["kind"] not in ("iid", "natural"):
        raise DataError(f"the {how['kind']} split needs class labels, but the data set has none; use kind = 'iid'")
    ids = None if prepared.ids is None else prepared.ids[prepared.rows]
    return [prepared.rows[part] for part in partition.split(prepared.labels, ids=ids, **how)]


def data_digest(spec: RunSpec) -> str:
    """A digest of the samples and of who has them."""
    together = prepare(spec.data).fingerprint + partition.fingerprint(parts_of(spec))
    return hashlib.sha256(together.encode()).hexdigest()


def workers_of(spec: RunSpec) -> list[Any]:
    from fewrounds.data.sources import Part

    train = prepare(spec.data).train
    return [Part(train, rows) for rows in parts_of(spec)]


def problem_of(spec: RunSpec) -> Problem:
    import torch
    from torch.nn.functional import cross_entropy, mse_loss

    from fewrounds.problem import Problem

    prepared = prepare(spec.data)
    shape = prepared.train[0].shape[1:]
    model = build_model(spec.model, shape, max(1, prepared.classes), spec.train["seed"])
    loss = (
        cross_entropy if prepared.classes else (lambda output, target: mse_loss(output.reshape(target.shape), target))
    )
    dtype = torch.float64 if spec.train["dtype"] == "float64" else torch.float32
    return Problem(model, loss=loss, l2=spec.model["l2"], dtype=dtype)


def check(spec: RunSpec) -> None:
    """Refuse a split, a method or a model that cannot be, before anything is run."""
    parts_of(spec)
    method_of(spec)
    if ":" in spec.model["kind"]:
        _imported(spec.model["kind"])
    else:
        problem_of(spec)


def build_model(settings: dict[str, Any], shape: tuple[int, ...], classes: int, seed: int) -> nn.Module:
    from torch import nn

    from fewrounds.models import cnn, mlp

    kind = settings["kind"]
    activations = {"softplus": nn.Softplus, "relu": nn.ReLU, "tanh": nn.Tanh}
    if kind == "mlp":
        net = mlp([math.prod(shape), *settings["hidden"], classes], seed, activations[settings["activation"]])
        return net if len(shape) == 1 else nn.Sequential(nn.Flatten(), *net)
    if kind == "cnn":
        if len(shape) != 3 or min(shape[1:]) < 6:
            raise SettingError(
                f"model.kind = 'cnn' needs images of at least 6×6 pixels, but a sample has shape {list(shape)}"
            )
        return cnn(shape, classes, seed)
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # a function that leaves the start to torch starts the same each time, too
        model: nn.Module = _imported(kind)(tuple(shape), classes, seed)
    return model


def _imported(kind: str) -> Callable[..., Any]:
    module, colon, function = kind.partition(":")
    if not colon:
        raise SettingError(f"model.kind = {kind!r}: must be 'mlp', 'cnn' or 'package.module:function'")
    try:
        build: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"model.kind = {kind!r} cannot be imported: {error}") from None
    return build


def method_of(spec: RunSpec) -> Method:
    from fewrounds.methods import for_budget, method

    name, eta, budget = spec.train["method"], spec.train["eta"], spec.train["budget"]
    if budget is None:
        return method(name, eta=eta, **spec.settings)
    mode = spec.train["budget_mode"]
    return for_budget(name, budget, workers=workers_of(spec), mode=mode, eta=eta, **spec.settings)


def cadence_of(spec: RunSpec) -> int:
    """Rounds between evaluations; where they follow from the budget, the same for every method."""
    from fewrounds.rounds import default_cadence

    chosen: int | None = spec.train["evaluate_every"]
    if chosen is not None:
        return chosen
    sizes = parts_of(spec)
    test = prepare(spec.data).test
    per_round = spec.train["budget"] or method_of(spec).gradients_per_round([len(rows) for rows in sizes])
    return default_cadence(spec.train["rounds"], per_round, sizes, None if test is None else test[1])


def execute(
    spec: RunSpec,
    *,
    checkpoint: Path | None = None,
    callbacks: tuple[Callable[[RoundRecord], object], ...] = (),
    rounds: int | None = None,
    compile: bool | str = "auto",
    runs: int = 1,
    engine: str = "in-process",
) -> Result:
    """Train as the spec says; `runs` is the number of runs that share what is compiled."""
    import torch

    from fewrounds.engine.programs import Policy
    from fewrounds.engine.team import team_of
    from fewrounds.training import train

    how = spec.train
    problem, workers, method, test, cadence = team_of(engine, torch.device("cpu")).together(
        lambda: (problem_of(spec), workers_of(spec), method_of(spec), prepare(spec.data).test, cadence_of(spec))
    )
    return train(
        problem,
        workers,
        method,
        rounds or how["rounds"],
        test=test,
        seed=how["seed"],
        weights=how["weights"],
        evaluate_every=cadence,
        evaluate_last=min(how["evaluate_last"], rounds or how["rounds"]),
        checkpoint=checkpoint,
        checkpoint_seconds=20.0,
        callbacks=list(callbacks),
        compile=Policy(compile, runs),
        engine=engine,
        progress=False,
    )
