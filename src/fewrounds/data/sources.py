"""What a user may give as a worker's data, read and checked."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewrounds.batch import Batch, batch_size, concatenate, leaves, map_batch
from fewrounds.data.shards import PART, Shard, Source, fingerprint_of, signature
from fewrounds.errors import DataError, whole_number

EXPECTED = "expected an array, a tuple of arrays, a map-style dataset or a Stream"


class Stream:
    """Infinite data: `draw(n, rng)` returns n fresh samples, using only the given `numpy.random.Generator`.

    The samples are a tensor or array, or a tuple of them, samples first. As an infinite set has no exact loss,
    evaluation uses `evaluation_samples` samples that are drawn once and stay the same for the whole run.
    """

    size = math.inf

    def __init__(self, draw: Callable[[int, np.random.Generator], Any], evaluation_samples: int = 1024) -> None:
        if not callable(draw):
            raise DataError(f"Stream needs a function draw(n, rng), not a {type(draw).__name__}")
        self.draw = draw
        self.evaluation_samples = whole_number("evaluation_samples", evaluation_samples)


class Part:
    """Some rows of arrays that workers share: `Part((X, y), index)`. The arrays are not copied, only indexed.

    This is how many processes can train on one memory-mapped data set that each of them splits its own way.
    """

    def __init__(self, arrays: Any, index: Any) -> None:
        self.arrays = arrays
        self.index = np.ascontiguousarray(np.asarray(index, dtype=np.int64))
        if self.index.ndim != 1:
            raise DataError(f"Part needs a list of row numbers, not an array of shape {list(self.index.shape)}")

    def __len__(self) -> int:
        return len(self.index)


class StreamSource:
    """A `Stream` whose every draw is checked against its first one."""

    size = math.inf

    def __init__(self, stream: Stream, whose: str, evaluation_rng: np.random.Generator, cast: Cast) -> None:
        self._stream = stream
        self._whose = whose
        self._cast = cast
        self.first: Batch | None = None
        self.evaluation_samples = stream.evaluation_samples
        state = evaluation_rng.bit_generator.state
        self._held = list(self.sample(evaluation_rng, stream.evaluation_samples))
        evaluation_rng.bit_generator.state = state
        again = next(self.sample(evaluation_rng, stream.evaluation_samples))
        if fingerprint_of([again]) != fingerprint_of(self._held[:1]):
            raise DataError(f"{whose}: draw(n, rng) gave other samples for the same rng; draw from rng only")

    def batches(self, rng: np.random.Generator, count: int, b: int) -> Iterator[Batch]:
        return (concatenate(list(self.sample(rng, b))) for _ in range(count))

    def sample(self, rng: np.random.Generator, n: int) -> Iterator[Batch]:
        return (self._draw(rng, min(PART, n - first)) for first in range(0, n, PART))

    def everything(self) -> Iterator[Batch]:
        return iter(self._held)

    def fingerprint(self) -> str:
        return "stream " + fingerprint_of(self._held[:1])

    def _draw(self, rng: np.random.Generator, n: int) -> Batch:
        z = read_batch(self._stream.draw(n, rng), self._whose, has_target=self._cast.has_target)
        if batch_size(z) != n:
            raise DataError(f"{self._whose}: draw({n}, rng) returned {batch_size(z)} samples")
        if self.first is None:
            self.first = z
        check_alike(z, self.first, self._whose, "its first draw")
        return self._cast(z, self._whose)


# ---------------------------------------------------------------------- from what a user gives


def load_workers(
    workers: Sequence[Any] | Callable[[int], Any],
    cast: Cast,
    *,
    num_workers: int | None = None,
    evaluation_rng: Callable[[int], np.random.Generator],
    hosted: Callable[[int], bool] = lambda p: True,
) -> tuple[dict[int, Source], int]:
    """The data of every hosted worker, checked: not empty, finite, all of one shape and type; and the number of all."""
    items, count = _hosted_items(workers, num_workers, hosted)
    sources: dict[int, Source] = {}
    first: tuple[int, Batch] | None = None
    example: Batch | None
    shared: dict[int, tuple[Batch, Batch]] = {}
    for p, item in items.items():
        whose = f"worker {p}"
        if isinstance(item, Part):
            if id(item.arrays) not in shared:  # read and cast what the workers share once
                raw = read_batch(item.arrays, whose, has_target=cast.has_target)
                shared[id(item.arrays)] = raw, cast(raw, whose)
            example, data = shared[id(item.arrays)]
            sources[p] = Shard(data, _rows_of(item, batch_size(data), whose).to(cast.device))
        elif isinstance(item, Stream):
            stream = StreamSource(item, whose, evaluation_rng(p), cast)
            sources[p] = stream
            example = stream.first
            assert example is not None, "a stream has drawn its evaluation samples"
        else:
            example = read_batch(item, whose, has_target=cast.has_target)
            sources[p] = Shard(cast(example, whose))
        first = (p, example) if first is None else first
        check_alike(example, first[1], whose, f"worker {first[0]}")
    return sources, count


def _hosted_items(
    workers: Sequence[Any] | Callable[[int], Any], num_workers: int | None, hosted: Callable[[int], bool]
) -> tuple[dict[int, Any], int]:
    if callable(workers) and num_workers is not None:
        count = whole_number("num_workers", num_workers)
        return {p: workers(p) for p in range(count) if hosted(p)}, count
    items = list_workers(workers, num_workers)
    return {p: item for p, item in enumerate(items) if hosted(p)}, len(items)


def _rows_of(part: Part, count: int, whose: str) -> Tensor:
    if len(part) == 0:
        raise DataError(f"{whose} has no samples")
    if part.index.min() < 0 or part.index.max() >= count:
        wrong = part.index.min() if part.index.min() < 0 else part.index.max()
        raise DataError(f"{whose} asks for row {wrong}, but the arrays have rows 0 to {count - 1}")
    return torch.from_numpy(part.index)


def list_workers(workers: Sequence[Any] | Callable[[int], Any], num_workers: int | None) -> list[Any]:
    """What the user gives for each worker."""
    if callable(workers):
        if num_workers is None:
            raise DataError("a callable worker(p) needs num_workers=, the number of workers")
        items = [workers(p) for p in range(whole_number("num_workers", num_workers))]
    else:
        if isinstance(workers, (str, bytes, dict, Stream)) or not hasattr(workers, "__iter__"):
            what = f"workers is a {type(workers).__name__}"
            raise DataError(f"{what}: expected a list with the data of each worker, or a function worker(p)")
        items = list(workers)
    if not items:
        raise DataError("there are no workers: give the data of at least one")
    if num_workers is not None and num_workers != len(items):
        raise DataError(f"num_workers = {num_workers}, but {len(items)} workers were given")
    return items


def size_of(item: Any, whose: str) -> float:
    """The number of samples in what a user gives as a worker, without reading them."""
    if isinstance(item, Stream):
        return item.size
    try:
        size = len(item[0]) if _is_arrays(item) else len(item)
    except TypeError:
        raise DataError(f"{whose} is a {type(item).__name__}: {EXPECTED}") from None
    if size == 0:
        raise DataError(f"{whose} has no samples")
    return size


def read_batch(item: Any, whose: str, *, has_target: bool) -> Batch:
    """Arrays, tensors or a map-style dataset as tensors of their own type, checked."""
    if _is_arrays(item):
        if not item:
            raise DataError(f"{whose} is empty: {EXPECTED}")
        z: Batch = tuple(_tensor(part, whose) for part in item)
    elif isinstance(item, Tensor) or hasattr(item, "__array__"):
        z = _tensor(item, whose)
    elif _is_dataset(item):
        z = _read_dataset(item, whose)
    else:
        raise DataError(f"{whose} is a {type(item).__name__}: {EXPECTED}")
    _check_lengths(z, whose)
    if has_target and len(leaves(z)) < 2:
        raise DataError(f"{whose} has no target: a model needs (input, target)")
    return z


@dataclass(frozen=True)
class Cast:
    """How data become the problem's: floating-point parts in its type, class numbers as torch wants them."""

    dtype: torch.dtype
    device: torch.device
    has_target: bool

    def __call__(self, z: Batch, whose: str) -> Batch:
        def to_problem(part: Tensor) -> Tensor:
            return part.to(self.device, self.dtype if part.is_floating_point() else part.dtype)

        z = map_batch(to_problem, z)
        for number, part in enumerate(leaves(z)):
            _check_finite(part, f"{whose}, array {number}" if len(leaves(z)) > 1 else whose)
        if self.has_target and not leaves(z)[-1].is_floating_point():
            z = (*leaves(z)[:-1], leaves(z)[-1].long())  # torch's losses take int64 only
        return z


