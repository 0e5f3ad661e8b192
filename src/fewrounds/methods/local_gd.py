"""Local GD (the paper's Algorithm 1): Local SGD with the full local gradient.

    x_0^(p) = x̃_{t-1}
    x_k^(p) = x_{k-1}^(p) - η ∇f_p(x_{k-1}^(p)),  k = 1 … K
    x̃_t = mean_p x_k̂^(p),  k̂ = K ("last") or k̂ ~ Unif[K], one draw a round for all workers ("random")

With k_hat = "random" the answer is x̃_t̂ with t̂ uniform over the rounds, as Algorithm 1 returns it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.errors import SettingError
from fewrounds.interfaces import Engine, Rows
from fewrounds.methods.base import Method, State, mean_size, register


@dataclass(frozen=True)
class LocalGDState(State):
    x_out: Tensor
    """x̃_t̂: uniform over the iterates so far."""


@register("local-gd")
@dataclass(frozen=True)
class LocalGD(Method):
    """Settings: step size eta, K local steps, k_hat = "last" or "random"."""

    local: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"k_hat": ("last", "random")}
    K: int
    k_hat: str = "last"

    def init(self, x0: Tensor) -> LocalGDState:
        return LocalGDState(x=x0, x_out=x0)

    def round(self, s: LocalGDState, engine: Engine) -> LocalGDState:
        # Steps after the k̂-th change nothing, so they are not taken.
        k_hat = self.K if self.k_hat == "last" else 1 + engine.integer("k_hat", self.K)
        x = engine.mean(local_gd, s.x, eta=self.eta, K=k_hat)
        # t̂ ~ Unif[t], kept up to date: the newest round replaces the one held with probability 1/t.
        newest = self.k_hat == "last" or engine.integer("t_hat", engine.round) == 0
        return LocalGDState(x=x, x_out=x if newest else s.x_out)

    def output(self, s: LocalGDState) -> Tensor:
        return s.x_out

    def check(self, sizes: Sequence[float]) -> None:
        if math.inf in sizes:
            raise SettingError("local-gd: a Stream has no full gradient, use local-sgd")

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        steps = self.K if self.k_hat == "last" else (self.K + 1) / 2
        return steps * mean_size(sizes)


def local_gd(rows: Rows, x: Tensor, *, eta: float, K: int) -> Tensor:
    """x_K^(p)."""
    for _ in range(K):
        x = x - eta * rows.full_gradient(x)
    return x
