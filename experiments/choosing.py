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
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

import fewrounds as fr
from fewrounds.experiment.store import Store
from fewrounds.experiment.survey import saved
from fewrounds.methods.budget import for_sizes
from fewrounds.theory.advise import step_size
from fewrounds.theory.limits import BARE, FACTORS

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs"
RESULTS = HERE.parent / "results" / "choosing.json"
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

    factors = dict(BARE)
    steps = [float(step) for step in 10.0 ** np.linspace(0, 4, 41)]
    for _ in range(12):
        before = dict(factors)
        for kind in factors:
            factors[kind] = min(steps, key=lambda f, kind=kind: off({**factors, kind: f}))
        if factors == before:
            break
    rounded = {kind: float(f"{factor:.1g}") for kind, factor in factors.items()}
    for name, these in (("theory", BARE), ("fitted", factors), ("rounded", rounded)):
        print(f"{name}: off by a factor {math.exp(math.sqrt(off(these) / len(cells))):.2f} in the mean; {these}")
    return rounded


# ---------------------------------------------------------------------- collect


def ends(folder: str) -> dict[tuple[str, float], dict[str, float]]:
    """By method and q: the mean over seeds of the reported runs' final train loss and squared gradient norm."""
    frame = fr.load_results(RUNS / folder)
    last = frame[(frame["role"] == "report") & (frame["round"] == frame["rounds"])]
    last = last.assign(gradient_norm2=last["gradient_norm"] ** 2)
    means = last.groupby(["method", "q"])[["train_loss", "gradient_norm2"]].mean()
    return {key: {name: float(value) for name, value in row.items()} for key, row in means.iterrows()}


def collect() -> None:
    """What was measured, advised and observed, of every data set whose runs are there."""
    out: dict[str, Any] = {"factors": FACTORS, "measured": [], "cells": []}
    for dataset, (by_tuning, by_advice) in PAIRS.items():
        if not (RUNS / by_tuning).exists() or not (RUNS / by_advice).exists():
            print(f"{dataset}: runs/{by_tuning} or runs/{by_advice} is not there")
            continue
        at, tuned_ends, auto_ends = measured(by_advice), ends(by_tuning), ends(by_advice)
        for q, m in sorted(at.items()):
            figures = {name: float(getattr(m, name)) for name in ("L", "L_sample", "zeta", "zeta1", "sigma2_mean")}
            out["measured"].append({"dataset": dataset, "q": q, **figures, "n": m.n})
        for cell in tuned(by_tuning):
            choice, bare = (advised(cell, at[cell["q"]], factors) for factors in (FACTORS, BARE))
            where = (cell["method"], cell["q"])
            out["cells"].append(
                {
                    "dataset": dataset,
                    **cell,
                    "advised": choice.method.eta,
                    "limit": choice.limit,
                    "predicted": choice.epsilon,
                    "theory": bare.method.eta,
                    "theory_predicted": bare.epsilon,
                    "tuned_loss": tuned_ends[where]["train_loss"],
                    "tuned_gradient_norm2": tuned_ends[where]["gradient_norm2"],
                    "advised_loss": auto_ends.get(where, {}).get("train_loss", math.nan),
                }
            )
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(out, indent=1) + "\n")
    print(f"{len(out['cells'])} cells in {RESULTS.relative_to(HERE.parent)}")


# ---------------------------------------------------------------------- page


