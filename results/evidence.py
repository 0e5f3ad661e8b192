"""The paper's experiments on CIFAR-10: experiments/evidence-*.toml and ablation-*.toml, and the page README.md here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from tables import Content, Table, costs, counted, ends, hours, keep_figures, settings_of_methods, spread

from fewrounds.data import cifar10
from fewrounds.experiment.archive import pack, read
from fewrounds.report import write_report
from fewrounds.report.claims import check_claims
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
    "combine": "ablation-combine",
    "stage": "ablation-stage",
}
FIGURES = [
    "against-q-budget_mode-paper-rounds-500",
    "against-budget-budget_mode-paper-rounds-500",
    "against-q-budget_mode-paper-rounds-1000",
    "against-q-budget_mode-strict-rounds-1000",
    "test-accuracy-against-rounds-budget_mode-paper-rounds-1000",
    "train-loss-against-rounds-budget_mode-paper-rounds-3000",
    *(f"train-loss-against-{cost}-budget_mode-paper-rounds-1000" for cost in ("rounds", "gradients", "bytes", "time")),
    "train-loss-against-rounds-budget_mode-strict-rounds-1000",
]
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
    """All runs of all parts as one frame, and what their files have besides."""
    found = {part: read(PACKED / f"{name}.parquet") for part, name in PARTS.items()}
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
    parts = {part: frame[frame["part"] == part] for part in PARTS}
    chosen = {part: content["grid"]["chosen"] for part, content in contents.items()}
    one_point = [choice for choice in chosen["a"] if choice["method"] in ONE_POINT]
    return {
        "claims": claims(frame),
        "parts": what_was_run(frame, contents),
        "data": [("array", "sha256"), *((name, f"`{digest}`") for name, digest in cifar10.DIGESTS.items())],
        "loss": ends(parts["a"], "train_loss", "q", chosen["a"]),
        "accuracy": ends(parts["a"], "test_accuracy", "q"),
        "cost": costs(parts["a"], settings_of_methods(contents["a"])),
        "budget": ends(parts["b"], "train_loss", "budget"),
        "heterogeneity": ends(largest_budget(frame), "train_loss", "q"),
        "long": ends(parts["d"], "train_loss", "q"),
        "long accuracy": ends(parts["d"], "test_accuracy", "q"),
        "strict loss": ends(strict(frame), "train_loss", "q", [*one_point, *chosen["e"]]),
        "strict accuracy": ends(strict(frame), "test_accuracy", "q"),
        "strict cost": costs(strict(frame), settings_of_methods(contents["a"]) | settings_of_methods(contents["e"])),
        "combine": ablation(parts["combine"], "combine"),
        "stage": ablation(parts["stage"], "T"),
    }


def what_was_run(frame: pd.DataFrame, contents: dict[str, Content]) -> Table:
    rows: Table = [("part", "file", "what", "runs", "diverged", "hours of a core", "commit")]
    for part, name in PARTS.items():
        grid = contents[part]["grid"]
        runs, lost = counted(frame[frame["part"] == part])
        made = str(grid["environment"]["commit"])[:12]
        what = grid["experiment"]["description"]
        rows.append((part, f"experiments/{name}.toml", what, runs, lost, f"{hours(contents[part]):.1f}", made))
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


def cases(frame: pd.DataFrame) -> list[tuple[int, str, pd.DataFrame]]:
    """A claim, where it was checked, and the runs of that."""
    a = frame[frame["part"] == "a"]
    return [
        (1, "budget 1024, 500 rounds", largest_budget(frame)),
        (1, "budget 256, 1,000 rounds", a),
        (2, "budget 1024, 500 rounds", largest_budget(frame)),
        (2, "budget 256, 1,000 rounds", a),
        (2, "strict budget 256, 1,000 rounds", strict(frame)),
        (3, "q = 0.1, 500 rounds", frame[frame["part"] == "b"]),
        (4, "budget 256, 1,000 rounds", a),
        (4, "budget 256, 3,000 rounds", frame[frame["part"] == "d"]),
        (4, "strict budget 256, 1,000 rounds", strict(frame)),
        (5, "every iterate, bit for bit", a),
    ]


def claims(frame: pd.DataFrame) -> Table:
    """The verdict on each claim, on the part of the runs that it speaks of."""
    rows: Table = [("claim", "checked on", "verdict", "rests on")]
    for number, place, part in cases(frame):
        claim = next(claim for claim in check_claims(part) if claim.number == number)
        rows.append((f"{number}. {claim.statement}", place, f"**{claim.verdict}**", claim.evidence))
    return rows


def in_five_lines(frame: pd.DataFrame) -> Table:
    """The claims table of the project's README: each claim once, with its verdict wherever it was checked."""
    found: dict[str, list[str]] = {}
    for number, place, part in cases(frame):
        claim = next(claim for claim in check_claims(part) if claim.number == number)
        found.setdefault(f"{number}. {claim.statement}", []).append(f"**{claim.verdict}** ({place})")
    return [("claim of the paper", "here"), *((claim, "; ".join(said)) for claim, said in found.items())]


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
    keep_figures(shown(frame), HERE / "figures", FIGURES)


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """What the page compares: the five methods, the strict budget with the runs that are the same there."""
    of_page = frame[frame["part"].isin(["a", "b", "c", "d"])]
    every = pd.concat([of_page, strict(frame)], ignore_index=True).drop(columns=["part", "combine", "T"])
    return every.drop_duplicates(["run", "round"])  # parts may share a run


def choices(contents: dict[str, Content]) -> pd.DataFrame:
    every = [choice for part in ("a", "e") for choice in contents[part]["grid"]["chosen"]]
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
