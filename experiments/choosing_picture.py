"""The picture of docs/choosing.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from choosing_tables import places
from matplotlib.figure import Figure

from fewrounds.report.figures import LOOK, WIDTH
from fewrounds.report.frames import label_of
from fewrounds.report.styles import styles_of

ORDERS = (
    (("rank", "advice"), ("tuned_loss", "train loss, η tuned")),
    (("rank", "advice"), ("advised_loss", "train loss, η advised")),
    (("bare", "bare theory"), ("tuned_gradient_norm2", "‖∇f‖², η tuned")),
)
"""What is predicted, and what it is compared with."""
DATA = {"digits": ("o", "#0072B2"), "cifar10": ("s", "#D55E00")}
"""Marker and colour of the data sets."""


def draw(results: dict[str, Any], path: Path) -> None:
    """ζ and ζ₁ against q with their error bars, the advised step sizes against the tuned ones, and predicted order
    against observed."""
    methods = list(dict.fromkeys(cell["method"] for cell in results["cells"]))
    styles = styles_of(methods)
    with matplotlib.rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 6.4), layout="constrained")
        places_of = figure.subplot_mosaic("aaabbb;ccddee")
        left, right, *orders = places_of.values()
        _draw_heterogeneity(left, results["measured"])
        for cell in results["cells"]:
            style = styles[cell["method"]]
            low, high = cell["good"]
            right.plot([low, high], [cell["advised"]] * 2, color=style.colour, linewidth=0.8, alpha=0.6)
            right.plot(cell["eta"], cell["advised"], style.marker, color=style.colour, **_face(cell))
        ends_of_line = [3e-3, 1.5]
        right.plot(ends_of_line, ends_of_line, color="#999999", linewidth=0.8)
        right.set(xscale="log", yscale="log", xlabel="η that tuning has chosen (line: as good)", ylabel="η advised")
        both = len({cell["dataset"] for cell in results["cells"]}) > 1
        right.set_title("Step sizes" + (": filled digits, hollow CIFAR-10" if both else " on digits"), loc="left")
        for axis, (predicted, observed) in zip(orders, ORDERS, strict=True):
            _draw_ranks(axis, results["cells"], styles, predicted, observed)
        for name in methods:
            right.plot([], [], styles[name].marker, color=styles[name].colour, label=label_of(name))
        handles, labels = right.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
        figure.savefig(path, dpi=200)


def _face(cell: dict[str, Any]) -> dict[str, Any]:
    return {} if cell["dataset"] == "digits" else {"markerfacecolor": "none"}


def _draw_heterogeneity(axis: Any, measurements: list[dict[str, Any]]) -> None:
    for dataset, (marker, colour) in DATA.items():
        own = [one for one in measurements if one["dataset"] == dataset]
        for name, dash, label, face in (("zeta", "-", "ζ", colour), ("zeta1", ":", "ζ₁", "white")):
            axis.errorbar(
                [one["q"] for one in own],
                [one[name] for one in own],
                yerr=[one["errors"][name] for one in own],
                linestyle=dash,
                marker=marker,
                color=colour,
                markerfacecolor=face,
                linewidth=1,
                capsize=2,
                label=f"{label}, {dataset}",
            )
    axis.set_xticks(sorted({one["q"] for one in measurements}))
    axis.set_xlabel("q: the share of its own class that a worker has")
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False)
    axis.set_title("Heterogeneity at the start, with error bars", loc="left")


def _draw_ranks(
    axis: Any, cells: list[dict[str, Any]], styles: Any, predicted: tuple[str, str], observed: tuple[str, str]
) -> None:
    """A point a method, split and data set; those of one place lie side by side, the splits in their order."""
    groups = sorted({(cell["dataset"] != "digits", cell["q"]) for cell in cells})
    most = 1
    for number, (other, q) in enumerate(groups):
        own = [cell for cell in cells if (cell["dataset"] != "digits", cell["q"]) == (other, q)]
        most = max(most, len(own))
        found = [places(own, key) for key in (predicted[0], observed[0])]
        aside = 0.6 * ((number + 0.5) / len(groups) - 0.5)
        for cell, x, y in zip(own, *found, strict=True):
            style = styles[cell["method"]]
            axis.plot(x + aside, y, style.marker, color=style.colour, **_face(cell))
    axis.plot([0.5, most + 0.5], [0.5, most + 0.5], color="#999999", linewidth=0.8, zorder=0)
    axis.set(xticks=range(1, most + 1), yticks=range(1, most + 1))
    axis.set(xlabel=f"place by {predicted[1]}", ylabel="place observed")
    axis.set_title(f"By {observed[1]}", loc="left")
