"""BVR-L-SGD (Murata and Suzuki, ICML 2021): bias-variance reduced local SGD.

    stage start:  ṽ_0 = mean_p ∇̃^(p)(x̃),  x_0 = x_{-1} = x̃   (∇̃: all data, or b̃ samples)
    round t:      ṽ_t = mean_p [g_t^(p)(x_{t-1}) - g_t^(p)(x_{t-2})] + ṽ_{t-1}   (K·b samples, the same at both points)
                  p̂ ~ Unif[P],  x_t = Local-Routine(p̂, x_{t-1}, η, ṽ_t, b, K)
    Local-Routine (tasks.py):  v_k = g_k(x_{k-1}) - g_k(x_{k-2}) + v_{k-1},  x_k = x_{k-1} - η v_k,  k = 1 … K
    a stage has T = ⌈1 + b̃/(Kb)⌉ rounds; at t = 1 the difference is 0, so its aggregation is the stage gradient.

form = "practical" (Algorithm 4): p̂ is drawn first and works alone; the answer is the last iterate.
form = "theory" (Algorithm 2): every worker runs Local-Routine and sends x_K and x_k̂; the answer is x_k̂ of p̂ at a
round drawn uniformly from all rounds. Both forms have the same iterates x_t.

combine = "pick" is the paper's. combine = "mean" is not: every worker runs Local-Routine, x_t is the mean of their x_K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fewrounds.errors import SettingError
from fewrounds.interfaces import Engine
from fewrounds.methods.base import State, register
from fewrounds.methods.stages import Staged, stage_gradient
from fewrounds.methods.tasks import gradient_change, local_routine, local_routine_with_out


@dataclass(frozen=True)
class BVRLSGDState(State):
    x_prev: Tensor
    """x_{t-2}"""
    v: Tensor
    """ṽ_{t-1}: only the mean over the workers is ever used, so the server keeps it."""
    x_out: Tensor | None
    """x^out of the theory form: uniform over the rounds so far."""


@register("bvr-l-sgd")
@dataclass(frozen=True)
class BVRLSGD(Staged):
    """Settings: step size eta, K local steps of batch b, stage batch b_tilde (all data if None),
    form = "practical" or "theory", stage length T (⌈1 + b̃/(Kb)⌉ if None), combine = "pick" or "mean"."""

    local: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"form": ("practical", "theory"), "combine": ("pick", "mean")}
    K: int
    b: int
    b_tilde: int | None = None
    form: str = "practical"
    T: int | None = None
    combine: str = "pick"

    @property
    def batch(self) -> int:
        return self.K * self.b

    def init(self, x0: Tensor) -> BVRLSGDState:
        x_out = x0 if self.form == "theory" else None
        return BVRLSGDState(x=x0, x_prev=x0, v=x0.new_zeros(len(x0)), x_out=x_out)

    def round(self, s: BVRLSGDState, engine: Engine) -> BVRLSGDState:
        if self.starts_stage(engine):
            v = stage_gradient(engine, s.x, self.b_tilde)
        else:
            # ṽ_t = mean_p [g_t(x_{t-1}) - g_t(x_{t-2})] + ṽ_{t-1}
            v = engine.mean(gradient_change, s.x, s.x_prev, n=self.batch) + s.v
        if self.combine == "mean":
            x = engine.mean(local_routine, s.x, v, eta=self.eta, K=self.K, b=self.b)
            return BVRLSGDState(x=x, x_prev=s.x, v=v, x_out=None)
        # x_t = x_t^(p̂),  p̂ ~ Unif[P]
        p_hat = engine.pick()
        if self.form == "practical":
            x = engine.at(p_hat, local_routine, s.x, v, eta=self.eta, K=self.K, b=self.b)
            return BVRLSGDState(x=x, x_prev=s.x, v=v, x_out=None)
        x, out = engine.every(p_hat, local_routine_with_out, s.x, v, eta=self.eta, K=self.K, b=self.b)
        # (t̂, ŝ) uniform over the rounds so far: the newest replaces the one held with probability 1/round.
        newest = engine.integer("t_hat", engine.round) == 0
        return BVRLSGDState(x=x, x_prev=s.x, v=v, x_out=out if newest else s.x_out)

    def output(self, s: BVRLSGDState) -> Tensor:
        return s.x if s.x_out is None else s.x_out

    def check(self, sizes: Sequence[float]) -> None:
        super().check(sizes)
        if self.combine == "mean" and self.form == "theory":
            raise SettingError("bvr-l-sgd: combine = 'mean' has no theory form; use form = 'practical'")

    @property
    def aggregations(self) -> int:
        return 1 if self._one_works else 2

    @property
    def _one_works(self) -> bool:
        """Whether Local-Routine runs at p̂ alone."""
        return self.form == "practical" and self.combine == "pick"

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        # Local-Routine takes K - 1 differences, at one worker out of P or at every worker.
        runners = 1 if self._one_works else len(sizes)
        return super().gradients_per_round(sizes) + 2 * (self.K - 1) * self.b * runners / len(sizes)
