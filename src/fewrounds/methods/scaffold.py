"""SCAFFOLD (Karimireddy et al. 2020): Local SGD whose steps are corrected by control variates.

    y_0^(p) = x_{t-1}
    y_k^(p) = y_{k-1}^(p) - η (g(y_{k-1}^(p)) - c_p + c),  k = 1 … K
    option I:   c_p⁺ = ∇f_p(x_{t-1})
    option II:  c_p⁺ = c_p - c + (x_{t-1} - y_K^(p)) / (K η)
    x_t = x_{t-1} + η_g mean_p (y_K^(p) - x_{t-1}),   c ← c + mean_p (c_p⁺ - c_p)

c and every c_p start at 0, and c_p never leaves its worker. With participants = m, a round's means are over m workers
drawn uniformly, and c moves by m/P of theirs, so that it stays the mean of all c_p, as published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.errors import SettingError
from fewrounds.interfaces import Engine, Gradient, Rows
from fewrounds.methods.base import Method, State, check_participants, mean_size, register


@dataclass(frozen=True)
class SCAFFOLDState(State):
    c: Tensor
    """c, the mean of the workers' control variates."""


@register("scaffold")
@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Settings: step size eta, K local steps of batch b, option "I" or "II", server step eta_g, workers taking part in
    a round (all if None)."""

    local: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"option": ("I", "II")}
    K: int
    b: int
    option: str = "II"
    eta_g: float = 1.0
    participants: int | None = None

    def init(self, x0: Tensor) -> SCAFFOLDState:
        return SCAFFOLDState(x=x0, c=x0.new_zeros(len(x0)))

    def round(self, s: SCAFFOLDState, engine: Engine) -> SCAFFOLDState:
        among = engine.participants(self.participants)
        dx, dc = engine.mean(
            corrected_steps, s.x, s.c, among=among, eta=self.eta, K=self.K, b=self.b, option=self.option
        )
        return SCAFFOLDState(x=s.x + self.eta_g * dx, c=s.c + engine.share(among) * dc)

    def check(self, sizes: Sequence[float]) -> None:
        check_participants(self.name, self.participants, sizes)
        if self.option == "I" and math.inf in sizes:
            raise SettingError("scaffold: option 'I' needs full gradients, which a Stream does not have; use 'II'")

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        one = self.K * self.b + (mean_size(sizes) if self.option == "I" else 0)
        return one * (self.participants or len(sizes)) / len(sizes)


def corrected_steps(
    rows: Rows, x: Tensor, c: Tensor, *, eta: float, K: int, b: int, option: str
) -> tuple[Tensor, Tensor]:
    """y_K - x and c_p⁺ - c_p."""
    c_p = rows.memory.get("c", c.new_zeros(len(c)))
    (y,) = rows.iterate(corrected_step, (x,), "local", K, b, correction=c - c_p, eta=eta)
    c_new = rows.full_gradient(x) if option == "I" else c_p - c + (x - y) / (K * eta)
    rows.memory.set("c", c_new)
    return y - x, c_new - c_p


def corrected_step(g: Gradient, y: Tensor, *, correction: Tensor, eta: float) -> Tensor:
    """y_k = y_{k-1} - η (g_k(y_{k-1}) - c_p + c)."""
    return y - eta * (g(y) + correction)
