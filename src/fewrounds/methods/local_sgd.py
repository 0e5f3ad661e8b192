"""Local SGD (Stich 2019; Yu et al. 2019), also known as FedAvg and Parallel Restart SGD.

    x_0^(p) = x_{t-1}
    x_k^(p) = x_{k-1}^(p) - η (1/b) Σ_l ∇ℓ(x_{k-1}^(p), z_l),  z_l ~ D_p i.i.d.,  k = 1 … K
    x_t = mean_p x_K^(p)

With participants = m, each round's mean is over m workers drawn uniformly, as in FedAvg; the others do nothing.
A round sends P (or m) vectors up and as many down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine, Gradient, Rows
from fewrounds.methods.base import Method, State, check_participants, register


@register("local-sgd")
@dataclass(frozen=True)
class LocalSGD(Method):
    """Settings: step size eta, K local steps of batch b, workers taking part in a round (all if None)."""

    local: ClassVar[bool] = True
    K: int
    b: int
    participants: int | None = None

    def init(self, x0: Tensor) -> State:
        return State(x=x0)

    def round(self, s: State, engine: Engine) -> State:
        among = engine.participants(self.participants)
        return State(x=engine.mean(local_sgd, s.x, among=among, eta=self.eta, K=self.K, b=self.b))

    def check(self, sizes: Sequence[float]) -> None:
        check_participants(self.name, self.participants, sizes)

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        return self.K * self.b * (self.participants or len(sizes)) / len(sizes)


def local_sgd(rows: Rows, x: Tensor, *, eta: float, K: int, b: int) -> Tensor:
    """x_K^(p)."""
    return rows.iterate(sgd_step, (x,), "local", K, b, eta=eta)[0]


def sgd_step(g: Gradient, x: Tensor, *, eta: float) -> Tensor:
    """x_k = x_{k-1} - η g_k(x_{k-1})."""
    return x - eta * g(x)
