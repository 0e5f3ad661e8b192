"""Labels as class numbers, and the split of labelled data into train and test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from fewrounds.data.npy import Array
from fewrounds.errors import DataError, SettingError, whole_number

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Reading:
    """How a user's data are read: which column is the label, where the test part is or how large a part it takes."""

    label: str | None = None
    test: str | None = None
    test_fraction: float = 0.2
    seed: int = 0
    id_column: str | None = None

    def __post_init__(self) -> None:
        whole_number("seed", self.seed, 0)
        fraction = self.test_fraction
        if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 <= fraction < 1:
            raise SettingError(f"test_fraction = {fraction!r}: must be 0 or more, and less than 1")
        if self.id_column is not None and self.id_column == self.label:
            raise SettingError(f"label and id_column are both {self.label!r}: they must be two columns")


def targets(parts: Sequence[Array], names: Sequence[str]) -> tuple[list[Array], int]:
    """The labels of train and test as int64 class numbers, and how many classes there are.

    Text and whole numbers become 0 to C - 1 in sorted order, over all parts together, so that a class means the same
    in each. Floating-point labels are values to predict: they stay as they are, as float32, and there are 0 classes.
    """
    for part, name in zip(parts, names, strict=True):
        missing = np.flatnonzero(pd.isna(part))
        if len(missing):
            raise DataError(f"{name}: row {missing[0]} has no label")
    kinds = {"f" if part.dtype.kind == "f" else "iu" if part.dtype.kind in "iub" else "text" for part in parts}
    if kinds == {"f"}:
        return [part.astype(np.float32) for part in parts], 0
    if len(kinds) > 1 and "text" not in kinds:
        raise DataError(f"{names[0]} and {names[1]}: the labels of one are whole numbers, of the other not")
    plain = [part.astype(str) if "text" in kinds else part.astype(np.int64) for part in parts]
    classes = np.unique(np.concatenate(plain))
    return [np.searchsorted(classes, part).astype(np.int64) for part in plain], len(classes)


def stratified(y: Array, classes: int, reading: Reading) -> tuple[Indices, Indices]:
    """(train, test) indices, sorted: the same fraction of every class for testing, and never all of a class."""
    rng = np.random.default_rng([reading.seed, 4])
    groups = [np.flatnonzero(y == c) for c in range(classes)] if classes else [np.arange(len(y))]
    in_test = np.zeros(len(y), dtype=bool)
    for members in groups:
        count = min(round(reading.test_fraction * len(members)), max(len(members) - 1, 0))
        in_test[rng.permutation(members)[:count]] = True
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)
