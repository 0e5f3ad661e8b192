"""CE-LSGD (Patel et al. 2022): the successor of BVR-L-SGD, whose estimate needs no restarts.

    first round:  ṽ_1 = mean_p ∇̃^(p)(x_0)   (∇̃: all data, or b̃ samples)
    round t:      ṽ_t = mean_p g_t^(p)(x_{t-1}) + (1 - β) (ṽ_{t-1} - mean_p g_t^(p)(x_{t-2}))
                  (K·b samples, the same at both points)
                  p̂ ~ Unif[P],  x_t = Local-Routine(p̂, x_{t-1}, η, ṽ_t, b, K)   (as in BVR-L-SGD)

β is the share that is forgotten in a round. With β = 0 and a full first gradient these are the rounds of a single stage
of BVR-L-SGD; with β = 1, ṽ is a fresh minibatch gradient every round.
With participants = m, the means are over m workers drawn uniformly, and p̂ is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine, Gradient, Rows
from fewrounds.methods.base import Method, State, check_participants, register
from fewrounds.methods.stages import check_b_tilde, stage_gradient
from fewrounds.methods.tasks import local_routine, sample_gradient


@dataclass(frozen=True)
class CELSGDState(State):
    x_prev: Tensor
    """x_{t-2}"""
    v: Tensor
    """ṽ_{t-1}"""


@register("ce-lsgd")
@dataclass(frozen=True)
class CELSGD(Method):
    """Settings: step size eta, K local steps of batch b, momentum beta (1: none), b_tilde samples in the first round
    (all data if None), workers taking part in a round (all if None)."""

    local: ClassVar[bool] = True
    K: int
    b: int
    beta: float = 0.1
    b_tilde: int | None = None
    participants: int | None = None

    def init(self, x0: Tensor) -> CELSGDState:
        return CELSGDState(x=x0, x_prev=x0, v=x0.new_zeros(len(x0)))

    def round(self, s: CELSGDState, engine: Engine) -> CELSGDState:
        among = engine.participants(self.participants)
        if engine.round == 1:
            v = stage_gradient(engine, s.x, self.b_tilde, among=among)
        elif self.beta == 1:
            v = engine.mean(sample_gradient, s.x, among=among, n=self.K * self.b, purpose="change")
        else:
            kept = 1 - self.beta
            # ṽ_t = mean_p [g_t(x_{t-1}) - (1 - β) g_t(x_{t-2})] + (1 - β) ṽ_{t-1}
            fresh = engine.mean(fading_change, s.x, s.x_prev, among=among, n=self.K * self.b, kept=kept)
            v = fresh + kept * s.v
        x = engine.at(engine.pick(among), local_routine, s.x, v, eta=self.eta, K=self.K, b=self.b)
        return CELSGDState(x=x, x_prev=s.x, v=v)

    def check(self, sizes: Sequence[float]) -> None:
        check_b_tilde(self.name, self.b_tilde, sizes)
        check_participants(self.name, self.participants, sizes)

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        # of every round but the first; Local-Routine takes K - 1 differences at one worker
        taking_part, points = self.participants or len(sizes), 1 if self.beta == 1 else 2
        return (points * self.K * taking_part + 2 * (self.K - 1)) * self.b / len(sizes)

    @classmethod
    def also_for_budget(cls, budget: int, strict: bool, sizes: Sequence[float]) -> dict[str, Any]:
        # in strict mode Local-Routine's 2 (K - 1) b at one worker must find room beside it in the first round
        return {"b_tilde": max(1, budget // 2) if strict else budget}


def fading_change(rows: Rows, x: Tensor, x_prev: Tensor, *, n: int, kept: float) -> Tensor:
    """g(x) - (1 - β) g(x_prev), both on the same n i.i.d. samples."""
    return rows.average(fading, "change", n, x=x, x_prev=x_prev, kept=kept)


def fading(g: Gradient, *, x: Tensor, x_prev: Tensor, kept: float) -> Tensor:
    return g(x) - kept * g(x_prev)
