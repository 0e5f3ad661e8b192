"""From runs/field to this folder: the tidy frame, the tables of README.md, the figures and the page.

python results/field/build.py           reads runs/field (`fewrounds run experiments/field.toml`) and writes everything
python results/field/build.py --frame   writes the rest again from frame.parquet and about.json alone
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from fewrounds import load_results
from fewrounds.report import write_report
from fewrounds.report.frames import label_of, methods_of, where
from fewrounds.report.marked import filled

HERE = Path(__file__).parent
RUNS = HERE.parents[1] / "runs" / "field"
Table = list[tuple[str, ...]]


def collect() -> pd.DataFrame:
    """All runs, and what is known about them."""
    frame = load_results(RUNS)
    grid = json.loads((RUNS / "grid.json").read_text())
    records = [json.loads((RUNS / "runs" / run / "run.json").read_text()) for run in grid["runs"]]
    seconds = sum(
        (pd.Timestamp(one["ended"]) - pd.Timestamp(one["began"])).total_seconds() for one in records if "began" in one
    )
    settings: dict[str, dict[str, Any]] = {}
    for one in records:
        if one["outcome"] != "failed":
            settings.setdefault(one["data"]["source"], {})[one["train"]["method"]] = one["method_settings"]
    about = {
        "environment": grid["environment"],
        "chosen": grid["chosen"],
        "core_hours": round(seconds / 3600, 2),
        "settings": settings,
    }
    frame.to_parquet(HERE / "frame.parquet", index=False, compression="zstd")
    (HERE / "about.json").write_text(json.dumps(about, indent=1) + "\n")
    return frame


def tables(frame: pd.DataFrame, about: dict[str, Any]) -> dict[str, Table]:
    """The tables of README.md, by the name of their marks."""
    out: dict[str, Table] = {"facts": facts(frame, about)}
    for dataset in frame["dataset"].unique():
        own = where(frame, {"dataset": dataset})
        out[f"loss {dataset}"] = ends(own, about, dataset, "train_loss")
        out[f"accuracy {dataset}"] = ends(own, about, dataset, "test_accuracy")
        out[f"cost {dataset}"] = costs(own, about["settings"][dataset])
    return out


def facts(frame: pd.DataFrame, about: dict[str, Any]) -> Table:
    env = about["environment"]
    runs = frame.groupby("role")["run"].nunique()
    return [
        ("", ""),
        ("commit", str(env["commit"])),
        ("runs", f"{runs['tuning']} to tune, {runs['report']} reported"),
        ("core hours", f"{about['core_hours']:g}"),
        ("machine", str(env["machine"])),
        ("versions", ", ".join(f"{name} {version}" for name, version in env["versions"].items())),
    ]


def last_rounds(frame: pd.DataFrame) -> pd.DataFrame:
    reported = frame[frame["role"] == "report"]
    return reported.loc[reported.groupby("run")["round"].idxmax()]


def ends(frame: pd.DataFrame, about: dict[str, Any], dataset: str, criterion: str) -> Table:
    """Mean ± standard deviation at the last round with the chosen step size (* at the edge of those tried)."""
    last, scale, digits = last_rounds(frame), *((100, 1) if criterion == "test_accuracy" else (1, 4))
    better = (lambda x: -x) if criterion == "train_loss" else (lambda x: x)
    qs = sorted(last["q"].unique())
    words = {"train_loss": "train loss", "test_accuracy": "test accuracy, %"}[criterion]
    rows: Table = [("method", *(text for q in qs for text in (f"{words}, q = {q:g}", "η")))]
    means = last[last["outcome"] == "finished"].groupby(["q", "method"])[criterion].mean()
    for method in methods_of(last):
        cells = [label_of(method)]
        for q in qs:
            runs = where(last, {"method": method, "q": q})
            good = runs[runs["outcome"] == "finished"][criterion] * scale
            lost = len(runs) - len(good)
            text = f"{good.mean():.{digits}f} ± {good.std():.{digits}f}" if len(good) > 1 else "diverged"
            text += f" ({lost} of {len(runs)} diverged)" if lost and len(good) > 1 else ""
            first = len(good) > 0 and better(means[q, method]) == better(means[q]).max()
            edge = any(
                choice["at_edge"]
                for choice in about["chosen"]
                if (choice["dataset"], choice["method"], choice["q"]) == (dataset, method, q)
            )
            cells += [f"**{text}**" if first else text, f"{runs['eta'].iloc[0]:g}{'*' if edge else ''}"]
        rows.append(tuple(cells))
    return rows


def costs(frame: pd.DataFrame, settings: dict[str, dict[str, Any]]) -> Table:
    """What a round cost, counted: the mean over the rounds of a run."""
    last = last_rounds(frame)
    good = last[(last["outcome"] == "finished") & (last["q"] == last["q"].min())]
    rows: Table = [("method", "K", "b", "b̃", "gradients per worker and round", "vectors up / down a round")]
    for method in methods_of(good):
        one = where(good, {"method": method}).iloc[0]
        own = settings[method]
        large = "" if "b_tilde" not in own else str(own["b_tilde"] or "all data")
        up, down = (one[key] / one["round"] for key in ("vectors_up", "vectors_down"))
        spent = f"{one['gradients_per_worker'] / one['round']:.1f}"
        rows.append(
            (label_of(method), str(own.get("K") or ""), str(own.get("b") or ""), large, spent, f"{up:.1f} / {down:.1f}")
        )
    return rows


def build(frame: pd.DataFrame) -> None:
    about = json.loads((HERE / "about.json").read_text())
    readme = HERE / "README.md"
    readme.write_text(filled(readme.read_text(), tables(frame, about)))
    chosen = pd.DataFrame(
        [{key: value for key, value in choice.items() if key not in ("scores", "reason")} for choice in about["chosen"]]
    )
    meta = {
        "name": "The field",
        "description": "Every method at the same exactly counted budget, on digits and on CIFAR-10",
        **about["environment"],
        "tuning_rule": "paper",
        "tuning_seeds": [0],
        "report_seeds": sorted(frame[frame["role"] == "report"]["seed"].unique().tolist()),
        "config": (HERE.parents[1] / "experiments" / "field.toml").read_text(),
    }
    write_report(HERE, frame, chosen[chosen["eta"].notna()], meta)


if __name__ == "__main__":
    build(pd.read_parquet(HERE / "frame.parquet") if "--frame" in sys.argv else collect())
