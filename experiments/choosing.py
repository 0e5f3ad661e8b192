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
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau, rankdata

import fewrounds as fr
from fewrounds.experiment import archive
from fewrounds.experiment.store import Store
from fewrounds.experiment.survey import saved
from fewrounds.methods.budget import for_sizes
from fewrounds.theory.advise import ranked, step_size
from fewrounds.theory.limits import BARE, FACTORS

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


def measured(name: str) -> dict[float, fr.Measurement]:
    """By q: the measurement at the start."""
    path = packed(name)
    every = list(archive.read(path)[1]["measurements"].values()) if path else saved(Store(RUNS / name))
    return {one["q"]: fr.Measurement.from_json(one["measurement"]) for one in every if one["round"] == 0}


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


def middle(cell: dict[str, Any]) -> float:
    """Of the step sizes that are about as good as the best."""
    low, high = cell["good"]
    return math.sqrt(low * high)


def advised(cell: dict[str, Any], m: fr.Measurement, factors: dict[str, float]) -> Any:
    method = for_sizes(cell["method"], cell["budget"], m.sizes, "paper", eta=1.0)
    return step_size(m, method, cell["rounds"], factors)


# ---------------------------------------------------------------------- fit


def errors(factors: dict[str, float]) -> list[float]:
    """Of the advised step sizes against the middle of the good ones, as logarithms, cell by cell of the calibration."""
    cells, at = tuned(CALIBRATION[0]), measured(CALIBRATION[1])
    return [math.log(advised(c, at[c["q"]], factors).method.eta / middle(c)) for c in cells]


def quality() -> dict[str, Any]:
    """How well the factors fit: the root mean square of those errors, and the worst, as factors."""
    out: dict[str, Any] = {"cells": len(errors(FACTORS))}
    for name, factors in (("bare theory", BARE), ("fitted", FACTORS)):
        out[name] = off_by(errors(factors))
    return out


def off_by(logarithms: list[float]) -> dict[str, float]:
    return {
        "rms": rounded(math.exp(math.sqrt(sum(one**2 for one in logarithms) / len(logarithms)))),
        "worst": rounded(math.exp(max(map(abs, logarithms)))),
    }


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


def rounded(value: float) -> float:
    """To six digits: the same on every machine."""
    return float(f"{value:.6g}")


