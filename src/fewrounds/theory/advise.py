"""Which method, and with what settings: from a measurement and what a round may cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fewrounds.errors import SettingError, finite_number, nearest, whole_number
from fewrounds.methods.base import Method, method_class
from fewrounds.methods.budget import for_sizes
from fewrounds.theory.estimate import Measurement
from fewrounds.theory.limits import BARE, FACTORS, LIMITS, limits, place_of, rounds_to

if TYPE_CHECKING:
    import pandas

NEEDED = ("L", "L_sample", "zeta", "zeta1", "sigma2", "gradient_norm2")
"""The figures that advice is based on."""
FRACTION = 0.01
"""By default ‖∇f‖² is to fall to this part of what it is at the start."""
APART = 1.3
"""Predictions that differ by less than this factor, about the error of the fit, are not told apart."""
BUDGETS = tuple(2**i for i in range(3, 17))
"""Among which one is chosen where seconds are given."""


@dataclass(frozen=True)
class Choice:
    """A method with the settings that are advised for it, and what is predicted of it."""

    method: Method
    rounds: float
    """Predicted rounds to ε. Compare them with each other, not with a clock."""
    epsilon: float
    """The ‖∇f‖² to reach; or, where the rounds are given, the one that is predicted to be reached in them."""
    limits: dict[str, float]
    """The greatest step size that each limit allows (see `fewrounds.theory.limits`)."""
    T: int
    """Rounds of a stage."""
    bare: float
    """The rounds, or the ε where the rounds are given, that theory predicts without fitted factors."""
    seconds: float = math.nan
    """Predicted, where seconds per round and gradient are given."""

    @property
    def limit(self) -> str:
        """What limits the step size."""
        return min(self.limits, key=lambda kind: self.limits[kind])


@dataclass(frozen=True)
class Advice:
    """Methods with their settings, the one with the fewest predicted rounds first."""

    choices: tuple[Choice, ...]
    measurement: Measurement
    budget: int
    rounds: int | None
    """The rounds that are given, or None if ε is."""

    @property
    def best(self) -> Method:
        return self.choices[0].method

    def of(self, name: str) -> Choice:
        for choice in self.choices:
            if choice.method.name == name:
                return choice
        raise SettingError(f"there is no advice on {name!r}; {nearest(name, [c.method.name for c in self.choices])}")

    @property
    def table(self) -> pandas.DataFrame:
        """A row a method: what is predicted, the settings, and what limits the step size."""
        import pandas

        rows: list[dict[str, Any]] = []
        for choice in self.choices:
            settings = choice.method.settings()
            predicted = {"rounds": choice.rounds} if self.rounds is None else {"gradient_norm2": choice.epsilon}
            timed = {} if math.isnan(choice.seconds) else {"seconds": choice.seconds}
            rows.append(
                {
                    "method": choice.method.name,
                    **predicted,
                    **timed,
                    "eta": choice.method.eta,
                    **{key: settings.get(key) for key in ("K", "b", "b_tilde")},
                    "T": choice.T if "b_tilde" in settings else None,
                    "limited by": choice.limit,
                }
            )
        return pandas.DataFrame(rows).astype({"K": "Int64", "b": "Int64", "b_tilde": "Int64", "T": "Int64"})

    @property
    def why(self) -> str:
        """One paragraph in plain words."""
        return " ".join([_problem_in_words(self.measurement), _winner_in_words(self), CAUTION])

    def __str__(self) -> str:
        shown = self.table.copy()
        for column in ("rounds", "gradient_norm2", "seconds", "eta"):
            if column in shown:
                shown[column] = [f"{value:.3g}" for value in shown[column]]
        return f"{shown.astype(object).fillna('').to_string(index=False)}\n\n{self.why}"


def advise(
    measurement: Measurement,
    budget: int | None = None,
    *,
    rounds: int | None = None,
    epsilon: float | None = None,
    seconds_per_round: float | None = None,
    seconds_per_gradient: float | None = None,
    methods: Iterable[str] | None = None,
    mode: str = "paper",
    f_star: float = 0.0,
    factors: dict[str, float] = FACTORS,
    **fixed: Any,
) -> Advice:
    """A ranked table of methods with settings for this problem.

    budget               single-sample gradients per worker and round. In its place, seconds_per_round (what a round
                         costs besides gradients) and seconds_per_gradient: then the budget with the least predicted
                         time is chosen
    rounds, epsilon      how many rounds there are, or the ‖∇f‖² to reach; by default a hundredth of the start's
    methods              by name; all that there is theory for by default
    mode                 as for `for_budget`
    f_star               the least loss there can be, or a guess
    factors              of the limits (see `fewrounds.theory.limits`), in place of the fitted ones
    fixed                further settings of the methods, such as b=32, for those that have them
    """
    missing = [name for name in NEEDED if math.isnan(getattr(measurement, name))]
    if missing:
        raise SettingError(f"advice needs {', '.join(missing)}: measure without `only`, or with {NEEDED}")
    if rounds is not None and epsilon is not None:
        raise SettingError("give rounds or epsilon, not both")
    names = list(LIMITS if methods is None else methods)
    if not names:
        raise SettingError("methods is empty: name at least one")
    factors = _checked_factors(factors)
    gap = _gap(measurement, f_star)
    for name in names:
        if name not in LIMITS:
            raise SettingError(f"there is no advice on {name!r}; {nearest(name, LIMITS)}")
    settings = {field.name for name in names for field in dataclasses.fields(method_class(name))} - {"eta"}
    for key in fixed:
        if key not in settings:
            raise SettingError(f"none of these methods has a setting {key!r}; {nearest(key, settings)}")
    timed = seconds_per_round is not None and seconds_per_gradient is not None
    if (budget is None) != timed or (seconds_per_round is None) != (seconds_per_gradient is None):
        raise SettingError("give a budget, or both seconds_per_round and seconds_per_gradient")
    goal = finite_number("epsilon", epsilon, positive=True) if epsilon is not None else None
    if rounds is None and goal is None:
        goal = FRACTION * float(measurement.gradient_norm2)
        if not goal:
            raise SettingError("the gradient is 0 at this point: give epsilon, or rounds")
    how_long = None if rounds is None else whole_number("rounds", rounds)

    def at_budget(budget: int) -> list[Choice]:
        made = [_choice(measurement, gap, name, budget, how_long, goal, mode, factors, fixed) for name in names]
        return [choice for choice in made if choice is not None]

    if budget is not None:
        chosen = whole_number("budget", budget)
        choices = at_budget(chosen)
    else:
        assert seconds_per_round is not None
        assert seconds_per_gradient is not None
        a_round = finite_number("seconds_per_round", seconds_per_round, positive=True)
        a_gradient = finite_number("seconds_per_gradient", seconds_per_gradient, positive=True)
        if how_long is not None:
            raise SettingError("seconds need epsilon, not rounds: how long they are depends on the budget")
        tried: dict[int, list[Choice]] = {}
        for size in BUDGETS:
            found = at_budget(size)
            per_round = [c.method.gradients_per_round(measurement.sizes) * a_gradient + a_round for c in found]
            tried[size] = [
                dataclasses.replace(c, seconds=c.rounds * seconds) for c, seconds in zip(found, per_round, strict=True)
            ]
        fit = [size for size in tried if tried[size]]
        chosen = min(fit, key=lambda size: min(c.seconds for c in tried[size]), default=BUDGETS[-1])
        choices = tried[chosen]
    if not choices:
        raise SettingError(f"budget = {chosen}: too small for {', '.join(names)}")
    return Advice(tuple(ranked(choices, how_long)), measurement, chosen, how_long)


def _gap(measurement: Measurement, f_star: float) -> float:
    gap = float(measurement.loss) - f_star
    if not 0 < gap < math.inf:
        raise SettingError(
            f"the loss here is {measurement.loss:.4g} and f_star, the least there can be, {f_star:.4g}: "
            "it must be less, give f_star="
        )
    return gap


def _checked_factors(factors: dict[str, float]) -> dict[str, float]:
    for kind, factor in factors.items():
        if kind not in FACTORS:
            raise SettingError(f"factors: there is no limit {kind!r}; {nearest(kind, FACTORS)}")
        finite_number(f"factors: {kind}", factor, positive=True)
    return {**FACTORS, **factors}


def ranked(choices: Iterable[Choice], rounds: int | None) -> list[Choice]:
    """By what is predicted; those that it does not tell apart, by what theory says by itself."""

    def value(choice: Choice) -> float:
        if not math.isnan(choice.seconds):
            return choice.seconds
        return choice.epsilon if rounds is not None else choice.rounds

    groups: list[list[Choice]] = []
    for choice in sorted(choices, key=value):
        if groups and value(choice) <= APART * value(groups[-1][0]):
            groups[-1].append(choice)
        else:
            groups.append([choice])
    return [choice for group in groups for choice in sorted(group, key=lambda c: c.bare)]


def _choice(
    m: Measurement,
    gap: float,
    name: str,
    budget: int,
    rounds: int | None,
    epsilon: float | None,
    mode: str,
    factors: dict[str, float],
    fixed: dict[str, Any],
) -> Choice | None:
    """The method at this budget; None if the budget is too small for it."""
    has = {field.name for field in dataclasses.fields(method_class(name))}
    own = {key: value for key, value in fixed.items() if key in has}
    streams = math.inf in m.sizes
    if "b_tilde" in has and streams and "b_tilde" not in own:
        # b̃ = σ²/(P ε): what a mean over all workers must be known to. (Of finite data all, as in the experiments.)
        target = epsilon or FRACTION * float(m.gradient_norm2) or gap / (rounds or 1)
        own["b_tilde"] = max(1, math.ceil(float(m.sigma2) / (m.P * target)))
    try:
        made = for_sizes(name, budget, m.sizes, mode, eta=1.0, **own)
    except SettingError as error:
        if "too small" in str(error) or (streams and "Stream" in str(error)):
            return None
        raise
    if rounds is not None:
        return step_size(m, made, rounds, factors, gap=gap)
    assert epsilon is not None
    at = place_of(m, made, epsilon)
    found = limits(at, name, factors)
    needed, bare = (rounds_to(at, name, gap, these) for these in (factors, BARE))
    return Choice(dataclasses.replace(made, eta=min(found.values())), needed, epsilon, found, at.T, bare)


def step_size(
    measurement: Measurement,
    method: Method,
    rounds: int,
    factors: dict[str, float] = FACTORS,
    gap: float | None = None,
) -> Choice:
    """The advice for a method whose other settings are given; the gap f(x_0) - f* is the loss by default."""
    gap = _gap(measurement, 0.0) if gap is None else gap
    if method.name not in LIMITS:
        raise SettingError(f"there is no advice on {method.name!r}: give its eta; {nearest(method.name, LIMITS)}")
    reached, bare = (_reached(measurement, method, gap, rounds, f) for f in (factors, BARE))
    found = limits(place_of(measurement, method, reached), method.name, factors)
    made = dataclasses.replace(method, eta=min(found.values()))
    return Choice(made, float(rounds), reached, found, method.stage_rounds(measurement.sizes), bare)


def _reached(m: Measurement, method: Method, gap: float, rounds: int, factors: dict[str, float]) -> float:
    """The ε that is predicted to be reached in so many rounds."""
    low, high = math.log(1e-30), math.log(1e30)
    for _ in range(60):  # rounds fall as ε grows
        middle = (low + high) / 2
        if rounds_to(place_of(m, method, math.exp(middle)), method.name, gap, factors) > rounds:
            low = middle
        else:
            high = middle
    return math.exp(high)


# ---------------------------------------------------------------------- in words


def _problem_in_words(m: Measurement) -> str:
    share = m.zeta / m.L if m.L else 0.0
    how = (
        "hardly differ in curvature"
        if share < 0.1
        else "differ moderately in curvature"
        if share < 0.5
        else "differ in curvature about as much as the problem has"
    )
    return f"The {m.P} workers {how} (ζ = {m.zeta:.3g}, {share:.0%} of L = {m.L:.3g})."


CAUTION = (
    "Constants were measured at one point and change along the way: take these step sizes as the middle of a small "
    "grid, and trust the order only where the figures are far apart."
)

REASONS = {
    "smoothness": "its steps are as large as the curvature of f (L) allows any method",
    "noise": "its steps are limited by the noise of the gradients, σ²",
    "local noise": "its steps are limited by the noise of local gradients, σ²",
    "drift": "its local steps drift towards each worker's own optimum (ζ₁)",
    "heterogeneity": "its local steps are limited by the difference of the workers' curvature (ζ)",
    "local recursion": "its local steps are limited by how differently single samples are curved",
    "recursion": "its steps are limited by how differently single samples are curved over a whole stage",
}


def _winner_in_words(advice: Advice) -> str:
    first = advice.choices[0]
    text = f"At a budget of {advice.budget} gradients a round, {first.method.name} comes first: {REASONS[first.limit]}."
    if len(advice.choices) > 1:
        second = advice.choices[1]
        if advice.rounds is None:
            ratio = second.rounds / first.rounds
            compared = f"about {ratio:.2g} times the rounds"
        else:
            ratio = second.epsilon / first.epsilon
            compared = f"about {ratio:.2g} times the squared gradient"
        near = "Hardly told apart from it is" if ratio < APART else f"Next, with {compared}, is"
        text += f" {near} {second.method.name}: {REASONS[second.limit]}."
    return text
