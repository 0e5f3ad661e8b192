"""The figures of a paper, as PNG and PDF: the paper's three comparisons, and the curves against what they cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FormatStrFormatter, LogLocator, MaxNLocator, NullLocator

from fewrounds.report.frames import (
    CRITERIA,
    SECONDS,
    VALUES,
    Curve,
    Value,
    checked,
    criteria_of,
    curves,
    groups,
    label_of,
    methods_of,
    reported,
    settings_of,
    summary,
    values_of,
)
from fewrounds.report.styles import Style, styles_of

PANELS = ["train_loss", "train_accuracy", "test_loss", "test_accuracy"]
AGAINST = {
    "round": ("rounds", "communication rounds"),
    "gradients_per_worker": ("gradients", "gradients per worker"),
    "bytes": ("bytes", "bytes moved, up and down"),
    "time": ("time", "modelled seconds"),
}
NAMES = {"q": "q", "budget": "budget", "budget_mode": "budget mode", "eta": "η"}
LOOK: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # text stays text, which publishers ask for
    "axes.formatter.useoffset": False,
}
WIDTH = 7.2
"""Inches: the text width of a page, so that the letters keep their size."""


def write_figures(folder: Path, frame: pd.DataFrame, value: Value = "last") -> list[Path]:
    """Draw every figure the frame has data for into the folder, and return the files written.

    `value` says what the comparisons against q and budget show of a run: its end, or the best it ever had.
    """
    frame = reported(checked(frame))
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(LOOK):
        for name, figure in _figures(frame, value):
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # laid out once, not again for each file
            for suffix, metadata in (("png", {}), ("pdf", {"CreationDate": None})):  # the same figure, the same file
                path = folder / f"{name}.{suffix}"
                figure.savefig(path, dpi=200, metadata=metadata)
                written.append(path)
    return written


def _figures(frame: pd.DataFrame, value: Value) -> Iterator[tuple[str, Figure]]:
    """One set of figures for each combination of the settings other than q and budget."""
    panels = [name for name in criteria_of(frame) if name in PANELS]
    styles = styles_of(methods_of(frame))
    ends, lines = summary(frame, value), curves(frame)
    others = [c for c in settings_of(frame) if c not in ("q", "budget")]
    several = [c for c in others if len(values_of(frame, c)) > 1]
    for setting, rows in groups(ends, others):
        named = {c: setting[c] for c in several}
        tail = "".join(f"-{c}-{v}" for c, v in named.items())
        tail = re.sub(r"[^\w.-]+", "_", tail)
        title = ", ".join(_named(c, v) for c, v in named.items())
        for axis, fixed, pick in (("q", "budget", -1), ("budget", "q", 0)):
            at = [v for v in values_of(rows, fixed) if v is not None]
            held = {fixed: at[pick]} if at else {}
            shown = rows[rows[fixed] == at[pick]] if at else rows
            shown = shown[shown[axis].notna()]
            if shown.loc[shown["mean"].notna(), axis].nunique() > 1:
                text = ", ".join([*(_named(c, v) for c, v in held.items()), *([title] if title else [])])
                yield f"against-{axis}{tail}", _comparison(shown, axis, panels, styles, text, value)
        here = [line for line in lines if all(line.setting[c] == v for c, v in setting.items())]
        here = [line for line in here if len(line.table) > 1]
        for column, (word, label) in AGAINST.items():
            for criterion in panels if here else []:
                name = f"{criterion.replace('_', '-')}-against-{word}{tail}"
                yield name, _grid(here, column, label, criterion, styles, title)


def _comparison(
    rows: pd.DataFrame, axis: str, panels: list[str], styles: dict[str, Style], title: str, value: Value
) -> Figure:
    """Each criterion against q or budget: points are means over seeds, bars ± one standard deviation."""
    figure = Figure(figsize=(WIDTH, 2.5 * ((len(panels) + 1) // 2) + 0.5), layout="constrained")
    grid = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False)
    ticks = sorted(rows[axis].unique())  # also where every run diverged
    for axes, criterion in zip(grid.flat, panels, strict=False):
        for i, name in enumerate(styles):
            own = rows[(rows["criterion"] == criterion) & (rows["method"] == name)].sort_values(axis)
            if own["mean"].isna().all():
                continue
            # Side by side by a little, so that bars of near values do not hide each other.
            nudge = (i - (len(styles) - 1) / 2) * 0.012
            x = own[axis].astype(float).to_numpy()
            x = x * 2**nudge if axis == "budget" else x + nudge * (ticks[-1] - ticks[0])
            axes.errorbar(x, own["mean"], own["sd"].fillna(0), **_line(styles[name]), capsize=2, elinewidth=0.8)
        _scale([axes], criterion)
        if axis == "budget":
            axes.set_xscale("log", base=2)
        axes.set_xticks([float(tick) for tick in ticks], [f"{tick:g}" for tick in ticks], minor=False)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(title=CRITERIA[criterion].label)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_axis_off()
    for axes in list(grid.flat)[max(0, len(panels) - 2) : len(panels)]:
        axes.set_xlabel("heterogeneity q" if axis == "q" else "budget: gradients per worker and round")
    note = f"{VALUES[value]}; {_seeds(rows.loc[rows['mean'].notna(), 'n'])}"
    lost = rows[rows["diverged"] > 0].drop_duplicates(["method", axis])
    if len(lost):
        named = [
            f"{row.diverged} of {label_of(str(row.method))} at {getattr(row, axis):g}" for row in lost.itertuples()
        ]
        note += f"\nwithout runs that diverged: {', '.join(named)}"
    figure.suptitle(f"{title}: {note}" if title else note, fontsize=8)
    _legend(figure, {name: styles[name] for name in styles if name in set(rows["method"])})
    return figure


def _grid(lines: list[Curve], column: str, xlabel: str, criterion: str, styles: dict[str, Style], title: str) -> Figure:
    """A panel for every q (across) and budget (down): the curve of each method, band ± one standard deviation."""
    frame = pd.DataFrame([line.setting for line in lines])
    qs, budgets = values_of(frame, "q"), values_of(frame, "budget")
    wide = len(qs) > 1
    width = min(WIDTH, 2.4 * len(qs) + 0.6) if wide else 4.2
    height = (1.7 if wide and len(budgets) > 1 else 2.8) * len(budgets) + 0.8
    figure = Figure(figsize=(max(width, 4.2), height), layout="constrained")
    grid = figure.subplots(
        len(budgets), len(qs), squeeze=False, sharey=True, sharex="row" if column != "round" else True
    )
    for (i, budget), (j, q) in ((a, b) for a in enumerate(budgets) for b in enumerate(qs)):
        axes = grid[i, j]
        for line in lines:
            if line.setting["q"] == q and line.setting["budget"] == budget:
                _draw(axes, line, column, criterion, styles)
        if column == "bytes":
            axes.xaxis.set_major_formatter(EngFormatter(unit="B", sep=""))
        elif column in ("gradients_per_worker", "time"):
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        names = [_named("q", q)] * (q is not None) + [_named("budget", budget)] * (budget is not None)
        axes.set_title(", ".join(names))
    _scale(list(grid.flat), criterion)
    frame_of_losses = _frame_of_losses(lines, criterion)
    if frame_of_losses is not None:
        grid[0, 0].set_ylim(*frame_of_losses)  # all panels share the axis
        _scale(list(grid.flat), criterion)  # with ticks for what is left
    for axes in grid.flat:
        axes.set_visible(axes.has_data())  # not every q was run at every budget
    for above in grid.T:
        for axes in [axes for axes in above if axes.get_visible()][-1:]:
            axes.set_xlabel(xlabel)
            axes.tick_params(labelbottom=True)
    for row in grid:
        for axes in [axes for axes in row if axes.get_visible()][:1]:
            axes.set_ylabel(CRITERIA[criterion].label)
            axes.tick_params(labelleft=True)
    note = _seeds(pd.Series([line.n for line in lines]))
    note += "; where a run diverged, a curve ends or leaves the axis" if any(line.diverged for line in lines) else ""
    note += "; the axis ends a little above the start" if frame_of_losses is not None else ""
    note = f"{title}: {note}" if title else note
    if column == "time":
        note += f"\n{SECONDS['round']:g} s an aggregation, {SECONDS['gradient']:g} s a gradient of one sample"
    figure.suptitle(note, fontsize=8)
    _legend(figure, {name: styles[name] for name in styles if name in {line.method for line in lines}})
    return figure


def _frame_of_losses(lines: list[Curve], criterion: str) -> tuple[float, float] | None:
    """Where to begin and end the axis if a loss is far above the start, which would press all else together."""
    if not criterion.endswith("_loss"):
        return None
    means = [line.table[f"{criterion}_mean"].dropna() for line in lines]
    means = [mean for mean in means if len(mean)]
    if not means:
        return None
    start, lowest = max(float(mean.iloc[0]) for mean in means), min(float(mean.min()) for mean in means)
    return (0.95 * lowest, 1.2 * start) if max(float(mean.max()) for mean in means) > 2 * start else None


def _draw(axes: Axes, line: Curve, column: str, criterion: str, styles: dict[str, Style]) -> None:
    table = line.table[line.table[f"{criterion}_mean"].notna()]  # not every evaluation has the gradient's norm
    if table.empty:
        return
    x = table[column].to_numpy(dtype=float)
    mean = table[f"{criterion}_mean"].to_numpy(dtype=float)
    sd = np.nan_to_num(table[f"{criterion}_sd"].to_numpy(dtype=float))
    order = list(styles).index(line.method)
    every = max(1, len(x) // 5)
    look = _line(styles[line.method])
    axes.plot(x, mean, **look, markevery=(min(len(x) - 1, order * every // len(styles)), every))
    low = mean - sd
    if CRITERIA[criterion].lower_is_better:  # a log scale has no place for what is not positive
        low = np.maximum(low, mean / 10)
    axes.fill_between(x, low, mean + sd, color=look["color"], alpha=0.15, linewidth=0)


def _line(style: Style) -> dict[str, Any]:
    return {
        "color": style.colour,
        "linestyle": (0, style.dash) if style.dash else "-",
        "marker": style.marker,
        "markerfacecolor": "white",
        "markeredgewidth": 0.9,
    }


def _scale(panels: list[Axes], criterion: str) -> None:
    """Log for losses once all is drawn, with ticks that are plain numbers, also within a decade."""
    if not CRITERIA[criterion].lower_is_better:
        return
    for axes in panels:
        axes.set_yscale("log")
    for axes in panels:
        low, high = axes.get_ylim()
        short = high < 8 * low
        axes.yaxis.set_major_locator(MaxNLocator(6) if short else LogLocator(subs=(1, 2, 5), numticks=12))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FormatStrFormatter("%.4g"))


def _legend(figure: Figure, styles: dict[str, Style]) -> None:
    handles = [Line2D([], [], label=label_of(name), **_line(style)) for name, style in styles.items()]
    longest = max(len(label_of(name)) for name in styles)
    room = max(1, int(figure.get_figwidth() // (0.75 + 0.05 * longest)))  # inches: the line, and about so much a letter
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(room, len(handles)), frameon=False, handlelength=3.5
    )


def _named(column: str, value: Any) -> str:
    text = f"{value:g}" if isinstance(value, int | float) else "none" if value is None else str(value)
    return text if isinstance(value, str) else f"{NAMES.get(column, column)} = {text}"


def _seeds(counts: pd.Series[Any]) -> str:
    """What a point is, of this many runs."""
    low, high = int(counts.min()), int(counts.max())
    if high == 1:
        return "one run each"
    return f"mean ± standard deviation, n = {low if low == high else f'{low} to {high}'}"
