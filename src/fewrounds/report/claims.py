"""The paper's five claims as questions to the frame. Each answer says what was compared and the numbers it rests on.

All of them look at the train loss at the end of the run (what is optimised), mean over seeds. A change of it is
*clear* if it exceeds both twice the seeds' standard deviation (pooled over the two ends) and 5 % of the loss it
started from: the first so that it is no accident of the seeds, the second so that it is worth speaking of.
Runs that diverged (frames.py says which) count as an infinite loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fewrounds.report.frames import checked, curves, groups, label_of, reported, settings_of, summary, values_of
from fewrounds.report.html import listed

Verdict = Literal["holds", "does not hold", "not checked"]

SPREADS, FLOOR, AHEAD = 2.0, 0.05, 0.9
OURS = "bvr-l-sgd"
EXISTING_LOCAL = ["local-sgd", "scaffold"]
NON_LOCAL = ["minibatch-sgd", "sarah"]
ALL = [*NON_LOCAL, *EXISTING_LOCAL, OURS]
CLEAR = (
    f"clear: by more than {SPREADS:g} pooled standard deviations of the seeds and more than {100 * FLOOR:g} % of "
    "the loss it started from"
)


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, what was made of it here, and the answer."""

    number: int
    statement: str
    criterion: str
    verdict: Verdict
    evidence: str
    setting: dict[str, Any]
    """The settings it was checked at, where the frame has several besides q and budget."""


class _MissingError(Exception):
    """What would have to be there for a claim to be checked."""


@dataclass(frozen=True)
class _Change:
    """The train loss of a method at two ends of an axis."""

    method: str
    before: float
    after: float
    spread: float
    n: int
    accuracy: float
    """How the test accuracy changed; NaN if there is none."""

    @property
    def rise(self) -> float:
        return self.after - self.before

    def clear(self, size: float) -> bool:
        return size > SPREADS * self.spread and size > FLOOR * self.before

    def __str__(self) -> str:
        after = "diverged" if math.isinf(self.after) else f"{self.after:.4g}"
        test = "" if math.isnan(self.accuracy) else f", test accuracy {100 * self.accuracy:+.1f} points"
        return f"{label_of(self.method)} {self.before:.4g} → {after} (spread {self.spread:.2g}{test})"


class _Case:
    """The frame at one combination of the settings other than q and budget."""

    def __init__(self, frame: pd.DataFrame) -> None:
        self.frame = frame
        self.ends = summary(frame)
        self.qs = [float(q) for q in values_of(frame, "q") if q is not None]
        self.budgets = [int(budget) for budget in values_of(frame, "budget") if budget is not None]

    def need(self, methods: list[str], qs: int = 0, budgets: int = 0) -> None:
        found = set(self.frame["method"].unique())
        missing = [label_of(name) for name in methods if name not in found]
        if missing:
            raise _MissingError(f"there is no run of {listed(missing)}")
        if len(self.qs) < qs:
            raise _MissingError(f"it needs {qs} values of q, and there {_are(len(self.qs))}")
        if len(self.budgets) < budgets:
            raise _MissingError(f"it needs {budgets} budgets, and there {_are(len(self.budgets))}")

    def end(self, method: str, criterion: str, q: float | None, budget: int | None) -> tuple[float, float, int]:
        """Mean, standard deviation and n at a setting; a diverged run makes the loss infinite."""
        rows = self.ends[(self.ends["method"] == method) & (self.ends["criterion"] == criterion)]
        rows = rows if q is None else rows[rows["q"] == q]
        rows = rows if budget is None else rows[rows["budget"] == budget]
        place = f"{label_of(method)} at {_place(q, budget)}"
        if len(rows) == 0 or (rows["n"].iloc[0] == 0 and rows["diverged"].iloc[0] == 0):
            raise _MissingError(f"there is no finished run of {place}")
        row = rows.iloc[0]
        if row["diverged"]:
            return (math.inf if criterion.endswith("loss") else math.nan), 0.0, int(row["n"] + row["diverged"])
        return float(row["mean"]), float(row["sd"]), int(row["n"])

    def change(self, method: str, ends: list[tuple[float | None, int | None]]) -> _Change:
        (before, sd_before, n), (after, sd_after, m) = (self.end(method, "train_loss", *end) for end in ends)
        if math.isinf(before):
            raise _MissingError(f"{label_of(method)} diverged at {_place(*ends[0])}")
        if min(n, m) < 2:
            raise _MissingError(f"{label_of(method)} has one seed, and the spread of the seeds needs two")
        spread = sd_before if math.isinf(after) else math.sqrt((sd_before**2 + sd_after**2) / 2)
        accuracy = math.nan
        if "test_accuracy" in set(self.ends["criterion"]):
            accuracy = self.end(method, "test_accuracy", *ends[1])[0] - self.end(method, "test_accuracy", *ends[0])[0]
        return _Change(method, before, after, spread, min(n, m), accuracy)

    def over_q(self, method: str) -> _Change:
        budget = self.budgets[-1] if self.budgets else None
        return self.change(method, [(self.qs[0], budget), (self.qs[-1], budget)])

    def over_budget(self, method: str) -> _Change:
        q = self.qs[0] if self.qs else None
        return self.change(method, [(q, self.budgets[0]), (q, self.budgets[-1])])


