"""FedGLOMO (Das et al. 2022): variance reduction by momentum, at the workers and at the server. No compression.

    worker:  w_0 = x_{t-1},  v_0 = ∇̃^(p)(w_0),  w_1 = w_0 - η v_0   (∇̃: all data, or b̃ samples)
             v_k = g_k(w_k) - g_k(w_{k-1}) + v_{k-1},  w_{k+1} = w_k - η v_k,  k = 1 … K-1
             and the same from x_{t-2}, on the same samples: ŵ_K
             d = x_{t-1} - w_K,   d̂ = x_{t-2} - ŵ_K
    server:  u_t = β mean_p d + (1 - β) (u_{t-1} + mean_p [d - d̂]),   x_t = x_{t-1} - u_t
    in the first round u_1 = mean_p d, and nothing starts from x_{-1}; nor with β = 1

d is to the server what a gradient is to STORM. It is K local steps, bias and all: with full gradients the fixed point
is that of Local GD. Workers send d - (1 - β) d̂, one vector; the publication sends d and d - d̂, each compressed.
With participants = m, a round's means are over m workers drawn uniformly, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine, Rows
from fewrounds.methods.base import Method, State, check_participants, register
from fewrounds.methods.stages import check_b_tilde, every_round, large_batch, sampled
from fewrounds.methods.tasks import large_gradient, local_routine


@dataclass(frozen=True)
class FedGLOMOState(State):
    x_prev: Tensor
    """x_{t-2}"""
    u: Tensor
    """u_{t-1}"""


@register("fedglomo")
@dataclass(frozen=True)
class FedGLOMO(Method):
    """Settings: step size eta, K local steps of batch b, momentum beta (1: none), b_tilde samples for the first of them
    (all data if None), workers taking part in a round (all if None)."""

    local: ClassVar[bool] = True
    K: int
    b: int
    beta: float = 0.2
    b_tilde: int | None = None
    participants: int | None = None

    def init(self, x0: Tensor) -> FedGLOMOState:
        return FedGLOMOState(x=x0, x_prev=x0, u=x0.new_zeros(len(x0)))

    def round(self, s: FedGLOMOState, engine: Engine) -> FedGLOMOState:
        among = engine.participants(self.participants)
        how: dict[str, Any] = {"eta": self.eta, "K": self.K, "b": self.b, "n": sampled(self.b_tilde, engine.sizes)}
        kept = 1 - self.beta
        if engine.round == 1 or not kept:
            u = engine.mean(local_change, s.x, among=among, **how)
        else:
            # u_t = mean_p [d - (1 - β) d̂] + (1 - β) u_{t-1}
            u = engine.mean(fading_local_change, s.x, s.x_prev, among=among, kept=kept, **how) + kept * s.u
        return FedGLOMOState(x=s.x - u, x_prev=s.x, u=u)

    def check(self, sizes: Sequence[float]) -> None:
        check_b_tilde(self.name, self.b_tilde, sizes)
        check_participants(self.name, self.participants, sizes)

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        one = large_batch(self.b_tilde, sizes) + 2 * (self.K - 1) * self.b
        return (1 if self.beta == 1 else 2) * one * (self.participants or len(sizes)) / len(sizes)

    @classmethod
    def also_for_budget(cls, budget: int, strict: bool, sizes: Sequence[float]) -> dict[str, Any]:
        return {"b_tilde": every_round(budget, strict, sizes, batches=2)}


def local_change(rows: Rows, x: Tensor, *, eta: float, K: int, b: int, n: int | None) -> Tensor:
    """d = x - w_K."""
    return x - local_routine(rows, x, large_gradient(rows, x, n=n), eta=eta, K=K, b=b)


def fading_local_change(
    rows: Rows, x: Tensor, x_prev: Tensor, *, eta: float, K: int, b: int, n: int | None, kept: float
) -> Tensor:
    """d - (1 - β) d̂: draws are named by round and purpose, so both have the same samples."""
    d = local_change(rows, x, eta=eta, K=K, b=b, n=n)
    return d - kept * local_change(rows, x_prev, eta=eta, K=K, b=b, n=n)
