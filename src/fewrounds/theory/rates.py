"""The paper's table as functions: rounds to ‖∇f‖² ≤ ε, to be compared with each other and not with a clock.

The rows of SVRG, inexact DANE, MIMELite and CE-LSGD are not in it; docs/methods.md says where they come from.

The table leaves out L, σ, G and f(x_0) - f*; they are put back where the units want them, so that measured constants
can be filled in. With L = σ² = G = gap = 1 the figures are the table's own. Factors that theory leaves open are 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq

from fewrounds.errors import SettingError, finite_number, kind_of, nearest
from fewrounds.theory.estimate import Measurement

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Constants:
    """What the rates depend on."""

    L: float
    """Smoothness of the loss of every sample, as theory assumes it (`L_sample` of a measurement, not `L`); from it
    follows ζ ≤ 2L."""
    zeta: float
    """Second-order heterogeneity."""
    zeta1: float
    """First-order heterogeneity."""
    sigma2: float
    """Variance of a sample's gradient, of the worker with the greatest (`sigma2` of a measurement, not its mean)."""
    n: float
    """Samples of all workers together; infinite for streams."""
    P: float
    """Workers."""
    budget: float
    """Single-sample gradients per worker and round."""
    epsilon: float
    """The ‖∇f‖² to reach."""
    gap: float = 1.0
    """f(x_0) - f*."""
    G: float | None = None
    """A bound for the norm of a sample's gradient; by default √(σ² + ζ₁²)."""

    def __post_init__(self) -> None:
        for name in ("L", "P", "budget", "epsilon", "gap"):
            finite_number(name, getattr(self, name), positive=True)
        for name in ("sigma2", "zeta", "zeta1", *(["G"] if self.G is not None else [])):
            finite_number(name, getattr(self, name))
        if self.n != math.inf and finite_number("n", self.n) < 1:
            raise SettingError(f"n = {self.n}: must be a number of samples, or infinite")
        if self.zeta > 2 * self.L * (1 + 1e-9):
            raise SettingError(f"zeta = {self.zeta:g} is more than 2 L = {2 * self.L:g}: L is that of single samples")

    @property
    def bound(self) -> float:
        return math.sqrt(self.sigma2 + self.zeta1**2) if self.G is None else self.G


Terms = dict[str, float]


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    method: str
    """The method's name in the registry."""
    source: str
    """Whose analysis, where it is not the one of the method's publication."""
    assumes: str
    """What it needs beyond smoothness and bounded variance."""
    terms: Callable[[Constants], Terms]

    @property
    def label(self) -> str:
        return f"{self.method} ({self.source})" if self.source else self.method


def _steps(c: Constants) -> float:
    """L (f(x_0) - f*) / ε: the rounds of gradient descent."""
    return c.L * c.gap / c.epsilon


def _noise(c: Constants) -> float:
    """Of a mean over all workers of 𝓑 samples."""
    return _steps(c) * c.sigma2 / (c.budget * c.P * c.epsilon)


def _recursive(c: Constants) -> float:
    """Of the recursive estimator."""
    return _steps(c) * math.sqrt(min(c.n, c.sigma2 / c.epsilon)) / (c.budget * c.P)


def _bend(c: Constants) -> float:
    """Of local models that are bent another way than f."""
    return c.zeta * c.gap / c.epsilon


def _anchored(c: Constants) -> float:
    """Of the estimator that is anchored at the start of a stage."""
    return _steps(c) * math.cbrt(min(c.n, c.sigma2 / c.epsilon)) ** 2 / (c.budget * c.P)


