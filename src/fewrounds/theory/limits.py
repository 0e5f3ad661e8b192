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
batch, or for methods without local steps of all workers' together. Where the curvature stays as it is (`STEADY`), L of
local steps is the greatest of f and of any worker: a worker that is curved more than the others diverges by itself.

The methods that the paper did not run are limited by the same things, argued in the same way:

    anchor            η ≤ √(P b)/(T L_s)    SVRG: differences from a point up to T steps away
    local anchor      η ≤ √b/(K L_s)        the same within a round, of MIME and of inexact DANE's solver
    batch noise       η ≤ P b̃ ε/(K L σ²)    a large batch anew every round, and K steps along it
    faded noise       the same, or none at all if what a momentum β leaves of the noise, β σ²/(P b̃), is below ε

The recursion of CE-LSGD and FedGLOMO has 1/β in the place of T; CE-LSGD's batch of a round is K b. Inexact DANE's μ
adds to L and takes from ζ. MIME's momentum only averages: its steps are held to the limits they have without it. Where
m of P workers take part in a round, P is m, and the batch has the variance of their choice, at most ζ₁², besides.

Anchors have the fitted factors of recursions, and the noises that of noise. None of these seven methods was among those
that the factors were fitted to, so their step sizes are not calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from fewrounds.errors import SettingError, nearest
from fewrounds.methods.base import Method
from fewrounds.methods.stages import Staged
from fewrounds.theory.estimate import Measurement

FACTORS = {
    "smoothness": 5.0,
    "noise": 130.0,
    "local noise": 250.0,
    "drift": 3200.0,
    "heterogeneity": 7.9,
    "local recursion": 5.0,
    "recursion": 1.3,
}
"""Theory leaves constant factors open, and proofs make them small. These fit what tuning finds on digits
(`python experiments/choosing.py fit`; docs/choosing.md says how well, and how well elsewhere)."""

SHARED = {
    "anchor": "recursion",
    "local anchor": "local recursion",
    "batch noise": "noise",
    "faded noise": "noise",
}
"""Limits with the factor of another."""

BARE = dict.fromkeys(FACTORS, 1.0)
"""Theory by itself."""

ENDS = ("noise", "local noise", "drift")
"""Limits that bound how far a method gets in the end. What was fitted to train losses after a few hundred rounds says
nothing of that."""

TO_EPSILON = {**FACTORS, **dict.fromkeys(ENDS, 1.0)}
"""Where the goal is an ε, which a method with such a step would not reach."""

STEADY = 0.9
"""Curvature of which this part is left after a first step stays as it is: then steps of more than 2/L diverge, and
factors that were fitted to networks are no guide. They are at most 1 there."""

FOREVER = 10_000
"""Rounds that an error lasts which no momentum takes away."""


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
    T: float
    """Rounds that an error lasts: of a stage, or 1/β."""
    b_tilde: float
    """Of a stage; infinite if it is all data, or the method has no stages."""
    epsilon: float
    batch: float = math.inf
    """Samples of a large batch that is drawn every round; infinite if it is all data."""
    beta: float = 1.0
    """The share of it in the estimate."""
    mu: float = 0.0
    chosen2: float = 0.0
    """The variance of a worker's gradient due to who takes part."""
    solver: str = ""
    """Of inexact DANE on samples."""
    steady: bool = False
    """Whether the curvature of f stays as it is."""
    L_local: float = 0.0
    """The greatest L of a worker where it does; elsewhere L falls with the first steps, and f's is the better guide."""


def smoothness(at: Place) -> float:
    L, together = (max(at.L, at.L_local), at.b) if at.K > 1 else (at.L, at.b * at.P)
    return _over(1.0, L + (max(at.L_sample, L) - L) / together + at.mu)


def noise(at: Place) -> float:
    return _over(at.P * at.b * at.epsilon, at.L * at.sigma2)


def local_noise(at: Place) -> float:
    return _over(math.sqrt(at.b * at.epsilon / at.K), at.L * math.sqrt(at.sigma2))


def drift(at: Place) -> float:
    return _over(math.sqrt(at.epsilon), at.K * at.L * at.zeta1)


def heterogeneity(at: Place) -> float:
    return _over(1.0, at.K * max(0.0, at.zeta - at.mu))


def local_recursion(at: Place) -> float:
    return _over(math.sqrt(at.b / at.K), at.L_sample)


def recursion(at: Place) -> float:
    return _over(math.sqrt(at.P * at.b / (at.K * at.T)), at.L_sample)


def anchor(at: Place) -> float:
    return _over(math.sqrt(at.P * at.b), at.T * at.L_sample)


def local_anchor(at: Place) -> float:
    return _over(math.sqrt(at.b), at.K * at.L_sample)


def batch_noise(at: Place) -> float:
    return _over(at.P * at.epsilon, at.K * at.L * (at.sigma2 / at.batch + at.chosen2))


