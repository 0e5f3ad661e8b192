"""Minibatch SGD (Dekel et al. 2012): one step a round, along the mean of the workers' minibatch gradients.

    g_t = mean_p (1/b) Σ_l ∇ℓ(x_{t-1}, z_l),  z_l ~ D_p i.i.d.
    x_t = x_{t-1} - η g_t

A round sends P vectors up and P down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine
from fewrounds.methods.base import Method, State, register
from fewrounds.methods.tasks import sample_gradient


@register("minibatch-sgd")
@dataclass(frozen=True)
class MinibatchSGD(Method):
    """Settings: step size eta, batch b of each worker."""

    local: ClassVar[bool] = False
    b: int

    def init(self, x0: Tensor) -> State:
        return State(x=x0)

    def round(self, s: State, engine: Engine) -> State:
        # The samples are those of Local SGD's first step, so that K = 1 gives the same iterates.
        g = engine.mean(sample_gradient, s.x, n=self.b, purpose="local")
        return State(x=s.x - self.eta * g)

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        return self.b
