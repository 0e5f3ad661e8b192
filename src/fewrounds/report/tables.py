"""The words and tables of the page, as HTML that needs no JavaScript."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

LABELS = {"q": "q", "budget": "budget", "budget_mode": "budget mode", "eta": "η"}
NUMBER_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class Html(str):
    """Text that is HTML already."""


def text_of(value: Any) -> str:
    """A value as a reader wants it: no trailing zeros, a dash for what is missing."""
    value = plain(value)
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def name_of(column: str) -> str:
    return LABELS.get(column, column.replace("_", " "))


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], label: str, words: Sequence[int] = (0,)) -> str:
    """A table in a box of its own that scrolls; the columns in `words` are text, the others numbers."""
    kinds = ["" if i in words else ' class="number"' for i in range(len(head))]
    top = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(head, kinds, strict=True))
    body = []
    for row in rows:
        cells = [value if isinstance(value, Html) else escape(text_of(value)) for value in row]
        first, *others = zip(cells, kinds, strict=True)
        line = "".join(f"<td{kind}>{cell}</td>" for cell, kind in others)
        body.append(f'<tr><th scope="row"{first[1]}>{first[0]}</th>{line}</tr>')
    # A box that scrolls must be reached by the keyboard, hence the tabindex, the role and the name.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}"><table><thead><tr>{top}</tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def varying(frame: pd.DataFrame) -> list[str]:
    """The settings with more than one value; the others need no column and no selector."""
    return [column for column in settings_of(frame) if len(values_of(frame, column)) > 1]


def summary_text(frame: pd.DataFrame, claims: list[Claim], meta: Mapping[str, Any]) -> str:
    """What was run and what came out, in a few sentences."""
    shown = reported(frame)
    ends = finals(shown)
    methods = [label_of(name) for name in methods_of(shown)]
    parts = []
    if meta.get("description"):
        parts.append(f"<p>{escape(str(meta['description']))}</p>")
    kind = "reported" if (shown["role"] == "report").all() else "tuning"
    data = ", ".join(map(str, values_of(shown, "dataset")))
    axes = [
        f"{name_of(c)} {_listed([text_of(v) for v in values_of(shown, c) if v is not None])}"
        for c in ("q", "budget")
        if shown[c].notna().any()
    ]
    rounds = _listed([text_of(v) for v in values_of(shown, "rounds")])
    seeds = [str(seed) for seed in values_of(shown, "seed")]
    what = (
        f"{_listed(methods)} on {data}" + (f", {', '.join(axes)}" if axes else "") + f": {len(ends)} {kind} "
        f"{_plural(len(ends), 'run')} of {rounds} rounds, {_plural(len(seeds), 'seed')} {_listed(seeds)}."
    )
    parts.append(f"<p>{escape(what)} {escape(_outcomes(ends))}</p>")
    if kind == "tuning":
        parts.append(
            "<p><strong>There are only tuning runs so far: these are shown, and no claim is checked.</strong></p>"
        )
    winner = _winner(shown)
    if winner:
        parts.append(f"<p>{escape(winner)}</p>")
    counts = {v: sum(c.verdict == v for c in claims) for v in ("holds", "does not hold", "not checked")}
    found = (
        f"Of the paper's claims {_number(counts['holds'])} {'holds' if counts['holds'] == 1 else 'hold'} here, "
        f"{_number(counts['does not hold'])} {'does' if counts['does not hold'] == 1 else 'do'} not, and "
        f"{_number(counts['not checked'])} could not be checked"
    )
    parts.append(f'<p>{found} (<a href="#claims">which and why</a>).</p>')
    return "\n".join(parts)


def _winner(frame: pd.DataFrame) -> str:
    """The lowest final train loss at the hardest setting: the largest q and budget, the first of the others."""
    setting = {c: values_of(frame, c)[0] for c in settings_of(frame)}
    for c in ("q", "budget"):
        numbers = [v for v in values_of(frame, c) if v is not None]
        setting[c] = numbers[-1] if numbers else None
    rows = where(summary(frame), {**setting, "criterion": "train_loss"})
    rows = rows[rows["mean"].notna() & (rows["diverged"] == 0)].sort_values("mean")
    if len(rows) < 2:
        return ""
    first, second = (
        f"{label_of(row['method'])} ({text_of(row['mean'])}{_sd(row['sd'])}, n = {row['n']})"
        for _, row in rows.head(2).iterrows()
    )
    at = ", ".join(f"{name_of(c)} = {text_of(setting[c])}" for c in varying(frame))
    return f"{'At ' + at + ' the' if at else 'The'} lowest train loss at the end is that of {first}, then {second}."


def claims_table(claims: list[Claim]) -> str:
    several = list(dict.fromkeys(c for claim in claims for c in claim.setting))
    marks = {"holds": "✓ holds", "does not hold": "✗ does not hold", "not checked": "– not checked"}
    kinds = {"holds": "holds", "does not hold": "fails", "not checked": "quiet"}
    rows = [
        [
            claim.number,
            Html(f"{escape(claim.statement)}<small>{escape(claim.criterion)}</small>"),
            *(claim.setting.get(c) for c in several),
            Html(f'<span class="verdict {kinds[claim.verdict]}">{marks[claim.verdict]}</span>'),
            Html(f'<div class="words">{escape(claim.evidence)}</div>'),
        ]
        for claim in claims
    ]
    head = ["", "claim, and how it is judged here", *map(name_of, several), "verdict", "evidence"]
    note = (
        "<p>Each claim is judged by a rule written beside it, on the train loss at the end of the reported runs. "
        "Budgets and q are those of these runs, which need not be the paper's.</p>"
    )
    return note + table(head, rows, "Claims of the paper", range(len(head)))


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
    edge = '<br><span class="edge">⚠ at the edge of the grid</span>' if bool(plain(row["at_edge"])) else ""
    return Html(escape(text_of(row["eta"])) + edge + (f"<small>score {score:.4g}</small>" if score is not None else ""))


def ledger_table(frame: pd.DataFrame) -> str:
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
    return note + table(head, rows, "Ledger", words)


def failures_table(frame: pd.DataFrame, meta: Mapping[str, Any]) -> str:
    parts = []
    failures = list(meta.get("failures") or [])
    if failures:
        columns = ["run", "method", "eta", "seed", "reason"]
        rows = [[label_of(str(f.get(c))) if c == "method" else f.get(c) for c in columns] for f in failures]
        parts.append(f"<p>{len(failures)} {_plural(len(failures), 'run')} failed, and the rest went on.</p>")
        parts.append(table([*map(name_of, columns)], rows, "Failed runs", (0, 1, 4)))
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
            f"<p>{len(lost)} {_plural(len(lost), 'run')} diverged: the loss was no longer a finite number. In tuning "
            "that is what a too large learning rate looks like; a reported run that diverged counts as such in the "
            "figures.</p>"
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
            f"{text_of(cells.loc[c, 'mean'])}{_sd(cells.loc[c, 'sd'])}" if cells["n"].iloc[0] else None
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


def made_text(meta: Mapping[str, Any]) -> str:
    """Commit, versions, machine, seeds and the experiment file."""
    tuning, report = (list(meta.get(key) or []) for key in ("tuning_seeds", "report_seeds"))
    versions = ", ".join(f"{name} {version}" for name, version in (meta.get("versions") or {}).items())
    items = {
        "experiment": meta.get("name"),
        "commit": meta.get("commit"),
        "versions": versions,
        "machine": meta.get("machine"),
        "started": meta.get("started"),
        "finished": meta.get("finished") or "not yet",
        "tuning rule": meta.get("tuning_rule"),
        "learning rates tried": ", ".join(text_of(eta) for eta in meta.get("etas") or []),
        "tuning seeds": ", ".join(map(str, tuning)),
        "reported seeds": ", ".join(map(str, report)),
    }
    lines = "".join(f"<dt>{name}</dt><dd>{escape(str(value))}</dd>" for name, value in items.items() if value)
    words = ""
    if tuning and report:
        both = [str(seed) for seed in sorted(set(tuning) & set(report))]
        words = (
            f"<p><strong>Learning rates were chosen and reported on the same {_plural(len(both), 'seed')} "
            f"({_listed(both)}), which "
            "flatters what was chosen.</strong></p>"
            if both
            else "<p>Learning rates were chosen on other seeds than those reported, so no figure shows a run that "
            "had a say in the choice.</p>"
        )
    config = str(meta.get("config") or "")
    details = (
        f"<details><summary>The experiment file (TOML)</summary><pre>{escape(config)}</pre></details>" if config else ""
    )
    return f"{words}<dl>{lines}</dl>{details}"


def figures_list(files: Sequence[str]) -> str:
    """Links to the figures for a paper, each as PNG and PDF."""
    if not files:
        return ""
    stems = list(dict.fromkeys(file.rsplit(".", 1)[0] for file in files))
    links = "".join(
        f'<li>{escape(s)}: <a href="figures/{escape(s)}.png">PNG</a>, <a href="figures/{escape(s)}.pdf">PDF</a></li>'
        for s in stems
    )
    return f'<details><summary>Figures for a paper, PNG and PDF</summary><ul class="files">{links}</ul></details>'


def _outcomes(ends: pd.DataFrame) -> str:
    lost = {s: int((ends["state"] == s).sum()) for s in ("diverged", "unfinished")}
    words = [
        f"{count} {word}"
        for count, word in ((lost["diverged"], "diverged"), (lost["unfinished"], "not finished"))
        if count
    ]
    return f"Of these, {_listed(words)}." if words else ""


def _sd(sd: Any) -> str:
    return "" if plain(sd) is None else f" ± {sd:.2g}"


def _whole(value: Any) -> Any:
    return None if plain(value) is None else f"{int(value)}"


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def _number(count: int) -> str:
    return NUMBER_WORDS[count] if count < len(NUMBER_WORDS) else str(count)


def _listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
