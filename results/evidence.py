"""The paper's experiments on CIFAR-10: experiments/evidence-*.toml and ablation-*.toml, and the page README.md here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from tables import Content, Table, costs, counted, ends, every_step, hours, keep_figures, settings_of_methods, spread

from fewrounds.data import cifar10
from fewrounds.experiment.archive import pack, read
from fewrounds.report import write_report
from fewrounds.report.claims import CLAIMS, Claim, check_claims
from fewrounds.report.frames import finals
from fewrounds.report.marked import filled

HERE = Path(__file__).parent
PACKED = HERE / "evidence"
FRAME = HERE / "frame.parquet"
PARTS = {
    "a": "evidence-a",
    "b": "evidence-b",
    "c": "evidence-c",
    "d": "evidence-d",
    "e": "evidence-e",
    "f": "evidence-f",
    "combine": "ablation-combine",
    "stage": "ablation-stage",
}
ONE_POINT = ["minibatch-sgd", "local-sgd", "scaffold"]
"""These take each sample at one point, so that both ways to count a budget give them the same settings."""


def pack_runs() -> None:
    for name in PARTS.values():
        folder = HERE.parent / "runs" / name
        if (folder / "grid.json").exists():
            print(f"{name}: {pack(folder, PACKED / f'{name}.parquet')} runs")
        else:
            print(f"{name}: runs/{name} is not there")


def load() -> tuple[pd.DataFrame, dict[str, Content]]:
    """The runs of all parts that are there as one frame, and what their files have besides."""
    files = {part: PACKED / f"{name}.parquet" for part, name in PARTS.items()}
    found = {part: read(path) for part, path in files.items() if path.exists()}  # the others are still to be run
    frame = pd.concat([own.assign(part=part) for part, (own, _) in found.items()], ignore_index=True)
    return frame, {part: content for part, (_, content) in found.items()}


def strict(frame: pd.DataFrame) -> pd.DataFrame:
    """Part e with the runs of part a that are the same at a strict budget."""
    same = frame[(frame["part"] == "a") & frame["method"].isin(ONE_POINT)]
    same = same.assign(run=same["run"] + "-strict", budget_mode="strict")
    return pd.concat([same, frame[frame["part"] == "e"]], ignore_index=True)


def largest_budget(frame: pd.DataFrame) -> pd.DataFrame:
    """Budget 1024 at every q, from parts b and c."""
    return frame[frame["part"].isin(["b", "c"]) & (frame["budget"] == 1024)]


# ---------------------------------------------------------------------- tables


def tables(frame: pd.DataFrame, contents: dict[str, Content]) -> dict[str, Table]:
    """The tables of README.md, by the name of their marks."""
    parts = {part: frame[frame["part"] == part] for part in contents}
    chosen = {part: content["grid"]["chosen"] for part, content in contents.items()}
    found = {
        "claims": claims(frame),
        "parts": what_was_run(frame, contents),
        "data": [("array", "sha256"), *((name, f"`{digest}`") for name, digest in cifar10.DIGESTS.items())],
    }
    if "a" in parts:
        found["loss"] = ends(parts["a"], "train_loss", "q", chosen["a"])
        found["accuracy"] = ends(parts["a"], "test_accuracy", "q")
        found["cost"] = costs(parts["a"], settings_of_methods(contents["a"]))
        found["steps"] = every_step(parts["a"])
    if "b" in parts:
        found["budget"] = ends(parts["b"], "train_loss", "budget")
    if "c" in parts:
        found["heterogeneity"] = ends(largest_budget(frame), "train_loss", "q")
    if "d" in parts:
        found["long"] = ends(parts["d"], "train_loss", "q")
        found["long accuracy"] = ends(parts["d"], "test_accuracy", "q")
    if "e" in parts:
        one_point = [choice for choice in chosen["a"] if choice["method"] in ONE_POINT]
        both = settings_of_methods(contents["a"]) | settings_of_methods(contents["e"])
        found["strict loss"] = ends(strict(frame), "train_loss", "q", [*one_point, *chosen["e"]])
        found["strict accuracy"] = ends(strict(frame), "test_accuracy", "q")
        found["strict cost"] = costs(strict(frame), both)
    if "f" in parts:
        found["tuned loss"] = ends(parts["f"], "train_loss", "q", chosen["f"])
        found["tuned accuracy"] = ends(parts["f"], "test_accuracy", "q")
        found["tuned steps"] = every_step(parts["f"])
    for name, setting in (("combine", "combine"), ("stage", "T")):
        if name in parts:
            found[name] = ablation(parts[name], setting)
    return found


def what_was_run(frame: pd.DataFrame, contents: dict[str, Content]) -> Table:
    rows: Table = [("part", "file", "what", "runs", "diverged", "hours of a core", "commit")]
    for part, content in contents.items():
        name, grid = PARTS[part], content["grid"]
        runs, lost = counted(frame[frame["part"] == part])
        made = str(grid["environment"]["commit"])[:12]
        what = grid["experiment"]["description"]
        rows.append((part, f"experiments/{name}.toml", what, runs, lost, f"{hours(content):.1f}", made))
    return rows


def ablation(frame: pd.DataFrame, setting: str) -> Table:
    """BVR-L-SGD at the last round for each value of a setting, with what it spent."""
    last = finals(frame[frame["role"] == "report"])
    rows: Table = [("q", setting, "η", "train loss", "test accuracy, %", "gradients per worker", "vectors up")]
    for (q, value), runs in last.groupby(["q", setting]):
        good = runs[runs["state"] == "finished"]
        rows.append(
            (
                f"{q:g}",
                f"{value:g}" if isinstance(value, int | float) else str(value),
                f"{runs['eta'].iloc[0]:g}",
                spread(good["train_loss"], "train_loss") or "diverged",
                spread(good["test_accuracy"], "test_accuracy") or "–",
                f"{good['gradients_per_worker'].mean():,.0f}",
                f"{good['vectors_up'].mean():,.0f}",
            )
        )
    return rows


CASES = [
    (1, "budget 1024, 500 rounds, steps of budget 256", "bc"),
    (1, "budget 1024, 500 rounds, tuned there", "f"),
    (1, "budget 256, 1,000 rounds", "a"),
    (2, "budget 1024, 500 rounds, steps of budget 256", "bc"),
    (2, "budget 1024, 500 rounds, tuned there", "f"),
    (2, "budget 256, 1,000 rounds", "a"),
    (2, "strict budget 256, 1,000 rounds", "ae"),
    (3, "q = 0.1, 500 rounds, steps of budget 256", "b"),
    (4, "budget 256, 1,000 rounds", "a"),
    (4, "budget 256, 3,000 rounds", "d"),
    (4, "strict budget 256, 1,000 rounds", "ae"),
    (5, "every iterate, bit for bit", "a"),
]
"""A claim, where it is checked, and the parts whose runs that takes."""
PICKED = {"bc": largest_budget, "ae": strict}


def cases(frame: pd.DataFrame) -> Iterator[tuple[Claim, str]]:
    """Every claim wherever there are the runs to check it on, and where that is."""
    for number, place, parts in CASES:
        if set(parts) <= set(frame["part"]):
            runs = PICKED[parts](frame) if parts in PICKED else frame[frame["part"] == parts]
            yield next(claim for claim in check_claims(runs) if claim.number == number), place


def claims(frame: pd.DataFrame) -> Table:
    """The verdict on each claim, on the part of the runs that it speaks of."""
    rows: Table = [("claim", "checked on", "verdict", "rests on")]
    for claim, place in cases(frame):
        rows.append((f"{claim.number}. {claim.statement}", place, f"**{claim.verdict}**", claim.evidence))
    return rows


def in_five_lines(frame: pd.DataFrame) -> Table:
    """The claims table of the project's README: each claim once, with its verdict wherever it was checked."""
    found: dict[str, list[str]] = {f"{n}. {text}": [] for n, (text, _, _) in enumerate(CLAIMS, start=1)}
    for claim, place in cases(frame):
        found.setdefault(f"{claim.number}. {claim.statement}", []).append(f"**{claim.verdict}** ({place})")
    return [
        ("claim of the paper", "here"),
        *((claim, "; ".join(said) or "not yet checked") for claim, said in found.items()),
    ]


