"""Is the advice any good? Measured, predicted and observed, for docs/choosing.md.

    fewrounds run experiments/calibration.toml
    fewrounds measure experiments/choosing-digits-auto.toml
    python experiments/choosing.py fit        the factors of fewrounds.theory.limits, from runs/calibration
    fewrounds run experiments/choosing-digits.toml, choosing-digits-auto.toml; evidence-a.toml, choosing-cifar-auto.toml
    python experiments/choosing.py collect    results/choosing.json, from all of these that are there
    python experiments/choosing.py page       the tables and pictures of docs/choosing.md, from that file
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

import fewrounds as fr
from fewrounds.experiment.store import Store
from fewrounds.experiment.survey import saved
from fewrounds.methods.budget import for_sizes
from fewrounds.theory.advise import step_size
from fewrounds.theory.limits import FACTORS

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs"
RESULTS = HERE.parent / "results" / "choosing.json"
ONES = dict.fromkeys(FACTORS, 1.0)
GOOD = 0.01
"""A step size is good if its score, an accuracy, is this close to the best."""
PAIRS = {"digits": ("choosing-digits", "choosing-digits-auto"), "cifar10": ("evidence-a", "choosing-cifar-auto")}


def measured(folder: str) -> dict[float, fr.Measurement]:
    """By q: the measurement at the start."""
    found = [one for one in saved(Store(RUNS / folder)) if one["round"] == 0]
    return {one["q"]: fr.Measurement.from_json(one["measurement"]) for one in found}


def tuned(folder: str) -> list[dict[str, Any]]:
    """What tuning has found, cell by cell: the step size, and all that are about as good."""
    out = []
    for choice in Store(RUNS / folder).grid()["chosen"]:
        scores = {float(eta): score for eta, score in choice["scores"].items() if score is not None}
        good = [eta for eta, score in scores.items() if score >= choice["score"] - GOOD]
        cell = {key: choice[key] for key in ("method", "q", "budget", "rounds", "eta")}
        out.append({**cell, "good": [min(good), max(good)]})
    return out


def advised(cell: dict[str, Any], m: fr.Measurement, factors: dict[str, float]) -> Any:
    method = for_sizes(cell["method"], cell["budget"], m.sizes, "paper", eta=1.0)
    return step_size(m, method, cell["rounds"], factors)


# ---------------------------------------------------------------------- fit


def fit() -> dict[str, float]:
    """Factors that bring the advised step sizes closest to the tuned ones, by least squares on a log scale.

    A limit that never decides keeps the factor of smoothness: that is what the small weight is for.
    """
    cells, at = tuned("calibration"), measured("choosing-digits-auto")

    def off(factors: dict[str, float]) -> float:
        errors = [math.log(advised(c, at[c["q"]], factors).method.eta / c["eta"]) ** 2 for c in cells]
        apart = [math.log(factor / factors["smoothness"]) ** 2 for factor in factors.values()]
        return sum(errors) + 1e-3 * sum(apart)

    factors = dict(ONES)
    steps = 10.0 ** np.linspace(-0.2, 3.2, 69)
    for _ in range(12):
        before = dict(factors)
        for kind in factors:
            factors[kind] = min(steps, key=lambda f, kind=kind: off({**factors, kind: float(f)}))
        if factors == before:
            break
    rounded = {kind: float(f"{factor:.1g}") for kind, factor in factors.items()}
    for name, these in (("theory", ONES), ("fitted", factors), ("rounded", rounded)):
        print(f"{name}: off by a factor {math.exp(math.sqrt(off(these) / len(cells))):.2f} in the mean; {these}")
    return rounded


if __name__ == "__main__":
    {"fit": fit}[sys.argv[1]]()
