"""What the commands show: tables of results, splits, data sets and estimates."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from fewrounds.errors import SettingError
from fewrounds.experiment import grid
from fewrounds.experiment.config import Experiment
from fewrounds.experiment.progress import duration
from fewrounds.experiment.store import Store, known_eta, load_results

if TYPE_CHECKING:
    import pandas

AXES = ("dataset", "q", "alpha", "shards_per_worker", "classes_per_worker", "workers", "budget")
"""What tells one choice of a step size from another in a note."""


def table(title: str, headings: list[str], left: int = 1) -> Table:
    """A table that fits 80 columns: the first `left` columns are words, the others figures."""
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, heading in enumerate(headings):
        made.add_column(heading, justify="left" if number < left else "right", no_wrap=True)
    return made


def show_results(folder: Path) -> None:
    """The reported runs after their last round: a table for each combination of axes, a row for each method."""
    from fewrounds.report.frames import finals, settings_of, values_of

    frame = load_results(folder)
    reported = frame[frame["role"] == "report"]
    if not reported.empty:
        seeds = reported["seed"].nunique()
        spread = f" (mean ± standard deviation of {seeds} seeds)" if seeds > 1 else ""
        Console().print(f"After the last round{spread}", style="italic", highlight=False)
        last = finals(reported)  # in the order of the grid
        axes = [c for c in settings_of(reported) if c != "eta" and len(values_of(reported, c)) > 1]
        for setting, runs in _by_setting(last, axes):
            Console().print(_result_table(", ".join(f"{key} = {value}" for key, value in setting.items()), runs))
    saved = Store(folder).grid()
    for choice in saved["chosen"]:
        axes = [*AXES, *_varied(saved["experiment"]["methods"], choice["method"])]
        where = " ".join([choice["method"], *(f"{key}={choice[key]}" for key in axes if choice[key] is not None)])
        where = where.replace("dataset=", "")
        if choice["eta"] is None:
            print(f"note: {where}: no step size chosen, {choice['reason']}")
        elif choice["at_edge"]:
            print(f"note: {where}: η = {choice['eta']:g} is at the edge of the grid")


def _by_setting(runs: pandas.DataFrame, axes: list[str]) -> list[tuple[dict[str, Any], pandas.DataFrame]]:
    """The runs of each combination of these columns, in their order."""
    if not axes:
        return [({}, runs)]
    from fewrounds.report.frames import plain, values_of, where

    first, *rest = axes
    out = []
    for value in values_of(runs, first):
        for setting, own in _by_setting(where(runs, {first: value}), rest):
            out.append(({first: plain(value), **setting}, own))
    return [(setting, own) for setting, own in out if not own.empty]


def _result_table(title: str, runs: pandas.DataFrame) -> Table:
    headings = ["method", "η", "train loss", "test\naccuracy %", "rounds", "gradients\nper worker", "MB\nmoved"]
    shown = table(title, headings)
    order = list(dict.fromkeys(runs["method"]))
    groups = sorted(runs.groupby(["method", "eta"]), key=lambda group: (order.index(group[0][0]), group[0][1]))
    for (method, eta), own in groups:
        good = own[own["state"] == "finished"]
        lost = len(own) - len(good)
        megabytes = (own["bytes_up"] + own["bytes_down"]).mean() / 1e6
        shown.add_row(
            str(method),
            f"{eta:g}",
            f"{lost} of {len(own)} diverged" if lost else _spread(good["train_loss"], 3),
            _spread(100 * good["test_accuracy"], 1),
            f"{own['round'].max()}",
            f"{own['gradients_per_worker'].mean():,.0f}",
            f"{megabytes:,.0f}" if megabytes >= 10 else f"{megabytes:.2g}",
        )
    return shown


def _spread(values: pandas.Series[float], digits: int) -> str:
    if values.isna().all():
        return "-"
    form = f".{digits}f" if abs(values.mean()) < 1e5 else ".2g"
    text = f"{values.mean():{form}}"
    return f"{text} ± {values.std():{form}}" if len(values) > 1 else text


def write_page(folder: Path, *, figures: bool = True) -> Path:
    """The page of a folder of results, and the figures beside it."""
    import pandas

    from fewrounds.experiment import survey
    from fewrounds.report import write_report

    store = Store(folder)
    content = store.grid()
    experiment = content["experiment"]
    failures, missed = [], []
    for run, spec in content["runs"].items():
        record = store.record(run)
        if record is not None and (own := record.get("ledger", {}).get("missed")):
            missed += [(record["names"][p], n, record["ledger"]["rounds"]) for p, n in enumerate(own) if n]
        if record is not None and record["outcome"] == "failed":
            failures.append(
                {"run": run, **{k: spec["train"][k] for k in ("method", "eta", "seed")}, "reason": record["reason"]}
            )
    tuning = experiment.get("tuning") or {}
    given = experiment["train"].get("eta") or []
    advised = given == "auto"
    meta = {
        "name": experiment["name"],
        "description": experiment["description"],
        **content["environment"],
        "started": store.check_version()["created"],
        "finished": content["updated"] if all(store.record(run) for run in content["runs"]) else None,
        "tuning_rule": "fewrounds advise, from a measurement at the start" if advised else tuning.get("rule", ""),
        "tuning_seeds": tuning.get("seed", []),
        "report_seeds": experiment["train"]["seed"],
        "etas": tuning.get("eta", [] if advised else given),
        "config": to_toml(experiment),
        "failures": failures,
        "missed": missed,
        "measured": survey.saved(store),
    }
    chosen = pandas.DataFrame(
        [
            {k: v for k, v in c.items() if k not in ("scores", "reason", "limit")}
            for c in content["chosen"]
            if c["eta"] is not None
        ]
    )
    return write_report(folder, load_results(folder), chosen, meta, figures=figures)


def to_toml(experiment: dict[str, Any]) -> str:
    """The resolved experiment as TOML again: what was run, defaults included."""
    lines: list[str] = []

    def add(section: str, content: dict[str, Any]) -> None:
        plain = {k: v for k, v in content.items() if v is not None and not isinstance(v, dict)}
        if section and plain:
            lines.append(f"\n[{section}]")
        for key, value in plain.items():
            single = isinstance(value, list) and len(value) == 1 and key != "hidden"
            lines.append(f"{key} = {json.dumps(value[0] if single else value, ensure_ascii=False)}")
        for key, value in content.items():
            if isinstance(value, dict):
                add(f"{section}.{key}" if section else key, value)

    add("", experiment)
    return "\n".join(lines) + "\n"


def show_estimate(experiment: Experiment, folder: Path, jobs: int | None) -> None:
    """The resolved grid and what it will take."""
    from fewrounds.experiment.estimate import estimate

    print(to_toml(experiment.model_dump(mode="json")))
    cells = grid.cells(experiment)
    several = len({cell.data["source"] for cell in cells}) > 1
    shown = table("The grid", ["method", "split", "budget", "rounds", "η", "runs"], left=2)
    for cell in cells:
        how = [f"{k}={cell.partition[k]:g}" for k in ("q", "alpha") if cell.partition[k] is not None]
        tuned = grid.tuning_runs(experiment, cell)
        eta = 0.1 if experiment.chooses_eta else known_eta(experiment, cell)
        reported = grid.report_runs(experiment, cell, eta)
        etas = {spec.train["eta"]: None for spec in tuned or reported}
        method = cell.train["method"]
        shown.add_row(
            " ".join([method, *(f"{key}={cell.settings[key]}" for key in _varied(experiment.methods, method))]),
            " ".join([*([cell.data["source"]] if several else []), cell.partition["kind"], *how]),
            str(cell.train["budget"] or "-"),
            str(cell.train["rounds"]),
            f"{len(etas)} tried" if tuned else "advised" if experiment.chooses_eta else _listed(etas),
            f"{len(tuned)} + {len(reported)}" if tuned else str(len(reported)),
        )
    Console().print(shown)
    found = estimate(experiment, Store(folder))
    cores = jobs or os.cpu_count() or 1
    runs = f"{found.tuning_runs + found.report_runs} runs ({found.tuning_runs} to tune, {found.report_runs} reported)"
    print(f"\n{runs}, {found.known} of them there already in {folder}")
    print(f"{found.gradients:.3g} single-sample gradients to compute")
    print(f"about {duration(found.seconds / cores)} on {cores} cores, {found.bytes / 1e6:.1f} MB on disk")


def _varied(settings: Mapping[str, Mapping[str, Any]], method: str) -> list[str]:
    """The settings of a method that are axes of the grid."""
    return [key for key, value in settings.get(method, {}).items() if isinstance(value, list) and len(value) > 1]


def _listed(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:g}" for number in numbers)


def show_partitions(experiment: Experiment, picture: Path) -> None:
    """Print and draw the class-by-worker counts of every split of the experiment."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from fewrounds.data.partition import fingerprint
    from fewrounds.experiment.work import parts_of, prepare

    splits = {json.dumps([cell.data, cell.partition], sort_keys=True): cell for cell in grid.cells(experiment)}
    figure, axes = plt.subplots(
        1, len(splits), figsize=(1 + 3.6 * len(splits), 3.6), constrained_layout=True, squeeze=False
    )
    for axis, cell in zip(axes[0], splits.values(), strict=True):
        prepared, parts = prepare(cell.data), parts_of(cell)
        labels = np.asarray(prepared.train[1])
        classes = np.unique(labels[prepared.rows]) if prepared.classes else np.array([])
        counts = np.array([[int((labels[part] == c).sum()) for c in classes] for part in parts])
        settings = [f"{k} = {v:g}" for k, v in cell.partition.items() if isinstance(v, float)]
        title = ", ".join([cell.data["source"], cell.partition["kind"], *settings])
        shown = table(title, ["worker", *(str(c) for c in classes), "total"])
        for p, (row, part) in enumerate(zip(counts, parts, strict=True)):
            shown.add_row(str(p), *(str(n) for n in row), str(len(part)))
        Console().print(shown)
        print(f"fingerprint {fingerprint(parts)[:16]}\n")
        drawn = counts if prepared.classes else np.array([[len(part)] for part in parts])
        image = axis.imshow(drawn, cmap="Blues", aspect="auto")
        axis.set(title=title, xlabel="class" if prepared.classes else "", ylabel="worker")
        figure.colorbar(image, ax=axis, label="samples")
    try:
        figure.savefig(picture, dpi=130)
    except (OSError, ValueError) as error:
        raise SettingError(f"cannot write the picture {picture}: {error}") from None
    print(f"Picture: {picture}")


def list_data() -> None:
    """The data sets that are known, and which are in the cache."""
    from fewrounds.data import catalog, home

    for entry in catalog.listing():
        size = f", {entry.bytes / 1e6:.0f} MB" if entry.bytes else ""
        state = f"there, from {entry.source}{size}" if entry.cached else f"not there yet: fewrounds data {entry.name}"
        print(f"{entry.name:14} {entry.what}\n{'':14} {state}")
    print(f"\nCache: {home.home()}")


def fetch_data(name: str) -> None:
    from fewrounds.data import catalog

    if name == "digits":
        print("digits: ships with scikit-learn, nothing to fetch")
    else:
        print(f"{name}: {catalog.fetch(name)}")