def claim_1(case: _Case) -> tuple[bool, str]:
    case.need([*EXISTING_LOCAL, *NON_LOCAL], qs=2)
    worse = [case.over_q(name) for name in EXISTING_LOCAL]
    same = [case.over_q(name) for name in NON_LOCAL]
    holds = all(c.clear(c.rise) for c in worse) and not any(c.clear(c.rise) for c in same)
    changes = [*worse, *same]
    clear = [label_of(c.method) for c in changes if c.clear(c.rise)]
    at = f"{_budget(case)} from q = {case.qs[0]:g} to {case.qs[-1]:g}"
    return holds, f"{at}, clearly worse: {listed(clear) or 'none'}; {_changes(changes)}"


def claim_2(case: _Case) -> tuple[bool, str]:
    case.need(ALL, qs=2)
    budget = case.budgets[-1] if case.budgets else None
    ours, parts, wins = [], [], 0
    for q in case.qs:
        losses = {name: case.end(name, "train_loss", q, budget) for name in ALL}
        rival = min((name for name in ALL if name != OURS), key=lambda name: losses[name][0])
        wins += losses[OURS][0] < losses[rival][0]
        ours.append(losses[OURS])
        parts.append(f"{q:g}: {_loss(losses[OURS][0])} against {_loss(losses[rival][0])} ({label_of(rival)})")
    own, others = case.over_q(OURS), [case.over_q(name) for name in EXISTING_LOCAL]
    small = not own.clear(own.rise) or own.rise <= min(c.rise for c in others) / 2
    risen = [f"{label_of(c.method)} {'diverged' if math.isinf(c.rise) else f'{c.rise:+.3g}'}" for c in [own, *others]]
    words = f"{_budget(case)} lowest at {wins} of {len(case.qs)} q ({'; '.join(parts)})"
    n = min(n for _, _, n in ours)
    return wins == len(case.qs) and small, f"{words}; the loss with q: {', '.join(risen)}; n = {n}"


def claim_3(case: _Case) -> tuple[bool, str]:
    case.need(ALL, budgets=2)
    local = [case.over_budget(name) for name in [*EXISTING_LOCAL, OURS]]
    others = [case.over_budget(name) for name in NON_LOCAL]
    holds = all(c.clear(-c.rise) for c in local) and not any(c.clear(-c.rise) for c in others)
    changes = [*local, *others]
    clear = [label_of(c.method) for c in changes if c.clear(-c.rise)]
    q = f"at q = {case.qs[0]:g} " if case.qs else ""
    at = f"{q}from budget {case.budgets[0]} to {case.budgets[-1]}"
    return holds, f"{at}, clearly better: {listed(clear) or 'none'}; {_changes(changes)}"