# ---------------------------------------------------------------------- the folder


def build() -> None:
    """frame.parquet, the tables of both READMEs, the figures and the page."""
    frame, contents = load()
    frame.to_parquet(FRAME, index=False, compression="zstd")
    for path, found in (
        (HERE / "README.md", tables(frame, contents)),
        (HERE.parent / "README.md", {"claims": in_five_lines(frame)}),
    ):
        path.write_text(filled(path.read_text(), found))
    write_report(HERE, shown(frame), choices(contents), meta(contents), figures=False)
    pictures = re.findall(r"\(figures/([^)]+)\.png\)", (HERE / "README.md").read_text())
    keep_figures(shown(frame), HERE / "figures", pictures)


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """What the page compares: the five methods, the strict budget with the runs that are the same there."""
    of_page = frame[frame["part"].isin(["a", "b", "c", "d"])]
    if "e" in set(frame["part"]):
        of_page = pd.concat([of_page, strict(frame)], ignore_index=True)
    every = of_page.drop(columns=["part", "combine", "T"], errors="ignore")
    return every.drop_duplicates(["run", "round"])  # parts may share a run


def choices(contents: dict[str, Content]) -> pd.DataFrame:
    every = [choice for part in ("a", "e") if part in contents for choice in contents[part]["grid"]["chosen"]]
    kept = [{k: v for k, v in one.items() if k not in ("scores", "reason", "limit")} for one in every if one["eta"]]
    return pd.DataFrame(kept)


def meta(contents: dict[str, Content]) -> dict[str, Any]:
    grid = contents["a"]["grid"]
    return {
        "name": "The paper's experiments on CIFAR-10",
        "description": "What was run, in parts, is in README.md beside this page.",
        **grid["environment"],
        "tuning_rule": grid["experiment"]["tuning"]["rule"],
        "tuning_seeds": grid["experiment"]["tuning"]["seed"],
        "report_seeds": grid["experiment"]["train"]["seed"],
        "etas": grid["experiment"]["tuning"]["eta"],
    }
