"""The choice of a step size from the runs that tried them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fewrounds.errors import SettingError, nearest

if TYPE_CHECKING:
    import pandas

    from fewrounds.experiment.config import Tuning
    from fewrounds.experiment.grid import RunSpec
    from fewrounds.experiment.store import Store

COLUMNS = ("train_loss", "train_accuracy", "test_loss", "test_accuracy", "gradient_norm")


def check_rule(rule: str) -> None:
    """Refuse a rule that does not exist."""
    column, _, direction = rule.partition(":")
    if rule in ("paper", "final-loss") or (column in COLUMNS and direction in ("min", "max")):
        return
    if column in COLUMNS:
        raise SettingError(f"tuning.rule = {rule!r}: say which way is better, '{column}:min' or '{column}:max'")
    known = ("paper", "final-loss", *(f"{name}:max" for name in COLUMNS))
    raise SettingError(f"tuning.rule = {rule!r}; {nearest(rule, known)}")


def score(history: pandas.DataFrame, outcome: str, rule: str, last: int) -> float:
    """How good a run is by the rule; greater is better, and a run that diverged comes last."""
    if outcome != "finished":
        return -math.inf
    if rule == "paper":
        rounds = history["round"].max()  # the start, round 0, is no iterate of the method
        value = float(history.loc[history["round"] > max(0, rounds - last), "train_accuracy"].min())
    elif rule == "final-loss":
        value = -float(history["train_loss"].iloc[-1])
    else:
        column, _, direction = rule.partition(":")
        value = float(history[column].iloc[-1]) * (1 if direction == "max" else -1)
    return value if math.isfinite(value) else -math.inf


def choose(tried: dict[float, list[tuple[float, float]]]) -> dict[str, Any]:
    """The best eta from {eta: [(score, final train loss) for each tuning seed]}, or None if all have diverged.

    The mean score over the seeds decides; between equals, the lower final train loss.
    """
    means = {}
    for eta, results in tried.items():
        scores, losses = zip(*results, strict=True)
        loss = sum(losses) / len(losses)
        means[eta] = (sum(scores) / len(scores), -loss if math.isfinite(loss) else -math.inf)
    eta = max(means, key=lambda e: means[e])
    best = means[eta][0]
    return {
        "eta": eta if math.isfinite(best) else None,
        "score": best if math.isfinite(best) else None,
        "at_edge": math.isfinite(best) and len(means) > 1 and eta in (min(means), max(means)),
        "scores": {str(e): value[0] if math.isfinite(value[0]) else None for e, value in sorted(means.items())},
    }


def choice(how: Tuning, store: Store, tried: Mapping[str, RunSpec]) -> dict[str, Any]:
    """The best eta by the runs of a folder that tried them, or None and why there is none."""
    from fewrounds.experiment.store import DONE

    results: dict[float, list[tuple[float, float]]] = {}
    for run, spec in tried.items():
        record = store.record(run)
        if record is None or record["outcome"] not in DONE:
            continue
        history = store.history(run)
        value = score(history, record["outcome"], how.rule, how.last)
        results.setdefault(spec.train["eta"], []).append((value, float(history["train_loss"].iloc[-1])))
    found = choose(results) if results else {"eta": None}
    reason = "" if found["eta"] is not None else "every step size diverged" if results else "every tuning run failed"
    return {**found, "reason": reason}
