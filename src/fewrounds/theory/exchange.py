"""What is asked of the workers at a point, and what it costs.

Everything goes through an engine, so the data stay where they are: workers send gradients, Hessian-vector products
and a few figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fewrounds.engine.base import BaseEngine
from fewrounds.errors import FewroundsError
from fewrounds.theory import tasks
from fewrounds.theory.estimate import Estimate
from fewrounds.theory.spectrum import Product, Top, largest

if TYPE_CHECKING:
    from fewrounds.theory.measure import How

Value = TypeVar("Value")


class Exchange:
    """The workers, seen from one point."""

    def __init__(self, engine: BaseEngine, x: Tensor, how: How) -> None:
        self.engine = engine
        self.x = x
        self.how = how
        self.everyone = range(len(engine.sizes))
        self.sampled = any(size == math.inf or (how.n is not None and how.n < size) for size in engine.sizes)
        """Whether samples stand for the data of a worker."""
        self.tolerance = how.tolerance or (1e-8 if x.dtype == torch.float64 else 1e-3)

    def counted(self, action: Callable[[], Value]) -> tuple[Value, int]:
        """What comes of it, and the gradients that all workers have computed for it."""
        before = sum(self.engine.committed.ledger.gradients)
        value = action()
        return value, sum(self.engine.committed.ledger.gradients) - before

    def costed(self, action: Callable[[], Estimate]) -> Estimate:
        value, gradients = self.counted(action)
        return Estimate(value, value.error, gradients)

    def ask(self, action: Callable[[], Value]) -> Value:
        """One exchange with the workers, as a round of its own: vectors of earlier ones are no longer held."""
        self.engine.begin(self.engine.round + 1)
        value = action()
        self.engine.commit()
        if self.engine.absent:  # `at` would have taken another in its place
            p, why = next(iter(self.engine.absent.items()))
            raise FewroundsError(f"worker {p} was lost while it was measured: {why}")
        return value

    def mean(self, v: Tensor) -> Tensor:
        out: Tensor = self.engine.mean(tasks.hessian_product, self.x, v, n=self.how.n)
        return out

    def mean_again(self, v: Tensor) -> Tensor:
        out: Tensor = self.engine.mean(tasks.hessian_product, self.x, v, n=self.how.n, again=True)
        return out

    def at(self, p: int, v: Tensor, again: bool = False) -> Tensor:
        out: Tensor = self.engine.at(p, tasks.hessian_product, self.x, v, n=self.how.n, again=again)
        return out

    def top(self, product: Product, start: Tensor | None = None) -> Top:
        begin = self.start() if start is None else start
        return largest(lambda v: self.ask(lambda: product(v)), begin, self.tolerance)

    def between(self, p: int, q: int, start: Tensor | None = None) -> Top:
        """Of ∇²f_p - ∇²f_q."""
        return self.top(lambda v: self.at(p, v) - self.at(q, v), start)

    def start(self) -> Tensor:
        """A random unit vector, always the same one."""
        v = self.normal(0)
        return torch.from_numpy(v / np.linalg.norm(v)).to(self.x)

    def normal(self, number: int) -> npt.NDArray[np.float64]:
        """A vector of standard normal numbers, always the same one."""
        return self.engine.draws.generator("measure start", number).standard_normal(len(self.x))

    @staticmethod
    def of_top(top: Top) -> Estimate:
        return Estimate(abs(top.value), top.residual)

    def checked(self, top: Top, again: Product) -> Estimate:
        """|λ|, where samples stand for the data with a bar that reaches to uᵀAu of other samples.

        u is the direction in which the first ones happen to be bent most; other samples know nothing of that.
        """
        if not self.sampled:
            return self.of_top(top)
        other = float(top.vector @ self.ask(lambda: again(top.vector)))
        return Estimate(abs(top.value), max(top.residual, abs(top.value - other)))

    def mean_gradient(self) -> Tensor:
        out: Tensor = self.engine.mean(tasks.mean_gradient, self.x, n=self.how.n)
        return out

    def gradient(self, p: int) -> Tensor:
        out: Tensor = self.engine.at(p, tasks.mean_gradient, self.x, n=self.how.n)
        return out

    def distances(self, centre: Tensor) -> list[float]:
        return self.ask(lambda: [float((self.gradient(p) - centre).double().norm()) for p in self.everyone])
