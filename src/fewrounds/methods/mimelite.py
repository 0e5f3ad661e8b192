"""MIMELite (Karimireddy et al. 2020) on SGD with momentum: MIME without the correction of the local gradients.

    y_0^(p) = x_{t-1}
    y_k^(p) = y_{k-1}^(p) - η [(1 - β) g_k(y_{k-1}^(p)) + β m_{t-1}],  k = 1 … K
    x_t = mean_p y_K^(p),   m_t = (1 - β) mean_p ∇̃^(p)(x_{t-1}) + β m_{t-1}   (∇̃: all data, or b̃ samples)

One aggregation a round, of y_K^(p) and ∇̃^(p). With β = 0 it is Local SGD, with its bias
(which costs less: it has no use for ∇̃).
With participants = m, both means are over m workers drawn uniformly, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine, Gradient, Rows
from fewrounds.methods.base import Method, check_participants, register
from fewrounds.methods.mime import MIMEState, check_momentum
from fewrounds.methods.stages import check_b_tilde, every_round, large_batch, sampled
from fewrounds.methods.tasks import large_gradient


@register("mimelite")
@dataclass(frozen=True)
class MIMELite(Method):
    """Settings: step size eta, K local steps of batch b, momentum beta, b_tilde samples for its update (all data if
    None), workers taking part in a round (all if None)."""

    local: ClassVar[bool] = True
    K: int
    b: int
    beta: float = 0.9
    b_tilde: int | None = None
    participants: int | None = None

    def init(self, x0: Tensor) -> MIMEState:
        return MIMEState(x=x0, m=x0.new_zeros(len(x0)))

    def round(self, s: MIMEState, engine: Engine) -> MIMEState:
        x, c = engine.mean(
            steps_and_gradient,
            s.x,
            s.m,
            among=engine.participants(self.participants),
            eta=self.eta,
            beta=self.beta,
            K=self.K,
            b=self.b,
            n=sampled(self.b_tilde, engine.sizes),
        )
        return MIMEState(x=x, m=(1 - self.beta) * c + self.beta * s.m)

    def check(self, sizes: Sequence[float]) -> None:
        check_momentum(self.name, self.beta)
        check_b_tilde(self.name, self.b_tilde, sizes)
        check_participants(self.name, self.participants, sizes)

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        one = large_batch(self.b_tilde, sizes) + self.K * self.b
        return one * (self.participants or len(sizes)) / len(sizes)

    @classmethod
    def also_for_budget(cls, budget: int, strict: bool, sizes: Sequence[float]) -> dict[str, Any]:
        return {"b_tilde": every_round(budget, strict, sizes)}


def steps_and_gradient(
    rows: Rows, x: Tensor, m: Tensor, *, eta: float, beta: float, K: int, b: int, n: int | None
) -> tuple[Tensor, Tensor]:
    """y_K^(p) and ∇̃^(p)(x)."""
    (y,) = rows.iterate(momentum_step, (x,), "local", K, b, pull=beta * m, eta=eta, kept=1 - beta)
    return y, large_gradient(rows, x, n=n)


def momentum_step(g: Gradient, y: Tensor, *, pull: Tensor, eta: float, kept: float) -> Tensor:
    """y_k = y_{k-1} - η [(1 - β) g_k(y_{k-1}) + β m_{t-1}]."""
    return y - eta * (kept * g(y) + pull)
