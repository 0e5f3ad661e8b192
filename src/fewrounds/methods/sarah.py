"""Minibatch SARAH (Nguyen et al. 2017, 2019), distributed: the recursion of BVR-L-SGD without local steps.

    stage start:  v_0 = mean_p ∇̃^(p)(x̃),  x_0 = x_{-1} = x̃   (∇̃: all data, or b̃ samples)
    round t:      v_t = mean_p [g_t^(p)(x_{t-1}) - g_t^(p)(x_{t-2})] + v_{t-1}   (b samples, the same at both points)
                  x_t = x_{t-1} - η v_t
    a stage has T = ⌈1 + b̃/b⌉ rounds; at t = 1 the difference is 0, so its aggregation is the stage gradient.

A round sends P vectors up and P down: a worker keeps x_{t-2} from the round before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine
from fewrounds.methods.base import State, register
from fewrounds.methods.stages import Staged, stage_gradient
from fewrounds.methods.tasks import gradient_change


@dataclass(frozen=True)
class SARAHState(State):
    x_prev: Tensor
    """x_{t-2}"""
    v: Tensor
    """v_{t-1}"""


@register("sarah")
@dataclass(frozen=True)
class SARAH(Staged):
    """Settings: step size eta, batch b, stage batch b_tilde (all data if None), stage length T (⌈1 + b̃/b⌉ if None)."""

    local: ClassVar[bool] = False
    b: int
    b_tilde: int | None = None
    T: int | None = None

    @property
    def batch(self) -> int:
        return self.b

    def init(self, x0: Tensor) -> SARAHState:
        return SARAHState(x=x0, x_prev=x0, v=x0.new_zeros(len(x0)))

    def round(self, s: SARAHState, engine: Engine) -> SARAHState:
        if self.starts_stage(engine):
            v = stage_gradient(engine, s.x, self.b_tilde)
        else:
            # v_t = mean_p [g_t(x_{t-1}) - g_t(x_{t-2})] + v_{t-1}
            v = engine.mean(gradient_change, s.x, s.x_prev, n=self.b) + s.v
        # x_t = x_{t-1} - η v_t
        return SARAHState(x=s.x - self.eta * v, x_prev=s.x, v=v)
