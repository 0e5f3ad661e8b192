"""How heterogeneous the workers are, and how smooth and noisy their problem is: L, ζ, ζ₁ and σ² at a point.

Everything goes through an engine, so the data stay where they are: workers send gradients, Hessian-vector products
and a few figures. No Hessian is formed, and the number of vectors that the server holds does not grow with P (beyond
the ten gradients that are compared pair by pair).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fewrounds.engine.base import BaseEngine
from fewrounds.errors import FewroundsError, SettingError, finite_number, nearest, whole_number
from fewrounds.opening import open_engine
from fewrounds.problem import Problem
from fewrounds.theory import tasks
from fewrounds.theory.estimate import Estimate, Measurement
from fewrounds.theory.spectrum import Product, Top, largest

FIGURES = ("L", "L_workers", "L_sample", "zeta", "zeta_to_mean", "zeta1", "sigma2", "gradient_norm2")
FEW = 10
"""Up to so many workers, all pairs are compared; of more, those that a search finds."""
STARTS = 4
"""From so many directions the search begins."""
TRIES = 3
"""So many workers are compared with the mean in a search."""
SEARCHES = 8
"""So many pairs are compared in a search."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class How:
    """What is measured, how precisely, and at what cost (see `measure`)."""

    only: tuple[str, ...] = FIGURES
    n: int | None = None
    samples: int = 256
    smooth_samples: int = 8
    quantile: float = 0.9
    tolerance: float | None = None
    all_pairs: bool | None = None

    def __post_init__(self) -> None:
        for name in sorted(set(self.only) - set(FIGURES)):
            raise SettingError(f"only: there is no figure {name!r}; {nearest(name, FIGURES)}")
        if self.n is not None:
            whole_number("n", self.n)
        whole_number("samples", self.samples, least=2)
        whole_number("smooth_samples", self.smooth_samples)
        if not 0 < finite_number("quantile", self.quantile) < 1:
            raise SettingError(f"quantile = {self.quantile}: must be between 0 and 1")
        if self.all_pairs not in (None, True, False):
            raise SettingError(f"all_pairs = {self.all_pairs!r}: must be true or false")
        if self.tolerance is not None:
            finite_number("tolerance", self.tolerance, positive=True)


def measure(
    problem: Problem,
    workers: Sequence[Any] | Callable[[int], Any],
    x: Any = None,
    *,
    only: Iterable[str] | None = None,
    n: int | None = None,
    samples: int = 256,
    smooth_samples: int = 8,
    quantile: float = 0.9,
    tolerance: float | None = None,
    all_pairs: bool | None = None,
    seed: int = 0,
    weights: str = "uniform",
    num_workers: int | None = None,
    engine: str = "in-process",
) -> Measurement:
    """The constants of the theory at the point x (the start by default).

    only             the figures that are wanted, such as ("L", "zeta"); all by default
    n                samples of each worker, drawn once, that stand for its data in gradients and Hessians; by default
                     all (of a stream, its evaluation samples). Fewer cost less, and make ζ, ζ₁ and ‖∇f‖² greater:
                     the samples of two workers differ even where their distributions do not. Error bars do not
                     include this
    samples          samples of each worker for σ², which is exact if it has no more
    smooth_samples   samples of each worker for L_sample
    quantile         which quantile over these samples L_sample is
    tolerance        of eigenvalues, relative; by default 1e-3, in float64 1e-8
    all_pairs        compare all pairs of workers for ζ and ζ₁; by default of up to 10 workers. Otherwise a search,
                     whose cost grows with P and not with P², finds a pair, and the error bar reaches up to a bound that
                     holds for all pairs
    seed, weights, num_workers, engine
                     as for `train`
    """
    how = How(FIGURES if only is None else tuple(only), n, samples, smooth_samples, quantile, tolerance, all_pairs)
    ready = open_engine(
        problem, workers, x0=x, seed=seed, weights=weights, num_workers=num_workers, engine=engine, compile=False,
        settings={"measure": repr(how)},
    )  # fmt: skip
    return measure_with(ready.engine, ready.x, how)


def measure_along(
    problem: Problem, workers: Sequence[Any] | Callable[[int], Any], points: Iterable[Any], **settings: Any
) -> list[Measurement]:
    """`measure` at every point of a trajectory, such as `result.trace[::50]`, with its settings."""
    return [measure(problem, workers, x, **settings) for x in points]


def measure_with(engine: BaseEngine, x: Tensor, how: How) -> Measurement:
    """`measure` through an engine. Nothing of it remains there: neither counts nor memory."""
    before = engine.committed
    try:
        return _Point(engine, x, how).measurement()
    finally:
        engine.restore(before)


