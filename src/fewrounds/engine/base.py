"""What every engine shares: the weights, the pick, the count of what is carried, and the commit of a round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from fewrounds.draws import Draws
from fewrounds.engine.host import Kept
from fewrounds.engine.team import Alone, Team
from fewrounds.errors import SettingError
from fewrounds.interfaces import Out
from fewrounds.ledger import Ledger

Parts = tuple[Tensor, ...]

Held = tuple[tuple[Tensor, frozenset[int]], ...]
"""Vectors, each with the workers that have it."""


class Evaluation(NamedTuple):
    """f(x), the mean accuracy of the workers, ∇f(x) if it was asked for, and the figures of test data, if any."""

    loss: Tensor
    accuracy: Tensor
    gradient: Tensor | None
    test_loss: float = math.nan
    test_accuracy: float = math.nan


@dataclass(frozen=True)
class Committed:
    """All that an engine carries from one round to the next. Replaced as a whole, never changed."""

    ledger: Ledger
    kept: Kept = field(default_factory=dict)
    held: Held = ()
    """The vectors that workers were sent in the last round, and so need not be sent to these again."""


class BaseEngine(ABC):
    """Offers methods what `fewrounds.interfaces.Engine` says; `train` the rounds, evaluation and state.

    An engine of its own implements the six methods at the end.
    """

    def __init__(self, sizes: Sequence[float], weights: str, draws: Draws, vector_bytes: int) -> None:
        self.sizes = tuple(sizes)
        self.weights = worker_weights(self.sizes, weights)
        self.draws = draws
        self.team: Team = Alone()
        """The processes that run the same rounds."""
        self.absent: dict[int, str] = {}
        """Workers that are gone, and why. Only an engine that can do without some puts any here."""
        self.round = 0
        self.picked = -1
        self._among: Sequence[int] | None = None
        """Among whom a worker was picked last."""
        self.committed = Committed(Ledger(gradients=(0,) * len(self.sizes), vector_bytes=vector_bytes))
        self._everyone = frozenset(range(len(self.sizes)))
        self._given: dict[int, tuple[Tensor, frozenset[int]]] = {}
        """By id: the vectors of this round, and the workers that have them by now."""
        self._up = self._down = 0

    # ------------------------------------------------------------------ for methods

    def mean(
        self, task: Callable[..., Out], /, *vectors: Tensor, among: Sequence[int] | None = None, **settings: Any
    ) -> Out:
        among = range(len(self.sizes)) if among is None else among
        self._send(vectors, among)
        parts, senders = self._mean(task, vectors, settings, among)
        out: Out = self._received(parts, senders)
        return out

    def at(self, p: int, task: Callable[..., Out], /, *vectors: Tensor, **settings: Any) -> Out:
        self._send(vectors, [p])
        out: Out = self._received(self._at(p, task, vectors, settings), senders=1)
        return out

    def every(self, p: int, task: Callable[..., Out], /, *vectors: Tensor, **settings: Any) -> Out:
        self._send(vectors, range(len(self.sizes)))
        parts = self._every(p, task, vectors, settings)
        out: Out = self._received(parts, senders=self._there(range(len(self.sizes))))
        return out

    def figures(self, p: int, task: Callable[..., Tensor], /, *vectors: Tensor, count: int, **settings: Any) -> Tensor:
        self._send(vectors, [p])
        return self._figures(p, task, vectors, {"count": count, **settings}, count)

    def pick(self, among: Sequence[int] | None = None) -> int:
        self._among = among
        able = [p for p in (among or range(len(self.sizes))) if p not in self.absent]
        able = able or [p for p in range(len(self.sizes)) if p not in self.absent]
        share = self.share(able)
        self.picked = able[self.draws.pick(self.round, [self.weights[p] / share for p in able])]
        return self.picked

    def participants(self, m: int | None) -> Sequence[int] | None:
        return None if m is None else self.draws.subset(self.round, len(self.sizes), m)

    def share(self, among: Sequence[int] | None) -> float:
        return 1.0 if among is None or len(among) == len(self.sizes) else sum(self.weights[p] for p in among)

    def integer(self, purpose: str, n: int) -> int:
        return self.draws.integer(purpose, self.round, n)

    # ------------------------------------------------------------------ for train

    def begin(self, round: int) -> None:
        """Start a round; whatever an interrupted one has left is dropped."""
        self.round = round
        self.picked = -1
        self._given = {}
        self._up = self._down = 0
        self._begin(round)

    def commit(self) -> None:
        """End the round: its counts and its memory become the engine's, in one assignment."""
        gradients, kept = self._finish()
        ledger = self.committed.ledger.after_round(gradients, self._up, self._down, self.absent)
        self.committed = Committed(ledger, kept, tuple(self._given.values()))

    @abstractmethod
    def restore(self, committed: Committed) -> None:
        """Continue from what a checkpoint holds."""

    @abstractmethod
    def evaluate(self, x: Tensor, gradient: bool = True) -> Evaluation:
        """The exact loss, accuracy and (if asked for) gradient over all data. Not counted."""

    # ------------------------------------------------------------------ what an engine implements

    @abstractmethod
    def _begin(self, round: int) -> None: ...

    @abstractmethod
    def _finish(self) -> tuple[dict[int, int], Kept]:
        """The gradients of the round by worker, and the memory of the hosted workers after it."""

    @abstractmethod
    def _mean(
        self, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any], among: Sequence[int]
    ) -> tuple[Parts, int]:
        """The mean over these workers, by their weights, and of how many it is: where some are gone, of others."""

    @abstractmethod
    def _at(self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any]) -> Parts: ...

    @abstractmethod
    def _every(self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any]) -> Parts: ...

    @abstractmethod
    def _figures(
        self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any], count: int
    ) -> Tensor: ...

    # ------------------------------------------------------------------ counting

    def _send(self, vectors: Parts, workers: Sequence[int]) -> None:
        """Count what these workers lack."""
        for vector in vectors:
            _, now = self._given.get(id(vector), (vector, frozenset[int]()))
            before = next((have for held, have in self.committed.held if held is vector), frozenset[int]())
            there = self._everyone if len(workers) == len(self.sizes) else frozenset(workers)
            there = there.difference(self.absent)
            self._down += len(there - now - before)
            self._given[id(vector)] = vector, now | there

    def _there(self, workers: Sequence[int]) -> int:
        """How many of these workers are not gone."""
        return sum(p not in self.absent for p in workers) if self.absent else len(workers)

    def _received(self, parts: Parts, senders: int) -> Any:
        self._up += senders * len(parts)
        return parts[0] if len(parts) == 1 else parts


def worker_weights(sizes: Sequence[float], weights: str) -> tuple[float, ...]:
    """The share of each worker in the mean and in the draw of p̂."""
    if weights == "uniform":
        return (1 / len(sizes),) * len(sizes)
    if weights == "size":
        if float("inf") in sizes:
            raise SettingError("weights = 'size' needs finite data: a Stream has no size, use 'uniform'")
        return tuple(size / sum(sizes) for size in sizes)
    raise SettingError(f"weights = {weights!r}: must be 'uniform' or 'size'")
