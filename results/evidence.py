"""The paper's experiments on CIFAR-10: experiments/evidence-*.toml and ablation-*.toml, and the page README.md here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from tables import (
    Content,
    Table,
    costs,
    counted,
    end,
    ends,
    every_step,
    hours,
    keep_figures,
    settings_of_methods,
    until,
)

from fewrounds.data import cifar10
from fewrounds.experiment.archive import pack, read
from fewrounds.report import write_report
from fewrounds.report.claims import Claim, check_claims
from fewrounds.report.frames import finals, label_of, methods_of, where
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
    "g": "evidence-g",
    "h": "evidence-h",
    "i": "evidence-i",
    "j": "evidence-j",
    "combine": "ablation-combine",
    "stage": "ablation-stage",
}
ABLATIONS = ["combine", "stage"]
ONE_POINT = ["minibatch-sgd", "local-sgd", "scaffold"]
"""These take each sample at one point, so that both ways to count a budget give them the same settings."""
LOCAL = ["local-sgd", "scaffold", "bvr-l-sgd"]


def pack_runs() -> None:
    for name in PARTS.values():
        folder = HERE.parent / "runs" / name
        if (folder / "grid.json").exists():
            print(f"{name}: {pack(folder, PACKED / f'{name}.parquet')} runs")
        else:
            print(f"{name}: runs/{name} is not there")


def load() -> tuple[pd.DataFrame, dict[str, Content]]:
    """The runs of all parts as one frame, and what their files have besides."""
    found = {part: read(PACKED / f"{name}.parquet") for part, name in PARTS.items()}
    frame = pd.concat([own.assign(part=part) for part, (own, _) in found.items()], ignore_index=True)
    return frame, {part: content for part, (_, content) in found.items()}


def strict(frame: pd.DataFrame) -> pd.DataFrame:
    """Part e with the reported runs of part a that are the same at a strict budget."""
    same = frame[(frame["part"] == "a") & (frame["role"] == "report") & frame["method"].isin(ONE_POINT)]
    same = same.assign(run=same["run"] + "-strict", budget_mode="strict")
    return pd.concat([same, frame[frame["part"] == "e"]], ignore_index=True)


def carried_over(frame: pd.DataFrame) -> pd.DataFrame:
    """Budget 1024 at every q with the steps chosen at budget 256, from parts b and c."""
    return frame[frame["part"].isin(["b", "c"]) & (frame["budget"] == 1024)]


def largest_budget(frame: pd.DataFrame) -> pd.DataFrame:
    """Budget 1024 at every q: the local methods with steps chosen there, the others with those of budget 256."""
    others = carried_over(frame)
    return pd.concat([others[~others["method"].isin(LOCAL)], frame[frame["part"].isin(["f", "h"])]], ignore_index=True)


def with_longer_steps(frame: pd.DataFrame, budget: int) -> pd.DataFrame:
    """Local SGD and SCAFFOLD with a step of 0.05 everywhere, chosen or not, and BVR-L-SGD with those chosen for it."""
    ours, others, rounds = (["f", "h"], ["b", "c", "j"], 500) if budget == 1024 else (["a"], ["a", "i"], 1000)
    rows = frame[(frame["role"] == "report") & (frame["budget"] == budget) & (frame["rounds"] == rounds)]
    own = rows["part"].isin(ours) & (rows["method"] == "bvr-l-sgd")
    longer = rows["part"].isin(others) & rows["method"].isin(["local-sgd", "scaffold"]) & (rows["eta"] == 0.05)
    return rows[own | longer]


def of_the_paper(frame: pd.DataFrame) -> pd.DataFrame:
    """Each setting once: at budget 1024 the runs with steps chosen there."""
    smaller = frame["part"].isin(["a", "b", "d"]) & (frame["budget"] < 1024)
    return pd.concat([frame[smaller], largest_budget(frame)], ignore_index=True)


def growing_budget(frame: pd.DataFrame) -> pd.DataFrame:
    """The smallest q at all budgets; at the largest, the local methods with steps chosen there."""
    rows = of_the_paper(frame)
    return rows[(rows["rounds"] == 500) & (rows["q"] == rows["q"].min())]


def variants(frame: pd.DataFrame) -> pd.DataFrame:
    """Each variant of BVR-L-SGD as a method of its own; the paper's keeps its name."""
    averaged, length = frame["combine"] == "mean", frame["T"].notna()
    names = frame["method"].mask(averaged, "BVR-L-SGD, mean of models")
    names = names.mask(length, "BVR-L-SGD, T = " + frame["T"].map("{:g}".format))
    return frame.assign(method=names).drop(columns=["combine", "T"])


