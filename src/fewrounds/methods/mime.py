"""MIME (Karimireddy et al. 2020) on SGD with momentum: local steps that mimic the server's, momentum and all.

    c = mean_p ∇̃^(p)(x_{t-1})   (∇̃: all data, or b̃ samples)
    y_0^(p) = x_{t-1}
    y_k^(p) = y_{k-1}^(p) - η [(1 - β) (g_k(y_{k-1}^(p)) - g_k(x_{t-1}) + c) + β m_{t-1}],  k = 1 … K
    x_t = mean_p y_K^(p),   m_t = (1 - β) c + β m_{t-1}

The momentum stays the same through the local steps. Only m_t is sent to the workers, since c and m_{t-1} occur in no
other way: y_k = y_{k-1} - η [(1 - β) (g_k(y_{k-1}) - g_k(x_{t-1})) + m_t]. At k = 1 the difference is 0.
Two aggregations a round, of ∇̃^(p) and of y_K^(p). With participants = m, c and x_t are means over m workers drawn
uniformly, the same for both, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fewrounds.errors import SettingError
from fewrounds.interfaces import Engine, Gradient, Rows
from fewrounds.methods.base import Method, State, check_participants, register
from fewrounds.methods.stages import check_b_tilde, every_round, large_batch, stage_gradient


@dataclass(frozen=True)
class MIMEState(State):
    m: Tensor
    """m_{t-1}, the momentum; 0 at the start."""


@register("mime")
@dataclass(frozen=True)
class MIME(Method):
    """Settings: step size eta, K local steps of batch b, momentum beta, b_tilde samples for c (all data if None),
    workers taking part in a round (all if None)."""

    local: ClassVar[bool] = True
    K: int
    b: int
    beta: float = 0.9
    b_tilde: int | None = None
    participants: int | None = None

    def init(self, x0: Tensor) -> MIMEState:
        return MIMEState(x=x0, m=x0.new_zeros(len(x0)))

    def round(self, s: MIMEState, engine: Engine) -> MIMEState:
        among = engine.participants(self.participants)
        c = stage_gradient(engine, s.x, self.b_tilde, among=among)
        m = (1 - self.beta) * c + self.beta * s.m
        x = engine.mean(mime_steps, s.x, m, among=among, eta=self.eta, beta=self.beta, K=self.K, b=self.b)
        return MIMEState(x=x, m=m)

    @property
    def aggregations(self) -> int:
        return 2

    def check(self, sizes: Sequence[float]) -> None:
        check_momentum(self.name, self.beta)
        check_b_tilde(self.name, self.b_tilde, sizes)
        check_participants(self.name, self.participants, sizes)

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        one = large_batch(self.b_tilde, sizes) + 2 * (self.K - 1) * self.b
        return one * (self.participants or len(sizes)) / len(sizes)

    @classmethod
    def also_for_budget(cls, budget: int, strict: bool, sizes: Sequence[float]) -> dict[str, Any]:
        return {"b_tilde": every_round(budget, strict, sizes)}


def check_momentum(name: str, beta: float) -> None:
    if beta == 1:
        raise SettingError(f"{name}: beta = 1 would leave the gradients out: it must be less than 1")


def mime_steps(rows: Rows, x: Tensor, m: Tensor, *, eta: float, beta: float, K: int, b: int) -> Tensor:
    """y_K^(p)."""
    return rows.iterate(mime_step, (x - eta * m,), "local", K - 1, b, x=x, m=m, eta=eta, kept=1 - beta)[0]


def mime_step(g: Gradient, y: Tensor, *, x: Tensor, m: Tensor, eta: float, kept: float) -> Tensor:
    """y_k = y_{k-1} - η [(1 - β) (g_k(y_{k-1}) - g_k(x)) + m_t]."""
    return y - eta * (kept * (g(y) - g(x)) + m)