def check_alike(z: Batch, other: Batch, whose: str, other_name: str) -> None:
    """Refuse data whose number of arrays, sample shapes or types differ."""
    mine, theirs = signature(z), signature(other)
    if mine != theirs:
        raise DataError(f"{whose} has samples {mine}, but {other_name} has {theirs}: they must be the same")


def _is_arrays(item: Any) -> bool:
    """(X, y), with X and y anything that can be an array; a list only if its parts are arrays already."""
    if isinstance(item, list):
        return bool(item) and all(isinstance(part, Tensor) or hasattr(part, "__array__") for part in item)
    return isinstance(item, tuple)


def _is_dataset(item: Any) -> bool:
    """Something to read sample by sample: a map-style dataset, or a list of tuples (input, target)."""
    if isinstance(item, list):
        return all(isinstance(sample, (tuple, dict)) for sample in item)
    return hasattr(item, "__len__") and hasattr(item, "__getitem__") and not isinstance(item, (str, bytes, dict))


def _tensor(item: Any, whose: str) -> Tensor:
    if isinstance(item, Tensor):
        tensor = item.detach()
    else:
        try:
            array = np.ascontiguousarray(item)
            array = array.astype(array.dtype.newbyteorder("="), copy=False)
            with warnings.catch_warnings():
                # A read-only array (a memory map, say) is fine: nothing here writes to data.
                warnings.filterwarnings("ignore", message=".*not writable.*")
                tensor = torch.from_numpy(array.reshape(np.shape(item)))
        except (TypeError, ValueError) as error:
            raise DataError(f"{whose}: not an array of numbers ({error})") from error
    if tensor.is_complex() or tensor.layout != torch.strided:
        raise DataError(f"{whose}: complex numbers and sparse tensors are not supported")
    if tensor.ndim == 0:
        raise DataError(f"{whose}: a single number, expected an array with one row a sample")
    return tensor


