"""The workers of one process: their data, their memory, and the blocks of rows that tasks run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from fewrounds.batch import Batch, batch_size, stack
from fewrounds.data.sources import Source
from fewrounds.draws import Draws
from fewrounds.errors import DataError, FewroundsError, ProblemError
from fewrounds.problem import Problem

Kept = dict[tuple[str, int], Tensor]
"""Per-worker memory: the vector kept under (name, worker)."""


class Host:
    """Runs tasks for the workers it holds, a block of rows at a time, and counts their gradients.

    What a round writes (memory, counts) is staged until `commit`, so a round that is interrupted leaves
    nothing behind.
    """

    def __init__(self, problem: Problem, sources: dict[int, Source], draws: Draws, rows_at_once: int) -> None:
        self.problem = problem
        self.sources = sources
        self.draws = draws
        self.rows_at_once = rows_at_once
        self.round = 0
        self.kept: Kept = {}
        self.staged: Kept = {}
        self.gradients: dict[int, int] = {}

    def begin(self, round: int) -> None:
        self.round = round
        self.staged = {}
        self.gradients = {}

    def commit(self) -> None:
        self.kept = {**self.kept, **self.staged}
        self.staged = {}

    def run(
        self,
        workers: Sequence[int],
        task: Callable[..., Tensor | tuple[Tensor, ...]],
        vectors: tuple[Tensor, ...],
        settings: dict[str, Any],
    ) -> Iterator[tuple[Sequence[int], tuple[Tensor, ...]]]:
        """The task's vectors, each [rows, d], block by block."""
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

    def evaluate(self, p: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss (without L2), accuracy and gradient (with L2) over all data of worker p; not counted."""
        total = 0
        loss, accuracy, gradient = x.new_zeros(()), x.new_zeros(()), torch.zeros_like(x)
        for z in self.sources[p].everything():
            n = batch_size(z)
            total += n
            metrics, part = self.problem.metrics_and_gradient(x, z)
            loss, accuracy, gradient = (
                loss + n * metrics.loss,
                accuracy + n * metrics.accuracy,
                gradient + n * part,
            )
        return loss / total, accuracy / total, gradient / total


class RowBlock:
    """A block of workers, one a row (see `fewrounds.interfaces.Rows`)."""

    def __init__(self, host: Host, workers: Sequence[int]) -> None:
        self._host = host
        self._workers = workers
        self.memory = RowMemory(host, workers)

    def gradient(self, x: Tensor, z: Batch) -> Tensor:
        first = z if isinstance(z, Tensor) else z[0]
        self._count(int(first.shape[1]))
        return self._host.problem.gradients(x, z)

    def full_gradient(self, x: Tensor) -> Tensor:
        return torch.stack([self._full_gradient(r, p, x) for r, p in enumerate(self._workers)])

    def batches(self, purpose: str, count: int, b: int) -> Iterator[Batch]:
        draws = [self._host.sources[p].batches(self._generator(purpose, p), count, b) for p in self._workers]
        return (stack(batch) for batch in zip(*draws, strict=True))

    def mean(self, function: Callable[[Batch], Tensor], purpose: str, n: int) -> Tensor:
        draws = [self._host.sources[p].sample(self._generator(purpose, p), n) for p in self._workers]
        total: Tensor | None = None
        for batch in zip(*draws, strict=True):
            part = function(stack(batch))
            share = batch_size(batch[0]) / n
            total = share * part if total is None else total + share * part
        assert total is not None, "n is at least 1"
        return total

    def integers(self, purpose: str, n: int) -> Tensor:
        draws = self._host.draws
        values = [draws.integer(purpose, self._host.round, n, worker=p) for p in self._workers]
        return torch.tensor(values, device=self._host.problem.device).unsqueeze(1)

    def _full_gradient(self, row: int, p: int, x: Tensor) -> Tensor:
        source, problem = self._host.sources[p], self._host.problem
        if source.size == float("inf"):
            raise DataError(f"worker {p} is a Stream: it has no full gradient")
        x = x if x.ndim == 1 else x[row]
        self._host.gradients[p] = self._host.gradients.get(p, 0) + int(source.size)
        parts = (problem.gradient(x, z) * (batch_size(z) / source.size) for z in source.everything())
        return sum(parts, start=torch.zeros_like(x))

    def _generator(self, purpose: str, p: int) -> Any:
        return self._host.draws.generator(purpose, self._host.round, p)

    def _count(self, n: int) -> None:
        for p in self._workers:
            self._host.gradients[p] = self._host.gradients.get(p, 0) + n


class RowMemory:
    """The memory of a block of workers (see `fewrounds.interfaces.Memory`)."""

    def __init__(self, host: Host, workers: Sequence[int]) -> None:
        self._host = host
        self._workers = workers

    def get(self, name: str, default: Tensor) -> Tensor:
        host = self._host
        return torch.stack([host.staged.get((name, p), host.kept.get((name, p), default)) for p in self._workers])

    def set(self, name: str, value: Tensor) -> None:
        value = value.expand(len(self._workers), -1)
        for row, p in enumerate(self._workers):
            self._host.staged[name, p] = value[row].clone()
