"""PR-SPIDER (Sharma et al. 2019): parallel restarted SPIDER, SARAH's recursion in local steps.

    stage start:  v = mean_p ∇̃^(p)(x̃) at every worker,  x = x̃   (∇̃: all data, or b̃ samples)
    other rounds: K times, each worker by itself:
                      x_k^(p) = x_{k-1}^(p) - η v_{k-1}^(p)
                      v_k^(p) = g_k(x_k^(p)) - g_k(x_{k-1}^(p)) + v_{k-1}^(p)   (b samples, the same at both points)
                  then x = mean_p x_K^(p) and v = mean_p v_K^(p), and both go back to all
    a stage has T = ⌈1 + b̃/(Kb)⌉ rounds.

The first step of a round, x - ηv, needs no data. It is taken by the server as well, so the iterate after a round is
x - ηv; with K = 1 these are the iterates of minibatch SARAH. All workers take every step, with their own samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine, Rows
from fewrounds.methods.base import State, register
from fewrounds.methods.stages import Staged, stage_gradient
from fewrounds.methods.tasks import recursive_step


@dataclass(frozen=True)
class PRSPIDERState(State):
    at: Tensor
    """The mean of the workers' models, where v was computed; x = at - η v."""
    v: Tensor
    """The mean of the workers' v."""


@register("pr-spider")
@dataclass(frozen=True)
class PRSPIDER(Staged):
    """Settings: step size eta, K local steps of batch b, stage batch b_tilde (all data if None), stage length T
    (⌈1 + b̃/(Kb)⌉ if None)."""

    local: ClassVar[bool] = True
    K: int
    b: int
    b_tilde: int | None = None
    T: int | None = None

    @property
    def batch(self) -> int:
        return self.K * self.b

    def init(self, x0: Tensor) -> PRSPIDERState:
        return PRSPIDERState(x=x0, at=x0, v=x0.new_zeros(len(x0)))

    def round(self, s: PRSPIDERState, engine: Engine) -> PRSPIDERState:
        if self.starts_stage(engine):
            at, v = s.x, stage_gradient(engine, s.x, self.b_tilde)
        else:
            at, v = engine.mean(local_spider, s.at, s.v, eta=self.eta, K=self.K, b=self.b)
        return PRSPIDERState(x=at - self.eta * v, at=at, v=v)


def local_spider(rows: Rows, x: Tensor, v: Tensor, *, eta: float, K: int, b: int) -> tuple[Tensor, Tensor]:
    """x_K^(p) and v_K^(p)."""
    _, x_K, v_K = rows.iterate(recursive_step, (x - eta * v, x, v), "change", K, b, eta=eta)
    return x_K, v_K
