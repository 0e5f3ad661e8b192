"""The page of an experiment: one file that works from disk, without a network, for as long as there are browsers."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd
from plotly.offline import get_plotlyjs

from fewrounds.errors import SettingError
from fewrounds.report import tables, words
from fewrounds.report.claims import check_claims
from fewrounds.report.figures import write_figures
from fewrounds.report.frames import (
    CRITERIA,
    SECONDS,
    VALUES,
    checked,
    criteria_of,
    curves,
    label_of,
    methods_of,
    plain,
    reported,
    summary,
    thinned,
    values_of,
)
from fewrounds.report.html import name_of, text_of, varying
from fewrounds.report.measured import measured_section
from fewrounds.report.styles import styles_of

CHOSEN = ["method", "q", "budget", "budget_mode", "dataset", "eta", "score", "at_edge"]


def write_report(
    folder: Path, frame: pd.DataFrame, chosen: pd.DataFrame | None, meta: Mapping[str, Any], *, figures: bool = True
) -> Path:
    """Write `folder/index.html` and the figures in `folder/figures`; return the path of the page.

    The figures take the most time, and can be left out.

    The page is complete or not there: it is written beside its place and renamed. All of `frame`, `chosen` and
    `meta` may be partial; what is missing is left out or said to be missing.
    """
    frame = checked(frame)
    chosen = pd.DataFrame(columns=CHOSEN) if chosen is None else chosen
    path = folder / "index.html"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        drawn = write_figures(folder / "figures", frame) if figures else []
        _replace(path, page(frame, chosen, meta, [figure.name for figure in drawn]))
    except OSError as error:
        raise SettingError(f"cannot write the report to {folder}: {error.strerror or error}") from error
    return path


def page(frame: pd.DataFrame, chosen: pd.DataFrame, meta: Mapping[str, Any], figures: list[str]) -> str:
    """The page as text."""
    claims = check_claims(frame)
    measured = meta.get("measured") or []
    return Template(_part("page.html")).substitute(
        title=escape(str(meta.get("name") or "fewrounds")),
        style=_part("page.css"),
        summary=words.summary_text(frame, claims, meta),
        numbers=tables.numbers_table(frame),
        figures=words.figures_list(figures),
        claims=tables.claims_table(claims),
        measured=measured_section(measured),
        measured_link='<a href="#measured">Heterogeneity</a> ' if measured else "",
        rates=tables.rates_table(chosen, meta),
        ledger=tables.ledger_table(frame, meta),
        failures=tables.failures_table(frame, meta),
        made=words.made_text(meta),
        seconds_round=f"{SECONDS['round']:g}",
        seconds_gradient=f"{SECONDS['gradient']:g}",
        data=embedded(page_data(frame)),
        plotly=get_plotlyjs(),
        script=_part("page.js"),
    )


def page_data(frame: pd.DataFrame) -> dict[str, Any]:
    """What page.js draws."""
    frame = reported(frame)
    methods, settings, criteria = methods_of(frame), varying(frame), criteria_of(frame)
    return {
        "criteria": [
            {"key": key, "label": CRITERIA[key].label, "log": CRITERIA[key].lower_is_better} for key in criteria
        ],
        "methods": [
            {
                "key": name,
                "label": label_of(name),
                "colour": style.colour,
                "dark": style.dark,
                "dash": ",".join(f"{length:g}px" for length in style.dash) or "solid",
                "symbol": style.symbol,
                "path": style.path,
            }
            for name, style in styles_of(methods).items()
        ],
        "settings": [_selector(frame, column) for column in settings],
        "curves": _curves(frame, settings, criteria),
        "finals": _finals(frame, settings),
    }


def _selector(frame: pd.DataFrame, column: str) -> dict[str, Any]:
    """The values of a setting; the page starts at the paper's comparisons, the smallest q and the largest budget."""
    values = values_of(frame, column)
    numbers = [value for value in values if value is not None]
    return {
        "key": column,
        "label": name_of(column),
        "values": [{"value": v, "text": "none" if v is None else text_of(v)} for v in values],
        "start": max(len(numbers) - 1, 0) if column == "budget" else 0,
    }


def _curves(frame: pd.DataFrame, settings: list[str], criteria: list[str]) -> list[dict[str, Any]]:
    found = []
    for curve in curves(frame):
        table = thinned(curve.table)
        found.append(
            {
                "method": curve.method,
                "setting": {column: curve.setting[column] for column in settings},
                "eta": ", ".join(f"{eta:g}" for eta in curve.etas),
                "n": curve.n,
                "diverged": curve.diverged,
                "unfinished": curve.unfinished,
                "waits": curve.waits,
                **{column: _numbers(table[column]) for column in ("round", "gradients_per_worker", "bytes")},
                "mean": {key: _numbers(table[f"{key}_mean"]) for key in criteria},
                "sd": {key: _numbers(table[f"{key}_sd"]) for key in criteria},
            }
        )
    return found


def _finals(frame: pd.DataFrame, settings: list[str]) -> list[dict[str, Any]]:
    columns = ["method", "criterion", "value", "mean", "sd", "n", "diverged", "unfinished"]
    return [
        {
            **{column: _short(row[column]) for column in columns},
            "setting": {column: plain(row[column]) for column in settings},
        }
        for value in VALUES
        for _, row in summary(frame, value).iterrows()  # type: ignore[arg-type]
    ]


def _numbers(column: pd.Series[Any]) -> list[Any]:
    return [_short(value) for value in column]


def _short(value: Any) -> Any:
    """Seven digits are more than a screen shows, and keep the page small; what is not finite is null."""
    value = plain(value)
    return float(f"{value:.7g}") if isinstance(value, float) else value


def embedded(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _part(name: str) -> str:
    return resources.files("fewrounds.report").joinpath(name).read_text(encoding="utf-8")


def _replace(path: Path, text: str) -> None:
    """The whole file or the old one, never a half."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