TABLE = (
    Row("minibatch-sgd", "", "", lambda c: {"steps": _steps(c), "noise": _noise(c)}),
    Row("svrg", "", "", lambda c: {"steps": _steps(c), "noise": _anchored(c)}),
    Row("sarah", "", "", lambda c: {"steps": _steps(c), "noise": _recursive(c)}),
    Row(
        "local-sgd",
        "Yu et al.",
        "bounded gradients",
        lambda c: {
            "steps": _steps(c) / c.budget,
            "noise": _noise(c),
            "drift": _steps(c) * c.bound / math.sqrt(c.epsilon),
        },
    ),
    Row(
        "local-sgd",
        "Woodworth et al.",
        "convexity",
        lambda c: {
            "steps": _steps(c) / c.budget,
            "noise": _noise(c),
            "local noise": _steps(c) * math.sqrt(c.sigma2 / (c.budget * c.epsilon)),
            "drift": _steps(c) * c.zeta1 / math.sqrt(c.epsilon),
        },
    ),
    Row("scaffold", "", "", lambda c: {"steps": _steps(c), "noise": _noise(c)}),
    Row(
        "scaffold",
        "quadratics",
        "quadratic losses",
        lambda c: {"steps": _steps(c) / c.budget, "noise": _noise(c), "heterogeneity": _bend(c)},
    ),
    Row(
        "inexact-dane",
        "this library",
        "convexity, μ = 2ζ, full gradients, solved subproblems, the best worker's model",
        lambda c: {"heterogeneity": _bend(c)},
    ),
    Row("pr-spider", "", "a budget that is large enough", lambda c: {"steps": _steps(c)}),
    Row(
        "fedglomo",
        "",
        "bounded gradient heterogeneity",
        lambda c: {"drift": _steps(c) * c.bound / math.sqrt(c.epsilon)},
    ),
    Row(
        "mime",
        "",
        "bounded gradient heterogeneity, another base method",
        lambda c: {
            "steps": _steps(c) / c.budget,
            "drift": _steps(c) * c.bound / math.sqrt(c.epsilon) / c.P**0.75,
            "heterogeneity": _bend(c),
        },
    ),
    Row(
        "mimelite",
        "",
        "bounded gradient heterogeneity, another base method",
        lambda c: {
            "start": c.bound**2 / c.epsilon,
            "drift": _bend(c) * c.bound / math.sqrt(c.epsilon),
            "heterogeneity": _bend(c),
        },
    ),
    Row(
        "bvr-l-sgd",
        "",
        "",
        lambda c: {
            "steps": _steps(c) / math.sqrt(c.budget),
            "noise": _recursive(c),
            "heterogeneity": _bend(c),
        },
    ),
    Row(
        "ce-lsgd",
        "",
        "",
        lambda c: {
            "steps": _steps(c) / math.sqrt(c.budget),
            "noise": _steps(c) * math.sqrt(c.sigma2 / c.epsilon) / (c.budget * c.P),
            "heterogeneity": _bend(c),
        },
    ),
)
"""Minibatch methods first, as in the paper."""


@dataclass(frozen=True)
class Rate:
    """What a line of the table predicts."""

    row: Row
    constants: Constants
    terms: Terms

    @property
    def method(self) -> str:
        return self.row.method

    @property
    def label(self) -> str:
        return self.row.label

    @property
    def assumes(self) -> str:
        return self.row.assumes

    @property
    def rounds(self) -> float:
        return sum(self.terms.values())

    @property
    def limit(self) -> str:
        """The term that most rounds are due to."""
        return max(self.terms, key=lambda name: self.terms[name])