class _Point:
    """A point at which workers are measured."""

    def __init__(self, engine: BaseEngine, x: Tensor, how: How) -> None:
        self.engine = engine
        self.x = x
        self.how = how
        self.everyone = range(len(engine.sizes))
        self.all_pairs = len(self.everyone) <= FEW if how.all_pairs is None else how.all_pairs
        self.tolerance = how.tolerance or (1e-8 if x.dtype == torch.float64 else 1e-3)
        self.workers_apart: list[float] = []
        """A bound for ‖∇²f_p - ∇²f‖ of each worker, once ζ is known."""
        self.candidates: list[int] = []
        """The workers, those first that a search has found to be far from the mean."""

    def measurement(self) -> Measurement:
        only = set(self.how.only)
        found: dict[str, Any] = {}
        if "L" in only:
            found["L"] = self._cost(lambda: self._of_top(self._top(self._mean)))
        if "L_workers" in only:
            found["L_workers"] = tuple(self._cost(lambda p=p: self._smoothness(p)) for p in self.everyone)  # type: ignore[misc]
        if "L_sample" in only:
            found["L_sample"] = self._cost(self._sample_smoothness)
        if only & {"zeta", "zeta_to_mean"}:
            found["zeta"] = self._cost(self._zeta)
        if "zeta_to_mean" in only:
            found["zeta_to_mean"] = self._cost(self._zeta_to_mean)
        if only & {"gradient_norm2", "zeta1"}:
            mean, spent = self._counted(lambda: self._asked(self._mean_gradient))
            found["gradient_norm2"] = Estimate(float(mean.double().square().sum()), 0.0, spent)
        if "zeta1" in only:
            found["zeta1"] = self._cost(lambda: self._zeta1(mean))
        if "sigma2" in only:
            every = tuple(self._cost(lambda p=p: self._spread(p)) for p in self.everyone)  # type: ignore[misc]
            greatest, spent = max(every), sum(one.gradients for one in every)
            error = math.sqrt(sum((w * one.error) ** 2 for w, one in zip(self.engine.weights, every, strict=True)))
            mean2 = sum(w * one for w, one in zip(self.engine.weights, every, strict=True))
            found["sigma2"] = Estimate(greatest, greatest.error, spent)
            found["sigma2_workers"] = every
            found["sigma2_mean"] = Estimate(mean2, error, spent)
        loss = float(self.engine.evaluate(self.x, gradient=False).loss)
        sizes = tuple(float(size) for size in self.engine.sizes)
        return Measurement(loss, sizes=sizes, dim=len(self.x), n=self.how.n, **found)

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

    def _at(self, p: int, v: Tensor) -> Tensor:
        out: Tensor = self.engine.at(p, tasks.hessian_product, self.x, v, n=self.how.n)
        return out

    def _top(self, product: Product, start: Tensor | None = None) -> Top:
        begin = self._start() if start is None else start
        return largest(lambda v: self._asked(lambda: product(v)), begin, self.tolerance)

    def _between(self, p: int, q: int, start: Tensor | None = None) -> Top:
        """Of ∇²f_p - ∇²f_q."""
        return self._top(lambda v: self._at(p, v) - self._at(q, v), start)

    def _start(self) -> Tensor:
        """A random unit vector, always the same one."""
        v = self.engine.draws.generator("measure start", 0).standard_normal(len(self.x))
        return torch.from_numpy(v / np.linalg.norm(v)).to(self.x)

    @staticmethod
    def _of_top(top: Top) -> Estimate:
        return Estimate(abs(top.value), top.residual)

    # ------------------------------------------------------------------ smoothness

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
        tops = {(p, q): self._of_top(self._between(p, q)) for p, q in itertools.combinations(self.everyone, 2)}
        weights = self.engine.weights
        self.workers_apart = [0.0] * len(weights)
        for (p, q), apart in tops.items():
            self.workers_apart[p] += weights[q] * (apart + apart.error)
            self.workers_apart[q] += weights[p] * (apart + apart.error)
        return _greatest(tops.values())

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
        best = max((self._of_top(top) for _, _, top in tops))
        compared = {frozenset((0, p)) for p in self.everyone}
        bends = [self._bends(top.vector) for _, _, top in tops]
        for _ in range(SEARCHES):
            pairs = (_farthest(along, compared) for along in bends)
            _, p, q = max((pair for pair in pairs if pair is not None), default=(0.0, 0, 0))
            if p == q:
                break
            compared.add(frozenset((p, q)))
            top = self._between(p, q)
            best = max(best, self._of_top(top))
            bends.append(self._bends(top.vector))
        self.candidates = sorted(self.everyone, key=lambda p: -self._lean(p, bends))
        bound = sum(sorted(apart)[-2:])  # over worker 0
        return Estimate(best, max(best.error, bound - best))

    def _lean(self, p: int, bends: list[list[float]]) -> float:
        """How far worker p is from the mean, along the direction where it is farthest."""
        weights = self.engine.weights
        return max(abs(along[p] - sum(w * b for w, b in zip(weights, along, strict=True))) for along in bends)

    def _bends(self, u: Tensor) -> list[float]:
        """uᵀ ∇²f_p u of every worker."""
        return self._asked(lambda: [float(u @ self._at(p, u)) for p in self.everyone])

    def _zeta_to_mean(self) -> Estimate:
        """The workers that may be farthest from the mean first, until no other can be farther."""
        best, found = Estimate(0.0), list[Estimate]()
        order = self.candidates or sorted(self.everyone, key=lambda p: -self.workers_apart[p])
        for tried, p in enumerate(order):
            bound = max(self.workers_apart[q] for q in order[tried:])
            if bound <= best:
                break
            if tried == (FEW if self.all_pairs else TRIES):  # each takes products of every worker
                return Estimate(best, max(best.error, bound - best))
            found.append(self._of_top(self._top(lambda v, p=p: self._at(p, v) - self._mean(v))))  # type: ignore[misc]
            best = _greatest(found)
        return best

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

    def _spread(self, p: int) -> Estimate:
        settings: dict[str, Any] = {"n": self.how.n, "samples": self.how.samples, "count": 2}
        found = self._asked(lambda: self.engine.figures(p, tasks.spread, self.x, **settings))
        return Estimate(float(found[0]), float(found[1]))


def _greatest(estimates: Iterable[Estimate]) -> Estimate:
    """The greatest, with an error bar that reaches as high as that of any."""
    estimates = list(estimates)
    top = max(estimates)
    return Estimate(top, max(top.error, *(one + one.error - top for one in estimates)))


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
