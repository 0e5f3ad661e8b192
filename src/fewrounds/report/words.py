"""What the page says in sentences: what was run, what came out, how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import pandas as pd

from fewrounds.report.claims import Claim
from fewrounds.report.frames import finals, label_of, methods_of, reported, settings_of, summary, values_of, where
from fewrounds.report.html import listed, name_of, number_word, plural, plus_minus, text_of, varying


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
        f"{name_of(c)} {listed([text_of(v) for v in values_of(shown, c) if v is not None])}"
        for c in ("q", "budget")
        if shown[c].notna().any()
    ]
    rounds = listed([text_of(v) for v in values_of(shown, "rounds")])
    seeds = [str(seed) for seed in values_of(shown, "seed")]
    what = (
        f"{number_word(len(methods)).capitalize()} {plural(len(methods), 'method')} on {data}: {listed(methods)}. "
        f"{len(ends)} {kind} {plural(len(ends), 'run')} of {rounds} rounds, {plural(len(seeds), 'seed')} "
        f"{listed(seeds)}{'; ' if axes else ''}{', '.join(axes)}."
    )
    parts.append(f"<p>{escape(what)} {escape(_outcomes(ends))}</p>")
    if kind == "tuning":
        parts.append(
            "<p><strong>There are only tuning runs so far: these are shown, and no claim is checked.</strong></p>"
        )
    winner = _winner(shown)
    if winner:
        parts.append(f"<p>{escape(winner)}</p>")
    words = {
        "holds": ("holds", "hold"),
        "does not hold": ("does not", "do not"),
        "not checked": ("could not be checked",) * 2,
    }
    counts = {verdict: sum(claim.verdict == verdict for claim in claims) for verdict in words}
    found = listed([f"{number_word(n)} {words[verdict][n != 1]}" for verdict, n in counts.items() if n])
    parts.append(f'<p>Of the paper\'s claims, {found} (<a href="#claims">which, and why</a>).</p>')
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
        f"{label_of(row['method'])} ({text_of(row['mean'])}{plus_minus(row['sd'])}, n = {row['n']})"
        for _, row in rows.head(2).iterrows()
    )
    at = ", ".join(f"{name_of(c)} = {text_of(setting[c])}" for c in varying(frame))
    return f"{'At ' + at + ' the' if at else 'The'} lowest train loss at the end is that of {first}, then {second}."


def _outcomes(ends: pd.DataFrame) -> str:
    lost = {s: int((ends["state"] == s).sum()) for s in ("diverged", "unfinished")}
    words = [
        f"{count} {word}"
        for count, word in ((lost["diverged"], "diverged"), (lost["unfinished"], "not finished"))
        if count
    ]
    return f"Of these, {listed(words)}." if words else ""


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
            f"<p><strong>Learning rates were chosen and reported on the same {plural(len(both), 'seed')} "
            f"({listed(both)}), which "
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
