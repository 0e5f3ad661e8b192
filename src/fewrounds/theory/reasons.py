"""Advice in plain words: what the problem is like, which method comes first, and why."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fewrounds.theory.estimate import Measurement
from fewrounds.theory.limits import is_steady

if TYPE_CHECKING:
    from fewrounds.theory.advise import Advice
    from fewrounds.theory.steps import Choice

APART = 1.3
"""Predictions that differ by less than this factor, about the error of the fit, are not told apart."""

ALIKE = 1.1
"""Methods whose gradients a round differ by less than this factor spend the same."""

HELD = {
    "smoothness": "the curvature of f (L), as any method is",
    "noise": "the noise of the gradients (σ²)",
    "local noise": "the noise of local gradients (σ²)",
    "drift": "the drift of local steps towards each worker's own optimum (ζ₁)",
    "heterogeneity": "the difference of the workers' curvature (ζ)",
    "local recursion": "how differently single samples are curved",
    "recursion": "how differently single samples are curved, over a whole stage",
    "anchor": "how differently single samples are curved, far from where a stage began",
    "local anchor": "how differently single samples are curved, far from where a round began",
    "batch noise": "the noise of the batch that it draws every round (σ²)",
    "faded noise": "the noise of the batch that it draws every round (σ²)",
}
"""What a step size is limited by."""

CAUTION = (
    "Constants were measured at one point and change along the way: take these step sizes as the middle of a small "
    "grid, and trust the order only where the figures are far apart."
)
STAYS = (
    "A first step leaves the curvature as it is, so that no step may be longer than 1/L, and no local one longer than "
    "1/L of the worker that is curved most."
)
BY_LOSS = (
    "Progress is K η against the best, with factors fitted to tuned step sizes: it is about the order of train losses, "
    "not that of ‖∇f‖² (docs/choosing.md); where that is to be small, give epsilon."
)
BY_STEADY = (
    "Progress is K η against the best, with the step sizes of theory by itself: the fitted factors are for curvature "
    "that falls."
)
BY_THEORY = (
    "Rounds and order are those of theory by itself, which is the better guide to ‖∇f‖² (docs/choosing.md); the step "
    "sizes have fitted factors but for noise and drift, which would keep a method from getting there."
)


def paragraph(advice: Advice) -> str:
    """Why the table is as it is."""
    if advice.rounds is None and (met := _met(advice)):
        return met
    how = BY_THEORY if advice.rounds is None else BY_STEADY if is_steady(advice.measurement) else BY_LOSS
    said = [_problem(advice.measurement), _winner(advice), _spending(advice), how, _order(advice), CAUTION]
    return " ".join(filter(None, said))


def _met(advice: Advice) -> str:
    """That there is nothing to do."""
    here, goal = float(advice.measurement.gradient_norm2), advice.choices[0].epsilon
    return f"‖∇f‖² = {here:.3g} here is at most {goal:.3g} already: no rounds are needed." if here <= goal else ""


def _order(advice: Advice) -> str:
    """Why the rows are not in the order of their figures, where they are not."""
    figures = [choice.epsilon for choice in advice.choices]
    if advice.rounds is None or figures == sorted(figures):
        return ""
    first = "those first whose noise vanishes" if is_steady(advice.measurement) else "in the order of theory by itself"
    return f"Rows within a factor of {APART} of each other are not told apart by it, and stand {first}."


def _problem(m: Measurement) -> str:
    share = m.zeta / m.L if m.L else 0.0
    how = (
        "hardly differ in curvature"
        if share < 0.1
        else "differ moderately in curvature"
        if share < 0.5
        else "differ in curvature about as much as the problem has"
        if share <= 1
        else "differ in curvature more than the problem itself has"
    )
    said = f"The {m.P} workers {how} (ζ = {m.zeta:.3g}, {share:.0%} of L = {m.L:.3g})."
    return f"{said} {STAYS}" if is_steady(m) else said


def _winner(advice: Advice) -> str:
    first = advice.choices[0]
    where = f"At a budget of {advice.budget} gradients a round"
    if advice.rounds is None and math.isinf(first.rounds):
        return f"{where}, no method is predicted to reach {_noise_floor(first)}."
    text = f"{where}, {first.method.name} comes first: {_why_first(advice, first)}."
    if len(advice.choices) > 1:
        text += f" {_runner_up(advice, first, advice.choices[1])}."
    return text


def _spending(advice: Advice) -> str:
    """What the methods spend, where that is not the same."""
    most, least = (choose(advice.choices, key=lambda c: c.gradients) for choose in (max, min))
    if most.gradients <= ALIKE * least.gradients:
        return ""
    ends = [f"{choice.gradients:.0f} gradients ({choice.method.name})" for choice in (least, most)]
    said = f"A worker spends from {ends[0]} to {ends[1]} a round"
    if advice.mode == "strict":
        return f"{said}."
    return (
        f"{said}: as the paper sets K and b, the budget is equal in order only, with mode strict no stage exceeds it."
    )


def _why_first(advice: Advice, first: Choice) -> str:
    if not math.isnan(first.seconds):
        return f"it needs the fewest seconds, {first.rounds:.3g} rounds of {first.seconds / first.rounds:.2g}"
    if advice.rounds is None:
        return f"theory predicts the fewest rounds for it, {first.rounds:.3g}, {_held(advice, first)}"
    near = [c for c in advice.choices if c.epsilon <= APART * min(c.epsilon for c in advice.choices)]
    if len(near) > 1:
        as_far = f"none goes clearly farther in a round than its {_steps(first)}, and of those that go as far"
        alike = is_steady(advice.measurement) and not first.stays_noisy
        return f"{as_far} {'it is one whose noise vanishes' if alike else 'theory puts it first'}"
    return f"it goes farthest in a round, {_steps(first)}"


def _runner_up(advice: Advice, first: Choice, second: Choice) -> str:
    if advice.rounds is None and math.isinf(second.rounds):
        return f"No other is predicted to reach {_noise_floor(second)}"
    if advice.rounds is not None:
        ratio = second.epsilon / first.epsilon
        place = f"Next, with about {1 / ratio:.0%} of its progress, is"
    else:
        timed = not math.isnan(first.seconds)
        ratio = second.seconds / first.seconds if timed else second.rounds / first.rounds
        place = f"Next, with about {ratio:.2g} times the {'seconds' if timed else 'rounds'}, is"
    if ratio < APART:
        place = "Hardly told apart from it is"
    steps = f"{_steps(second)}, " if advice.rounds is not None else ""
    return f"{place} {second.method.name}, {steps}{_held(advice, second)}"


def _held(advice: Advice, choice: Choice) -> str:
    """What holds the step that is advised, as the table has it; and the rounds, where that is something else."""
    said = f"its step limited by {HELD[choice.limit]}"
    by_theory = min(choice.by_theory, key=lambda kind: choice.by_theory[kind])
    if advice.rounds is not None or by_theory == choice.limit:
        return said
    return f"{said}, its rounds in theory by {HELD[by_theory]}"


def _steps(choice: Choice) -> str:
    K = choice.method.settings().get("K") or 1
    return f"{K} step{'s' if K > 1 else ''} of {choice.method.eta:.2g}"


def _noise_floor(choice: Choice) -> str:
    b_tilde = choice.method.settings().get("b_tilde")
    return f"‖∇f‖² = {choice.epsilon:.3g}: of {choice.method.name} the noise of b̃ = {b_tilde} samples is greater"
