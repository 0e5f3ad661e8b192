"""From the runs to this folder: the tidy frame, the tables of README.md, the figures and the page.

python results/build.py           reads runs/evidence-* and runs/ablation-*, and writes everything
python results/build.py --frame   writes the rest again from frame.parquet alone
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fewrounds import load_results
from fewrounds.report import write_report
from fewrounds.report.claims import check_claims
from fewrounds.report.frames import label_of, methods_of, summary, where
from fewrounds.report.marked import filled

HERE = Path(__file__).parent
RUNS = HERE.parent / "runs"
FRAME = HERE / "frame.parquet"
PARTS = {
    "a": "evidence-a",
    "b": "evidence-b",
    "c": "evidence-c",
    "d": "evidence-d",
    "e": "evidence-e",
    "combine": "ablation-combine",
    "stage": "ablation-stage",
}
Table = list[tuple[str, ...]]


def collect() -> pd.DataFrame:
    """All runs of all parts that are there, as one frame."""
    frames, about = [], {}
    for part, name in PARTS.items():
        folder = RUNS / name
        if not (folder / "grid.json").exists():
            continue
        frames.append(load_results(folder).assign(part=part))
        grid = json.loads((folder / "grid.json").read_text())
        about[part] = {
            "environment": grid["environment"],
            "chosen": grid["chosen"],
            "hours": round(hours(folder, list(grid["runs"])), 2),
        }
    frame = pd.concat(frames, ignore_index=True)
    frame.to_parquet(FRAME, index=False, compression="zstd")
    (HERE / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return frame


def hours(folder: Path, runs: list[str]) -> float:
    """Hours of one core that the runs took, from when they began to when they ended."""
    total = 0.0
    for run in runs:
        record = json.loads((folder / "runs" / run / "run.json").read_text())
        if "began" in record:
            total += (pd.Timestamp(record["ended"]) - pd.Timestamp(record["began"])).total_seconds()
    return total / 3600


# ---------------------------------------------------------------------- tables


def tables(frame: pd.DataFrame) -> dict[str, Table]:
    """The tables of README.md, by the name of their marks."""
    parts = set(frame["part"])
    out: dict[str, Table] = {}
    for part, name in (("a", "paper"), ("e", "strict")):
        if part in parts:
            out[f"rates-{name}"] = rates(frame[frame["part"] == part])
            out[f"loss-{name}"] = ends(frame[frame["part"] == part], "train_loss", "q")
            out[f"accuracy-{name}"] = ends(frame[frame["part"] == part], "test_accuracy", "q")
    if "b" in parts:
        out["budget"] = ends(frame[frame["part"] == "b"], "train_loss", "budget")
    if {"b", "c"} <= parts:
        out["heterogeneity"] = ends(largest_budget(frame), "train_loss", "q")
    if "d" in parts:
        out["long"] = ends(frame[frame["part"] == "d"], "train_loss", "q")
    for part in ("combine", "stage"):
        if part in parts:
            out[part] = ablation(frame[frame["part"] == part], "T" if part == "stage" else "combine")
    out["claims"] = claims(frame)
    return out


def largest_budget(frame: pd.DataFrame) -> pd.DataFrame:
    """Budget 1024 at every q, from parts b and c."""
    return frame[frame["part"].isin(["b", "c"]) & (frame["budget"] == 1024)]


def rates(frame: pd.DataFrame) -> Table:
    """The chosen step size of each method at each q; * at the edge of what was tried."""
    reported, tried = frame[frame["role"] == "report"], frame[frame["role"] == "tuning"]
    qs = sorted(reported["q"].unique())
    rows: Table = [("chosen η", *(f"q = {q:g}" for q in qs))]
    for method in methods_of(reported):
        cells = []
        for q in qs:
            (eta,) = where(reported, {"method": method, "q": q})["eta"].unique()
            etas = where(tried, {"method": method, "q": q})["eta"]
            cells.append(f"{eta:g}{'*' if eta in (etas.min(), etas.max()) else ''}")
        rows.append((label_of(method), *cells))
    return rows


def ends(frame: pd.DataFrame, criterion: str, axis: str) -> Table:
    """Mean ± standard deviation (n) at the last round, by method and along an axis; the best in bold."""
    found = summary(frame[frame["role"] == "report"])
    found = found[found["criterion"] == criterion]
    values = sorted(found[axis].unique())
    sign, scale, digits = (-1, 100, 1) if criterion.endswith("accuracy") else (1, 1, 4)
    words = {"train_loss": "train loss", "test_accuracy": "test accuracy, %"}[criterion]
    rows: Table = [(words, *(f"{axis} = {value:g}" for value in values))]
    best = {value: (sign * found[found[axis] == value]["mean"]).min() for value in values}
    for method in methods_of(frame):
        cells = []
        for value in values:
            row = found[(found["method"] == method) & (found[axis] == value)]
            cells.append(
                end(row.iloc[0], scale, digits, sign * row.iloc[0]["mean"] == best[value]) if len(row) else "–"
            )
        rows.append((label_of(method), *cells))
    return rows


def end(row: Any, scale: float, digits: int, best: bool) -> str:
    if row["n"] == 0:
        return "diverged"
    spread = "" if np.isnan(row["sd"]) else f" ± {scale * row['sd']:.{digits}f}"
    text = f"{scale * row['mean']:.{digits}f}{spread} ({row['n']})"
    text += f", {row['diverged']} diverged" if row["diverged"] else ""
    return f"**{text}**" if best else text


def ablation(frame: pd.DataFrame, setting: str) -> Table:
    """BVR-L-SGD at the last round for each value of a setting, with what it spent."""
    reported = frame[frame["role"] == "report"]
    rows: Table = [("q", setting, "η", "train loss", "test accuracy, %", "gradients per worker", "vectors up")]
    last = reported.loc[reported.groupby("run")["round"].idxmax()]
    for (q, value), runs in last.groupby(["q", setting]):
        good = runs[runs["outcome"] == "finished"]
        loss, accuracy = good["train_loss"], 100 * good["test_accuracy"]
        rows.append(
            (
                f"{q:g}",
                f"{value:g}" if isinstance(value, float) else str(value),
                f"{runs['eta'].iloc[0]:g}",
                f"{loss.mean():.4f} ± {loss.std():.4f} ({len(good)})",
                f"{accuracy.mean():.1f} ± {accuracy.std():.1f}",
                f"{runs['gradients_per_worker'].mean():,.0f}",
                f"{runs['vectors_up'].mean():,.0f}",
            )
        )
    return rows


def claims(frame: pd.DataFrame) -> Table:
    """The verdict on each claim, on the part of the runs that it speaks of."""
    rows: Table = [("claim", "checked on", "verdict", "rests on")]
    cases = [
        (1, "budget 1024, 500 rounds", largest_budget(frame)),
        (1, "budget 256, 1,000 rounds", frame[frame["part"] == "a"]),
        (2, "budget 1024, 500 rounds", largest_budget(frame)),
        (2, "budget 256, 1,000 rounds", frame[frame["part"] == "a"]),
        (2, "strict budget 256, 1,000 rounds", frame[frame["part"] == "e"]),
        (3, "q = 0.1, 500 rounds", frame[frame["part"] == "b"]),
        (4, "budget 256, 1,000 rounds", frame[frame["part"] == "a"]),
        (4, "strict budget 256, 1,000 rounds", frame[frame["part"] == "e"]),
        (5, "every iterate, bit for bit", frame[frame["part"] == "a"]),
    ]
    for number, place, part in cases:
        if part[part["role"] == "report"].empty:
            continue
        claim = next(claim for claim in check_claims(part) if claim.number == number)
        rows.append((f"{number}. {claim.statement}", place, f"**{claim.verdict}**", claim.evidence))
    return rows


# ---------------------------------------------------------------------- the folder


def build(frame: pd.DataFrame) -> None:
    readme = HERE / "README.md"
    readme.write_text(filled(readme.read_text(), tables(frame)))
    about = json.loads((HERE / "about.json").read_text())
    chosen = pd.DataFrame(
        [
            {key: value for key, value in choice.items() if key not in ("scores", "reason")}
            for part in about.values()
            for choice in part["chosen"]
            if choice["eta"] is not None
        ]
    )
    meta = {
        "name": "The paper's experiments on CIFAR-10",
        "description": "What was run, in parts, is in README.md beside this page.",
        **next(iter(about.values()))["environment"],
        "tuning_rule": "paper",
        "tuning_seeds": [0],
        "report_seeds": [1, 2, 3],
    }
    five = frame[~frame["part"].isin(["combine", "stage"])].drop(columns=["combine", "T"], errors="ignore")
    write_report(HERE, five, chosen, meta)


if __name__ == "__main__":
    build(pd.read_parquet(FRAME) if "--frame" in sys.argv else collect())
