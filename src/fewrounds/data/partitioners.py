"""flwr-datasets' partitioners, and the paper's class skew as one more of the same kind."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import datasets
import numpy as np
import numpy.typing as npt
from flwr_datasets.partitioner import (
    DirichletPartitioner,
    IidPartitioner,
    NaturalIdPartitioner,
    Partitioner,
    PathologicalPartitioner,
    ShardPartitioner,
)

from fewrounds.data.partition import Indices, class_skew
from fewrounds.errors import DataError, SettingError


class ClassSkewPartitioner(Partitioner):
    """A fraction q of each class to its own worker, the rest to the others (see `class_skew`)."""

    def __init__(self, num_partitions: int, partition_by: str, q: float, seed: int = 0) -> None:
        super().__init__()
        self._num_partitions = num_partitions
        self._partition_by = partition_by
        self._q = q
        self._seed = seed
        self._parts: list[Indices] | None = None

    def load_partition(self, partition_id: int) -> datasets.Dataset:
        if self._parts is None:
            labels = np.asarray(self.dataset[self._partition_by])
            self._parts = class_skew(labels, self._q, self._seed, self._num_partitions)
        return self.dataset.select(self._parts[partition_id])

    @property
    def num_partitions(self) -> int:
        return self._num_partitions


def partitioner_for(
    kind: str,
    *,
    workers: int | None,
    classes: int,
    seed: int,
    q: float | None,
    alpha: float | None,
    shards_per_worker: int | None,
    classes_per_worker: int | None,
    has_ids: bool,
) -> Partitioner:
    """The partitioner of this kind, with the settings it needs and no others."""
    needs: dict[str, dict[str, float | None]] = {
        "class-skew": {"q": q},
        "dirichlet": {"alpha": alpha},
        "shards": {"shards_per_worker": shards_per_worker},
        "pathological": {"classes_per_worker": classes_per_worker},
    }
    for setting, value in needs.get(kind, {}).items():
        if value is None:
            raise SettingError(f"the {kind} split needs {setting}")
    if kind == "natural":
        if not has_ids:
            raise DataError("the natural split needs ids: name the column that says whose a sample is (id_column)")
        return NaturalIdPartitioner(partition_by="id")
    if workers is None and kind != "class-skew":
        raise SettingError(f"the {kind} split needs workers, the number of workers")
    P = classes if workers is None else workers
    common: dict[str, Any] = {"num_partitions": P, "partition_by": "label", "seed": seed}
    if kind == "class-skew":
        return ClassSkewPartitioner(**common, q=float(q or 0))
    if kind == "dirichlet":
        return DirichletPartitioner(**common, alpha=float(alpha or 0), min_partition_size=1)
    if kind == "shards":
        return ShardPartitioner(**common, num_shards_per_partition=shards_per_worker)
    if kind == "pathological":
        return PathologicalPartitioner(**common, num_classes_per_partition=int(classes_per_worker or 0))
    return IidPartitioner(num_partitions=P)


def rows_of_each(
    partitioner: Partitioner, labels: npt.NDArray[Any], ids: npt.ArrayLike | None, seed: int
) -> list[Indices]:
    """Run a partitioner on a table of labels and row numbers: the samples themselves need not be moved."""
    # flwr's IID partitioner cuts the table as it stands, so that one is shuffled first.
    order = np.arange(len(labels))
    if isinstance(partitioner, IidPartitioner):
        order = np.random.default_rng([seed, 4]).permutation(len(labels))
    table = {"label": labels[order], "row": order}
    if ids is not None:
        table["id"] = np.asarray(ids)[order]
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):  # its progress bars and deprecations
            warnings.simplefilter("ignore")
            partitioner.dataset = datasets.Dataset.from_dict(table)
            count = partitioner.num_partitions
            return [np.sort(np.asarray(partitioner.load_partition(p)["row"], dtype=np.int64)) for p in range(count)]
    except (ValueError, RuntimeError, IndexError) as error:
        reason = " ".join(str(error).split())[:200]
        raise SettingError(f"the {type(partitioner).__name__} cannot split these data: {reason}") from error
