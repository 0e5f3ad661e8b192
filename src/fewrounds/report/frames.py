"""From the tidy frame of all runs to the numbers that are drawn and tabled: one place, so that both agree.

A run is *complete* if it finished all its rounds, and *diverged* if its loss stopped being finite, or had more than
doubled when it ended. A mean over seeds is taken over complete runs only; how many diverged or were not finished
stands beside it, so that a method is not flattered by the seeds it lost.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from fewrounds.errors import DataError, SettingError

Value = Literal["last", "best"]


@dataclass(frozen=True)
class Criterion:
    """A column of `history` that says how good a model is."""

    label: str
    lower_is_better: bool
    """Such a column is a loss or a norm, and drawn on a log scale."""


CRITERIA = {
    "train_loss": Criterion("train loss", lower_is_better=True),
    "train_accuracy": Criterion("train accuracy", lower_is_better=False),
    "test_loss": Criterion("test loss", lower_is_better=True),
    "test_accuracy": Criterion("test accuracy", lower_is_better=False),
    "gradient_norm": Criterion("gradient norm", lower_is_better=True),
}
DOUBLED = 2.0
"""A run has diverged, too, if its train loss at the end is more than so many times that at the start: a mean of it
with others would say nothing of either."""
VALUES = {"last": "at the end of the run", "best": "best over the run"}
SECONDS = {"round": 1.0, "gradient": 0.001}
"""Of modelled time, until a reader of the page says otherwise: 𝒞 for an aggregation, of which a round has one and with
some methods two, and 𝒢 for a gradient of one sample."""
COSTS = ["gradients_per_worker", "vectors_up", "vectors_down", "bytes_up", "bytes_down", "seconds"]
TOLD = ["run", "role", "outcome", "round", "picked", "aggregations"]
"""What a run is called, and what it came to besides."""
KEYS = ["dataset", "partition", "q", "budget", "budget_mode"]
"""What a comparison holds fixed, always; further columns join them where two runs differ in nothing else."""
NEEDED = ["run", "role", "method", "eta", "seed", "outcome", *KEYS, "rounds", "round", *CRITERIA, *COSTS]
METHODS = {
    "minibatch-sgd": "minibatch SGD",
    "local-sgd": "Local SGD",
    "sarah": "SARAH",
    "scaffold": "SCAFFOLD",
    "bvr-l-sgd": "BVR-L-SGD",
    "local-gd": "Local GD",
    "svrg": "SVRG",
    "inexact-dane": "inexact DANE",
    "pr-spider": "PR-SPIDER",
    "fedglomo": "FedGLOMO",
    "mime": "MIME",
    "mimelite": "MIMELite",
    "ce-lsgd": "CE-LSGD",
}


def checked(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame in the order of its runs and rounds, refused if a column is missing or there is nothing in it."""
    missing = [column for column in NEEDED if column not in frame.columns]
    if missing:
        raise DataError(f"the results lack the column {missing[0]!r}")
    if frame.empty:
        raise DataError("there is nothing to report yet: no run has been evaluated")
    return frame.sort_values(["run", "round"], kind="stable").reset_index(drop=True)


def reported(frame: pd.DataFrame) -> pd.DataFrame:
    """The runs to show: the reported ones, or the tuning ones as long as there are no others."""
    rows = frame[frame["role"] == "report"]
    return frame if rows.empty else rows


def label_of(method: str) -> str:
    """`BVR-L-SGD`: the name of a method in a sentence."""
    return METHODS.get(method, method)


def methods_of(frame: pd.DataFrame) -> list[str]:
    """The methods in the frame: the paper's in its order, then the others by name."""
    found = set(frame["method"].unique())
    return [name for name in METHODS if name in found] + sorted(found - set(METHODS))


def criteria_of(frame: pd.DataFrame) -> list[str]:
    """The criteria with a finite value somewhere; without a test set there are no test columns to show."""
    return [name for name in CRITERIA if np.isfinite(frame[name].to_numpy(dtype=float)).any()]