def claim_4(case: _Case) -> tuple[bool, str]:
    case.need(ALL)
    shares, parts, last, ns = [], [], 0, []
    lines = curves(case.frame)
    columns = [c for c in ("q", "budget") if len(values_of(case.frame, c)) > 1]
    for setting, _ in groups(case.frame, ["q", "budget"]):
        here = {line.method: line for line in lines if {c: line.setting[c] for c in setting} == setting}
        absent = [label_of(name) for name in ALL if name not in here]
        if absent:
            raise _MissingError(f"there is no run of {listed(absent)} at {_place(setting['q'], setting['budget'])}")
        losses = pd.concat(
            {name: here[name].table.set_index("round")["train_loss_mean"] for name in ALL}, axis=1, join="inner"
        ).fillna(math.inf)
        if len(losses) < 2:
            raise _MissingError("its methods share no evaluated round after the start")
        rounds = losses.index.to_numpy(dtype=float)
        ahead = (losses[OURS] < losses[[name for name in ALL if name != OURS]].min(axis=1)).to_numpy()[1:]
        shares.append(float(np.average(ahead, weights=np.diff(rounds))))
        last += bool(ahead[-1])
        ns.append(min(here[name].n for name in ALL))
        named = ", ".join(f"{c} = {setting[c]:g}" for c in columns if setting[c] is not None)
        parts.append(f"{100 * shares[-1]:.0f} %{f' at {named}' if named else ''}")
    words = f"its mean train loss is the lowest in this share of the rounds: {'; '.join(parts)}"
    holds = min(shares) >= AHEAD and last == len(shares)
    return holds, f"{words}; and at the last round at {last} of {len(shares)} settings; n = {min(ns)}"


CLAIMS: list[tuple[str, str, Callable[[_Case], tuple[bool, str]]]] = [
    (
        "Local SGD and SCAFFOLD get clearly worse as q grows; minibatch SGD and SARAH do not.",
        f"The rise of the final train loss from the smallest to the largest q, at the largest budget ({CLEAR}).",
        claim_1,
    ),
    (
        "BVR-L-SGD is best at every q at the largest budget, and its own loss with q is small.",
        "The lowest mean final train loss of the five at every q; its own rise with q is not clear, or at most half "
        "of Local SGD's and of SCAFFOLD's.",
        claim_2,
    ),
    (
        "At the smallest q the local methods improve with the budget; the non-local do not.",
        f"The fall of the final train loss from the smallest to the largest budget, at the smallest q ({CLEAR}).",
        claim_3,
    ),
    (
        "BVR-L-SGD is ahead from the first rounds to the last.",
        f"At every q and budget its mean train loss is the lowest of the five in at least {100 * AHEAD:g} % of the "
        "rounds and at the last; an evaluated round stands for those since the one before.",
        claim_4,
    ),
]
FIFTH = (
    "BVR-L-SGD with K = 1 is minibatch SARAH, exactly.",
    "Equal iterates, bit for bit, on the same draws.",
    "proved by the test suite of this version, not by these runs: tests/test_identities.py compares every iterate of "
    "both on two problems",
)


def check_claims(frame: pd.DataFrame) -> list[Claim]:
    """The verdicts on the five claims, once for each combination of the settings other than q and budget."""
    shown = reported(checked(frame))
    others = [c for c in settings_of(shown) if c not in ("q", "budget")]
    several = [c for c in others if len(values_of(shown, c)) > 1]
    claims = []
    for names, rows in groups(shown, several):
        case = _Case(rows)
        for number, (statement, criterion, check) in enumerate(CLAIMS, start=1):
            try:
                if (rows["role"] != "report").any():
                    raise _MissingError("there are only tuning runs so far")
                holds, evidence = check(case)
                verdict: Verdict = "holds" if holds else "does not hold"
            except _MissingError as missing:
                verdict, evidence = "not checked", str(missing)
            claims.append(Claim(number, statement, criterion, verdict, _sentence(evidence), names))
    statement, criterion, evidence = FIFTH
    claims.append(Claim(5, statement, criterion, "holds", _sentence(evidence), {}))
    return claims


def _changes(changes: list[_Change]) -> str:
    return f"train loss {'; '.join(map(str, changes))}; n = {min(c.n for c in changes)}"


def _budget(case: _Case) -> str:
    return f"at budget {case.budgets[-1]}" if case.budgets else "at the one budget"


def _place(q: float | None, budget: int | None) -> str:
    parts = [f"q = {q:g}"] * (q is not None) + [f"budget {budget}"] * (budget is not None)
    return " and ".join(parts) or "the one setting"


def _loss(value: float) -> str:
    return "diverged" if math.isinf(value) else f"{value:.4g}"


def _are(count: int) -> str:
    return {0: "is none", 1: "is one"}.get(count, f"are {count}")


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
