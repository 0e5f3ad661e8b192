"""How far workers are apart at a point: ζ, ζ to the mean and ζ₁.

The number of vectors that the server holds does not grow with P (beyond the ten gradients that are compared pair by
pair).
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from scipy.special import gammaincinv
from torch import Tensor

from fewrounds.theory.estimate import Estimate, greatest_of
from fewrounds.theory.exchange import Exchange
from fewrounds.theory.spectrum import Top

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


class Apart:
    """The distances of workers from each other."""

    def __init__(self, workers: Exchange) -> None:
        self.workers = workers
        few = len(workers.everyone) <= FEW
        self.all_pairs = few if workers.how.all_pairs is None else workers.how.all_pairs
        self.from_mean: list[float] = []
        """A bound for ‖∇²f_p - ∇²f‖ of each worker, once ζ is known."""
        self.candidates: list[int] = []
        """The workers, those first that a search has found to be far from the mean."""

    def zeta(self) -> Estimate:
        if len(self.workers.everyone) == 1:
            self.from_mean = [0.0]
            return Estimate(0.0)
        return self._zeta_of_all() if self.all_pairs else self._zeta_by_search()

    def _zeta_of_all(self) -> Estimate:
        weights = self.workers.engine.weights
        self.from_mean = [0.0] * len(weights)
        found: list[Estimate] = []
        best: tuple[float, int, int, Top | None] = (-1.0, 0, 0, None)
        for p, q in itertools.combinations(self.workers.everyone, 2):
            top = self.workers.between(p, q)
            apart = self.workers.of_top(top)
            found.append(apart)
            if apart > best[0]:
                best = (apart, p, q, top)
            self.from_mean[p] += weights[q] * (apart + apart.error)
            self.from_mean[q] += weights[p] * (apart + apart.error)
        greatest, (_, p, q, top_of_best) = greatest_of(found), best
        assert top_of_best is not None
        return Estimate(greatest, max(greatest.error, self._checked_pair(p, q, top_of_best).error))

    def _checked_pair(self, p: int, q: int, top: Top) -> Estimate:
        return self.workers.checked(
            top, lambda v: self.workers.at(p, v, again=True) - self.workers.at(q, v, again=True)
        )

    def _zeta_by_search(self) -> Estimate:
        """Compare all with worker 0, then pairs that are far apart along the directions found so far.

        ‖A‖ = max |uᵀAu| over unit vectors u, so every direction has a pair that is farthest apart along it, and every
        pair gives a new direction.
        """
        apart = [0.0]
        tops: list[tuple[float, int, Top]] = []
        for p in self.workers.everyone[1:]:
            top = self.workers.between(p, 0)
            apart.append(abs(top.value) + top.residual)
            tops = sorted([*tops, (abs(top.value), p, top)], key=lambda found: -found[0])[:STARTS]
        mean_apart = sum(w * one for w, one in zip(self.workers.engine.weights, apart, strict=True))
        self.from_mean = [one + mean_apart for one in apart]
        best, pair = tops[0][2], (tops[0][1], 0)
        compared = {frozenset((0, p)) for p in self.workers.everyone}
        bends = [self._bends(top.vector) for _, _, top in tops]
        for _ in range(SEARCHES):
            pairs = (_farthest(along, compared) for along in bends)
            _, p, q = max((pair for pair in pairs if pair is not None), default=(0.0, 0, 0))
            if p == q:
                break
            compared.add(frozenset((p, q)))
            top = self.workers.between(p, q)
            if abs(top.value) > abs(best.value):
                best, pair = top, (p, q)
            bends.append(self._bends(top.vector))
        self.candidates = sorted(self.workers.everyone, key=lambda p: -self._lean(p, bends))
        bound = sum(sorted(apart)[-2:])  # over worker 0
        found = self._checked_pair(*pair, best)
        return Estimate(found, max(found.error, bound - found))

    def _lean(self, p: int, bends: list[list[float]]) -> float:
        """How far worker p is from the mean, along the direction where it is farthest."""
        weights = self.workers.engine.weights
        return max(abs(along[p] - sum(w * b for w, b in zip(weights, along, strict=True))) for along in bends)

    def _bends(self, u: Tensor) -> list[float]:
        """uᵀ ∇²f_p u of every worker."""
        return self.workers.ask(lambda: [float(u @ self.workers.at(p, u)) for p in self.workers.everyone])

    def zeta_to_mean(self) -> Estimate:
        """The workers that may be farthest from the mean first, until no other can be farther."""
        order = self.candidates or sorted(self.workers.everyone, key=lambda p: -self.from_mean[p])
        return self._farthest_from_mean(order, self.from_mean, FEW if self.all_pairs else TRIES)

    def zeta_to_mean_alone(self) -> Estimate:
        """Without pairs: the workers that are farthest from the mean along random directions.

        The error bar reaches up to a bound for those that are not tried, which holds for all of them at once with
        probability SURE.
        """
        count = len(self.workers.everyone)
        if count == 1:
            return Estimate(0.0)
        if self.workers.how.all_pairs or count <= PICKED + 1:
            return self._farthest_from_mean(list(self.workers.everyone), [math.inf] * count, count)
        bounds = self._probed()
        return self._farthest_from_mean(sorted(self.workers.everyone, key=lambda p: -bounds[p]), bounds, PICKED)

    def _probed(self) -> list[float]:
        """A bound for ‖A‖, A = ∇²f_p - ∇²f, of each worker, from ‖A g‖ of random vectors g.

        If ‖A u‖ = ‖A‖ for the unit eigenvector u, then ‖A g‖ ≥ ‖A‖ |u·g|. For r vectors of standard normal numbers,
        Σ (u·g)² is χ² with r degrees of freedom, so that Σ ‖A g‖² ≥ c ‖A‖² but for the probability P(χ² < c): c is
        chosen such that this is (1 - SURE)/P for each of the P workers. It holds for every A, also of rank one; of
        an A with many directions the bound is about √(r/c) ‖A‖_F.
        """
        squares = [0.0] * len(self.workers.everyone)
        for i in range(PROBES):
            g = torch.from_numpy(self.workers.normal(i)).to(self.workers.x)
            mean = self.workers.ask(lambda g=g: self.workers.mean(g))  # type: ignore[misc]
            for p in self.workers.everyone:
                away = self.workers.ask(lambda p=p, g=g: self.workers.at(p, g)) - mean  # type: ignore[misc]
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
            top = self.workers.top(lambda v, p=p: self.workers.at(p, v) - self.workers.mean(v))  # type: ignore[misc]
            found.append(self.workers.of_top(top))
            if found[-1] > best[0]:
                best = (found[-1], p, top)
        value, p, farthest = best
        if farthest is None:
            return Estimate(0.0, above)
        checked = self.workers.checked(
            farthest, lambda v: self.workers.at(p, v, again=True) - self.workers.mean_again(v)
        )
        return Estimate(value, max(checked.error, greatest_of(found).error, above - value))

    def zeta1(self, mean: Tensor) -> Estimate:
        if len(self.workers.everyone) == 1:
            return Estimate(0.0)
        if self.all_pairs:
            own = self.workers.ask(
                lambda: torch.stack([self.workers.gradient(p) for p in self.workers.everyone])
            ).double()
            return Estimate(float(torch.cdist(own, own, compute_mode="donot_use_mm_for_euclid_dist").max()))
        apart = self.workers.distances(mean)
        p = int(np.argmax(apart))
        best = 0.0
        for _ in range(SEARCHES):
            away = self.workers.distances(self.workers.ask(lambda p=p: self.workers.gradient(p)))  # type: ignore[misc]
            if max(away) <= best:
                break
            best, p = max(away), int(np.argmax(away))
        return Estimate(best, max(0.0, sum(sorted(apart)[-2:]) - best))


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
