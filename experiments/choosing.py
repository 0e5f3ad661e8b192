"""Is the advice any good? Measured, predicted and observed, for docs/choosing.md.

fewrounds run experiments/calibration.toml
fewrounds measure experiments/choosing-digits-auto.toml
python experiments/choosing.py fit        the factors of fewrounds.theory.limits, from the runs of calibration.toml
fewrounds run experiments/choosing-digits.toml, choosing-digits-auto.toml, choosing-cifar.toml, choosing-cifar-auto.toml
python experiments/choosing.py pack       the folders of runs/ that are there as results/choosing/NAME.parquet
python experiments/choosing.py collect    results/choosing.json, from all of these that are there
python experiments/choosing.py page       the tables and pictures of docs/choosing.md, from that file

Packed results are read where there are any, so that the last two need no runs; folders of runs/ otherwise.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from choosing_tables import middle, off_by, rounded, tables

import fewrounds as fr
from fewrounds.experiment import archive
from fewrounds.experiment.store import Store
from fewrounds.experiment.survey import saved
from fewrounds.methods.budget import for_sizes
from fewrounds.theory.advise import ranked
from fewrounds.theory.limits import BARE, FACTORS
from fewrounds.theory.steps import step_size

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs"
RESULTS = HERE.parent / "results" / "choosing.json"
PACKED = HERE.parent / "results" / "choosing"
GOOD = 0.01
"""A step size is good if its score, an accuracy, is this close to the best."""
PAIRS = {
    "digits": ("choosing-digits", "choosing-digits-auto"),
    "cifar10": ("choosing-cifar", "choosing-cifar-auto"),
}
CALIBRATION = ("calibration", "choosing-digits-auto")
"""Tuned on a fine grid, and where it was measured."""
ALONG = "choosing-digits-auto"
"""Where constants were measured along a training, too."""
FIGURES = ("L", "L_sample", "zeta", "zeta1", "sigma2_mean")
"""Of a measurement that are shown."""


def pack() -> None:
    """The folders of runs/ that are there, as files that can be committed."""
    for name in dict.fromkeys([CALIBRATION[0], *(name for pair in PAIRS.values() for name in pair)]):
        if (RUNS / name / "grid.json").exists():
            print(f"{name}: {archive.pack(RUNS / name, PACKED / f'{name}.parquet')} runs")
        else:
            print(f"{name}: runs/{name} has no runs")


def packed(name: str) -> Path | None:
    path = PACKED / f"{name}.parquet"
    return path if path.exists() else None


def is_there(*names: str) -> bool:
    missing = [name for name in names if not packed(name) and not (RUNS / name).exists()]
    for name in missing:
        print(f"neither results/choosing/{name}.parquet nor runs/{name} is there")
    return not missing


def every_measurement(name: str) -> list[dict[str, Any]]:
    path = packed(name)
    return list(archive.read(path)[1]["measurements"].values()) if path else saved(Store(RUNS / name))


def measured(name: str) -> dict[float, fr.Measurement]:
    """By q: the measurement at the start. (Some were made before there was L_ahead: `step_size` does without.)"""
    found = every_measurement(name)
    return {one["q"]: fr.Measurement.from_json(one["measurement"]) for one in found if one["round"] == 0}


def figures_of(m: fr.Measurement) -> dict[str, Any]:
    """What is shown of a measurement, and the error bars."""
    found = {name: getattr(m, name) for name in FIGURES}
    bars = {name: rounded(value.error) for name, value in found.items()}
    return {**{name: rounded(value) for name, value in found.items()}, "errors": bars}


def tuned(name: str) -> list[dict[str, Any]]:
    """What tuning has found, cell by cell: the step size, and all that are about as good."""
    path = packed(name)
    grid = archive.read(path)[1]["grid"] if path else Store(RUNS / name).grid()
    out = []
    for choice in grid["chosen"]:
        scores = {float(eta): score for eta, score in choice["scores"].items() if score is not None}
        good = [eta for eta, score in scores.items() if score >= choice["score"] - GOOD]
        cell = {key: choice[key] for key in ("method", "q", "budget", "rounds", "eta")}
        out.append({**cell, "good": [min(good), max(good)]})
    return out


def advised(cell: dict[str, Any], m: fr.Measurement, factors: dict[str, float]) -> Any:
    method = for_sizes(cell["method"], cell["budget"], m.sizes, "paper", eta=1.0)
    return step_size(m, method, cell["rounds"], factors)


# ---------------------------------------------------------------------- fit


def errors(factors: dict[str, float]) -> list[float]:
    """Of the advised step sizes against the middle of the good ones, as logarithms, cell by cell of the calibration."""
    cells, at = tuned(CALIBRATION[0]), measured(CALIBRATION[1])
    return [math.log(advised(c, at[c["q"]], factors).method.eta / middle(c)) for c in cells]


def quality() -> dict[str, Any]:
    """How well the factors fit: the root mean square of those errors, and the worst, as factors; and how many of the
    cells each limit decides."""
    cells, at = tuned(CALIBRATION[0]), measured(CALIBRATION[1])
    decided = Counter(advised(cell, at[cell["q"]], FACTORS).limit for cell in cells)
    out: dict[str, Any] = {"cells": len(cells), "decides": {kind: decided[kind] for kind in FACTORS}}
    for name, factors in (("bare theory", BARE), ("fitted", FACTORS)):
        out[name] = off_by(errors(factors))
    return out


def fitted() -> dict[str, float]:
    """Factors that bring advised step sizes closest to the middle of the good ones, by least squares on a log scale.

    (The best one of a single seed may lie at the edge beyond which a method blows up.)

    A limit that never decides keeps the factor of smoothness: that is what the small weight is for.
    """
    cells, at = tuned(CALIBRATION[0]), measured(CALIBRATION[1])

    def off(factors: dict[str, float]) -> float:
        each = [math.log(advised(c, at[c["q"]], factors).method.eta / middle(c)) ** 2 for c in cells]
        apart = [math.log(factor / factors["smoothness"]) ** 2 for factor in factors.values()]
        return sum(each) + 1e-3 * sum(apart)

    factors = dict(BARE)
    steps = [float(step) for step in 10.0 ** np.linspace(0, 4, 41)]
    for _ in range(12):
        before = dict(factors)
        for kind in factors:
            factors[kind] = min(steps, key=lambda f, kind=kind: off({**factors, kind: f}))
        if factors == before:
            break
    return {kind: float(f"{factor:.2g}") for kind, factor in factors.items()}


def fit() -> None:
    """Show the factors, and note in the results how well those in use fit."""
    found = fitted()
    print(f"fitted: {found}")
    if found != FACTORS:
        print(f"in use: {FACTORS}\nput the fitted ones in fewrounds.theory.limits, and do this again")
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["fit"] = quality()
    print(f"off by: {results['fit']}")
    write(results)


def write(results: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


# ---------------------------------------------------------------------- collect


def ends(name: str) -> dict[tuple[str, float], dict[str, Any]]:
    """By method and q, of the reported runs' final train loss and squared gradient norm: the mean over seeds and the
    standard deviation (None of a single one)."""
    frame = fr.load_results(packed(name) or RUNS / name)
    last = frame[(frame["role"] == "report") & (frame["round"] == frame["rounds"])]
    last = last.assign(loss=last["train_loss"], gradient_norm2=last["gradient_norm"] ** 2)
    out: dict[tuple[str, float], dict[str, Any]] = {}
    for key, own in last.groupby(["method", "q"])[["loss", "gradient_norm2"]]:
        found: dict[str, Any] = {"seeds": len(own)}
        for column in own:
            found[column] = rounded(own[column].mean())
            found[f"{column}_sd"] = rounded(own[column].std()) if len(own) > 1 else None
        out[key] = found
    return out


def trained() -> list[dict[str, Any]]:
    """By q: what was measured at the start and at the end of a training."""
    found = sorted(every_measurement(ALONG), key=lambda one: (one["q"], one["round"]))
    last = max(one["round"] for one in found)
    return [
        {"q": one["q"], "round": one["round"], **figures_of(fr.Measurement.from_json(one["measurement"]))}
        for one in found
        if one["round"] in (0, last)
    ]


def collected() -> dict[str, Any]:
    """What was measured, advised and observed, of every data set whose runs are there."""
    out: dict[str, Any] = {"factors": FACTORS, "measured": [], "cells": []}
    if is_there(*CALIBRATION):
        out["fit"] = quality()
    if is_there(ALONG):
        out["along"] = trained()
    for dataset, (by_tuning, by_advice) in PAIRS.items():
        if not is_there(by_tuning, by_advice):
            continue
        at, tuned_ends, auto_ends = measured(by_advice), ends(by_tuning), ends(by_advice)
        for q, m in sorted(at.items()):
            out["measured"].append({"dataset": dataset, "q": q, **figures_of(m), "n": m.n})
        cells = tuned(by_tuning)
        choices = [advised(cell, at[cell["q"]], FACTORS) for cell in cells]
        for cell, choice in zip(cells, choices, strict=True):
            rivals = [c for other, c in zip(cells, choices, strict=True) if other["q"] == cell["q"]]
            by_grid, by_rule = (found.get((cell["method"], cell["q"]), {}) for found in (tuned_ends, auto_ends))
            out["cells"].append(
                {
                    "dataset": dataset,
                    **cell,
                    "advised": rounded(choice.method.eta),
                    "limit": choice.limit,
                    "rank": ranked(rivals, cell["rounds"]).index(choice) + 1,
                    "bare_eta": rounded(advised(cell, at[cell["q"]], BARE).method.eta),
                    "bare": rounded(choice.bare),
                    **{f"tuned_{key}": value for key, value in by_grid.items()},
                    "advised_loss": by_rule.get("loss", math.nan),
                    "advised_loss_sd": by_rule.get("loss_sd"),
                    "advised_seeds": by_rule.get("seeds", 0),
                }
            )
    return out


def collect() -> None:
    results = collected()
    write(results)
    print(f"{len(results['cells'])} cells in {RESULTS.relative_to(HERE.parent)}")


# ---------------------------------------------------------------------- page


def page() -> None:
    """Fill in the tables of docs/choosing.md and draw its pictures."""
    from choosing_picture import draw

    from fewrounds.report.marked import filled
    from fewrounds.report.measured import write_picture

    results = json.loads(RESULTS.read_text())
    path = HERE.parent / "docs" / "choosing.md"
    path.write_text(filled(path.read_text(), tables(results)))
    images = HERE.parent / "docs" / "images"
    draw(results, images / "choosing.png")
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(write_picture(Path(place), every_measurement(ALONG)), images / "choosing-along.png")


if __name__ == "__main__":
    actions = {"fit": fit, "pack": pack, "collect": collect, "page": page}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(f"usage: python experiments/choosing.py {' | '.join(actions)}")
    actions[sys.argv[1]]()