def tables(results: dict[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    """The tables of docs/choosing.md."""
    out = {
        "factors": [("limit", "factor"), *((kind, f"{factor:g}") for kind, factor in results["factors"].items())],
        "measured": [
            ("data", "q", "L", "L of a sample", "ζ", "ζ / L", "ζ₁", "σ²"),
            *(
                (
                    one["dataset"],
                    f"{one['q']:g}",
                    *(f"{one[name]:.3g}" for name in ("L", "L_sample", "zeta")),
                    f"{one['zeta'] / one['L']:.2f}",
                    *(f"{one[name]:.3g}" for name in ("zeta1", "sigma2_mean")),
                )
                for one in results["measured"]
            ),
        ],
    }
    head = (
        "method",
        "q",
        "η tuned",
        "as good",
        "η advised",
        "limited by",
        "loss, tuned",
        "loss, advised",
        "η of bare theory",
    )
    for dataset in dict.fromkeys(cell["dataset"] for cell in results["cells"]):
        own = [cell for cell in results["cells"] if cell["dataset"] == dataset]
        out[f"steps {dataset}"] = [head, *(_step_row(cell) for cell in own)]
        out[f"order {dataset}"] = _order_table(own)
    return out


def _step_row(cell: dict[str, Any]) -> tuple[str, ...]:
    low, high = cell["good"]
    return (
        cell["method"],
        f"{cell['q']:g}",
        f"{cell['eta']:g}",
        f"{low:g}" if low == high else f"{low:g} to {high:g}",
        f"{cell['advised']:.2g}",
        cell["limit"],
        f"{cell['theory']:.2g}",
        f"{cell['tuned_loss']:.3f}",
        f"{cell['advised_loss']:.3f}" if math.isfinite(cell["advised_loss"]) else "diverged",
    )


def _order_table(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The order of the methods at every q, as predicted and as observed, and how well they agree."""
    rows = [
        (
            "q",
            "predicted",
            "by ‖∇f‖² after tuning",
            "by train loss after tuning",
            "agreement (τ): ‖∇f‖², loss, bare theory",
        )
    ]
    for q in sorted({cell["q"] for cell in cells}):
        own = [cell for cell in cells if cell["q"] == q]
        orders = {key: _ordered(own, key) for key in ("predicted", "tuned_gradient_norm2", "tuned_loss")}
        agree = [
            kendalltau([c["predicted"] for c in own], [c[key] for c in own]).statistic
            for key in ("tuned_gradient_norm2", "tuned_loss")
        ]
        bare = kendalltau([c["theory_predicted"] for c in own], [c["tuned_gradient_norm2"] for c in own]).statistic
        rows.append((f"{q:g}", *orders.values(), *(f"{value:.2f}" for value in (*agree, bare))))
    return rows


def _ordered(cells: list[dict[str, Any]], key: str) -> str:
    """Best first; methods within one part in a hundred of each other are not told apart."""
    found = sorted(cells, key=lambda cell: cell[key])
    text = found[0]["method"]
    for before, after in pairwise(found):
        text += (" = " if after[key] < 1.01 * before[key] else ", ") + after["method"]
    return text


def page() -> None:
    """Fill in the tables of docs/choosing.md and draw its picture."""
    from fewrounds.report.marked import filled

    results = json.loads(RESULTS.read_text())
    path = HERE.parent / "docs" / "choosing.md"
    path.write_text(filled(path.read_text(), tables(results)))
    draw(results, HERE.parent / "docs" / "images" / "choosing.png")


def draw(results: dict[str, Any], path: Path) -> None:
    """ζ and ζ₁ against q, and the advised step sizes against the tuned ones."""
    import matplotlib
    from matplotlib.figure import Figure

    from fewrounds.report.figures import LOOK, WIDTH
    from fewrounds.report.frames import label_of
    from fewrounds.report.styles import styles_of

    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for dataset, marker in zip(PAIRS, "os", strict=True):
            own = [one for one in results["measured"] if one["dataset"] == dataset]
            for name, dash, label in (("zeta", "-", "ζ / L"), ("zeta1", "--", "ζ₁² / σ²")):
                values = [
                    one["zeta"] / one["L"] if name == "zeta" else one["zeta1"] ** 2 / one["sigma2_mean"] for one in own
                ]
                if own:
                    left.plot([one["q"] for one in own], values, dash, marker=marker, label=f"{label}, {dataset}")
        left.set_xlabel("q: the share of its own class that a worker has")
        left.set_ylim(bottom=0)
        left.legend(frameon=False)
        left.set_title("Heterogeneity at the start", loc="left")
        methods = list(dict.fromkeys(cell["method"] for cell in results["cells"]))
        styles = styles_of(methods)
        for cell in results["cells"]:
            style = styles[cell["method"]]
            low, high = cell["good"]
            hollow = {} if cell["dataset"] == "digits" else {"markerfacecolor": "none"}
            right.plot([low, high], [cell["advised"]] * 2, color=style.colour, linewidth=0.8, alpha=0.6)
            right.plot(cell["eta"], cell["advised"], style.marker, color=style.colour, **hollow)
        ends_of_line = [3e-3, 1.5]
        right.plot(ends_of_line, ends_of_line, color="#999999", linewidth=0.8)
        right.set(xscale="log", yscale="log", xlabel="η that tuning has chosen (line: as good)", ylabel="η advised")
        for name in methods:
            right.plot([], [], styles[name].marker, color=styles[name].colour, label=label_of(name))
        right.legend(frameon=False)
        right.set_title("Step sizes: filled digits, hollow CIFAR-10", loc="left")
        figure.savefig(path, dpi=200)


if __name__ == "__main__":
    actions = {"fit": fit, "collect": collect, "page": page}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(f"usage: python experiments/choosing.py {' | '.join(actions)}")
    actions[sys.argv[1]]()
