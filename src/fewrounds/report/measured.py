"""What was measured along training: ζ, ζ₁, σ² and L against rounds, a line for each split."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from fewrounds.report.figures import LOOK, WIDTH
from fewrounds.report.html import table, text_of
from fewrounds.theory.estimate import Estimate, Measurement

FIGURES = {
    "zeta": "ζ, second-order heterogeneity",
    "zeta1": "ζ₁, first-order heterogeneity",
    "sigma2": "σ², variance of a gradient, greatest",
    "L": "L, smoothness",
}
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#666666"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "*"]
SPLITS = (
    "dataset",
    "partition",
    "q",
    "alpha",
    "shards_per_worker",
    "classes_per_worker",
    "workers",
    "partition_seed",
    "l2",
    "weights",
)
COLUMNS = {
    "gradient_norm2": "‖∇f‖²",
    "L": "L",
    "L_ahead": "L after a step",
    "L_worker": "L of a worker, greatest",
    "L_sample": "L of a sample",
    "zeta": "ζ",
    "zeta_to_mean": "ζ to the mean",
    "zeta1": "ζ₁",
    "sigma2": "σ², greatest",
}
Measured = Mapping[str, Any]


def lines_of(measured: Iterable[Measured]) -> dict[str, list[Measured]]:
    """The measurements of each split, by what tells it from the others, in the order of their rounds.

    Of several measurements of one split, the newest, with the start that it set out from.
    """
    newest: dict[str, list[Measured]] = {}
    for one in measured:
        newest.setdefault(str([one.get(key) for key in SPLITS]), []).append(one)
    chosen = [one for own in newest.values() for one in _newest(own)]
    varying = [key for key in SPLITS if len({str(one.get(key)) for one in chosen}) > 1]
    found: dict[str, list[Measured]] = {}
    for one in sorted(chosen, key=lambda one: ([_rank(one.get(key)) for key in varying], one["round"])):
        shown = [f"{key} = {text_of(one[key])}" for key in varying if one.get(key) is not None]
        found.setdefault(", ".join(shown) or str(one["dataset"]), []).append(one)
    return found


def _newest(measured: list[Measured]) -> list[Measured]:
    """Of one split: those of the newest training, and the start of the same problem."""
    last = max(measured, key=lambda one: (one["made"], one["round"]))
    same = [one for one in measured if one["problem"] == last["problem"]]
    trained = [one for one in same if one["along"]]
    if not trained:
        return [last]
    way = max(trained, key=lambda one: one["made"])["along"]
    return [one for one in same if not one["along"] or one["along"] == way]


def write_picture(folder: Path, measured: Iterable[Measured]) -> Path:
    """Draw the figures into the folder, as PNG and PDF; return the PNG."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "measured.png"
    with matplotlib.rc_context(LOOK):
        figure = _drawn(lines_of(measured))
        figure.savefig(path, dpi=200)
        figure.savefig(path.with_suffix(".pdf"), metadata={"CreationDate": None})
    return path


def _drawn(lines: dict[str, list[Measured]]) -> Figure:
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True)
    for axis, (key, title) in zip(axes.flat, FIGURES.items(), strict=True):
        for number, (label, points) in enumerate(lines.items()):
            values = [one["measurement"][key] for one in points]
            axis.errorbar(
                [one["round"] for one in points],
                [value["value"] for value in values],
                yerr=[value["error"] for value in values],
                label=label,
                color=COLOURS[number % len(COLOURS)],
                marker=MARKERS[number % len(MARKERS)],
                capsize=2,
            )
        axis.set_title(title, loc="left")
        axis.set_ylim(bottom=0)
        axis.set_xscale("symlog", linthresh=1)
        rounds = sorted({one["round"] for points in lines.values() for one in points})
        axis.set_xticks(rounds, [f"{round:,}" for round in rounds])
        axis.set_xticks([], minor=True)
    for axis in axes[1]:
        axis.set_xlabel("communication rounds")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
    return figure


def measured_section(measured: Sequence[Measured]) -> str:
    """The part of the page that shows what was measured; nothing where nothing was."""
    if not measured:
        return ""
    picture = io.BytesIO()
    with matplotlib.rc_context({**LOOK, "svg.hashsalt": "fewrounds"}):
        _drawn(lines_of(measured)).savefig(picture, format="svg", metadata={"Date": None})
    code = base64.b64encode(picture.getvalue()).decode()
    ways = {one["along"]["method"] for one in measured if one["along"]}
    way = f" along a training by {escape(', '.join(sorted(ways)))}" if ways else " at the start"
    return (
        '<section id="measured" aria-labelledby="measured-title">\n'
        '<h2 id="measured-title">How heterogeneous the data are</h2>\n'
        f"<p>Measured{way}. The smaller ζ is against L, the more local steps pay.</p>\n"
        f'<img class="measured" alt="ζ, ζ₁, σ² and L against rounds; the figures are in the table below" '
        f'src="data:image/svg+xml;base64,{code}">\n'
        f"{measured_table(measured)}\n</section>"
    )


def measured_table(measured: Iterable[Measured]) -> str:
    """The figures with their error bars, and what they cost."""
    rows, costs = [], []
    for label, points in lines_of(measured).items():
        for one in points:
            m = Measurement.from_json(one["measurement"])
            at = [label, f"{one['round']:,}"]
            share = "–" if math.isnan(m.zeta_of_L) else f"{m.zeta_of_L:.2f}"
            rows.append([*at, *(_with_error(getattr(m, key)) for key in COLUMNS), share, f"{m.gradients:,}"])
            took = {**m.costs, "L_worker": m.costs.get("L_workers")}
            costs.append([*at, *("–" if took.get(key) is None else f"{took[key]:,}" for key in COLUMNS)])
    head = ["split", "round", *COLUMNS.values()]
    return (
        f"{table([*head, 'ζ / L', 'gradients'], rows, 'Measured constants', [0])}\n"
        "<p>Gradients that each figure took, over all workers; a Hessian-vector product of a sample counts two.</p>\n"
        f"{table(head, costs, 'Gradients that each figure took', [0])}"
    )


def _with_error(value: Estimate) -> str:
    if math.isnan(value):
        return "–"
    text = f"{value:.3g}"
    return f"{text} ± {value.error:.1g}" if value.error > 0.005 * abs(value) else text


def _rank(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, (int, float)) else (1, 0.0, str(value))
