"""One point at which workers are measured: smoothness and noise here, how far they are apart in `apart`. No Hessian is
formed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fewrounds.engine.base import BaseEngine
from fewrounds.theory import tasks
from fewrounds.theory.apart import Apart
from fewrounds.theory.estimate import Estimate, Measurement
from fewrounds.theory.exchange import Exchange
from fewrounds.theory.spectrum import Top

if TYPE_CHECKING:
    from fewrounds.theory.measure import How


class Point:
    """A point at which workers are measured."""

    def __init__(self, engine: BaseEngine, x: Tensor, how: How) -> None:
        self.workers = Exchange(engine, x, how)
        self.apart = Apart(self.workers)

    def measurement(self) -> Measurement:
        only = set(self.workers.how.only)
        found: dict[str, Any] = {}
        if "L" in only:
            found["L"] = self.workers.costed(self._smoothness_here)
        if "L_ahead" in only:
            found["L_ahead"] = self.workers.costed(self._smoothness_ahead)
        if "L_workers" in only:
            every = self.workers.everyone
            found["L_workers"] = tuple(self.workers.costed(partial(self._smoothness, p)) for p in every)
        if "L_sample" in only:
            found["L_sample"] = self.workers.costed(self._sample_smoothness)
        if "zeta" in only:
            found["zeta"] = self.workers.costed(self.apart.zeta)
        if "zeta_to_mean" in only:
            found["zeta_to_mean"] = self.workers.costed(
                self.apart.zeta_to_mean if "zeta" in only else self.apart.zeta_to_mean_alone
            )
        found |= self._first_order(only)
        loss = float(self.workers.engine.evaluate(self.workers.x, gradient=False).loss)
        sizes = tuple(float(size) for size in self.workers.engine.sizes)
        return Measurement(loss, sizes=sizes, dim=len(self.workers.x), n=self.workers.how.n, **found)

    def _first_order(self, only: set[str]) -> dict[str, Any]:
        """σ², ‖∇f‖² and ζ₁. Where samples stand for the data, σ² says how far the other two are off."""
        found: dict[str, Any] = {}
        gradients = only & {"gradient_norm2", "zeta1"}
        spent, off = 0, [0.0 for _ in self.workers.everyone]
        if "sigma2" in only or (gradients and self.workers.sampled):
            spreads = [self.workers.counted(partial(self._spread, p)) for p in self.workers.everyone]
            every = tuple(Estimate(one, one.error, cost) for (one, _), cost in spreads)
            off = [variance for (_, variance), _ in spreads]
            spent = sum(one.gradients for one in every)
        if "sigma2" in only:
            weights = self.workers.engine.weights
            error = math.sqrt(sum((w * one.error) ** 2 for w, one in zip(weights, every, strict=True)))
            greatest, mean = _greatest_of_noisy(every), sum(w * one for w, one in zip(weights, every, strict=True))
            found["sigma2"] = Estimate(greatest, greatest.error, spent)
            found["sigma2_workers"] = every
            found["sigma2_mean"] = Estimate(mean, error, spent)
            spent = 0
        if gradients:
            ours, cost = self.workers.counted(lambda: self.workers.ask(self.workers.mean_gradient))
            spent += cost
        if "gradient_norm2" in only:
            norm2 = float(ours.double().square().sum())
            away = math.sqrt(sum(w**2 * v for w, v in zip(self.workers.engine.weights, off, strict=True)))
            found["gradient_norm2"] = Estimate(norm2, 2 * math.sqrt(norm2) * away + away**2, spent)
            spent = 0
        if "zeta1" in only:
            apart, cost = self.workers.counted(lambda: self.apart.zeta1(ours))
            away = math.sqrt(sum(sorted(off)[-2:])) if len(off) > 1 else 0.0
            found["zeta1"] = Estimate(apart, apart.error + away, spent + cost)
        return found

    # ------------------------------------------------------------------ smoothness

    @cached_property
    def _steepest(self) -> Top:
        """Of ∇²f."""
        return self.workers.top(self.workers.mean)

    @cached_property
    def _steepest_again(self) -> float:
        """What other samples say of it."""
        top = self._steepest
        return float(top.vector @ self.workers.ask(lambda: self.workers.mean_again(top.vector)))

    def _smoothness_here(self) -> Estimate:
        top = self._steepest
        error = max(top.residual, abs(top.value - self._steepest_again)) if self.workers.sampled else top.residual
        return Estimate(abs(top.value), error)

    def _smoothness_ahead(self) -> Estimate:
        top = self._steepest
        if not top.value:
            return Estimate(0.0)
        value, error = self._ahead(abs(top.value)), top.residual
        if self.workers.sampled:  # and then the step is that of other samples, too
            error = max(error, abs(value - self._ahead(abs(self._steepest_again), again=True)))
        return Estimate(abs(value), error)

    def _ahead(self, L: float, again: bool = False) -> float:
        """vᵀ∇²f v along the direction of L after a step of 1/L; with `again` by other samples."""
        settings: dict[str, Any] = {"n": self.workers.how.n, "again": again}
        v = self._steepest.vector
        gradient = self.workers.ask(lambda: self.workers.engine.mean(tasks.mean_gradient, self.workers.x, **settings))
        ahead = self.workers.x - gradient / L if L else self.workers.x
        product = self.workers.ask(lambda: self.workers.engine.mean(tasks.hessian_product, ahead, v, **settings))
        return float(v @ product)

    def _smoothness(self, p: int) -> Estimate:
        settings: dict[str, Any] = {"n": self.workers.how.n, "tolerance": self.workers.tolerance, "count": 2}
        found = self.workers.ask(
            lambda: self.workers.engine.figures(p, tasks.smoothness, self.workers.x, self.workers.start(), **settings)
        )
        return Estimate(float(found[0]), float(found[1]))

    def _sample_smoothness(self) -> Estimate:
        start = self.workers.start()
        settings: dict[str, Any] = {
            "tolerance": max(self.workers.tolerance, 1e-2),
            "count": self.workers.how.smooth_samples,
        }
        found = self.workers.ask(
            lambda: torch.cat(
                [
                    self.workers.engine.figures(p, tasks.sample_smoothness, self.workers.x, start, **settings)
                    for p in self.workers.everyone
                ]
            )
        )
        values = np.sort(found[found >= 0].double().cpu().numpy())
        q, m = self.workers.how.quantile, len(values)
        away = math.sqrt(q * (1 - q) / m)  # the quantile of m samples is that of a level one standard error away
        low, value, high = np.quantile(values, [max(0.0, q - away), q, min(1.0, q + away)])
        return Estimate(value, max(value - low, high - value))

    # ------------------------------------------------------------------ noise

    def _spread(self, p: int) -> tuple[Estimate, float]:
        """σ² of worker p, and the variance of its gradient where samples stand for its data."""
        settings: dict[str, Any] = {"n": self.workers.how.n, "samples": self.workers.how.samples, "count": 3}
        found = self.workers.ask(lambda: self.workers.engine.figures(p, tasks.spread, self.workers.x, **settings))
        return Estimate(float(found[0]), float(found[1])), float(found[2])


def _greatest_of_noisy(estimates: Iterable[Estimate]) -> Estimate:
    """The greatest of figures with random errors, which is as a rule one whose error is upwards.

    The bar reaches down to where all of P figures are no more than √(2 ln P) standard errors too high, and up to the
    highest standard error: of P figures that are all the same it covers five in six or more.
    """
    estimates = list(estimates)
    top = max(estimates)
    high = max(one + one.error for one in estimates)
    far = max(1.0, math.sqrt(2 * math.log(len(estimates))))
    low = max(one - far * one.error for one in estimates)
    return Estimate(top, max(high - top, top - low))
