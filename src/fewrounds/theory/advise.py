"""Which method, and with what settings: from a measurement and what a round may cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fewrounds.errors import SettingError, finite_number, kind_of, nearest, whole_number
from fewrounds.methods.base import Method, mean_size, method, method_class
from fewrounds.methods.budget import for_sizes
from fewrounds.methods.stages import Staged
from fewrounds.theory.estimate import Measurement
from fewrounds.theory.limits import FACTORS, LIMITS, USUAL
from fewrounds.theory.reasons import APART, paragraph
from fewrounds.theory.steps import LEAST, Choice, gap_to, step_size, usual_factors

if TYPE_CHECKING:
    import pandas

NEEDED = ("L", "L_ahead", "L_workers", "L_sample", "zeta", "zeta1", "sigma2", "gradient_norm2")
"""The figures that advice is based on. `step_size` alone does without L_ahead, which older measurements do not have:
it then takes the problem for a network, whose curvature falls."""
FRACTION = 0.01
"""By default ‖∇f‖² is to fall to this part of what it is at the start."""
BUDGETS = tuple(2**i for i in range(3, 17))
"""Among which one is chosen where seconds are given."""


@dataclass(frozen=True)
class Advice:
    """Methods with their settings, best first: where the rounds are given, by how far they go with fitted factors;
    where ε is the goal, by the rounds, or the seconds, that theory predicts by itself."""

    choices: tuple[Choice, ...]
    measurement: Measurement
    budget: int
    rounds: int | None
    """The rounds that are given, or None if ε is."""
    mode: str = "paper"
    """How the budget was spent, as for `for_budget`."""

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
        """A row a method: what is predicted, the settings, what a worker spends a round, and what limits the step."""
        import pandas

        rows: list[dict[str, Any]] = []
        best = min(choice.epsilon for choice in self.choices)
        for choice in self.choices:
            settings = choice.method.settings()
            predicted = {"rounds": choice.rounds} if self.rounds is None else {"progress": best / choice.epsilon}
            timed = {} if math.isnan(choice.seconds) else {"seconds": choice.seconds}
            rows.append(
                {
                    "method": choice.method.name,
                    **predicted,
                    **timed,
                    "eta": choice.method.eta,
                    **{key: settings.get(key) for key in ("K", "b", "b_tilde")},
                    "T": choice.T if "b_tilde" in settings else None,
                    "gradients": round(choice.gradients),
                    "limited by": choice.limit,
                }
            )
        return pandas.DataFrame(rows).astype({"K": "Int64", "b": "Int64", "b_tilde": "Int64", "T": "Int64"})

    @property
    def why(self) -> str:
        """One paragraph in plain words."""
        return paragraph(self)

    def __str__(self) -> str:
        shown = self.table.copy()
        for column in ("rounds", "progress", "seconds", "eta"):
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
    methods: Iterable[str | Method | tuple[str, Mapping[str, Any]]] | None = None,
    mode: str = "paper",
    f_star: float = 0.0,
    factors: Mapping[str, float] | None = None,
    **fixed: Any,
) -> Advice:
    """A ranked table of methods with settings for this problem.

    budget               single-sample gradients per worker and round. In its place, seconds_per_round (what a round
                         costs besides gradients) and seconds_per_gradient: then the budget with the least predicted
                         time is chosen
    rounds, epsilon      how many rounds there are, or the ‖∇f‖² to reach; by default a hundredth of the start's
    methods              by name, or by name and settings of its own, ("bvr-l-sgd", {"b": 32}), or as they are but for
                         eta, fr.SVRG(eta=1, b=64); by default the paper's, whose step sizes are calibrated
    mode                 as for `for_budget`
    f_star               the least loss there can be, or a guess
    factors              of the limits (see `fewrounds.theory.limits`), in place of the fitted ones; by default those of
                         noise and drift, which bound how far a method gets in the end, are 1 where the goal is an ε
    fixed                further settings of the methods, such as b=32, for those that have them. Where that leaves the
                         budget nothing to choose (b of minibatch SGD, K of Local GD), they are as they are, and a
                         method that is then over the budget is left out
    """
    _check_measured(measurement)
    if rounds is not None and epsilon is not None:
        raise SettingError("give rounds or epsilon, not both")
    factors = _checked_factors(factors, rounds)
    gap = gap_to(measurement, f_star)
    wanted = [_named(one) for one in _listed(methods)]
    names = [name for name, _ in wanted]
    settings = {field.name for name in names for field in dataclasses.fields(method_class(name))} - {"eta"}
    for key in fixed:
        if key not in settings:
            raise SettingError(f"none of these methods has a setting {key!r}; {nearest(key, settings)}")
    timed = seconds_per_round is not None and seconds_per_gradient is not None
    if (budget is None) != timed or (seconds_per_round is None) != (seconds_per_gradient is None):
        raise SettingError("give a budget, or both seconds_per_round and seconds_per_gradient")
    goal = checked_goal(epsilon)
    if rounds is None and goal is None:
        goal = FRACTION * float(measurement.gradient_norm2)
        if not goal:
            raise SettingError("the gradient is 0 at this point: give epsilon, or rounds")
    how_long = None if rounds is None else whole_number("rounds", rounds)

    def at_budget(budget: int) -> list[Choice]:
        made = [_choice(measurement, gap, one, budget, how_long, goal, mode, factors, fixed) for one in wanted]
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
            tried[size] = [
                dataclasses.replace(c, seconds=_begun(c.rounds) * (a_round + c.gradients * a_gradient))
                for c in at_budget(size)
            ]
        fit = [size for size in tried if tried[size]]
        chosen = min(fit, key=lambda size: min(c.seconds for c in tried[size]), default=BUDGETS[-1])
        choices = tried[chosen]
    if not choices:
        raise SettingError(f"budget = {chosen}: too small for {', '.join(names)}")
    return Advice(tuple(ranked(choices, how_long)), measurement, chosen, how_long, mode)


def checked_goal(epsilon: Any) -> float | None:
    goal = finite_number("epsilon", epsilon, positive=True) if epsilon is not None else None
    if goal is not None and goal < LEAST:
        raise SettingError(f"epsilon = {epsilon!r}: must be {LEAST:g} or more, no gradient is known to less")
    return goal


def _check_measured(measurement: Measurement) -> None:
    if not isinstance(measurement, Measurement):
        raise SettingError(f"advice is based on what fr.measure returns, not on {kind_of(measurement)}")
    if missing := not_measured(measurement):
        raise SettingError(f"advice needs {', '.join(missing)}: measure without `only`, or with {NEEDED}")
    if not measurement.sizes:
        raise SettingError("the measurement has no workers: its sizes are empty")


def not_measured(measurement: Measurement) -> list[str]:
    """The figures that advice needs, and that are not there."""
    single = [name for name in (*NEEDED, "sigma2_mean") if name != "L_workers"]
    missing = [name for name in single if math.isnan(getattr(measurement, name))]
    return missing if measurement.L_workers else [*missing, "L_workers"]


def _listed(methods: Any) -> list[Any]:
    if methods is None:
        return list(USUAL)
    if isinstance(methods, (str, Method)) or not isinstance(methods, Iterable):
        raise SettingError(f"methods = {methods!r}: must be a list of methods, not {kind_of(methods)}")
    if not (found := list(methods)):
        raise SettingError("methods is empty: name at least one")
    return found


def _named(one: Any) -> tuple[str, dict[str, Any]]:
    """The name of a method and the settings it has of its own."""
    if isinstance(one, Method):
        one = (one.name, {key: value for key, value in one.settings().items() if key != "eta"})
    match (one, {}) if isinstance(one, str) else one:
        case (str(name), Mapping() as own):
            if name not in LIMITS:
                raise SettingError(f"there is no advice on {name!r}; {nearest(name, LIMITS)}")
            return name, dict(own)
    raise SettingError(
        f"methods: {one!r} is {kind_of(one)}; a method is given by name, as ('sarah', {{'b': 32}}), or as fr.SARAH(…)"
    )


def _checked_factors(factors: Any, rounds: int | None) -> dict[str, float]:
    usual = usual_factors(rounds)
    if factors is None:
        return usual
    if not isinstance(factors, Mapping):
        raise SettingError(f"factors = {factors!r}: must be factors by limit, such as {{'smoothness': 5}}")
    for kind, factor in factors.items():
        if kind not in FACTORS:
            raise SettingError(f"factors: there is no limit {kind!r}; {nearest(str(kind), FACTORS)}")
        finite_number(f"factors: {kind}", factor, positive=True)
    return {**usual, **factors}


def ranked(choices: Iterable[Choice], rounds: int | None) -> list[Choice]:
    """By what is predicted. How far methods go with fitted factors tells only those apart that differ clearly; the
    others are in the order of theory by itself, or where that is the same, those first whose noise vanishes."""
    if rounds is None:
        return sorted(choices, key=lambda c: c.rounds if math.isnan(c.seconds) else c.seconds)
    groups: list[list[Choice]] = []
    for choice in sorted(choices, key=lambda c: c.epsilon):
        if groups and choice.epsilon <= APART * groups[-1][0].epsilon:
            groups[-1].append(choice)
        else:
            groups.append([choice])
    return [choice for group in groups for choice in _in_order(group)]


def _in_order(group: list[Choice]) -> list[Choice]:
    if any(choice.epsilon != choice.bare for choice in group):
        return sorted(group, key=lambda c: c.bare)
    return sorted(group, key=lambda c: (c.stays_noisy, c.bare))


def _choice(
    m: Measurement,
    gap: float,
    wanted: tuple[str, dict[str, Any]],
    budget: int,
    rounds: int | None,
    epsilon: float | None,
    mode: str,
    factors: dict[str, float],
    fixed: dict[str, Any],
) -> Choice | None:
    """The method at this budget; None if the budget is too small for it."""
    name, own = wanted
    cls = method_class(name)
    has = {field.name for field in dataclasses.fields(cls)}
    chosen = ({"K"} if cls.local else set()) | ({"b"} & has)  # what a budget is spent on
    as_it_is = chosen <= set(own)
    own = {**{key: value for key, value in fixed.items() if key in has}, **own}
    streams = math.inf in m.sizes
    if "b_tilde" in has and streams and own.get("b_tilde") is None:
        target = epsilon or FRACTION * float(m.gradient_norm2) or gap / (rounds or 1)
        own["b_tilde"] = _stage_batch(m, target)
    elif issubclass(cls, Staged) and epsilon is not None and "b_tilde" not in own:
        # (For a number of rounds all data, as in the experiments.)
        enough = _stage_batch(m, epsilon)
        own["b_tilde"] = enough if enough < mean_size(m.sizes) else None
    try:
        if settled := chosen <= set(own):
            made = method(name, eta=1.0, **own)
        else:
            made = for_sizes(name, budget, m.sizes, mode, eta=1.0, **own)
        made.check(m.sizes)
    except SettingError as error:
        if "too small" in str(error) or (streams and "Stream" in str(error)):
            return None
        raise
    if settled and not as_it_is and not _affordable(made, budget, m.sizes, mode):
        return None
    return step_size(m, made, rounds, factors, gap=gap, epsilon=epsilon)


def _stage_batch(m: Measurement, epsilon: float) -> int:
    """b̃ = σ²/(P ε): what a mean over all workers must be known to."""
    return max(1, math.ceil(float(m.sigma2) / (m.P * epsilon)))


def _affordable(made: Method, budget: int, sizes: tuple[float, ...], mode: str) -> bool:
    """Whether settings that were fixed for all methods are within the budget, as `for_budget` counts it."""
    if mode == "strict":
        return made.gradients_per_round(sizes) <= budget
    K, b = made.settings().get("K") or 1, made.settings().get("b")
    return bool(K * (sum(sizes) / len(sizes) if b is None else b) <= budget)


def _begun(rounds: float) -> float:
    """One at least, unless none is needed."""
    return max(1.0, rounds) if rounds else 0.0