def _read_dataset(item: Any, whose: str) -> Batch:
    """Read a map-style dataset into memory, once."""
    from torch.utils.data import default_collate

    count = len(item)
    if count == 0:
        raise DataError(f"{whose} has no samples")
    samples = [item[i] for i in range(count)]
    if isinstance(samples[0], dict):
        raise DataError(f"{whose}: its samples are dicts, expected tensors or tuples (input, target)")
    try:
        z = default_collate(samples)
        again = default_collate([item[0]])
    except (TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{whose}: its samples cannot be stacked ({reason})") from error
    z, again = (tuple(part) if isinstance(part, (tuple, list)) else part for part in (z, again))
    for part, part_again in zip(leaves(z), leaves(again), strict=True):
        if not isinstance(part, Tensor):
            raise DataError(f"{whose}: its samples hold a {type(part).__name__}, expected numbers")
        if not torch.equal(part[:1], part_again) and not part[:1].isnan().any():
            raise DataError(
                f"{whose}: sample 0 differs between two reads; data that change (augmentation) belong in a Stream"
            )
    result: Batch = z
    return result


def _check_lengths(z: Batch, whose: str) -> None:
    lengths = [part.shape[0] if part.ndim else -1 for part in leaves(z)]
    if len(set(lengths)) > 1:
        raise DataError(f"{whose}: its arrays have different lengths, {' and '.join(map(str, lengths))}")
    if lengths[0] == 0:
        raise DataError(f"{whose} has no samples")


def _check_finite(part: Tensor, whose: str) -> None:
    if not part.is_floating_point():
        return
    for first in range(0, part.shape[0], 16 * PART):  # in pieces: no second copy of the data
        good = torch.isfinite(part[first : first + 16 * PART]).reshape(part[first : first + 16 * PART].shape[0], -1)
        bad = (~good.all(dim=1)).nonzero()
        if len(bad):
            kind = str(part.dtype).removeprefix("torch.")
            raise DataError(f"{whose}, row {first + int(bad[0])}: NaN or infinite value (as {kind})")
