"""The tables of the page, as HTML that needs no JavaScript."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import pandas as pd

from fewrounds.report.claims import Claim
from fewrounds.report.frames import (
    CRITERIA,
    KEYS,
    criteria_of,
    finals,
    label_of,
    ledger,
    methods_of,
    plain,
    reported,
    settings_of,
    summary,
    values_of,
    where,
)
from fewrounds.report.html import Html, name_of, plural, plus_minus, table, text_of, varying


def claims_table(claims: list[Claim]) -> str:
    several = list(dict.fromkeys(c for claim in claims for c in claim.setting))
    marks = {"holds": "✓ holds", "does not hold": "✗ does not hold", "not checked": "– not checked"}
    kinds = {"holds": "holds", "does not hold": "fails", "not checked": "quiet"}
    rows, told = [], set()
    for claim in sorted(claims, key=lambda claim: claim.number):  # each wherever it was checked
        rule = "" if claim.number in told else f"<small>{escape(claim.criterion)}</small>"
        told.add(claim.number)
        rows.append(
            [
                claim.number,
                Html(f'<div class="words">{escape(claim.statement)}{rule}</div>'),
                *(claim.setting.get(c) for c in several),
                Html(f'<span class="verdict {kinds[claim.verdict]}">{marks[claim.verdict]}</span>'),
                Html(f'<div class="words">{escape(claim.evidence)}</div>'),
            ]
        )
    head = ["", "claim, and how it is judged here", *map(name_of, several), "verdict", "evidence"]
    note = (
        "<p>Each claim is judged by a rule written beside it, on the train loss at the end of the reported runs. "
        "Budgets and q are those of these runs, which need not be the paper's.</p>"
    )
    return note + table(head, rows, "Claims of the paper", range(len(head)), "scroll stack")


def rates_table(chosen: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """The chosen learning rate by method and setting, a column for each q."""
    if chosen.empty:
        return "<p>No learning rate was tuned: each run has the one its experiment file gives.</p>"
    qs = values_of(chosen, "q")
    known = ["q", "method", "eta", "score", "at_edge"]
    others = [c for c in chosen.columns if c not in known and (c == "budget" or len(values_of(chosen, c)) > 1)]
    rows = []
    for name in methods_of(chosen):
        own = chosen[chosen["method"] == name]
        for _, first in own.drop_duplicates(others).sort_values(others).iterrows():
            setting = {c: plain(first[c]) for c in others}
            cells = [_rate(where(own, {**setting, "q": q})) for q in qs]
            rows.append([label_of(name), *setting.values(), *cells])
    head = ["method", *map(name_of, others), *(["η"] if qs == [None] else [f"η at q = {text_of(q)}" for q in qs])]
    words = [0, *(i for i, c in enumerate(others, start=1) if not pd.api.types.is_numeric_dtype(chosen[c]))]
    edge = int(chosen["at_edge"].fillna(False).astype(bool).sum())
    grid = ", ".join(text_of(eta) for eta in meta.get("etas") or [])
    notes = [f"Chosen by: {escape(str(meta['tuning_rule']))}."] if meta.get("tuning_rule") else []
    notes += [f"Grid: {escape(grid)}."] if grid else []
    if edge:
        notes.append(f"{edge} of {len(chosen)} lie at the edge of the grid: a wider grid might find a better one.")
    return f"<p>{' '.join(notes)}</p>" + table(head, rows, "Chosen learning rates", words)


def _rate(rows: pd.DataFrame) -> Html:
    if rows.empty:
        return Html("–")
    row = rows.iloc[0]
    score = plain(row["score"]) if "score" in rows else None
    notes = [] if score is None else [f"score {score:.4g}"]
    notes += ['<span class="edge">⚠ at the edge of the grid</span>'] * bool(plain(row["at_edge"]))
    return Html(escape(text_of(row["eta"])) + "".join(f"<small>{note}</small>" for note in notes))


def ledger_table(frame: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    """What each method spent, at the end of its runs."""
    costs = ledger(reported(frame))
    shown = [c for c in costs.columns if c in (*KEYS, *settings_of(frame)) and c not in ("K", "b")]
    shown = [c for c in shown if len(values_of(costs, c)) > 1]
    steps = [c for c in ("K", "b") if c in costs and costs[c].notna().any()]
    head = ["method", *map(name_of, shown), *steps, "rounds", "gradients per worker", "a round"]
    head += ["vectors up", "vectors down", "MB up", "MB down", "seconds measured"]
    rows = []
    for _, row in costs.iterrows():
        a_round = row["gradients_per_worker"] / row["round"] if row["round"] else math.nan
        cells = [f"{row[c]:,.0f}" for c in ("round", "gradients_per_worker")] + [f"{a_round:,.1f}"]
        cells += [f"{row[c]:,.0f}" for c in ("vectors_up", "vectors_down")]
        cells += [f"{row[c] / 1e6:,.1f}" for c in ("bytes_up", "bytes_down")] + [f"{row['seconds']:,.1f}"]
        rows.append([label_of(row["method"]), *(row[c] for c in shown), *(_whole(row[c]) for c in steps), *cells])
    note = (
        "<p>What a run has spent when it ends, mean over the finished runs of all q. A gradient is of one sample at "
        "one point; a vector is as long as the model and travels between the server and one worker, all workers "
        "together. MB are millions of bytes. Evaluation is not counted, in the seconds neither.</p>"
    )
    words = [0, *(i for i, c in enumerate(shown, start=1) if costs[c].map(lambda v: isinstance(v, str)).any())]
    return note + table(head, rows, "Ledger", words) + _missed(meta)


def _missed(meta: Mapping[str, Any]) -> str:
    """The sites that rounds were done without."""
    missed = list(meta.get("missed") or [])
    if not missed:
        return ""
    rows = [[name, f"{count:,}", f"{rounds:,}"] for name, count, rounds in missed]
    note = (
        "<p><strong>Not every round was done with every site.</strong> A round without a site is the mean over the "
        "others.</p>"
    )
    return note + table(["site", "rounds without it", "of"], rows, "Rounds without a site", [0])


def failures_table(frame: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    parts = []
    failures = list(meta.get("failures") or [])
    if failures:
        columns = ["run", "method", "eta", "seed", "reason"]
        rows = [[label_of(str(f.get(c))) if c == "method" else f.get(c) for c in columns] for f in failures]
        parts.append(f"<p>{len(failures)} {plural(len(failures), 'run')} failed, and the rest went on.</p>")
        parts.append(table([*map(name_of, columns)], rows, "Failed runs", (0, 1, 4), "scroll"))
    ends = finals(frame)
    lost = ends[ends["state"] == "diverged"]
    if not lost.empty:
        settings = varying(frame)
        columns = ["run", "role", "method", *dict.fromkeys(["eta", "seed", *settings])]
        rows = [
            [label_of(row["method"]) if c == "method" else row[c] for c in columns] + [row["round"]]
            for _, row in lost.sort_values(["role", "method", "run"]).iterrows()
        ]
        parts.append(
            f"<p>{len(lost)} {plural(len(lost), 'run')} diverged: the loss was no longer finite, or had more than "
            "doubled at the end. In tuning that is what a too large learning rate looks like; a reported run that "
            "diverged counts as such in the figures.</p>"
        )
        inner = table([*map(name_of, columns), "after round"], rows, "Diverged runs", (0, 1, 2))
        parts.append(f"<details><summary>The diverged runs</summary>{inner}</details>" if len(lost) > 8 else inner)
    return "\n".join(parts) or "<p>No run failed, and none diverged.</p>"


def numbers_table(frame: pd.DataFrame) -> str:
    """All final values, for readers who want the numbers, or cannot see the figures."""
    shown = reported(frame)
    ends = summary(shown)
    criteria, settings = criteria_of(shown), varying(shown)
    rows = []
    order = methods_of(shown)
    for keys, own in ends.groupby(["method", *settings], dropna=False, sort=True):
        cells = own.set_index("criterion")
        values = [
            f"{text_of(cells.loc[c, 'mean'])}{plus_minus(cells.loc[c, 'sd'])}" if cells["n"].iloc[0] else None
            for c in criteria
        ]
        n, diverged = (int(cells[c].iloc[0]) for c in ("n", "diverged"))
        rows.append([*keys, n if not diverged else f"{n}, {diverged} diverged", *values])
    rows.sort(key=lambda row: order.index(str(row[0])))
    rows = [[label_of(str(name)), *others] for name, *others in rows]
    words = [0, *(i for i, c in enumerate(settings, start=1) if not pd.api.types.is_numeric_dtype(shown[c]))]
    head = ["method", *map(name_of, settings), "n", *(CRITERIA[c].label for c in criteria)]
    inner = table(head, rows, "Values at the end of the runs", words)
    return f"<details><summary>The numbers at the end of the runs, mean ± standard deviation</summary>{inner}</details>"


def _whole(value: Any) -> Any:
    return None if plain(value) is None else f"{int(value)}"
