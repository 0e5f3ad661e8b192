"""From the runs of experiments/field.toml to this folder: the tables of README.md, the figures and the page.

python results/field/build.py           packs runs/field as runs.parquet here, and writes everything from that
python results/field/build.py --again   writes everything from runs.parquet as it is
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd

from fewrounds.experiment.archive import pack, read, unpack
from fewrounds.experiment.summary import write_page
from fewrounds.report.frames import label_of, methods_of, where
from fewrounds.report.marked import filled

HERE = Path(__file__).parent
PACKED = HERE / "runs.parquet"  # to go on from it: fewrounds unpack results/field/runs.parquet runs/field
Table = list[tuple[str, ...]]


def tables(frame: pd.DataFrame, content: dict[str, Any]) -> dict[str, Table]:
    """The tables of README.md, by the name of their marks."""
    out: dict[str, Table] = {"facts": facts(frame, content)}
    for dataset in complete(content):
        own = where(frame, {"dataset": dataset})
        chosen = [choice for choice in content["grid"]["chosen"] if choice["dataset"] == dataset]
        out[f"loss {dataset}"] = ends(own, chosen, "train_loss")
        out[f"accuracy {dataset}"] = ends(own, chosen, "test_accuracy")
        settings = {
            spec["train"]["method"]: content["records"][run]["method_settings"]
            for run, spec in content["grid"]["runs"].items()
            if spec["data"]["source"] == dataset and run in content["records"]
        }
        out[f"cost {dataset}"] = costs(own, settings)
    return out


def complete(content: dict[str, Any]) -> list[str]:
    """The data sets all of whose runs have ended."""
    source = {run: spec["data"]["source"] for run, spec in content["grid"]["runs"].items()}
    chosen = {choice["dataset"] for choice in content["grid"]["chosen"]}
    unfinished = {name for run, name in source.items() if run not in content["records"]}
    return [name for name in dict.fromkeys(source.values()) if name in chosen - unfinished]


def facts(frame: pd.DataFrame, content: dict[str, Any]) -> Table:
    made, runs = content["grid"]["environment"], frame.groupby("role")["run"].nunique()
    times = [(pd.Timestamp(one["ended"]) - pd.Timestamp(one["began"])) for one in content["records"].values()]
    hours = sum(time.total_seconds() for time in times) / 3600
    diverged = frame[frame["outcome"] == "diverged"].groupby("role")["run"].nunique()
    lost = ", ".join(f"{count} {role}" for role, count in diverged.items()) or "none"
    return [
        ("what", "this time"),
        ("runs", f"{runs['tuning']} to tune, {runs['report']} reported; diverged: {lost}"),
        ("hours", f"{hours:.1f}, added up over processes of one thread, two at a time beside other work"),
        ("machine", str(made["machine"])),
        ("commit", str(made["commit"])),
        ("versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())),
    ]


def last_rounds(frame: pd.DataFrame) -> pd.DataFrame:
    """The reported runs at their ends."""
    reported = frame[frame["role"] == "report"]
    return reported.loc[reported.groupby("run")["round"].idxmax()]


def ends(frame: pd.DataFrame, chosen: list[dict[str, Any]], criterion: str) -> Table:
    """Mean ± standard deviation at the last round with the chosen step size (* at the edge of those tried)."""
    last, scale, digits = last_rounds(frame), *((100, 1) if criterion == "test_accuracy" else (1, 4))
    sign = 1 if criterion == "test_accuracy" else -1
    qs = sorted(last["q"].unique())
    words = {"train_loss": "train loss", "test_accuracy": "test accuracy, %"}[criterion]
    rows: Table = [("method", *(text for q in qs for text in (f"{words}, q = {q:g}", "η")))]
    means = last[last["outcome"] == "finished"].groupby(["q", "method"])[criterion].mean()
    for method in methods_of(last):
        cells = [label_of(method)]
        for q in qs:
            runs = where(last, {"method": method, "q": q})
            edge = any(one["at_edge"] for one in chosen if (one["method"], one["q"]) == (method, q))
            if runs.empty:
                cells += ["every η diverged", ""]
                continue
            good = runs[runs["outcome"] == "finished"][criterion] * scale
            lost = len(runs) - len(good)
            text = f"{good.mean():.{digits}f}" if len(good) else "diverged"
            text += f" ± {good.std():.{digits}f}" if len(good) > 1 else ""
            text += f" ({lost} of {len(runs)} diverged)" if lost and len(good) else ""
            best = len(good) > 0 and sign * means[q, method] == (sign * means[q]).max()
            cells += [f"**{text}**" if best else text, f"{runs['eta'].iloc[0]:g}{'*' if edge else ''}"]
        rows.append(tuple(cells))
    return rows


def costs(frame: pd.DataFrame, settings: dict[str, dict[str, Any]]) -> Table:
    """What a round cost, counted: the mean over the rounds of a run."""
    last = last_rounds(frame)
    good = last[(last["outcome"] == "finished") & (last["q"] == last["q"].min())]
    rows: Table = [("method", "K", "b", "b̃", "gradients per worker and round", "vectors up / down a round")]
    for method in methods_of(good):
        one, own = where(good, {"method": method}).iloc[0], settings[method]
        large = "" if "b_tilde" not in own else str(own["b_tilde"] or "all data")
        up, down = (one[key] / one["round"] for key in ("vectors_up", "vectors_down"))
        spent = f"{one['gradients_per_worker'] / one['round']:.1f}"
        steps = [str(own.get(key) or "") for key in ("K", "b")]
        rows.append((label_of(method), *steps, large, spent, f"{up:.1f} / {down:.1f}"))
    return rows


def build() -> None:
    frame, content = read(PACKED)
    readme = HERE / "README.md"
    readme.write_text(filled(readme.read_text(), tables(frame, content)))
    if len(complete(content)) < frame["dataset"].nunique():
        return  # the page and the figures are of the whole
    with tempfile.TemporaryDirectory() as folder:
        unpack(PACKED, folder)
        page = write_page(Path(folder))
        shutil.copy(page, HERE / "index.html")
        (HERE / "figures").mkdir(exist_ok=True)
        for figure in sorted((page.parent / "figures").glob("*.png")):
            shutil.copy(figure, HERE / "figures" / figure.name)


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["--again"]):
        sys.exit("usage: python results/field/build.py [--again]")
    if not sys.argv[1:]:
        print(f"{pack(HERE.parents[1] / 'runs' / 'field', PACKED)} runs packed")
    build()
