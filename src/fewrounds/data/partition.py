"""Ways to split labelled data over workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fewrounds.errors import DataError, SettingError

Indices = npt.NDArray[np.int64]


def equalise_classes(labels: npt.ArrayLike, seed: int = 0) -> Indices:
    """Indices that keep the same number of samples of every class; the excess is dropped at random."""
    y = np.asarray(labels)
    classes, counts = np.unique(y, return_counts=True)
    rng = np.random.default_rng([seed, 1])
    kept = [rng.permutation(np.flatnonzero(y == c))[: counts.min()] for c in classes]
    return np.sort(np.concatenate(kept))


def class_skew(labels: npt.ArrayLike, q: float, seed: int = 0) -> list[Indices]:
    """The paper's split: one worker a class, a fraction q of class p to worker p, the rest to the others.

    q = 1/P gives every worker the same mix, q = 1 gives each worker one class only. With equal class counts
    every worker gets the same number of samples: what does not divide evenly among the P - 1 others goes
    one by one to the workers p + 1, p + 2, …, so each worker receives as many of these as any other.
    """
    y: npt.NDArray[Any] = np.asarray(labels)
    classes = np.unique(y)
    P = len(classes)
    if not 0 <= q <= 1:
        raise SettingError(f"q = {q}: must lie between 0 and 1")
    if P < 2:
        raise DataError(f"the class-skew split needs at least two classes, found {P}")
    rng = np.random.default_rng([seed, 2])
    shares: list[list[Indices]] = [[] for _ in range(P)]
    for p, c in enumerate(classes):
        members = rng.permutation(np.flatnonzero(y == c))
        own = round(q * len(members))
        shares[p].append(members[:own])
        each, extra = divmod(len(members) - own, P - 1)
        first = own
        for offset in range(1, P):
            last = first + each + (offset <= extra)
            shares[(p + offset) % P].append(members[first:last])
            first = last
    return [np.sort(np.concatenate(share)) for share in shares]