@dataclass(frozen=True)
class Rates:
    """Predicted rounds of every method, in the table's order."""

    constants: Constants

    def __iter__(self) -> Iterator[Rate]:
        return (self._rate(row) for row in TABLE)

    def _rate(self, row: Row) -> Rate:
        return Rate(row, self.constants, row.terms(self.constants))

    def of(self, name: str) -> Rate:
        """The line of this method, or of this method and analysis: "local-sgd (Woodworth et al.)".

        Of a method with several lines, the first: the one with fewer assumptions.
        """
        found = [row for row in TABLE if name in (row.label, row.method)]
        if not found:
            raise SettingError(f"the table has no {name!r}; {nearest(name, [row.label for row in TABLE])}")
        return self._rate(found[0])

    @property
    def frame(self) -> pandas.DataFrame:
        """A row a line: method, rounds, the term that limits it, what it assumes."""
        import pandas

        rows = [{"method": r.label, "rounds": r.rounds, "limit": r.limit, "assumes": r.assumes} for r in self]
        return pandas.DataFrame(rows)

    def __str__(self) -> str:
        """The whole table, whatever the width of the terminal."""
        rows = [
            ("method", "rounds", "limit", "assumes"),
            *((r.label, f"{r.rounds:.3g}", r.limit, r.assumes) for r in self),
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def crossings(self, variable: str, between: tuple[float, float], ahead: str = "bvr-l-sgd") -> dict[str, float]:
        """By line: where, as `variable` goes from one value to the other, the method `ahead` stops being ahead of it.

        Up from the smaller value that is the upper end of its lead, down from the greater, as between=(1e5, 1), the
        lower end. Lines that it is ahead of all the way, or nowhere, are left out, as are those of its own method.
        """
        try:
            first, last = (finite_number("between", value, positive=True) for value in between)
        except (TypeError, ValueError, SettingError):
            first = last = 0.0
        if variable not in ("L", "zeta", "zeta1", "sigma2", "n", "P", "budget", "epsilon"):
            known = ("zeta", "budget", "epsilon", "sigma2", "P", "n", "L", "zeta1")
            raise SettingError(f"there is no {variable!r} to change; {nearest(variable, known)}")
        if first == last:
            raise SettingError(f"between = {between}: must be two different positive numbers")

        def behind(logarithm: float, label: str) -> float:
            rates = Rates(replace(self.constants, **{variable: math.exp(logarithm)}))
            return rates.of(ahead).rounds - rates.of(label).rounds

        out = {}
        grid = np.linspace(math.log(first), math.log(last), 400)
        for row in TABLE:
            if row.method == self.of(ahead).method:
                continue
            values = np.array([behind(at, row.label) for at in grid])
            changes = np.flatnonzero((values[:-1] <= 0) & (values[1:] > 0))
            if len(changes):
                i = int(changes[0])
                out[row.label] = math.exp(brentq(behind, grid[i], grid[i + 1], args=(row.label,)))
        return out


def rates(
    measurement: Measurement | None = None,
    *,
    budget: float,
    epsilon: float,
    L: float | None = None,
    zeta: float | None = None,
    zeta1: float | None = None,
    sigma2: float | None = None,
    n: float | None = None,
    P: float | None = None,
    gap: float | None = None,
    G: float | None = None,
) -> Rates:
    """The rounds that the paper's table predicts for every method; see `Constants` for the letters.

    What is not given is that of the measurement, f(x_0) - f* its loss; without a measurement, all but gap and G must
    be given.
    """
    given = {"L": L, "zeta": zeta, "zeta1": zeta1, "sigma2": sigma2, "n": n, "P": P, "gap": gap}
    known = {"gap": 1.0} if measurement is None else _measured(measurement)
    known |= {name: value for name, value in given.items() if value is not None}
    if missing := [name for name in given if name not in known or known[name] != known[name]]:
        how = "or a measurement" if measurement is None else "or measure without `only`"
        raise SettingError(f"rates need {', '.join(missing)}: give them, {how}")
    return Rates(Constants(**known, budget=budget, epsilon=epsilon, G=G))


def _measured(m: Measurement) -> dict[str, float]:
    """The constants as theory has them: of single samples, whose greatest curvature a quantile may fall short of."""
    if not isinstance(m, Measurement):
        raise SettingError(f"rates are of what fr.measure returns, or of constants by name, not of {kind_of(m)}")
    L = max(float(m.L_sample), float(m.L), *map(float, m.L_workers), float(m.zeta) / 2)
    found = {"L": L if m.L_sample == m.L_sample else math.nan, "n": float(sum(m.sizes)), "P": m.P, "gap": float(m.loss)}
    return found | {name: float(getattr(m, name)) for name in ("zeta", "zeta1", "sigma2")}