def after_steps(frame: pd.DataFrame, steps: int) -> pd.DataFrame:
    """The local methods at q = 0.1, up to the round in which a worker has so many local steps behind it."""
    local = frame[(frame["role"] == "report") & frame["part"].isin(["a", "b"]) & (frame["q"] == 0.1) & (frame["K"] > 1)]
    within = local[(local["rounds"] * local["K"] >= steps) & (local["round"] * local["K"] <= steps)]
    return within.assign(rounds=within.groupby("run")["round"].transform("max"))


# ---------------------------------------------------------------------- tables


def tables(frame: pd.DataFrame, contents: dict[str, Content]) -> dict[str, Table]:
    """The tables of README.md, by the name of their marks."""
    parts = {part: frame[frame["part"] == part] for part in contents}
    chosen = {part: content["grid"]["chosen"] for part, content in contents.items()}
    found: dict[str, Table] = {
        "verdicts": in_five_lines(frame),
        "claims": claims(frame),
        "parts": what_was_run(frame, contents),
        "data": [("array", "sha256"), *((name, f"`{digest}`") for name, digest in cifar10.DIGESTS.items())],
    }
    found["loss"] = ends(parts["a"], "train_loss", "q", chosen["a"])
    for name in ("train_accuracy", "test_loss", "test_accuracy"):
        found[name.replace("_", " ")] = ends(parts["a"], name, "q")
    found["cost"] = costs(parts["a"], settings_of_methods(contents["a"]))
    found["steps"] = every_step(parts["a"])
    found["budget"] = ends(parts["b"], "train_loss", "budget")
    found["budget accuracy"] = ends(parts["b"], "test_accuracy", "budget")
    found["local steps"] = ends(after_steps(frame, 16_000), "train_loss", "budget")
    not_local = [choice for choice in chosen["a"] if choice["method"] not in LOCAL]
    found["heterogeneity"] = ends(largest_budget(frame), "train_loss", "q", [*not_local, *chosen["f"], *chosen["h"]])
    found["heterogeneity accuracy"] = ends(largest_budget(frame), "test_accuracy", "q")
    found["heterogeneity best"] = ends(largest_budget(frame), "train_loss", "q", value="best")
    found["heterogeneity best accuracy"] = ends(largest_budget(frame), "test_accuracy", "q", value="best")
    carried = carried_over(frame)
    found["carried over"] = ends(carried[carried["method"].isin(LOCAL)], "train_loss", "q", chosen["a"])
    found["steps 1024"] = every_step(frame[frame["part"].isin(["f", "h"])])
    for budget in (256, 1024):
        longer = with_longer_steps(frame, budget)
        found[f"longer {budget}"] = ends(longer, "train_loss", "q", steps_of(longer))
        found[f"longer {budget} accuracy"] = ends(longer, "test_accuracy", "q")
    found["budget best accuracy"] = ends(parts["b"], "test_accuracy", "budget", value="best")
    least = finals(parts["d"])["gradients_per_worker"].min()
    found["long"] = ends(parts["d"], "train_loss", "q", chosen["a"])
    found["long accuracy"] = ends(parts["d"], "test_accuracy", "q")
    found["long equal"] = ends(until(parts["d"], least), "train_loss", "q", chosen["a"])
    one_point = [choice for choice in chosen["a"] if choice["method"] in ONE_POINT]
    both = settings_of_methods(contents["a"]) | settings_of_methods(contents["e"])
    found["strict loss"] = ends(strict(frame), "train_loss", "q", [*one_point, *chosen["e"]])
    found["strict accuracy"] = ends(strict(frame), "test_accuracy", "q")
    found["strict cost"] = costs(strict(frame), both)
    found["strict steps"] = every_step(parts["e"])
    found["between"] = ends(variants(parts["g"]), "train_loss", "q")
    local = parts["a"][parts["a"]["method"].isin(LOCAL) & (parts["a"]["seed"] == 1) & (parts["a"]["round"] <= 500)]
    half = local[local["q"].isin(parts["g"]["q"])].assign(rounds=500)
    found["chosen, 500"] = ends(half, "train_loss", "q", chosen["a"])
    found["between accuracy"] = ends(variants(parts["g"]), "test_accuracy", "q")
    tried = variants(frame[frame["part"].isin(ABLATIONS)])
    found["ablation"] = ablation(tried)
    found["ablation steps"] = every_step(tried)
    found["mean of models"] = along(parts["combine"], [100, 200, 250, 300, 400, 450, 500])
    return found


