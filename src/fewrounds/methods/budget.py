"""Settings that spend a given number of single-sample gradients per worker and round."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from fewrounds.data.sources import list_workers, size_of
from fewrounds.errors import SettingError, whole_number
from fewrounds.methods.base import Method, method, method_class

PAPER_BATCH = 16
"""b of the local methods in the paper's experiments."""

MOST = 2**20
"""Where the search for the greatest setting ends."""


def for_budget(
    name: str,
    budget: int,
    *,
    workers: Sequence[Any] | Callable[[int], Any],
    num_workers: int | None = None,
    mode: str = "paper",
    **fixed: Any,
) -> Method:
    """The method with K and b set so that a worker spends `budget` gradients a round.

    mode = "paper" does as the paper's experiments: b = 16 and K = budget / 16 for the local methods, b = budget for
    the others. That is equal only in order: SARAH and BVR-L-SGD evaluate every sample at two points, and their stage
    gradients come on top. Methods that the paper did not run and that need a large batch every round get b_tilde =
    budget for it.

    mode = "strict" chooses the greatest K (of the others: b) whose cost, averaged over workers and rounds, is at
    most the budget, for every method. The local methods have b = 16, or √budget where that is less. Where a method
    needs a large batch every round, it gets all data if these are at most three quarters of the budget, otherwise half
    of the budget.

    `workers` (and `num_workers`) is what `train` gets. `fixed` holds all other settings, eta among them; b or K may be
    fixed too.
    """
    items = list_workers(workers, num_workers)
    return for_sizes(name, budget, [size_of(item, f"worker {p}") for p, item in enumerate(items)], mode, **fixed)


def for_sizes(name: str, budget: int, sizes: Sequence[float], mode: str = "paper", **fixed: Any) -> Method:
    """`for_budget` for workers of these sizes."""
    budget = whole_number("budget", budget)
    if mode not in ("paper", "strict"):
        raise SettingError(f"mode = {mode!r}: must be 'paper' or 'strict'")
    cls = method_class(name)
    has = {field.name for field in dataclasses.fields(cls)}
    each = budget
    if mode == "strict" and "participants" in has and fixed.get("participants") is not None:
        # in a round that not all take part in, those who do may spend the share of the others
        each = budget * len(sizes) // whole_number(f"{name}: participants", fixed["participants"])
    if "b" not in fixed or fixed["b"] is not None:  # who takes full gradients has no use for a large batch beside them
        fixed = {**cls.also_for_budget(each, mode == "strict", sizes), **fixed}
    free = _free_setting(name, cls.local, has, fixed)
    if free == "K" and "b" in has:
        # The theory wants b ≤ √budget; at the paper's budgets (256 and more) that is 16 and over.
        fixed = {"b": min(PAPER_BATCH, budget if mode == "paper" else math.isqrt(budget)), **fixed}

    def with_free(value: int) -> Method:
        chosen = method(name, **{**fixed, free: value})
        chosen.check(sizes)
        return chosen

    per_unit = fixed.get("b" if free == "K" else "K", 1)
    if "b" not in has or per_unit is None:  # a method on full gradients: a step costs all data of a worker
        per_unit = sum(sizes) / len(sizes)
    with_free(1)  # refuses bad settings before they are computed with
    most = int(budget // per_unit)
    if mode == "paper":
        if most < 1:
            raise SettingError(f"budget = {budget}: too small for {name}, one step costs {per_unit:g} gradients")
        return with_free(most)
    # The cost grows with the free setting, but not evenly (T is rounded up): look from well above the budget down.
    while with_free(most + 1).gradients_per_round(sizes) <= 2 * budget and most < MOST:
        most = 2 * most + 1
    for value in range(most, 0, -1):
        chosen = with_free(value)
        if chosen.gradients_per_round(sizes) <= budget:
            return chosen
    least = with_free(1).gradients_per_round(sizes)
    raise SettingError(f"budget = {budget}: too small for {name}, which costs {least:g} gradients at {free} = 1")


def _free_setting(name: str, local: bool, has: set[str], fixed: dict[str, Any]) -> str:
    """Which of K and b the budget decides."""
    if local and "K" not in fixed:
        return "K"
    if "b" in has and "b" not in fixed:
        return "b"
    raise SettingError(f"{name}: K and b are both fixed, so nothing is left for the budget to choose")
