"""Minibatch SARAH (Nguyen et al. 2017, 2019), distributed: the recursion of BVR-L-SGD without local steps.

    stage start:  v_0 = mean_p ∇̃^(p)(x̃),  x_0 = x_{-1} = x̃   (∇̃: all data, or b̃ samples)
    round t:      v_t = mean_p [g_t^(p)(x_{t-1}) - g_t^(p)(x_{t-2})] + v_{t-1}   (b samples, the same at both points)
                  x_t = x_{t-1} - η v_t
    a stage has T = ⌈1 + b̃/b⌉ rounds; at t = 1 the difference is 0, so its aggregation is the stage gradient.

A round sends P vectors up and P down: a worker keeps x_{t-2} from the round before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine
from fewrounds.methods.base import Method, State, register
from fewrounds.methods.stages import check_b_tilde, stage_gradient, stage_gradients_per_round, stage_length
from fewrounds.methods.tasks import gradient_change


@dataclass(frozen=True)
class SARAHState(State):
    x_prev: Tensor
    """x_{t-2}"""
    v: Tensor
    """v_{t-1}"""


@register("sarah")
@dataclass(frozen=True)
class SARAH(Method):
    """Settings: step size eta, batch b, stage batch b_tilde (all data if None), stage length T (⌈1 + b̃/b⌉ if None)."""

    local: ClassVar[bool] = False
    b: int
    b_tilde: int | None = None
    T: int | None = None

    def init(self, x0: Tensor) -> SARAHState:
        return SARAHState(x=x0, x_prev=x0, v=x0.new_zeros(len(x0)))

    def round(self, s: SARAHState, engine: Engine) -> SARAHState:
        if (engine.round - 1) % self.stage_rounds(engine.sizes) == 0:
            v = stage_gradient(engine, s.x, self.b_tilde)
        else:
            # v_t = mean_p [g_t(x_{t-1}) - g_t(x_{t-2})] + v_{t-1}
            v = engine.mean(gradient_change, s.x, s.x_prev, n=self.b) + s.v
        # x_t = x_{t-1} - η v_t
        return SARAHState(x=s.x - self.eta * v, x_prev=s.x, v=v)

    def check(self, sizes: Sequence[float]) -> None:
        check_b_tilde(self.name, self.b_tilde, sizes)

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        return stage_gradients_per_round(self.b_tilde, sizes, self.b, self.stage_rounds(sizes))

    def stage_rounds(self, sizes: Sequence[float]) -> int:
        return self.T or stage_length(self.b_tilde, sizes, self.b)
