"""The step size that a method is advised, and what is predicted of it with that."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from fewrounds.errors import SettingError
from fewrounds.methods.base import Method
from fewrounds.methods.stages import Staged, large_batch
from fewrounds.theory.estimate import Measurement
from fewrounds.theory.limits import (
    BARE,
    ENDS,
    FACTORS,
    SHARED,
    TO_EPSILON,
    check_advised,
    limits,
    place_of,
    rounds_to,
)

LEAST = 1e-30
"""No ‖∇f‖² is predicted below this, nor above its inverse."""


@dataclass(frozen=True)
class Choice:
    """A method with the settings that are advised for it, and what is predicted of it."""

    method: Method
    rounds: float
    """The rounds that are given; or those to ε that theory predicts by itself. Compare them with each other, not with
    a clock."""
    epsilon: float
    """The ‖∇f‖² to reach; or, where the rounds are given, (f(x_0) - f*)/(η K rounds), which is the smaller the farther
    a method goes. With fitted factors, that foretells train losses rather than ‖∇f‖² (docs/choosing.md)."""
    limits: dict[str, float]
    """The greatest step size that each limit allows (see `fewrounds.theory.limits`)."""
    T: int
    """Rounds of a stage."""
    bare: float
    """The rounds, or the ε where the rounds are given, that theory predicts without fitted factors."""
    by_theory: dict[str, float]
    """The limits without fitted factors."""
    gradients: float
    """Single-sample gradients of a worker and round, averaged over these rounds. As the paper sets K and b, the budget
    is equal to them only in order."""
    seconds: float = math.nan
    """Predicted, where seconds per round and gradient are given."""

    @property
    def limit(self) -> str:
        """What limits the step size."""
        return min(self.limits, key=lambda kind: self.limits[kind])

    @property
    def stays_noisy(self) -> bool:
        """Whether noise or bias keeps it from the optimum, whatever its step size."""
        return any(SHARED.get(kind, kind) in ENDS for kind in self.limits)


def step_size(
    measurement: Measurement,
    method: Method,
    rounds: int | None,
    factors: dict[str, float] | None = None,
    gap: float | None = None,
    epsilon: float | None = None,
) -> Choice:
    """The advice for a method whose other settings are given, for so many rounds or else to ε; the gap f(x_0) - f* is
    the loss by default."""
    gap = gap_to(measurement, 0.0) if gap is None else gap
    check_advised(method.name)
    factors = usual_factors(rounds) if factors is None else factors
    if rounds is not None:
        needed = float(rounds)
        reached, bare = (_reached(measurement, method, gap, rounds, f) for f in (factors, BARE))
    else:
        assert epsilon is not None
        needed = rounds_to(place_of(measurement, method, epsilon), method.name, gap, BARE)
        if isinstance(method, Staged):
            # + T: stages are whole, unless the first of them lasts longer than is needed
            needed += min(needed, method.stage_rounds(measurement.sizes))
        if measurement.gradient_norm2 <= epsilon:
            needed = 0.0
        reached, bare = epsilon, needed
    at = place_of(measurement, method, reached)
    found, by_theory = (limits(at, method.name, f) for f in (factors, BARE))
    eta = min(found.values())
    if math.isinf(eta):
        raise SettingError(f"nothing limits the steps of {method.name} here (L = {at.L:g}): give its eta")
    made = dataclasses.replace(method, eta=eta)
    T = method.stage_rounds(measurement.sizes)
    gradients = gradients_a_round(method, measurement.sizes, max(1.0, needed))
    return Choice(made, needed, reached, found, T, bare, by_theory, gradients)


def usual_factors(rounds: int | None) -> dict[str, float]:
    """Those for so many rounds, or for an ε."""
    return TO_EPSILON if rounds is None else FACTORS


def gap_to(measurement: Measurement, f_star: Any) -> float:
    if isinstance(f_star, bool) or not isinstance(f_star, Real) or not math.isfinite(f_star):
        raise SettingError(f"f_star = {f_star!r}: must be a finite number")
    gap = float(measurement.loss) - float(f_star)
    if not 0 < gap < math.inf:
        raise SettingError(
            f"the loss here is {measurement.loss:.4g} and f_star, the least there can be, {f_star:.4g}: "
            "it must be less, give f_star="
        )
    return gap


def gradients_a_round(method: Method, sizes: tuple[float, ...], rounds: float) -> float:
    """Single-sample gradients of a worker in a round, averaged over so many: a run begins with a stage, and its last
    one need not end."""
    over_a_stage = method.gradients_per_round(sizes)
    if not isinstance(method, Staged) or math.isinf(rounds):
        return over_a_stage
    T = method.stage_rounds(sizes)
    more = math.ceil(rounds / T) - rounds / T  # stage gradients than of whole stages
    return over_a_stage + more * (large_batch(method.b_tilde, sizes) - 2 * method.batch) / rounds


def _reached(m: Measurement, method: Method, gap: float, rounds: int, factors: dict[str, float]) -> float:
    """The ε that is predicted to be reached in so many rounds."""
    low, high = math.log(LEAST), -math.log(LEAST)
    for _ in range(60):  # rounds fall as ε grows
        middle = (low + high) / 2
        if rounds_to(place_of(m, method, math.exp(middle)), method.name, gap, factors) > rounds:
            low = middle
        else:
            high = middle
    return math.exp(high)