def settings_of(frame: pd.DataFrame) -> list[str]:
    """The columns whose values make up a setting, within which only method and seed differ.

    Besides the usual ones this is every column in which two runs differ that agree in all else: eta where it was
    not tuned, or any other axis of the grid. What follows from the others (K and b from the budget) is none.
    """
    runs = frame.drop_duplicates("run")
    known = ["method", "seed", *KEYS]
    others = [c for c in runs.columns if c not in {*known, *CRITERIA, *COSTS, *TOLD}]
    # A value of its own for every run is an identity, such as a path, and a tuned eta follows from the axes of the
    # grid: the last things to tell two runs apart by.
    others.sort(key=lambda column: (column == "eta", runs[column].astype(str).nunique() == len(runs)))
    for column in others:
        words = runs[column].astype(str)
        if (words.groupby([runs[name] for name in known], dropna=False).nunique() > 1).any():
            known.append(column)
    return [*KEYS, *known[2 + len(KEYS) :]]


def values_of(frame: pd.DataFrame, column: str) -> list[Any]:
    """The values of a setting, sorted; None stands for a missing one and comes last."""
    found = [plain(value) for value in frame[column].unique()]
    values = [value for value in found if value is not None]
    try:
        values.sort()
    except TypeError:
        values.sort(key=str)
    return values + [None] * (len(values) < len(found))


def plain(value: Any) -> Any:
    """A value of a frame as JSON knows it: None for what is missing or not finite."""
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def where(frame: pd.DataFrame, setting: dict[str, Any]) -> pd.DataFrame:
    """The rows with these values, None standing for a missing one."""
    keep = np.ones(len(frame), dtype=bool)
    for column, value in setting.items():
        keep &= (frame[column].isna() if value is None else (frame[column] == value).fillna(False)).to_numpy(dtype=bool)
    return frame[keep]


