"""Minibatch SVRG (Johnson and Zhang 2013; nonconvex: Reddi et al. 2016, Allen-Zhu and Hazan 2016), distributed.

    stage start:  x̃ = x,  μ = mean_p ∇̃^(p)(x̃)   (∇̃: all data, or b̃ samples)
    round t:      v_t = mean_p [g_t^(p)(x_{t-1}) - g_t^(p)(x̃)] + μ   (b samples, the same at both points)
                  x_t = x_{t-1} - η v_t
    a stage has T = ⌈1 + b̃/b⌉ rounds; at t = 1 the difference is 0, so its aggregation is the stage gradient.

With a full μ, v_t is ∇f(x_{t-1}) in expectation, whatever happened before; SARAH's is not.
A round sends P vectors up and P down: the workers keep x̃ as long as the stage lasts.
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
class SVRGState(State):
    anchor: Tensor
    """x̃"""
    mu: Tensor
    """μ"""


@register("svrg")
@dataclass(frozen=True)
class SVRG(Staged):
    """Settings: step size eta, batch b, stage batch b_tilde (all data if None), stage length T (⌈1 + b̃/b⌉ if None)."""

    local: ClassVar[bool] = False
    b: int
    b_tilde: int | None = None
    T: int | None = None

    @property
    def batch(self) -> int:
        return self.b

    def init(self, x0: Tensor) -> SVRGState:
        return SVRGState(x=x0, anchor=x0, mu=x0.new_zeros(len(x0)))

    def round(self, s: SVRGState, engine: Engine) -> SVRGState:
        if self.starts_stage(engine):
            mu = stage_gradient(engine, s.x, self.b_tilde)
            return SVRGState(x=s.x - self.eta * mu, anchor=s.x, mu=mu)
        # v_t = mean_p [g_t(x_{t-1}) - g_t(x̃)] + μ
        v = engine.mean(gradient_change, s.x, s.anchor, n=self.b) + s.mu
        return SVRGState(x=s.x - self.eta * v, anchor=s.anchor, mu=s.mu)
