"""A batch is a tensor, or a tuple of tensors, whose first dimension counts samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Batch: TypeAlias = Tensor | tuple[Tensor, ...]


def map_batch(function: Callable[[Tensor], Tensor], z: Batch) -> Batch:
    return function(z) if isinstance(z, Tensor) else tuple(function(part) for part in z)


def leaves(z: Batch) -> tuple[Tensor, ...]:
    return (z,) if isinstance(z, Tensor) else z


def batch_size(z: Batch) -> int:
    return int(leaves(z)[0].shape[0])


def stack(batches: Sequence[Batch], dim: int = 0) -> Batch:
    """One batch a row, as one batch with the rows in front (or at `dim`)."""
    if len(batches) == 1:
        return map_batch(lambda part: part.unsqueeze(dim), batches[0])
    if isinstance(batches[0], Tensor):
        return torch.stack([leaves(z)[0] for z in batches], dim)
    return tuple(torch.stack(parts, dim) for parts in zip(*(leaves(z) for z in batches), strict=True))


def concatenate(batches: Sequence[Batch]) -> Batch:
    """The samples of all batches as one batch."""
    if isinstance(batches[0], Tensor):
        return torch.cat([leaves(z)[0] for z in batches])
    return tuple(torch.cat(parts) for parts in zip(*(leaves(z) for z in batches), strict=True))