def faded_noise(at: Place) -> float:
    left = at.beta * (at.sigma2 / at.batch + at.chosen2) / at.P
    return math.inf if left <= at.epsilon else batch_noise(at)


def _over(above: float, below: float) -> float:
    return above / below if below else math.inf


Limit = Callable[[Place], float]

USUAL: dict[str, tuple[Limit, ...]] = {
    "minibatch-sgd": (smoothness, noise),
    "sarah": (smoothness, recursion),
    "local-gd": (smoothness, drift),
    "local-sgd": (smoothness, noise, local_noise, drift),
    "scaffold": (smoothness, noise, local_noise, heterogeneity),
    "bvr-l-sgd": (smoothness, heterogeneity, local_recursion, recursion),
}
"""The paper's methods. (SCAFFOLD's limits are those of its analysis of quadratics; the one for other losses promises no
more than minibatch SGD.)"""

LIMITS: dict[str, tuple[Limit, ...]] = {
    **USUAL,
    "svrg": (smoothness, anchor),
    "inexact-dane": (smoothness, heterogeneity, batch_noise),
    "pr-spider": (smoothness, heterogeneity, local_recursion, recursion),
    "fedglomo": (smoothness, drift, local_recursion, recursion, faded_noise),
    "mime": (smoothness, heterogeneity, local_anchor, batch_noise),
    "mimelite": (smoothness, noise, local_noise, drift, batch_noise),
    "ce-lsgd": (smoothness, heterogeneity, local_recursion, recursion, faded_noise),
}
"""By method."""

SOLVERS: dict[str, tuple[Limit, ...]] = {
    "svrg": (local_anchor,),
    "sarah": (local_recursion,),
    "sgd": (noise, local_noise),
}
"""What else limits inexact DANE."""


def check_advised(name: str) -> None:
    """Refuse a method that there is no advice on."""
    if name not in LIMITS:
        raise SettingError(f"there is no advice on {name!r}: give its eta; {nearest(name, LIMITS)}")


def place_of(measurement: Measurement, method: Method, epsilon: float) -> Place:
    m, settings = measurement, method.settings()
    K, b, b_tilde = int(settings.get("K") or 1), settings.get("b"), settings.get("b_tilde")
    mean_size = sum(m.sizes) / m.P
    large = float(b_tilde) if b_tilde is not None and b_tilde < mean_size else math.inf
    taking_part = settings.get("participants") or m.P
    staged, forgetful = isinstance(method, Staged), method.name in ("ce-lsgd", "fedglomo")
    beta = settings["beta"] if forgetful else 1.0
    steady = is_steady(m)
    return Place(
        L=float(m.L),
        L_sample=max(float(m.L_sample), float(m.L)),
        zeta=float(m.zeta),
        zeta1=float(m.zeta1),
        sigma2=float(m.sigma2_mean),
        P=taking_part,
        K=K,
        b=float(b) if b is not None else mean_size,
        T=1 / max(beta, 1 / FOREVER) if forgetful else method.stage_rounds(m.sizes),
        b_tilde=large if staged else math.inf,
        epsilon=epsilon,
        batch=K * settings["b"] if method.name == "ce-lsgd" else large,
        beta=beta,
        mu=settings.get("mu", 0.0),
        chosen2=float(m.zeta1) ** 2 if taking_part < m.P else 0.0,
        solver=settings.get("solver", "") if b is not None else "",
        steady=steady,
        L_local=max(map(float, m.L_workers), default=0.0) if steady else 0.0,
    )


def is_steady(m: Measurement) -> bool:
    """Whether a first step leaves the curvature as it is, as that of least squares is everywhere. Not so of networks,
    for which the factor of smoothness was fitted. (Figures of earlier versions do not say.)"""
    return not math.isnan(m.L_ahead) and float(m.L_ahead) >= STEADY * float(m.L)


def limits(at: Place, name: str, factors: dict[str, float] = FACTORS) -> dict[str, float]:
    """The greatest step size that each limit allows."""
    found = {limit.__name__.replace("_", " "): limit(at) for limit in LIMITS[name] + SOLVERS.get(at.solver, ())}
    if at.steady:
        factors = {kind: min(1.0, factor) for kind, factor in factors.items()}
    return {kind: factors[SHARED.get(kind, kind)] * value for kind, value in found.items()}


def rounds_to(at: Place, name: str, gap: float, factors: dict[str, float] = FACTORS) -> float:
    """The predicted rounds to ‖∇f‖² ≤ ε with the greatest step size; the noise of a stage's gradient is a floor."""
    floor = at.sigma2 / (at.P * at.b_tilde * factors["noise"])
    if at.epsilon < floor * (1 - 1e-9):  # b̃ may have been chosen so that they are equal
        return math.inf
    return gap / (min(limits(at, name, factors).values()) * at.K * at.epsilon)
