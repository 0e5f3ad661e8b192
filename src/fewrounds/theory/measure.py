"""How heterogeneous the workers are, and how smooth and noisy their problem is: L, ζ, ζ₁ and σ² at a point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fewrounds.engine.base import BaseEngine
from fewrounds.errors import SettingError, finite_number, kind_of, nearest, whole_number
from fewrounds.opening import open_engine
from fewrounds.problem import Problem
from fewrounds.theory.estimate import FIGURES, Measurement
from fewrounds.theory.point import Point


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
        if not self.only:
            raise SettingError(f"only is empty: name at least one of {', '.join(FIGURES)}")
        for name in sorted(set(map(str, self.only)) - set(FIGURES)):
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
                     the samples of two workers differ even where their distributions do not. Error bars include this
    samples          samples of each worker for σ², which is exact if it has no more
    smooth_samples   samples of each worker for L_sample
    quantile         which quantile over these samples L_sample is
    tolerance        of eigenvalues, relative; by default 1e-3, in float64 1e-8
    all_pairs        compare all pairs of workers for ζ and ζ₁; by default of up to 10 workers. Otherwise a search,
                     whose cost grows with P and not with P², finds a pair, and the error bar reaches up to a bound that
                     holds for all pairs. `zeta_to_mean` without `zeta` compares the two workers with the mean that seem
                     farthest from it along random directions, unless this is true; its error bar reaches up to a bound
                     for the others that holds with a probability of 99 %
    seed, weights, num_workers, engine
                     as for `train`
    """
    how = How(_names(only), n, samples, smooth_samples, quantile, tolerance, all_pairs)
    ready = open_engine(
        problem, workers, x0=x, seed=seed, weights=weights, num_workers=num_workers, engine=engine, compile=False,
        settings={"measure": repr(how)},
    )  # fmt: skip
    return measure_with(ready.engine, ready.x, how)


def _names(only: Iterable[str] | None) -> tuple[str, ...]:
    if only is None:
        return FIGURES
    if isinstance(only, str) or not isinstance(only, Iterable):
        raise SettingError(f"only = {only!r}: must be a list of figures, such as ['L', 'zeta'], not {kind_of(only)}")
    return tuple(only)


def measure_along(
    problem: Problem, workers: Sequence[Any] | Callable[[int], Any], points: Iterable[Any], **settings: Any
) -> list[Measurement]:
    """`measure` at every point of a trajectory, such as `result.trace[::50]`, with its settings."""
    if isinstance(points, str) or not isinstance(points, Iterable):
        raise SettingError(f"points must be a list of points, such as result.trace[::50], not {kind_of(points)}")
    return [measure(problem, workers, x, **settings) for x in points]


def measure_with(engine: BaseEngine, x: Tensor, how: How) -> Measurement:
    """`measure` through an engine. Nothing of it remains there: neither counts nor memory."""
    before = engine.committed
    try:
        return Point(engine, x, how).measurement()
    finally:
        engine.restore(before)