def groups(frame: pd.DataFrame, columns: list[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """The rows by the values of some columns, those values as plain ones."""
    if not columns:
        yield {}, frame
        return
    for values, rows in frame.groupby(columns, dropna=False, sort=True):
        names: tuple[Hashable, ...] = values if isinstance(values, tuple) else (values,)
        yield dict(zip(columns, map(plain, names), strict=True)), rows


def finals(frame: pd.DataFrame, value: Value = "last") -> pd.DataFrame:
    """One row per run: each criterion at its last round, or the best it ever had (as the paper's figures show).

    `state` is finished, diverged or unfinished; the last covers failed runs and those still under way.
    """
    if value not in VALUES:
        raise SettingError(f"value = {value!r}: must be 'last' or 'best'")
    ends = frame.groupby("run", sort=False).tail(1).set_index("run")
    start = frame.drop_duplicates("run").set_index("run")["train_loss"].reindex(ends.index)
    done = (ends["outcome"] == "finished") & (ends["round"] >= ends["rounds"])
    risen = done & (start > 0) & (ends["train_loss"] > DOUBLED * start)
    lost = (ends["outcome"] == "diverged") | risen
    state = np.where(lost, "diverged", np.where(done, "finished", "unfinished"))
    if value == "best":
        numbers = frame[[*CRITERIA]].astype(float).replace([np.inf, -np.inf], np.nan).groupby(frame["run"])
        for name, criterion in CRITERIA.items():
            ends[name] = numbers[name].min() if criterion.lower_is_better else numbers[name].max()
    return ends.assign(state=state, value=value).reset_index()


def summary(frame: pd.DataFrame, value: Value = "last") -> pd.DataFrame:
    """Mean, standard deviation and n over the complete runs, by method, setting and criterion.

    The standard deviation is the sample's (n - 1), and NaN for a single run.
    """
    ends = finals(frame, value)
    rows: list[dict[str, Any]] = []
    for names, runs in groups(ends, ["method", *settings_of(frame)]):
        complete = runs[runs["state"] == "finished"]
        lost = {state: int((runs["state"] == state).sum()) for state in ("diverged", "unfinished")}
        for name in criteria_of(frame):
            numbers = complete[name].astype(float)
            sd = numbers.std() if len(numbers) > 1 else math.nan
            mean = numbers.mean() if len(numbers) else math.nan
            rows.append({**names, "criterion": name, "mean": mean, "sd": sd, "n": len(numbers), **lost, "value": value})
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation over the seeds of a method at a setting, at the rounds all its runs share."""

    method: str
    setting: dict[str, Any]
    etas: list[float]
    n: int
    diverged: int
    unfinished: int
    waits: int
    """Aggregations a round."""
    table: pd.DataFrame
    """round, gradients_per_worker, bytes, time (modelled), and <criterion>_mean and <criterion>_sd."""


def curves(frame: pd.DataFrame) -> list[Curve]:
    """The curves of all methods and settings.

    A diverged run counts, so the mean ends where the first of them stopped being finite. A run that is not
    finished counts only while there is no other: it would cut the others short.
    """
    criteria, found = criteria_of(frame), []
    states = finals(frame).set_index("run")["state"]
    for names, rows in groups(frame, ["method", *settings_of(frame)]):
        state = rows["run"].map(states)
        lost = {name: int(rows.loc[state == name, "run"].nunique()) for name in ("diverged", "unfinished")}
        if (state != "unfinished").any():
            rows = rows[state != "unfinished"]
        runs = [run.set_index("round") for _, run in rows.groupby("run", sort=False)]
        # Rounds all runs share; of the diverged ones only if there are no others, since they stop early.
        whole = [run for run in runs if run["outcome"].iloc[0] != "diverged"] or runs
        index = whole[0].index
        for run in whole[1:]:
            index = index.intersection(run.index)
        table = pd.DataFrame(index=index)
        table["gradients_per_worker"] = _across(whole, "gradients_per_worker", index).mean(axis=1)
        table["bytes"] = (_across(whole, "bytes_up", index) + _across(whole, "bytes_down", index)).mean(axis=1)
        waits = int(rows["aggregations"].max()) if "aggregations" in rows else 1  # files of earlier versions lack it
        table["time"] = waits * SECONDS["round"] * index + SECONDS["gradient"] * table["gradients_per_worker"]
        for name in criteria:
            values = _across(runs, name, index)
            table[f"{name}_mean"] = values.mean(axis=1, skipna=False)
            table[f"{name}_sd"] = values.std(axis=1, skipna=False) if len(runs) > 1 else math.nan
        method, etas = str(names.pop("method")), [float(eta) for eta in values_of(rows, "eta") if eta is not None]
        table = table.rename_axis("round").reset_index()
        found.append(Curve(method, names, etas, len(runs), **lost, waits=waits, table=table))
    order = methods_of(frame)
    return sorted(found, key=lambda curve: order.index(curve.method))


def _across(runs: list[pd.DataFrame], column: str, index: pd.Index[Any]) -> pd.DataFrame:
    """A column of several runs side by side; what is missing or infinite is NaN."""
    beside = pd.concat([run[column].astype(float).reindex(index) for run in runs], axis=1, ignore_index=True)
    return beside.replace([np.inf, -np.inf], np.nan)


def thinned(table: pd.DataFrame, most: int = 300) -> pd.DataFrame:
    """At most so many rows, evenly taken, the first and the last among them."""
    if len(table) <= most:
        return table
    return table.iloc[np.unique(np.linspace(0, len(table) - 1, most).round().astype(int))]


def ledger(frame: pd.DataFrame) -> pd.DataFrame:
    """What a run has cost at its end, by method and setting but for q (which costs nothing): means over runs."""
    ends = finals(frame)
    columns = [c for c in settings_of(frame) if c != "q"]
    rows: list[dict[str, Any]] = []
    for names, runs in groups(ends, ["method", *columns]):
        complete = runs[runs["state"] == "finished"]
        shown = runs if complete.empty else complete
        steps = {c: values_of(shown, c) for c in ("K", "b") if c in shown}
        row: dict[str, Any] = {**names, **{c: found[0] if len(found) == 1 else None for c, found in steps.items()}}
        row |= {"runs": len(shown), "complete": not complete.empty, "round": float(shown["round"].mean())}
        rows.append(row | {c: float(shown[c].astype(float).mean()) for c in COSTS})
    order = methods_of(frame)
    rows.sort(key=lambda row: order.index(row["method"]))
    return pd.DataFrame(rows)
