"""How large a step a method may take, by each thing that limits it, and the rounds that follow.

A method that takes K steps η a round needs about (f(x_0) - f*) / (η K ε) rounds to ‖∇f‖² ≤ ε. Put the greatest η that
its analysis allows in there, and the terms of the paper's table come out, one for each limit:

    smoothness        η ≤ 1/L_b             every method                       → L/(K ε)
    noise             η ≤ P b ε/(L σ²)      methods that average gradients     → L σ²/(K b P ε²)
    local noise       η ≤ √(b ε/K)/(L σ)    local methods that average them    → L σ/(√(K b) ε^{3/2})
    drift             η ≤ √ε/(K L ζ₁)       local methods with the bias        → L ζ₁/ε^{3/2}
    heterogeneity     η ≤ 1/(K ζ)           local methods without it           → ζ/ε
    local recursion   η ≤ √(b/K)/L          the recursive estimator, locally   → L/(√(K b) ε)
    recursion         η ≤ √(P b/(K T))/L    and over the rounds of a stage     → √(T/(K b P)) L/ε

In the last two, L is that of single samples, L_s. L_b = L + (L_s - L)/b is that of a mean of b samples: of the local
batch, or for methods without local steps of all workers' together.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fewrounds.methods.base import Method
from fewrounds.theory.estimate import Measurement

FACTORS = {
    "smoothness": 5.0,
    "noise": 130.0,
    "local noise": 250.0,
    "drift": 3200.0,
    "heterogeneity": 10.0,
    "local recursion": 5.0,
    "recursion": 1.3,
}
"""Theory leaves constant factors open, and proofs make them small. These fit what tuning finds on digits
(`python experiments/choosing.py fit`; docs/choosing.md says how well, and how well elsewhere)."""

BARE = dict.fromkeys(FACTORS, 1.0)
"""Theory by itself."""


@dataclass(frozen=True)
class Place:
    """Where a method is to run, and to which ε."""

    L: float
    L_sample: float
    zeta: float
    zeta1: float
    sigma2: float
    P: int
    K: int
    b: float
    T: int
    b_tilde: float
    """Of a stage; infinite if it is all data, or the method has no stages."""
    epsilon: float


def smoothness(at: Place) -> float:
    together = at.b if at.K > 1 else at.b * at.P
    return _over(1.0, at.L + (at.L_sample - at.L) / together)


def noise(at: Place) -> float:
    return _over(at.P * at.b * at.epsilon, at.L * at.sigma2)


def local_noise(at: Place) -> float:
    return _over(math.sqrt(at.b * at.epsilon / at.K), at.L * math.sqrt(at.sigma2))


def drift(at: Place) -> float:
    return _over(math.sqrt(at.epsilon), at.K * at.L * at.zeta1)


def heterogeneity(at: Place) -> float:
    return _over(1.0, at.K * at.zeta)


def local_recursion(at: Place) -> float:
    return _over(math.sqrt(at.b / at.K), at.L_sample)


def recursion(at: Place) -> float:
    return _over(math.sqrt(at.P * at.b / (at.K * at.T)), at.L_sample)


def _over(above: float, below: float) -> float:
    return above / below if below else math.inf


Limit = Callable[[Place], float]

LIMITS: dict[str, tuple[Limit, ...]] = {
    "minibatch-sgd": (smoothness, noise),
    "sarah": (smoothness, recursion),
    "local-gd": (smoothness, drift),
    "local-sgd": (smoothness, noise, local_noise, drift),
    "scaffold": (smoothness, noise, local_noise, heterogeneity),
    "bvr-l-sgd": (smoothness, heterogeneity, local_recursion, recursion),
}
"""By method. (SCAFFOLD's are those of its analysis of quadratics; the one for other losses promises no more than
minibatch SGD.)"""


def place_of(measurement: Measurement, method: Method, epsilon: float) -> Place:
    m, settings = measurement, method.settings()
    b, b_tilde = settings.get("b"), settings.get("b_tilde")
    return Place(
        L=float(m.L),
        L_sample=max(float(m.L_sample), float(m.L)),
        zeta=float(m.zeta),
        zeta1=float(m.zeta1),
        sigma2=float(m.sigma2_mean),
        P=m.P,
        K=int(settings.get("K") or 1),
        b=float(b) if b is not None else sum(m.sizes) / m.P,
        T=method.stage_rounds(m.sizes),
        b_tilde=float(b_tilde) if b_tilde is not None and b_tilde < sum(m.sizes) / m.P else math.inf,
        epsilon=epsilon,
    )


def limits(at: Place, name: str, factors: dict[str, float] = FACTORS) -> dict[str, float]:
    """The greatest step size that each limit allows."""
    found = {limit.__name__.replace("_", " "): limit(at) for limit in LIMITS[name]}
    return {kind: factors[kind] * value for kind, value in found.items()}


def rounds_to(at: Place, name: str, gap: float, factors: dict[str, float] = FACTORS) -> float:
    """The predicted rounds to ‖∇f‖² ≤ ε with the greatest step size; the noise of a stage's gradient is a floor."""
    if at.epsilon < at.sigma2 / (at.P * at.b_tilde * factors["noise"]):
        return math.inf
    return gap / (min(limits(at, name, factors).values()) * at.K * at.epsilon)
