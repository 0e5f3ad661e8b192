"""What the pages of this folder share: tables, as rows of text with the head first, and which figures are kept."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fewrounds as fr
from fewrounds.report.figures import write_figures
from fewrounds.report.frames import COSTS, CRITERIA, Value, finals, label_of, methods_of, plain, where
from fewrounds.report.html import name_of

Table = list[tuple[str, ...]]
Content = dict[str, Any]
"""What a packed file has besides its frame."""


def ends(
    frame: pd.DataFrame, criterion: str, axis: str, chosen: Iterable[dict[str, Any]] = (), value: Value = "last"
) -> Table:
    """Mean ± standard deviation (n) of the reported runs at their last round, a column for each value of an axis.

    The best of a column is bold, among the methods that lost no run. With choices, the step sizes stand beside; * is
    at the edge of those tried. With value = "best" it is the best that each run ever had.
    """
    last = finals(frame[frame["role"] == "report"], value)
    values = sorted(last[axis].unique())
    sign = 1 if CRITERIA[criterion].lower_is_better else -1
    words = CRITERIA[criterion].label + ("" if sign == 1 else ", %")
    choices = {(one["method"], one[axis]): one for one in chosen}
    name = name_of(axis)
    heads = [[f"{name} = {value:g}", *(["η"] if choices else [])] for value in values]
    rows: Table = [(words, *(text for head in heads for text in head))]
    whole = last.groupby([axis, "method"]).filter(lambda runs: (runs["state"] == "finished").all())
    means = whole.groupby([axis, "method"])[criterion].mean()
    for method in methods_of(last):
        cells = [label_of(method)]
        for value in values:
            runs = where(last, {"method": method, axis: plain(value)})
            best = (value, method) in means.index and sign * means[value, method] == (sign * means[value]).min()
            text = end(runs, criterion)
            cells.append(f"**{text}**" if best else text)
            if choices:
                one = choices.get((method, value), {"eta": None})
                cells.append("–" if one["eta"] is None else f"{one['eta']:g}{'*' if one['at_edge'] else ''}")
        rows.append(tuple(cells))
    return rows


def until(frame: pd.DataFrame, gradients: float) -> pd.DataFrame:
    """The runs as if they had ended where a worker had taken so many gradients, on a line between evaluations."""
    found = []
    for _, run in frame[frame["outcome"] == "finished"].groupby("run"):
        spent = run["gradients_per_worker"]
        last = run.iloc[[-1]].copy()
        for column in (*CRITERIA, *COSTS):
            last[column] = np.interp(gradients, spent, run[column].astype(float))
        last["round"] = math.ceil(np.interp(gradients, spent, run["round"]))
        cut = pd.concat([run[spent < gradients], last])
        found.append(cut.assign(rounds=last["round"].iloc[0]))
    return pd.concat([frame[frame["outcome"] != "finished"], *found], ignore_index=True)


def end(runs: pd.DataFrame, criterion: str) -> str:
    """Of runs that differ in their seed alone."""
    if runs.empty:
        return "–"
    good = spread(runs[runs["state"] == "finished"][criterion], criterion)
    lost = int((runs["state"] == "diverged").sum())
    return ", ".join([good] * bool(good) + [f"{lost} diverged"] * bool(lost))


def spread(values: pd.Series[Any], criterion: str) -> str:
    """Mean ± standard deviation (n); empty if there are none."""
    scale, digits = (1, 4) if CRITERIA[criterion].lower_is_better else (100, 1)
    if values.empty:
        return ""
    form = f".{digits}f" if abs(values.mean()) < 1000 else ".2g"
    sd = f" ± {scale * values.std():{form}}" if len(values) > 1 else ""
    return f"{scale * values.mean():{form}}{sd} ({len(values)})"


def every_step(frame: pd.DataFrame) -> Table:
    """Train loss at the last round for every step size that was tried, on the seed that the choice was made on."""
    last = finals(frame[frame["role"] == "tuning"])
    etas = sorted(last["eta"].unique())
    rows: Table = [("train loss", "q", *(f"η = {eta:g}" for eta in etas))]
    for name in methods_of(last):
        for q, runs in where(last, {"method": name}).groupby("q"):
            ended = runs.set_index("eta")
            rows.append((label_of(name), f"{q:g}", *(one_step(ended, eta) for eta in etas)))
    return rows


def one_step(ended: pd.DataFrame, eta: float) -> str:
    if eta not in ended.index:
        return ""
    return f"{ended.loc[eta, 'train_loss']:.4f}" if ended.loc[eta, "state"] == "finished" else "×"


def costs(frame: pd.DataFrame, settings: dict[str, dict[str, Any]]) -> Table:
    """What a round cost, counted: the mean over the rounds of a run."""
    last = finals(frame[frame["role"] == "report"])
    good = last[(last["state"] == "finished") & (last["q"] == last["q"].min())]
    rows: Table = [
        ("method", "K", "b", "b̃", "gradients per worker and round", "vectors up / down a round", "aggregations a round")
    ]
    for method in methods_of(good):
        one, own = where(good, {"method": method}).iloc[0], settings[method]
        large = "" if "b_tilde" not in own else str(own["b_tilde"] or "all data")
        up, down = (one[key] / one["round"] for key in ("vectors_up", "vectors_down"))
        spent = f"{one['gradients_per_worker'] / one['round']:.1f}"
        steps = [str(own.get(key) or "") for key in ("K", "b")]
        waits = fr.method(method, **own).aggregations
        rows.append((label_of(method), *steps, large, spent, f"{up:.1f} / {down:.1f}", str(waits)))
    return rows


def settings_of_methods(content: Content, **data: Any) -> dict[str, dict[str, Any]]:
    """The settings that the runs had, by method; of the runs with these values under [data]."""
    return {
        spec["train"]["method"]: content["records"][run]["method_settings"]
        for run, spec in content["grid"]["runs"].items()
        if run in content["records"] and all(spec["data"][key] == value for key, value in data.items())
    }


def hours(content: Content) -> float:
    """Added up over the runs, from when each began to when it ended."""
    times = [pd.Timestamp(one["ended"]) - pd.Timestamp(one["began"]) for one in content["records"].values()]
    return sum(time.total_seconds() for time in times) / 3600


def counted(frame: pd.DataFrame) -> tuple[str, str]:
    """How many runs there are, and how many of them diverged, in words."""
    ends = finals(frame)
    runs, lost = ends.groupby("role").size(), ends[ends["state"] == "diverged"].groupby("role").size()
    words = {"tuning": "to tune", "report": "reported"}
    said = [
        ", ".join(f"{count[role]} {word}" for role, word in words.items() if role in count) for count in (runs, lost)
    ]
    return said[0], said[1] or "none"


def keep_figures(frames: dict[str, pd.DataFrame], folder: Path, names: Iterable[str]) -> None:
    """Draw the figures of frames, and keep those with these names as PNG; there must be each.

    The key of a frame is what the names of its figures begin with.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    with tempfile.TemporaryDirectory() as drawn:
        files = {
            f"{start}{path.stem}": path
            for start, frame in frames.items()
            for path in write_figures(Path(drawn) / f"of {start}", frame)
            if path.suffix == ".png"
        }
        for name in names:
            shutil.copy(files[name], folder / f"{name}.png")
