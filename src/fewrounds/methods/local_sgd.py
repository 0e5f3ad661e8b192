"""Local SGD (Stich 2019; Yu et al. 2019), also known as FedAvg and Parallel Restart SGD.

    x_0^(p) = x_{t-1}
    x_k^(p) = x_{k-1}^(p) - η (1/b) Σ_l ∇ℓ(x_{k-1}^(p), z_l),  z_l ~ D_p i.i.d.,  k = 1 … K
    x_t = mean_p x_K^(p)

A round sends P vectors up and P down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine, Rows
from fewrounds.methods.base import Method, State, register


@register("local-sgd")
@dataclass(frozen=True)
class LocalSGD(Method):
    """Settings: step size eta, K local steps of batch b."""

    local: ClassVar[bool] = True
    K: int
    b: int

    def init(self, x0: Tensor) -> State:
        return State(x=x0)

    def round(self, s: State, engine: Engine) -> State:
        return State(x=engine.mean(local_sgd, s.x, eta=self.eta, K=self.K, b=self.b))

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        return self.K * self.b


def local_sgd(rows: Rows, x: Tensor, *, eta: float, K: int, b: int) -> Tensor:
    """x_K^(p)."""
    for z in rows.batches("local", K, b):
        x = x - eta * rows.gradient(x, z)
    return x
