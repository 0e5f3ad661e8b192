"""The data of one worker, as an engine sees them, and how batches are gathered from them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fewrounds.batch import Batch, batch_size, concatenate, leaves, map_batch, stack

PART = 1024
"""The most samples of one worker that are gathered at once. Fixed, because a stream is drawn part by part."""

GATHER_BYTES = 2**21
"""About how much is gathered at once for small batches, so that it is still in the cache when it is used."""

SHARED_BYTES = 2**26
"""The most data of all workers together that are copied to one place."""


class Source(Protocol):
    """The data of one worker, as an engine sees it."""

    @property
    def size(self) -> float: ...

    def batches(self, rng: np.random.Generator, count: int, b: int) -> Iterator[Batch]:
        """`count` batches of b i.i.d. samples each."""

    def everything(self) -> Iterator[Batch]:
        """All samples (of a stream: its evaluation samples), in parts."""

    def fingerprint(self) -> str: ...


class Shard:
    """Finite data: tensors with one row a sample, or the rows of them that an index names."""

    def __init__(self, data: Batch, rows: Tensor | None = None) -> None:
        self.data = data
        self._rows = rows
        self._row_numbers = None if rows is None else rows.cpu().numpy()
        self._count = batch_size(data) if rows is None else len(rows)

    @property
    def size(self) -> float:
        return self._count

    def batches(self, rng: np.random.Generator, count: int, b: int) -> Iterator[Batch]:
        index = rng.integers(self._count, size=(count, 1, b), dtype=np.int64)
        return (map_batch(lambda part: part[0], z) for z in gather([self], index))

    def everything(self) -> Iterator[Batch]:
        if self._rows is not None:
            yield from (
                self._gather(rows) for rows in torch.split(torch.arange(self._count, device=self._device), PART)
            )
            return
        for first in range(0, self._count, PART):
            yield map_batch(lambda part, first=first: part[first : first + PART], self.data)  # type: ignore[misc]

    def fingerprint(self) -> str:
        return fingerprint_of(self.everything())

    @property
    def is_part(self) -> bool:
        """Whether these are some rows of data that others may share."""
        return self._rows is not None

    @property
    def _device(self) -> torch.device:
        return leaves(self.data)[0].device

    def _gather(self, index: Tensor) -> Batch:
        where = index if self._rows is None else self._rows.index_select(0, index)
        return map_batch(lambda part: part.index_select(0, where), self.data)

    def locate(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Where in `data` the samples of these numbers are."""
        return numbers if self._row_numbers is None else self._row_numbers[numbers]


def gather(shards: Sequence[Shard], numbers: npt.NDArray[np.int64]) -> Iterator[Batch]:
    """Batches [workers, b, …] from sample numbers [count, workers, b], several at once while they are small."""
    where = np.stack([shard.locate(numbers[:, r]) for r, shard in enumerate(shards)], axis=1)
    sample_bytes = sum(part[0].nbytes for part in leaves(shards[0].data))
    at_once = max(1, GATHER_BYTES // (numbers[0].size * sample_bytes))
    shared = all(shard.data is shards[0].data for shard in shards)
    device = leaves(shards[0].data)[0].device
    for first in range(0, len(where), at_once):
        index = torch.from_numpy(where[first : first + at_once]).to(device, non_blocking=True)
        if shared:
            z = _take(shards[0].data, index)
        else:
            z = stack([_take(shard.data, index[:, r]) for r, shard in enumerate(shards)], dim=1)
        yield from (z.unbind(0) if isinstance(z, Tensor) else zip(*(part.unbind(0) for part in z), strict=True))


def _take(data: Batch, index: Tensor) -> Batch:
    flat = index.reshape(-1)
    return map_batch(lambda part: part.index_select(0, flat).view(*index.shape, *part.shape[1:]), data)


def share_small(sources: dict[int, Source]) -> dict[int, Source]:
    """The same sources with their data in one place, if it is little: one gather then serves several workers."""
    shards = [source for source in sources.values() if isinstance(source, Shard)]
    together = sum(part.nbytes for shard in shards for part in leaves(shard.data))
    if (
        len(shards) < len(sources)
        or together > SHARED_BYTES
        or any(shard.data is shards[0].data for shard in shards[1:])
    ):
        return sources
    data = concatenate([shard.data for shard in shards])
    ends = np.cumsum([int(shard.size) for shard in shards])
    rows = torch.arange(int(ends[-1]), device=leaves(data)[0].device)
    parts = [Shard(data, rows[int(end - shard.size) : int(end)]) for shard, end in zip(shards, ends, strict=True)]
    return dict(zip(sources, parts, strict=True))


def fingerprint_of(batches: Iterable[Batch]) -> str:
    """A digest of shapes, types and contents."""
    digest = hashlib.sha256()
    for z in batches:
        digest.update(f"{signature(z)}{batch_size(z)}".encode())
        for part in leaves(z):
            digest.update(part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def signature(z: Batch) -> str:
    """The types and shapes of a sample's parts."""
    parts = [f"{str(part.dtype).removeprefix('torch.')}{list(part.shape[1:])}" for part in leaves(z)]
    return parts[0] if isinstance(z, Tensor) else f"({', '.join(parts)})"