def steps_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The step sizes that reported runs had, as choices."""
    rows = frame[frame["role"] == "report"][["method", "q", "eta"]].drop_duplicates()
    return [{**row, "at_edge": False} for row in rows.to_dict("records")]


def what_was_run(frame: pd.DataFrame, contents: dict[str, Content]) -> Table:
    rows: Table = [("part", "file", "what", "runs", "diverged", "hours of a core (training alone)")]
    for part, content in contents.items():
        name = PARTS[part]
        own = frame[frame["part"] == part]
        runs, lost = counted(own)
        spent = f"{hours(content):.1f} ({finals(own)['seconds'].sum() / 3600:.1f})"
        what = content["grid"]["experiment"]["description"]
        rows.append((part, f"experiments/{name}.toml", what, runs, lost, spent))
    runs, lost = counted(frame)
    total = hours({"records": {run: one for content in contents.values() for run, one in content["records"].items()}})
    rows.append(("", "", "all", runs, lost, f"{total:.1f} ({finals(frame)['seconds'].sum() / 3600:.1f})"))
    return rows


def ablation(frame: pd.DataFrame) -> Table:
    """The variants at the last round, with what they spent, and where the one that spent least had ended."""
    last = finals(frame[frame["role"] == "report"])
    least = last.loc[last["state"] == "finished", "gradients_per_worker"].min()
    equal = finals(until(frame[frame["role"] == "report"], least))
    head = ["q", "variant", "η", "train loss", "test accuracy, %", "train loss at equal gradients"]
    rows: Table = [(*head, "gradients per worker and round", "vectors up / down a round", "aggregations a round")]
    for q in sorted(last["q"].unique()):
        for method in methods_of(last):
            runs, one = (where(those, {"method": method, "q": q}) for those in (last, equal))
            a_round = runs[["gradients_per_worker", "vectors_up", "vectors_down"]].div(runs["round"], axis=0).mean()
            rows.append(
                (
                    f"{q:g}",
                    label_of(method),
                    f"{runs['eta'].iloc[0]:g}",
                    end(runs, "train_loss"),
                    end(runs, "test_accuracy"),
                    end(one, "train_loss"),
                    f"{a_round['gradients_per_worker']:,.1f}",
                    f"{a_round['vectors_up']:.1f} / {a_round['vectors_down']:.1f}",
                    f"{runs['aggregations'].iloc[0]}",
                )
            )
    return rows


def along(frame: pd.DataFrame, rounds: list[int]) -> Table:
    """Train loss of every seed at these rounds, with the mean of models at the smallest q."""
    own = frame[(frame["role"] == "report") & (frame["combine"] == "mean") & (frame["q"] == frame["q"].min())]
    losses = own.pivot(index="seed", columns="round", values="train_loss")[rounds]
    rows = [
        (f"seed {seed}", *(f"{loss:.4f}" for loss in row))
        for seed, row in zip(losses.index, losses.to_numpy(), strict=True)
    ]
    return [("train loss", *(f"round {number}" for number in rounds)), *rows]


CASES: list[tuple[int, str, str | Callable[[pd.DataFrame], pd.DataFrame]]] = [
    (1, "budget 1024, 500 rounds", largest_budget),
    (1, "the same with steps of budget 256", carried_over),
    (1, "budget 256, 1,000 rounds", "a"),
    (2, "budget 1024, 500 rounds", largest_budget),
    (2, "the same with steps of budget 256", carried_over),
    (3, "q = 0.1, 500 rounds", growing_budget),
    (3, "the same with steps of budget 256", "b"),
    (4, "budget 1024, 500 rounds", largest_budget),
    (4, "the same with steps of budget 256", carried_over),
    (4, "budget 256, 1,000 rounds", "a"),
    (4, "budget 256, 3,000 rounds", "d"),
    (4, "strict budget 256, 1,000 rounds", strict),
    (5, "every iterate, bit for bit", "a"),
]
"""A claim, where it is checked, and the part with the runs that takes, or what picks them."""
REASONS = {
    1: "at budget 1024 both rise at every step size; at 256 SCAFFOLD because shorter steps are chosen at large q",
    2: "with steps chosen there lowest at every q, but its own loss rises: the step of the other q diverges at 0.85",
    3: "all three improve, but Local SGD and SCAFFOLD by 2 to 4 %, where the rule asks for 5 %",
    4: "only at budget 1024 and q ≤ 0.6, and there Local SGD with a longer step would lead for 300 rounds or more",
    5: "compared by `tests/test_identities.py`",
}


def cases(frame: pd.DataFrame) -> Iterator[tuple[Claim, str]]:
    """Every claim wherever it was checked, and where that is."""
    for number, place, picked in CASES:
        runs = frame[frame["part"] == picked] if isinstance(picked, str) else picked(frame)
        yield next(claim for claim in check_claims(runs) if claim.number == number), place


def claims(frame: pd.DataFrame) -> Table:
    """The verdict on each claim, on the part of the runs that it speaks of."""
    rows: Table = [("claim", "checked on", "verdict", "rests on")]
    for claim, place in cases(frame):
        rows.append((f"{claim.number}", place, f"**{claim.verdict}**", claim.evidence))
    return rows


def in_five_lines(frame: pd.DataFrame) -> Table:
    """Each claim once, with its verdicts, where each was found, and why, in a few words."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for claim, place in cases(frame):
        words = f"{claim.number}. {claim.statement}", REASONS[claim.number]
        found.setdefault(words, {}).setdefault(claim.verdict, []).append(place)
    return [
        ("claim of the paper", "here", "why"),
        *(
            (claim, "<br>".join(f"**{verdict}**: {'; '.join(places)}" for verdict, places in verdicts.items()), reason)
            for (claim, reason), verdicts in found.items()
        ),
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
    keep_figures(drawn(frame), HERE / "figures", pictures)


def drawn(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The runs that are drawn together, by what the names of their figures begin with."""
    found = {
        "": frame[frame["part"].isin(["a", "d"])],
        "budgets-": frame[frame["part"] == "b"],
        "1024-": largest_budget(frame),
        "strict-": strict(frame),
        "ablation-": variants(frame[frame["part"].isin(ABLATIONS)]),
    }
    return {start: as_one(rows) for start, rows in found.items()}


def shown(frame: pd.DataFrame) -> pd.DataFrame:
    """What the page compares: the five methods, the strict budget with the runs that are the same there."""
    return as_one(pd.concat([of_the_paper(frame), strict(frame)], ignore_index=True))


def as_one(frame: pd.DataFrame) -> pd.DataFrame:
    """Without the columns that tell parts and variants apart, each of which is its own here."""
    return frame.drop(columns=["part", "combine", "T"], errors="ignore")


def choices(contents: dict[str, Content]) -> pd.DataFrame:
    every = [choice for part in ("a", "e", "f", "h") for choice in contents[part]["grid"]["chosen"]]
    kept = [{k: v for k, v in one.items() if k not in ("scores", "reason", "limit")} for one in every if one["eta"]]
    return pd.DataFrame(kept)


def meta(contents: dict[str, Content]) -> dict[str, Any]:
    grid = contents["a"]["grid"]
    records = [one for content in contents.values() for one in content["records"].values()]
    same = (
        "At a strict budget minibatch SGD, Local SGD and SCAFFOLD are the same runs as without. At budget 1024 the "
        "steps of Local SGD, SCAFFOLD and BVR-L-SGD are chosen there; all others at 512 and 1024, and over 3,000 "
        "rounds, are those of budget 256."
    )
    return {
        "name": "The paper's experiments on CIFAR-10",
        "description": f"What was run, in parts, is in README.md beside this page. {same}",
        **grid["environment"],
        "started": min(one["began"] for one in records),
        "finished": max(one["ended"] for one in records),
        "tuning_rule": "the paper's rule, the greatest minimum train accuracy over the last 100 rounds",
        "tuning_seeds": grid["experiment"]["tuning"]["seed"],
        "report_seeds": grid["experiment"]["train"]["seed"],
        "etas": grid["experiment"]["tuning"]["eta"],
    }
