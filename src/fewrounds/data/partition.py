"""Ways to split labelled data over workers."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from fewrounds.errors import DataError, SettingError, nearest

Indices = npt.NDArray[np.int64]


def equalise_classes(labels: npt.ArrayLike, seed: int = 0) -> Indices:
    """Indices that keep the same number of samples of every class; the excess is dropped at random."""
    y = np.asarray(labels)
    classes, counts = np.unique(y, return_counts=True)
    rng = np.random.default_rng([seed, 1])
    kept = [rng.permutation(np.flatnonzero(y == c))[: counts.min()] for c in classes]
    return np.sort(np.concatenate(kept))


def class_skew(labels: npt.ArrayLike, q: float, seed: int = 0, num_workers: int | None = None) -> list[Indices]:
    """The paper's split: one worker a class, a fraction q of class p to worker p, the rest to the others.

    q = 1/P gives every worker the same mix, q = 1 gives each worker one class only. With equal class counts
    every worker gets the same number of samples: what does not divide evenly among the P - 1 others goes
    one by one to the workers p + 1, p + 2, …, so each worker receives as many of these as any other.

    With another number of workers, class c is at home at every worker p with p = c modulo the number of classes
    (with fewer workers than classes: at worker c modulo P). A fraction q of it is divided among its homes, the rest
    among all others.
    """
    y: npt.NDArray[Any] = np.asarray(labels)
    classes = np.unique(y)
    C, P = len(classes), len(classes) if num_workers is None else num_workers
    if not 0 <= q <= 1:
        raise SettingError(f"q = {q}: must lie between 0 and 1")
    if C < 2:
        raise DataError(f"the class-skew split needs at least two classes, found {C}")
    if len(y) < P:
        raise DataError(f"there are {P} workers, but only {len(y)} samples: every worker needs at least one")
    rng = np.random.default_rng([seed, 2])
    shares: list[list[Indices]] = [[] for _ in range(P)]
    for c, label in enumerate(classes):
        members = rng.permutation(np.flatnonzero(y == label))
        homes = [p for p in range(P) if p % C == c] or [c % P]
        others = [p for p in (*range(c % P + 1, P), *range(c % P)) if p not in homes]
        own = round(q * len(members)) if others else len(members)
        _deal(members[:own], homes, shares)
        _deal(members[own:], others, shares)
    return [np.sort(np.concatenate(share)) for share in shares]


def _deal(members: Indices, workers: list[int], shares: list[list[Indices]]) -> None:
    """Divide the members equally among the workers; the first ones get what is left over."""
    for p, share in zip(workers, np.array_split(members, max(1, len(workers))), strict=False):
        shares[p].append(share)


KINDS = ("class-skew", "iid", "dirichlet", "shards", "pathological", "natural")


def split(
    labels: npt.ArrayLike,
    kind: str,
    *,
    workers: int | None = None,
    seed: int = 0,
    q: float | None = None,
    alpha: float | None = None,
    shards_per_worker: int | None = None,
    classes_per_worker: int | None = None,
    ids: npt.ArrayLike | None = None,
) -> list[Indices]:
    """The rows of each worker, by one of `KINDS`. All but the paper's own split are flwr-datasets' partitioners."""
    y = np.asarray(labels)
    if kind not in KINDS:
        raise SettingError(f"partition kind {kind!r} is not known; {nearest(kind, KINDS)}")
    if workers is not None and workers > len(y):
        raise DataError(f"there are {workers} workers, but only {len(y)} samples: every worker needs at least one")
    if kind == "class-skew" and q is not None:
        parts = class_skew(y, q, seed, workers)  # what its partitioner does, without the seconds flwr takes to import
    else:
        from fewrounds.data.partitioners import partitioner_for, rows_of_each

        partitioner = partitioner_for(
            kind,
            workers=workers,
            classes=len(np.unique(y)),
            seed=seed,
            q=q,
            alpha=alpha,
            shards_per_worker=shards_per_worker,
            classes_per_worker=classes_per_worker,
            has_ids=ids is not None,
        )
        parts = rows_of_each(partitioner, y, ids, seed)
    for p, part in enumerate(parts):
        if len(part) == 0:
            raise DataError(f"the {kind} split leaves worker {p} without samples: use fewer workers or another seed")
    return parts


def fingerprint(parts: list[Indices]) -> str:
    """A digest of who has which rows."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.int64(len(part)).tobytes() + np.ascontiguousarray(part, dtype=np.int64).tobytes())
    return digest.hexdigest()
