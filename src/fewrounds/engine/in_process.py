"""The workers of this process, and with a team those of others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fewrounds.data.shards import Source
from fewrounds.draws import Draws
from fewrounds.engine.base import BaseEngine, Committed, Evaluation, Parts
from fewrounds.engine.host import Host, Kept, mean_metrics
from fewrounds.engine.loop import Programs
from fewrounds.engine.team import Alone, Team
from fewrounds.problem import Problem

HALF = 2**20
"""Counts travel as two numbers, n // HALF and n % HALF, so that they stay whole in float32."""


class InProcess(BaseEngine):
    """Runs the workers it holds one block of rows after the other, and adds up what the processes of a team have."""

    def __init__(
        self,
        problem: Problem,
        sources: dict[int, Source],
        sizes: Sequence[float],
        draws: Draws,
        weights: str,
        rows_at_once: int,
        programs: Programs,
        team: Team | None = None,
        test: Source | None = None,
    ) -> None:
        itemsize = torch.empty((), dtype=problem.dtype).element_size()
        super().__init__(sizes, weights, draws, problem.dim * itemsize)
        self.problem = problem
        self.team = team or Alone()
        self.test = test
        """Rank 0 has it."""
        self._host = Host(problem, sources, draws, rows_at_once, programs)
        self._noted: dict[int, int] = {}
        """What the others have been told of this round's gradients of the workers here."""
        self._notes: list[Tensor] = []
        """What all processes have told each other of them."""
        self._all_noted = True

    def restore(self, committed: Committed) -> None:
        self.committed = committed
        self._host.kept = committed.kept

    def evaluate(self, x: Tensor, gradient: bool = True) -> Evaluation:
        loss, accuracy = x.new_zeros(()), x.new_zeros(())
        total = torch.zeros_like(x) if gradient else None
        for workers in self._host.alike(self.weights):
            w = len(workers) * self.weights[workers[0]]
            metrics, their_gradient = self._host.evaluate(workers, x, gradient)
            loss, accuracy = loss + w * metrics.loss, accuracy + w * metrics.accuracy
            if total is not None and their_gradient is not None:
                total.add_(their_gradient, alpha=w)
        figures = torch.stack([loss, accuracy])
        if total is None:
            figures = self.team.sum((), "figures", True, figures, figures)[1]
        else:
            (total,), figures = self.team.sum((total,), "gradient", True, total, figures)
        loss, accuracy = figures
        tested = self.team.share(mean_metrics(self.problem, self.test, x) if self.test else (math.nan, math.nan))
        return Evaluation(loss + 0.5 * self.problem.l2 * x.dot(x), accuracy, total, *tested)

    def _begin(self, round: int) -> None:
        self._host.kept = self.committed.kept
        self._host.begin(round)
        self._noted, self._notes, self._all_noted = {}, [], True

    def _finish(self) -> tuple[dict[int, int], Kept]:
        self._host.commit()
        if self.team.size == 1:
            return dict(self._host.gradients), self._host.kept
        counts = [0] * len(self.sizes)
        if not self._all_noted:
            counts = self.team.counts(self._news())
        if self._notes:
            halves = torch.stack(self._notes).double().sum(0).view(2, -1).tolist()
            counts = [n + HALF * int(more) + int(rest) for n, more, rest in zip(counts, *halves, strict=True)]
        return dict(enumerate(counts)), self._host.kept

    def _news(self) -> list[int]:
        """By worker: the gradients that were computed here since this was last asked."""
        new = [self._host.gradients.get(p, 0) - self._noted.get(p, 0) for p in range(len(self.sizes))]
        self._noted = dict(self._host.gradients)
        return new

    def _note(self, rank: int | None = None) -> Tensor:
        """The same as numbers that travel with vectors, from one rank or from all."""
        if self.team.size == 1:
            return self.problem.start.new_empty(0)
        new = self._news() if rank in (None, self.team.rank) else [0] * len(self.sizes)
        return self.problem.start.new_tensor([n // HALF for n in new] + [n % HALF for n in new])

    def _mean(
        self, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any], among: Sequence[int]
    ) -> tuple[Parts, int]:
        share = self.share(among)
        total: Parts | None = None
        for block, parts in self._host.run(self._held_here(among), task, vectors, settings):
            w = parts[0].new_tensor([self.weights[p] / share for p in block])
            sums = tuple(w @ part for part in parts)
            total = sums if total is None else tuple(a + b for a, b in zip(total, sums, strict=True))
        everyone = len({self.team.owner(p) for p in among}) == self.team.size
        out, note = self.team.sum(total, task, everyone, self.problem.start, self._note())
        self._notes.append(note)
        return out, len(among)

    def _at(self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any]) -> Parts:
        return self._from(p, task, vectors, settings, self.problem.start)

    def _figures(
        self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any], count: int
    ) -> Tensor:
        return self._from(p, task, vectors, settings, self.problem.start.new_empty(count))[0]

    def _from(self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any], like: Tensor) -> Parts:
        own: Parts | None = None
        if self.team.owner(p) == self.team.rank:
            _, parts = next(self._host.run([p], task, vectors, settings))
            own = tuple(part[0] for part in parts)
        out, note = self.team.from_owner(p, own, task, like, self._note(self.team.owner(p)))
        self._notes.append(note)
        return out

    def _every(self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any]) -> Parts:
        taken: Parts | None = None
        for block, parts in self._host.run(self._held_here(range(len(self.sizes))), task, vectors, settings):
            if p in block:
                taken = tuple(part[block.index(p)].clone() for part in parts)
        out, _ = self.team.from_owner(p, taken, task, self.problem.start, self.problem.start.new_empty(0))
        self._all_noted = False  # all have computed, and only one has been heard
        return out

    def _held_here(self, workers: Sequence[int]) -> Sequence[int]:
        return [p for p in workers if self.team.owner(p) == self.team.rank]
