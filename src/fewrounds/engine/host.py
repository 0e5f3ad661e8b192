"""The workers of one process: their data, their memory, and the blocks of rows that tasks run on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewrounds.batch import Batch, batch_size, leaves, map_batch, stack
from fewrounds.data.shards import PART, Shard, Source, gather
from fewrounds.draws import Draws
from fewrounds.engine.loop import AddShare, Loop, Programs
from fewrounds.errors import DataError, FewroundsError, ProblemError
from fewrounds.interfaces import Gradient, Step
from fewrounds.problem import Metrics, Problem

PART_BYTES = 2**25
"""The most that is gathered at once for a large batch. (glibc maps and unmaps larger blocks at every use.)"""

FEW_BYTES = 2**22
"""The most that all samples of several workers may take to be gathered at once."""

Kept = dict[tuple[str, int], Tensor]
"""Per-worker memory: the vector kept under (name, worker)."""


class Host:
    """Runs tasks for the workers it holds, a block of rows at a time, and counts their gradients.

    What a round writes (memory, counts) is staged until `commit`, so a round that is interrupted leaves
    nothing behind.
    """

    def __init__(
        self, problem: Problem, sources: dict[int, Source], draws: Draws, rows_at_once: int, programs: Programs
    ) -> None:
        self.problem = problem
        self.sources = sources
        self.draws = draws
        self.rows_at_once = rows_at_once
        self.programs = programs
        self.blocks = 1
        """How many blocks of rows the task under way has."""
        self.has_streams = any(not isinstance(source, Shard) for source in sources.values())
        shards = [source for source in sources.values() if isinstance(source, Shard)]
        self.sample_bytes = sum(part[0].nbytes for part in leaves(shards[0].data)) if shards else 0
        self.round = 0
        self.kept: Kept = {}
        self.staged: Kept = {}
        self.stashed: Kept = {}
        """What tasks of a round leave for later ones."""
        self.gradients: dict[int, int] = {}

    def begin(self, round: int) -> None:
        self.round = round
        self.staged = {}
        self.stashed = {}
        self.gradients = {}

    def commit(self) -> None:
        self.kept = {**self.kept, **self.staged}
        self.staged = {}
        self.stashed = {}

    def run(
        self,
        workers: Sequence[int],
        task: Callable[..., Tensor | tuple[Tensor, ...]],
        vectors: tuple[Tensor, ...],
        settings: dict[str, Any],
    ) -> Iterator[tuple[Sequence[int], tuple[Tensor, ...]]]:
        """The task's vectors, each [rows, d], block by block."""
        self.blocks = -(-len(workers) // self.rows_at_once)
        for first in range(0, len(workers), self.rows_at_once):
            block = workers[first : first + self.rows_at_once]
            try:
                out = task(RowBlock(self, block), *vectors, **settings)
            except FewroundsError:
                raise
            except Exception as error:
                name = getattr(task, "__name__", type(task).__name__)
                reason = " ".join(str(error).split())[:300]
                who = f"worker {block[0]}" if len(block) == 1 else f"workers {block[0]} to {block[-1]}"
                raise ProblemError(f"round {self.round}, {who}: {name} failed: {reason}") from error
            parts = (out,) if isinstance(out, Tensor) else out
            yield block, tuple(part.expand(len(block), -1) for part in parts)

    def alike(self, weights: Sequence[float]) -> Iterator[Sequence[int]]:
        """All workers, in groups of as many samples and the same weight that are few enough to be evaluated at once."""
        workers = sorted(self.sources)
        for (size, _), group in itertools.groupby(workers, lambda p: (self.sources[p].size, weights[p])):
            same = list(group)
            most = 1 if self.has_streams else max(1, FEW_BYTES // int(size * self.sample_bytes))
            yield from (same[first : first + most] for first in range(0, len(same), most))

    def evaluate(self, workers: Sequence[int], x: Tensor, gradient: bool) -> tuple[Metrics, Tensor | None]:
        """Mean loss (without L2), accuracy and, if asked for, gradient (with L2) over their data; not counted."""
        count = 0
        loss, accuracy = x.new_zeros(()), x.new_zeros(())
        total = torch.zeros_like(x) if gradient else None
        together = self.everything(workers) if len(workers) > 1 else None
        for z in self.sources[workers[0]].everything() if together is None else [map_batch(_in_a_row, together)]:
            n = batch_size(z)
            count += n
            if total is None:
                metrics = self.problem.metrics(x, z)
            else:
                metrics, part = self.problem.metrics_and_gradient(x, z)
                total.add_(part, alpha=n)
            loss, accuracy = loss + n * metrics.loss, accuracy + n * metrics.accuracy
        return Metrics(loss / count, accuracy / count), None if total is None else total / count

    def everything(self, workers: Sequence[int]) -> Batch | None:
        """All samples of these workers [workers, n, …], where each has as many and they are few."""
        shards = [shard for p in workers if isinstance(shard := self.sources[p], Shard)]
        n = int(shards[0].size) if shards else 0
        if len(shards) < len(workers) or any(shard.size != n for shard in shards):
            return None
        if len(shards) * n * self.sample_bytes > FEW_BYTES:
            return None
        return next(gather(shards, np.broadcast_to(np.arange(n), (1, len(shards), n))))


def mean_metrics(problem: Problem, source: Source, x: Tensor) -> tuple[float, float]:
    """Mean loss (without L2) and accuracy over all samples."""
    loss = accuracy = 0.0
    for z in source.everything():
        share = batch_size(z) / source.size
        metrics = problem.metrics(x, z)
        loss, accuracy = loss + share * float(metrics.loss), accuracy + share * float(metrics.accuracy)
    return loss, accuracy


def _in_a_row(part: Tensor) -> Tensor:
    return part.flatten(0, 1)


class RowBlock:
    """A block of workers, one a row (see `fewrounds.interfaces.Rows`)."""

    def __init__(self, host: Host, workers: Sequence[int]) -> None:
        self._host = host
        self._workers = workers
        self.memory = RowMemory(host, workers)

    @torch.no_grad()
    def iterate(
        self,
        step: Step,
        start: tuple[Tensor, ...],
        purpose: str,
        count: int,
        b: int,
        *,
        keep: Sequence[int] | None = None,
        **constants: Tensor | float,
    ) -> tuple[Tensor, ...]:
        loop = self._loop(step, start, constants)
        kept = start[0].expand(len(self._workers), -1).clone() if keep is not None else None
        for k, z in enumerate(self._batches(purpose, [b] * count), start=1):
            loop.step(z, count)
            for row in range(len(self._workers)) if keep is not None and k in keep else ():
                if kept is not None and keep is not None and keep[row] == k:
                    kept[row] = loop.vectors()[0][row]
        self._count(loop.gradients)
        return (*loop.vectors(), kept) if kept is not None else loop.vectors()

    @torch.no_grad()
    def average(self, expression: Step, purpose: str, n: int, **points: Tensor | float) -> Tensor:
        host = self._host
        row_bytes = len(self._workers) * host.sample_bytes
        most = PART if host.has_streams else max(1, min(PART, PART_BYTES // row_bytes))
        total = next(x for x in points.values() if isinstance(x, Tensor)).new_zeros(host.problem.dim)
        sizes = [most] * (n // most) + ([n % most] if n % most else [])
        batches = self._batches(purpose, sizes)
        for size, group in itertools.groupby(sizes):
            count = len(list(group))
            loop = self._loop(AddShare(expression), (total,), {**points, "share": size / n})
            for _ in range(count):
                loop.step(next(batches), count)
            self._count(loop.gradients)
            (total,) = loop.vectors()
        return total

    @torch.no_grad()
    def full_gradient(self, x: Tensor) -> Tensor:
        z = self._host.everything(self._workers)
        if z is None:
            return torch.stack([self._full_gradient(r, p, x) for r, p in enumerate(self._workers)])
        loop = self._loop(AddShare(_gradient_at), (x.new_zeros(x.shape[-1]),), {"x": x, "share": 1.0})
        loop.step(z, 1)
        self._count(loop.gradients)
        return loop.vectors()[0]

    def integers(self, purpose: str, n: int) -> list[int]:
        draws = self._host.draws
        return [draws.integer(purpose, self._host.round, n, worker=p) for p in self._workers]

    @property
    def workers(self) -> list[OneWorker]:
        return [OneWorker(self._host, p) for p in self._workers]

    def _loop(self, step: Step, start: tuple[Tensor, ...], constants: dict[str, Any]) -> Loop:
        return Loop(self._host.programs, step, start, constants, rows=len(self._workers), blocks=self._host.blocks)

    def _batches(self, purpose: str, sizes: list[int]) -> Iterator[Batch]:
        """Batches [rows, size, …], drawn one after the other for this purpose and round by each worker."""
        host = self._host
        sources = [host.sources[p] for p in self._workers]
        shards = [source for source in sources if isinstance(source, Shard)]
        generators: list[Any] = []
        for size, group in itertools.groupby(sizes):
            count = len(list(group))
            if len(shards) == len(sources) and len(set(sizes)) == 1:
                shape = (count, size)
                index = [
                    host.draws.integers(purpose, host.round, p, int(shard.size), shape)
                    for p, shard in zip(self._workers, shards, strict=True)
                ]
                yield from gather(shards, np.stack(index, axis=1))
                continue
            generators = generators or [host.draws.generator(purpose, host.round, p) for p in self._workers]
            drawn = [source.batches(rng, count, size) for source, rng in zip(sources, generators, strict=True)]
            yield from (stack(batch) for batch in zip(*drawn, strict=True))

    def _full_gradient(self, row: int, p: int, x: Tensor) -> Tensor:
        source, problem = self._host.sources[p], self._host.problem
        if source.size == float("inf"):
            raise DataError(f"worker {p} is a Stream: it has no full gradient")
        x = x if x.ndim == 1 else x[row]
        self._host.gradients[p] = self._host.gradients.get(p, 0) + int(source.size)
        parts = (problem.gradient(x, z) * (batch_size(z) / source.size) for z in source.everything())
        return sum(parts, start=torch.zeros_like(x))

    def _count(self, n: int) -> None:
        for p in self._workers:
            self._host.gradients[p] = self._host.gradients.get(p, 0) + n


class OneWorker:
    """One worker of a block (see `fewrounds.interfaces.Worker`)."""

    def __init__(self, host: Host, p: int) -> None:
        self._host = host
        self._p = p
        self.problem = host.problem
        self.size = host.sources[p].size

    def everything(self) -> Iterator[Batch]:
        return self._host.sources[self._p].everything()

    def drawn(self, purpose: str, n: int) -> Batch:
        rng = self._host.draws.generator(purpose, 0, self._p)
        source = self._host.sources[self._p]
        if not isinstance(source, Shard):
            return next(source.batches(rng, 1, n))
        index = rng.permutation(int(source.size))[:n].astype(np.int64)
        return map_batch(lambda part: part[0], next(gather([source], index.reshape(1, 1, -1))))

    def count(self, gradients: int) -> None:
        self._host.gradients[self._p] = self._host.gradients.get(self._p, 0) + gradients


def _gradient_at(g: Gradient, *, x: Tensor) -> Tensor:
    return g(x)


class RowMemory:
    """The memory of a block of workers (see `fewrounds.interfaces.Memory`)."""

    def __init__(self, host: Host, workers: Sequence[int]) -> None:
        self._host = host
        self._workers = workers

    def get(self, name: str, default: Tensor) -> Tensor:
        host = self._host
        return torch.stack([host.staged.get((name, p), host.kept.get((name, p), default)) for p in self._workers])

    def set(self, name: str, value: Tensor) -> None:
        self._host.staged |= self._by_worker(name, value)

    def stash(self, name: str, value: Tensor) -> None:
        self._host.stashed |= self._by_worker(name, value)

    def stashed(self, name: str) -> Tensor:
        return torch.stack([self._host.stashed[name, p] for p in self._workers])

    def _by_worker(self, name: str, value: Tensor) -> Kept:
        value = value.expand(len(self._workers), -1)
        return {(name, p): value[row].clone() for row, p in enumerate(self._workers)}
