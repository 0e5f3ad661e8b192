"""One point at which workers are measured.

Everything goes through an engine, so the data stay where they are: workers send gradients, Hessian-vector products
and a few figures. No Hessian is formed, and the number of vectors that the server holds does not grow with P (beyond
the ten gradients that are compared pair by pair).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import gammaincinv
from torch import Tensor

from fewrounds.engine.base import BaseEngine
from fewrounds.errors import FewroundsError
from fewrounds.theory import tasks
from fewrounds.theory.estimate import Estimate, Measurement, greatest_of
from fewrounds.theory.spectrum import Product, Top, largest

if TYPE_CHECKING:
    from fewrounds.theory.measure import How

FEW = 10
"""Up to so many workers, all pairs are compared; of more, those that a search finds."""
STARTS = 4
"""From so many directions the search begins."""
TRIES = 3
"""So many workers are compared with the mean in a search."""
SEARCHES = 8
"""So many pairs are compared in a search."""
PROBES = 8
"""Along so many random directions workers are compared with the mean where ζ is not asked for."""
SURE = 0.99
"""With this probability, what they say bounds the distance of every worker."""
PICKED = 2
"""So many of them are then compared with it in full."""

Value = TypeVar("Value")


class Point:
    """A point at which workers are measured."""

    def __init__(self, engine: BaseEngine, x: Tensor, how: How) -> None:
        self.engine = engine
        self.x = x
        self.how = how
        self.everyone = range(len(engine.sizes))
        self.all_pairs = len(self.everyone) <= FEW if how.all_pairs is None else how.all_pairs
        self.sampled = any(size == math.inf or (how.n is not None and how.n < size) for size in engine.sizes)
        """Whether samples stand for the data of a worker."""
        self.tolerance = how.tolerance or (1e-8 if x.dtype == torch.float64 else 1e-3)
        self.workers_apart: list[float] = []
        """A bound for ‖∇²f_p - ∇²f‖ of each worker, once ζ is known."""
        self.candidates: list[int] = []
        """The workers, those first that a search has found to be far from the mean."""

    def measurement(self) -> Measurement:
        only = set(self.how.only)
        found: dict[str, Any] = {}
        if "L" in only:
            found["L"] = self._cost(self._smoothness_here)
        if "L_ahead" in only:
            found["L_ahead"] = self._cost(self._smoothness_ahead)
        if "L_workers" in only:
            found["L_workers"] = tuple(self._cost(lambda p=p: self._smoothness(p)) for p in self.everyone)  # type: ignore[misc]
        if "L_sample" in only:
            found["L_sample"] = self._cost(self._sample_smoothness)
        if "zeta" in only:
            found["zeta"] = self._cost(self._zeta)
        if "zeta_to_mean" in only:
            found["zeta_to_mean"] = self._cost(self._zeta_to_mean if "zeta" in only else self._zeta_to_mean_alone)
        found |= self._first_order(only)
        loss = float(self.engine.evaluate(self.x, gradient=False).loss)
        sizes = tuple(float(size) for size in self.engine.sizes)
        return Measurement(loss, sizes=sizes, dim=len(self.x), n=self.how.n, **found)

    def _first_order(self, only: set[str]) -> dict[str, Any]:
        """σ², ‖∇f‖² and ζ₁. Where samples stand for the data, σ² says how far the other two are off."""
        found: dict[str, Any] = {}
        gradients = only & {"gradient_norm2", "zeta1"}
        spent, off = 0, [0.0 for _ in self.everyone]
        if "sigma2" in only or (gradients and self.sampled):
            spreads = [self._counted(lambda p=p: self._spread(p)) for p in self.everyone]  # type: ignore[misc]
            every = tuple(Estimate(one, one.error, cost) for (one, _), cost in spreads)
            off = [variance for (_, variance), _ in spreads]
            spent = sum(one.gradients for one in every)
        if "sigma2" in only:
            weights = self.engine.weights
            error = math.sqrt(sum((w * one.error) ** 2 for w, one in zip(weights, every, strict=True)))
            greatest, mean = _greatest_of_noisy(every), sum(w * one for w, one in zip(weights, every, strict=True))
            found["sigma2"] = Estimate(greatest, greatest.error, spent)
            found["sigma2_workers"] = every
            found["sigma2_mean"] = Estimate(mean, error, spent)
            spent = 0
        if gradients:
            ours, cost = self._counted(lambda: self._asked(self._mean_gradient))
            spent += cost
        if "gradient_norm2" in only:
            norm2 = float(ours.double().square().sum())
            away = math.sqrt(sum(w**2 * v for w, v in zip(self.engine.weights, off, strict=True)))
            found["gradient_norm2"] = Estimate(norm2, 2 * math.sqrt(norm2) * away + away**2, spent)
            spent = 0
        if "zeta1" in only:
            apart, cost = self._counted(lambda: self._zeta1(ours))
            away = math.sqrt(sum(sorted(off)[-2:])) if len(off) > 1 else 0.0
            found["zeta1"] = Estimate(apart, apart.error + away, spent + cost)
        return found

    # ------------------------------------------------------------------ what a figure costs

    def _counted(self, action: Callable[[], Value]) -> tuple[Value, int]:
        """What comes of it, and the gradients that all workers have computed for it."""
        before = sum(self.engine.committed.ledger.gradients)
        value = action()
        return value, sum(self.engine.committed.ledger.gradients) - before

    def _cost(self, action: Callable[[], Estimate]) -> Estimate:
        value, gradients = self._counted(action)
        return Estimate(value, value.error, gradients)

    # ------------------------------------------------------------------ operators

    def _asked(self, action: Callable[[], Value]) -> Value:
        """One exchange with the workers, as a round of its own: vectors of earlier ones are no longer held."""
        self.engine.begin(self.engine.round + 1)
        value = action()
        self.engine.commit()
        if self.engine.absent:  # `at` would have taken another in its place
            p, why = next(iter(self.engine.absent.items()))
            raise FewroundsError(f"worker {p} was lost while it was measured: {why}")
        return value

    def _mean(self, v: Tensor) -> Tensor:
        out: Tensor = self.engine.mean(tasks.hessian_product, self.x, v, n=self.how.n)
        return out

    def _mean_again(self, v: Tensor) -> Tensor:
        out: Tensor = self.engine.mean(tasks.hessian_product, self.x, v, n=self.how.n, again=True)
        return out

    def _at(self, p: int, v: Tensor, again: bool = False) -> Tensor:
        out: Tensor = self.engine.at(p, tasks.hessian_product, self.x, v, n=self.how.n, again=again)
        return out

    def _top(self, product: Product, start: Tensor | None = None) -> Top:
        begin = self._start() if start is None else start
        return largest(lambda v: self._asked(lambda: product(v)), begin, self.tolerance)

    def _between(self, p: int, q: int, start: Tensor | None = None) -> Top:
        """Of ∇²f_p - ∇²f_q."""
        return self._top(lambda v: self._at(p, v) - self._at(q, v), start)

    def _start(self) -> Tensor:
        """A random unit vector, always the same one."""
        v = self._normal(0)
        return torch.from_numpy(v / np.linalg.norm(v)).to(self.x)

    def _normal(self, number: int) -> npt.NDArray[np.float64]:
        """A vector of standard normal numbers, always the same one."""
        return self.engine.draws.generator("measure start", number).standard_normal(len(self.x))

    @staticmethod
    def _of_top(top: Top) -> Estimate:
        return Estimate(abs(top.value), top.residual)

    def _checked(self, top: Top, again: Product) -> Estimate:
        """|λ|, where samples stand for the data with a bar that reaches to uᵀAu of other samples.

        u is the direction in which the first ones happen to be bent most; other samples know nothing of that.
        """
        if not self.sampled:
            return self._of_top(top)
        other = float(top.vector @ self._asked(lambda: again(top.vector)))
        return Estimate(abs(top.value), max(top.residual, abs(top.value - other)))

    # ------------------------------------------------------------------ smoothness

    @cached_property
    def _steepest(self) -> Top:
        """Of ∇²f."""
        return self._top(self._mean)

    @cached_property
    def _steepest_again(self) -> float:
        """What other samples say of it."""
        top = self._steepest
        return float(top.vector @ self._asked(lambda: self._mean_again(top.vector)))

    def _smoothness_here(self) -> Estimate:
        top = self._steepest
        error = max(top.residual, abs(top.value - self._steepest_again)) if self.sampled else top.residual
        return Estimate(abs(top.value), error)

    def _smoothness_ahead(self) -> Estimate:
        top = self._steepest
        if not top.value:
            return Estimate(0.0)
        value, error = self._ahead(abs(top.value)), top.residual
        if self.sampled:  # and then the step is that of other samples, too
            error = max(error, abs(value - self._ahead(abs(self._steepest_again), again=True)))
        return Estimate(abs(value), error)

    def _ahead(self, L: float, again: bool = False) -> float:
        """vᵀ∇²f v along the direction of L after a step of 1/L; with `again` by other samples."""
        settings: dict[str, Any] = {"n": self.how.n, "again": again}
        v = self._steepest.vector
        gradient = self._asked(lambda: self.engine.mean(tasks.mean_gradient, self.x, **settings))
        ahead = self.x - gradient / L if L else self.x
        product = self._asked(lambda: self.engine.mean(tasks.hessian_product, ahead, v, **settings))
        return float(v @ product)

    def _smoothness(self, p: int) -> Estimate:
        settings: dict[str, Any] = {"n": self.how.n, "tolerance": self.tolerance, "count": 2}
        found = self._asked(lambda: self.engine.figures(p, tasks.smoothness, self.x, self._start(), **settings))
        return Estimate(float(found[0]), float(found[1]))

    def _sample_smoothness(self) -> Estimate:
        start = self._start()
        settings: dict[str, Any] = {"tolerance": max(self.tolerance, 1e-2), "count": self.how.smooth_samples}
        found = self._asked(
            lambda: torch.cat(
                [self.engine.figures(p, tasks.sample_smoothness, self.x, start, **settings) for p in self.everyone]
            )
        )
        values = np.sort(found[found >= 0].double().cpu().numpy())
        q, m = self.how.quantile, len(values)
        away = math.sqrt(q * (1 - q) / m)  # the quantile of m samples is that of a level one standard error away
        low, value, high = np.quantile(values, [max(0.0, q - away), q, min(1.0, q + away)])
        return Estimate(value, max(value - low, high - value))

    # ------------------------------------------------------------------ heterogeneity

    def _zeta(self) -> Estimate:
        if len(self.everyone) == 1:
            self.workers_apart = [0.0]
            return Estimate(0.0)
        return self._zeta_of_all() if self.all_pairs else self._zeta_by_search()

    def _zeta_of_all(self) -> Estimate:
        weights = self.engine.weights
        self.workers_apart = [0.0] * len(weights)
        found: list[Estimate] = []
        best: tuple[float, int, int, Top | None] = (-1.0, 0, 0, None)
        for p, q in itertools.combinations(self.everyone, 2):
            top = self._between(p, q)
            apart = self._of_top(top)
            found.append(apart)
            if apart > best[0]:
                best = (apart, p, q, top)
            self.workers_apart[p] += weights[q] * (apart + apart.error)
            self.workers_apart[q] += weights[p] * (apart + apart.error)
        greatest, (_, p, q, top_of_best) = greatest_of(found), best
        assert top_of_best is not None
        return Estimate(greatest, max(greatest.error, self._checked_pair(p, q, top_of_best).error))

    def _checked_pair(self, p: int, q: int, top: Top) -> Estimate:
        return self._checked(top, lambda v: self._at(p, v, again=True) - self._at(q, v, again=True))

    def _zeta_by_search(self) -> Estimate:
        """Compare all with worker 0, then pairs that are far apart along the directions found so far.

        ‖A‖ = max |uᵀAu| over unit vectors u, so every direction has a pair that is farthest apart along it, and every
        pair gives a new direction.
        """
        apart = [0.0]
        tops: list[tuple[float, int, Top]] = []
        for p in self.everyone[1:]:
            top = self._between(p, 0)
            apart.append(abs(top.value) + top.residual)
            tops = sorted([*tops, (abs(top.value), p, top)], key=lambda found: -found[0])[:STARTS]
        mean_apart = sum(w * one for w, one in zip(self.engine.weights, apart, strict=True))
        self.workers_apart = [one + mean_apart for one in apart]
        best, pair = tops[0][2], (tops[0][1], 0)
        compared = {frozenset((0, p)) for p in self.everyone}
        bends = [self._bends(top.vector) for _, _, top in tops]
        for _ in range(SEARCHES):
            pairs = (_farthest(along, compared) for along in bends)
            _, p, q = max((pair for pair in pairs if pair is not None), default=(0.0, 0, 0))
            if p == q:
                break
            compared.add(frozenset((p, q)))
            top = self._between(p, q)
            if abs(top.value) > abs(best.value):
                best, pair = top, (p, q)
            bends.append(self._bends(top.vector))
        self.candidates = sorted(self.everyone, key=lambda p: -self._lean(p, bends))
        bound = sum(sorted(apart)[-2:])  # over worker 0
        found = self._checked_pair(*pair, best)
        return Estimate(found, max(found.error, bound - found))

    def _lean(self, p: int, bends: list[list[float]]) -> float:
        """How far worker p is from the mean, along the direction where it is farthest."""
        weights = self.engine.weights
        return max(abs(along[p] - sum(w * b for w, b in zip(weights, along, strict=True))) for along in bends)

    def _bends(self, u: Tensor) -> list[float]:
        """uᵀ ∇²f_p u of every worker."""
        return self._asked(lambda: [float(u @ self._at(p, u)) for p in self.everyone])

    def _zeta_to_mean(self) -> Estimate:
        """The workers that may be farthest from the mean first, until no other can be farther."""
        order = self.candidates or sorted(self.everyone, key=lambda p: -self.workers_apart[p])
        return self._farthest_from_mean(order, self.workers_apart, FEW if self.all_pairs else TRIES)

    def _zeta_to_mean_alone(self) -> Estimate:
        """Without pairs: the workers that are farthest from the mean along random directions.

        The error bar reaches up to a bound for those that are not tried, which holds for all of them at once with
        probability SURE.
        """
        count = len(self.everyone)
        if count == 1:
            return Estimate(0.0)
        if self.how.all_pairs or count <= PICKED + 1:
            return self._farthest_from_mean(list(self.everyone), [math.inf] * count, count)
        bounds = self._probed()
        return self._farthest_from_mean(sorted(self.everyone, key=lambda p: -bounds[p]), bounds, PICKED)

    def _probed(self) -> list[float]:
        """A bound for ‖A‖, A = ∇²f_p - ∇²f, of each worker, from ‖A g‖ of random vectors g.

        If ‖A u‖ = ‖A‖ for the unit eigenvector u, then ‖A g‖ ≥ ‖A‖ |u·g|. For r vectors of standard normal numbers,
        Σ (u·g)² is χ² with r degrees of freedom, so that Σ ‖A g‖² ≥ c ‖A‖² but for the probability P(χ² < c): c is
        chosen such that this is (1 - SURE)/P for each of the P workers. It holds for every A, also of rank one; of
        an A with many directions the bound is about √(r/c) ‖A‖_F.
        """
        squares = [0.0] * len(self.everyone)
        for i in range(PROBES):
            g = torch.from_numpy(self._normal(i)).to(self.x)
            mean = self._asked(lambda g=g: self._mean(g))  # type: ignore[misc]
            for p in self.everyone:
                away = self._asked(lambda p=p, g=g: self._at(p, g)) - mean  # type: ignore[misc]
                squares[p] += float(away.double().square().sum())
        least = 2 * gammaincinv(PROBES / 2, (1 - SURE) / len(squares))
        return [math.sqrt(one / least) for one in squares]

    def _farthest_from_mean(self, order: list[int], bounds: list[float], tries: int) -> Estimate:
        """In this order, up to so many; each takes products of every worker."""
        found = list[Estimate]()
        best: tuple[float, int, Top | None] = (0.0, 0, None)
        above = 0.0
        for tried, p in enumerate(order):
            bound = max(bounds[q] for q in order[tried:])
            if bound <= best[0]:
                break
            if tried == tries:
                above = bound
                break
            top = self._top(lambda v, p=p: self._at(p, v) - self._mean(v))  # type: ignore[misc]
            found.append(self._of_top(top))
            if found[-1] > best[0]:
                best = (found[-1], p, top)
        value, p, farthest = best
        if farthest is None:
            return Estimate(0.0, above)
        checked = self._checked(farthest, lambda v: self._at(p, v, again=True) - self._mean_again(v))
        return Estimate(value, max(checked.error, greatest_of(found).error, above - value))

    def _zeta1(self, mean: Tensor) -> Estimate:
        if len(self.everyone) == 1:
            return Estimate(0.0)
        if self.all_pairs:
            own = self._asked(lambda: torch.stack([self._gradient(p) for p in self.everyone])).double()
            return Estimate(float(torch.cdist(own, own, compute_mode="donot_use_mm_for_euclid_dist").max()))
        apart = self._distances(mean)
        p = int(np.argmax(apart))
        best = 0.0
        for _ in range(SEARCHES):
            away = self._distances(self._asked(lambda p=p: self._gradient(p)))  # type: ignore[misc]
            if max(away) <= best:
                break
            best, p = max(away), int(np.argmax(away))
        return Estimate(best, max(0.0, sum(sorted(apart)[-2:]) - best))

    def _mean_gradient(self) -> Tensor:
        out: Tensor = self.engine.mean(tasks.mean_gradient, self.x, n=self.how.n)
        return out

    def _gradient(self, p: int) -> Tensor:
        out: Tensor = self.engine.at(p, tasks.mean_gradient, self.x, n=self.how.n)
        return out

    def _distances(self, centre: Tensor) -> list[float]:
        return self._asked(lambda: [float((self._gradient(p) - centre).double().norm()) for p in self.everyone])

    # ------------------------------------------------------------------ noise

    def _spread(self, p: int) -> tuple[Estimate, float]:
        """σ² of worker p, and the variance of its gradient where samples stand for its data."""
        settings: dict[str, Any] = {"n": self.how.n, "samples": self.how.samples, "count": 3}
        found = self._asked(lambda: self.engine.figures(p, tasks.spread, self.x, **settings))
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


def _farthest(values: list[float], without: set[frozenset[int]]) -> tuple[float, int, int] | None:
    """The two that differ most, but for the pairs that are left out."""
    order = np.argsort(values).tolist()
    reach = min(len(order), math.isqrt(2 * len(without)) + 2)  # among so many at either end is one that is not left out
    found = [
        (values[p] - values[q], p, q)
        for p in order[-reach:]
        for q in order[:reach]
        if p != q and frozenset((p, q)) not in without
    ]
    return max(found, default=None)
