"""What methods share that use a full (or large-batch) gradient, for a stage of several rounds or for one."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fewrounds.errors import SettingError
from fewrounds.interfaces import Engine
from fewrounds.methods.base import Method, mean_size
from fewrounds.methods.tasks import large_gradient


class Staged(Method):
    """A method whose rounds form stages, each from a gradient of all data or of b̃ samples."""

    b_tilde: int | None
    T: int | None

    @property
    @abstractmethod
    def batch(self) -> int:
        """Samples of a worker in a round that starts no stage, each evaluated at two points."""

    def starts_stage(self, engine: Engine) -> bool:
        return (engine.round - 1) % self.stage_rounds(engine.sizes) == 0

    def check(self, sizes: Sequence[float]) -> None:
        check_b_tilde(self.name, self.b_tilde, sizes)

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        T = self.stage_rounds(sizes)
        return (large_batch(self.b_tilde, sizes) + (T - 1) * 2 * self.batch) / T

    def stage_rounds(self, sizes: Sequence[float]) -> int:
        """T = ⌈1 + b̃ / batch⌉; without b̃, b̃ is the mean number of samples of a worker."""
        if self.T is not None:
            return self.T
        if self.b_tilde is not None:
            return 1 + -(-self.b_tilde // self.batch)
        return 1 + -(-int(sum(sizes)) // (len(sizes) * self.batch))


def check_b_tilde(name: str, b_tilde: int | None, sizes: Sequence[float], setting: str = "b_tilde") -> None:
    if b_tilde is None and math.inf in sizes:
        raise SettingError(f"{name}: {setting} is required with a Stream, whose full gradient does not exist")


def is_full(b_tilde: int | None, sizes: Sequence[float]) -> bool:
    """Whether the stage gradient is over all data: b̃ ≥ (1/P) Σ_p |D_p|."""
    return b_tilde is None or b_tilde >= mean_size(sizes)


def sampled(b_tilde: int | None, sizes: Sequence[float]) -> int | None:
    """b̃, or None if the gradient is over all data."""
    return None if is_full(b_tilde, sizes) else b_tilde


def stage_gradient(
    engine: Engine, x: Tensor, b_tilde: int | None, *, among: Sequence[int] | None = None, **settings: Any
) -> Tensor:
    """ṽ_0 = mean_p ∇̃^(p): ∇f_p(x), or the mean of b̃ i.i.d. sample gradients."""
    return engine.mean(large_gradient, x, among=among, n=sampled(b_tilde, engine.sizes), **settings)


def large_batch(b_tilde: int | None, sizes: Sequence[float]) -> float:
    """What such a gradient costs a worker, on average."""
    return mean_size(sizes) if is_full(b_tilde, sizes) else float(b_tilde or 0)


def every_round(budget: int, strict: bool, sizes: Sequence[float], batches: int = 1) -> int | None:
    """b̃ for a method that takes this many large batches in every round, under a budget.

    Strictly, all data (None) where that leaves a quarter of the budget to local steps, otherwise half of the budget.
    """
    if not strict:
        return budget
    return None if batches * mean_size(sizes) <= 0.75 * budget else max(1, budget // (2 * batches))
