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
from fewrounds.theory.advise import ranked, step_size
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


def middle(cell: dict[str, Any]) -> float:
    """Of the step sizes that are about as good as the best."""
    low, high = cell["good"]
    return math.sqrt(low * high)


def advised(cell: dict[str, Any], m: fr.Measurement, factors: dict[str, float]) -> Any:
    method = for_sizes(cell["method"], cell["budget"], m.sizes, "paper", eta=1.0)
    return step_size(m, method, cell["rounds"], factors)


# ---------------------------------------------------------------------- fit


def fit() -> dict[str, float]:
    """Factors that bring advised step sizes closest to the middle of the good ones, by least squares on a log scale.

    (The best one of a single seed may lie at the edge beyond which a method blows up.)

    A limit that never decides keeps the factor of smoothness: that is what the small weight is for.
    """
    cells, at = tuned("calibration"), measured("choosing-digits-auto")

    def off(factors: dict[str, float]) -> float:
        errors = [math.log(advised(c, at[c["q"]], factors).method.eta / middle(c)) ** 2 for c in cells]
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
    rounded = {kind: float(f"{factor:.2g}") for kind, factor in factors.items()}
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
        cells = tuned(by_tuning)
        choices = [advised(cell, at[cell["q"]], FACTORS) for cell in cells]
        for cell, choice in zip(cells, choices, strict=True):
            rivals = [c for other, c in zip(cells, choices, strict=True) if other["q"] == cell["q"]]
            where = (cell["method"], cell["q"])
            out["cells"].append(
                {
                    "dataset": dataset,
                    **cell,
                    "advised": choice.method.eta,
                    "limit": choice.limit,
                    "rank": ranked(rivals, cell["rounds"]).index(choice) + 1,
                    "bare_eta": advised(cell, at[cell["q"]], BARE).method.eta,
                    "bare": choice.bare,
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
    steps = ("η tuned", "as good", "η advised", "limited by", "η of bare theory")
    head = ("method", "q", *steps, "loss, tuned", "loss, advised")
    for dataset in dict.fromkeys(cell["dataset"] for cell in results["cells"]):
        own = [cell for cell in results["cells"] if cell["dataset"] == dataset]
        out[f"steps {dataset}"] = [head, *(_step_row(cell) for cell in own)]
        out[f"order {dataset}"] = _order_table(own)
        out[f"agreement {dataset}"] = _agreement_table(own)
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
            kendalltau([c[predicted] for c in own], [c[key] for c in own]).statistic
            for predicted in ("rank", "bare")
            for key in OBSERVED
        ]
        rows.append((f"{q:g}", *(f"{value:.2f}" for value in agree)))
    return rows


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
            for name, dash, label in (("zeta", "-", "ζ / L"), ("zeta1", "--", "ζ₁ / σ")):
                values = [
                    one["zeta"] / one["L"] if name == "zeta" else one["zeta1"] / math.sqrt(one["sigma2_mean"])
                    for one in own
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
        both = len({cell["dataset"] for cell in results["cells"]}) > 1
        right.set_title("Step sizes" + (": filled digits, hollow CIFAR-10" if both else " on digits"), loc="left")
        figure.savefig(path, dpi=200)


if __name__ == "__main__":
    actions = {"fit": fit, "collect": collect, "page": page}
    if len(sys.argv) != 2 or sys.argv[1] not in actions:
        sys.exit(f"usage: python experiments/choosing.py {' | '.join(actions)}")
    actions[sys.argv[1]]()