def write(results: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")


# ---------------------------------------------------------------------- collect


def ends(name: str) -> dict[tuple[str, float], dict[str, float]]:
    """By method and q: the mean over seeds of the reported runs' final train loss and squared gradient norm."""
    frame = fr.load_results(packed(name) or RUNS / name)
    last = frame[(frame["role"] == "report") & (frame["round"] == frame["rounds"])]
    last = last.assign(gradient_norm2=last["gradient_norm"] ** 2)
    means = last.groupby(["method", "q"])[["train_loss", "gradient_norm2"]].mean()
    return {key: {column: rounded(value) for column, value in row.items()} for key, row in means.iterrows()}


def collected() -> dict[str, Any]:
    """What was measured, advised and observed, of every data set whose runs are there."""
    out: dict[str, Any] = {"factors": FACTORS, "measured": [], "cells": []}
    if is_there(*CALIBRATION):
        out["fit"] = quality()
    for dataset, (by_tuning, by_advice) in PAIRS.items():
        if not is_there(by_tuning, by_advice):
            continue
        at, tuned_ends, auto_ends = measured(by_advice), ends(by_tuning), ends(by_advice)
        for q, m in sorted(at.items()):
            figures = {name: rounded(getattr(m, name)) for name in ("L", "L_sample", "zeta", "zeta1", "sigma2_mean")}
            figures["zeta_error"] = rounded(m.zeta.error)
            out["measured"].append({"dataset": dataset, "q": q, **figures, "n": m.n})
        cells = tuned(by_tuning)
        choices = [advised(cell, at[cell["q"]], FACTORS) for cell in cells]
        for cell, choice in zip(cells, choices, strict=True):
            rivals = [c for other, c in zip(cells, choices, strict=True) if other["q"] == cell["q"]]
            where = (cell["method"], cell["q"])
            out["cells"].append(
                {
                    "dataset": dataset,
                    **cell,
                    "advised": rounded(choice.method.eta),
                    "limit": choice.limit,
                    "rank": ranked(rivals, cell["rounds"]).index(choice) + 1,
                    "bare_eta": rounded(advised(cell, at[cell["q"]], BARE).method.eta),
                    "bare": rounded(choice.bare),
                    "tuned_loss": tuned_ends[where]["train_loss"],
                    "tuned_gradient_norm2": tuned_ends[where]["gradient_norm2"],
                    "advised_loss": auto_ends.get(where, {}).get("train_loss", math.nan),
                }
            )
    return out


def collect() -> None:
    results = collected()
    write(results)
    print(f"{len(results['cells'])} cells in {RESULTS.relative_to(HERE.parent)}")


# ---------------------------------------------------------------------- page


def tables(results: dict[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    """The tables of docs/choosing.md."""
    out = {
        "factors": [("limit", "factor"), *((kind, f"{factor:g}") for kind, factor in results["factors"].items())],
        "measured": [
            ("data", "q", "L", "L of a sample", "ζ", "ζ / L", "ζ₁", "σ², mean"),
            *(
                (
                    one["dataset"],
                    f"{one['q']:g}",
                    *(f"{one[name]:.3g}" for name in ("L", "L_sample")),
                    f"{one['zeta']:.3g}"
                    + (f" ± {one['zeta_error']:.1g}" if one["zeta_error"] > 0.01 * one["zeta"] else ""),
                    f"{one['zeta'] / one['L']:.2f}",
                    *(f"{one[name]:.3g}" for name in ("zeta1", "sigma2_mean")),
                )
                for one in results["measured"]
            ),
        ],
    }
    if "fit" in results:
        out["fit"] = _fit_table(results)
    steps = ("η tuned", "as good", "η advised", "limited by", "η of bare theory")
    head = ("method", "q", *steps, "loss, tuned", "loss, advised")
    for dataset in dict.fromkeys(cell["dataset"] for cell in results["cells"]):
        own = [cell for cell in results["cells"] if cell["dataset"] == dataset]
        out[f"steps {dataset}"] = [head, *(_step_row(cell) for cell in own)]
        out[f"order {dataset}"] = _order_table(own)
        out[f"agreement {dataset}"] = _agreement_table(own)
    return out


def _fit_table(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """How far advised step sizes are off, where the factors were fitted and where they were not."""
    rows = [("factors", "on", "off by a factor of (root mean square)", "at worst")]
    cells = [cell for cell in results["cells"] if cell["dataset"] == "cifar10"]
    for name, key in (("bare theory", "bare_eta"), ("fitted", "advised")):
        here = results["fit"][name]
        there = off_by([math.log(cell[key] / middle(cell)) for cell in cells]) if cells else None
        for place, one in (("digits, calibration", here), ("CIFAR-10", there)):
            if one is not None:
                rows.append((name, place, *(f"{float(f'{one[which]:.2g}'):g}" for which in ("rms", "worst"))))
    return rows


def _step_row(cell: dict[str, Any]) -> tuple[str, ...]:
    low, high = cell["good"]
    return (
        cell["method"],
        f"{cell['q']:g}",
        f"{cell['eta']:g}",
        f"{low:g}" if low == high else f"{low:g} to {high:g}",
        f"{cell['advised']:.2g}",
        cell["limit"],
        f"{cell['bare_eta']:.2g}",
        f"{cell['tuned_loss']:.3f}",
        f"{cell['advised_loss']:.3f}" if math.isfinite(cell["advised_loss"]) else "diverged",
    )


OBSERVED = {
    "tuned_loss": "train loss, η tuned",
    "advised_loss": "train loss, η advised",
    "tuned_gradient_norm2": "‖∇f‖², η tuned",
}


def _order_table(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The order of the methods at every q, as advised and as observed."""
    rows = [("q", "advised", *(f"by {words}" for words in OBSERVED.values()))]
    for q, own in _by_q(cells):
        rows.append((f"{q:g}", ", ".join(cell["method"] for cell in own), *(_ordered(own, key) for key in OBSERVED)))
    return rows


def _agreement_table(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Kendall's τ between the order that is advised, or that of bare theory, and what was observed."""
    rows = [("q", *(f"{which}: {words}" for which in ("advised", "bare theory") for words in OBSERVED.values()))]
    for q, own in _by_q(cells):
        agree = [
            kendalltau(ranks([c[predicted] for c in own]), ranks([c[key] for c in own])).statistic
            for predicted in ("rank", "bare")
            for key in OBSERVED
        ]
        rows.append((f"{q:g}", *(f"{value:.2f}" for value in agree)))
    return rows


def ranks(values: list[float]) -> list[float]:
    """From 1 on, equal ones share the mean of their places; what diverged comes last."""
    return list(rankdata([value if math.isfinite(value) else math.inf for value in values]))


def _by_q(cells: list[dict[str, Any]]) -> list[tuple[float, list[dict[str, Any]]]]:
    found = sorted({cell["q"] for cell in cells})
    return [(q, sorted((c for c in cells if c["q"] == q), key=lambda c: c["rank"])) for q in found]


def _ordered(cells: list[dict[str, Any]], key: str) -> str:
    """Best first; methods within one part in a hundred of each other are not told apart."""
    found = sorted(cells, key=lambda cell: cell[key])
    text = found[0]["method"]
    for before, after in pairwise(found):
        text += (" = " if after[key] < 1.01 * before[key] else ", ") + after["method"]
    return text


def page() -> None:
    """Fill in the tables of docs/choosing.md and draw its picture."""
    from choosing_picture import draw

    from fewrounds.report.marked import filled

    results = json.loads(RESULTS.read_text())
    path = HERE.parent / "docs" / "choosing.md"
    path.write_text(filled(path.read_text(), tables(results)))
    draw(results, HERE.parent / "docs" / "images" / "choosing.png")


if __name__ == "__main__":
    actions = {"fit": fit, "pack": pack, "collect": collect, "page": page}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(f"usage: python experiments/choosing.py {' | '.join(actions)}")
    actions[sys.argv[1]]()
