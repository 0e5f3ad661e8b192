"""The tables in results/ are what the runs beside them say."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest

from fewrounds.experiment.archive import read
from fewrounds.experiment.config import Experiment, load_experiment
from fewrounds.report.frames import CRITERIA, finals
from fewrounds.report.marked import filled
from results import diverge, made_frame

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RESULTS)


def test_the_field() -> None:
    import field

    text = (RESULTS / "field" / "README.md").read_text()
    tables = field.tables()
    assert filled(text, tables) == text, "run python results/build.py field"
    losses = [rows for name, rows in tables.items() if name.startswith("loss")]
    assert [len(rows) for rows in losses] == [13, 13], "twelve methods, on two data sets"


@pytest.mark.parametrize(
    ("name", "cells", "rounds", "budget", "least"),
    [
        ("field", 2 * 12, 295, 256, 0.9),
        ("field-twice", 2 * 2, 147, 512, 0.9),
        ("field-digits", 2 * (7 + 13), 300, 100, 0.85),
        ("field-smaller", 0, 295, 256, 0.9),
    ],
)
def test_the_field_is_whole_and_within_its_budget(
    name: str, cells: int, rounds: int, budget: int, least: float
) -> None:
    """Every run of the file is there, none has spent more than the budget that all have, and none was given much less."""
    frame, content = read(RESULTS / "field" / f"{name}.parquet")
    experiment = load_experiment(ROOT / "experiments" / f"{name}.toml")
    assert Experiment.model_validate(content["grid"]["experiment"]) == experiment, "the file has changed since"
    assert set(content["grid"]["runs"]) == set(content["records"])
    assert len(content["grid"]["chosen"]) == cells
    assert not any(choice["at_edge"] for choice in content["grid"]["chosen"])
    finished = frame[frame["outcome"] == "finished"]
    last = finished.loc[finished.groupby("run")["round"].idxmax()]
    assert (last["round"] == rounds).all()
    assert (last["gradients_per_worker"] <= budget * rounds).all()
    assert (last["gradients_per_worker"] > least * budget * rounds).all()
    assert set(frame["budget_mode"]) == {"strict"}


def test_the_evidence() -> None:
    """The tables of both pages and the frame are those of the packed runs; every picture that is linked is there."""
    import evidence

    frame, contents = evidence.load()
    found = {
        RESULTS / "README.md": evidence.tables(frame, contents),
        ROOT / "README.md": {"claims": evidence.in_five_lines(frame)},
    }
    for path, tables in found.items():
        text = path.read_text()
        assert filled(text, tables) == text, "run python results/build.py evidence"
    kept = pd.read_parquet(evidence.FRAME)
    pd.testing.assert_frame_equal(kept, frame, check_dtype=False)
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (RESULTS / "README.md").read_text()):
        assert (RESULTS / target).exists(), target


def test_what_the_page_says_of_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of each run in place of its end changes no verdict on claims 1 to 3; a threshold of 1 % turns claim 3;
    that a doubled loss counts as diverged changes none."""
    import evidence

    frame, _ = evidence.load()
    every = [claim.verdict for claim, _ in evidence.cases(frame)]
    with monkeypatch.context() as without:
        without.setattr("fewrounds.report.frames.DOUBLED", math.inf)
        assert (finals(evidence.strict(frame))["train_loss"] > 1e7).any()
        assert [claim.verdict for claim, _ in evidence.cases(frame)] == every
    said = [(claim.number, place, claim.verdict) for claim, place in evidence.cases(frame) if claim.number < 4]
    assert {verdict for _, _, verdict in said} == {"holds", "does not hold"}
    best = finals(frame, "best").set_index("run")
    ended = frame.groupby(["part", "run"])["round"].transform("max") == frame["round"]
    shown = frame.copy()
    for name in CRITERIA:
        shown.loc[ended, name] = shown.loc[ended, "run"].map(best[name])
    assert not shown.loc[ended, "train_loss"].equals(frame.loc[ended, "train_loss"])
    with_best = [(claim.number, place, claim.verdict) for claim, place in evidence.cases(shown) if claim.number < 4]
    assert with_best == said
    assert {verdict for number, _, verdict in said if number == 3} == {"does not hold"}
    monkeypatch.setattr("fewrounds.report.claims.FLOOR", 0.01)
    assert {claim.verdict for claim, _ in evidence.cases(frame) if claim.number == 3} == {"holds"}


@pytest.mark.parametrize(
    ("part", "tuned", "reported", "rounds", "lost"),
    [
        ("a", 5 * 4 * 6, 5 * 4 * 3, 1000, set()),
        ("b", 0, 5 * 3 * 2, 500, set()),
        ("c", 0, 5 * 3 * 2, 500, {("bvr-l-sgd", 0.85)}),
        ("d", 0, 5 * 2, 3000, set()),
        ("e", 2 * 4 * 6, 2 * 4 * 3, 1000, {("sarah", 0.1), ("sarah", 0.6)}),
        ("f", 3 * 3 * 6, 3 * 3 * 2, 500, set()),
        ("g", 0, 4 * 2, 500, set()),
        ("h", 3 * 6 + 2, 3 * 2, 500, set()),
        ("i", 0, 2 * 3, 1000, set()),
        ("j", 0, 2 * 2, 500, set()),
        ("combine", 2 * 2 * 5, 2 * 2 * 3, 500, set()),
        ("stage", 2 * 2 * 5, 2 * 2 * 3, 500, set()),
    ],
)
def test_a_part_of_the_evidence_is_whole(
    part: str, tuned: int, reported: int, rounds: int, lost: set[tuple[str, float]]
) -> None:
    """Every run of its file is there, to the last round, and the reported ones that diverged are those the page speaks of."""
    import evidence

    name = evidence.PARTS[part]
    frame, content = read(evidence.PACKED / f"{name}.parquet")
    experiment = load_experiment(ROOT / "experiments" / f"{name}.toml")
    assert Experiment.model_validate(content["grid"]["experiment"]) == experiment, "the file has changed since"
    assert set(content["grid"]["runs"]) == set(content["records"]) == set(frame["run"])
    ends = finals(frame)
    assert ends["role"].value_counts().to_dict() == {
        role: count for role, count in {"tuning": tuned, "report": reported}.items() if count
    }
    assert (ends.loc[ends["outcome"] == "finished", "round"] == rounds).all()
    diverged = ends[(ends["role"] == "report") & (ends["state"] != "finished")]
    assert set(zip(diverged["method"], diverged["q"], strict=True)) == lost
    assert not any(choice["at_edge"] for choice in content["grid"].get("chosen", []))


def test_a_method_that_lost_a_seed_is_never_the_best() -> None:
    """SARAH's other seed ends lower than both of Local SGD, and BVR-L-SGD's loss has more than doubled."""
    from tables import ends

    frame = made_frame({("local-sgd", 0.1, 64): 0.9, ("sarah", 0.1, 64): 0.5, ("bvr-l-sgd", 0.1, 64): 0.7}, seeds=2)
    frame = diverge(frame, "sarah-0.1-64-1", after=6)
    risen = (frame["run"] == "bvr-l-sgd-0.1-64-2") & (frame["round"] == 20)
    frame.loc[risen, "train_loss"] = 4.5
    assert ends(frame, "train_loss", "q")[1:] == [
        ("Local SGD", "**0.9000 ± 0.0071 (2)**"),
        ("SARAH", "0.5050 (1), 1 diverged"),
        ("BVR-L-SGD", "0.6950 (1), 1 diverged"),
    ]
    accuracies = ends(frame, "test_accuracy", "q")[1:]  # NaN where a run diverged, which a mean would pass over
    assert [cells[1].startswith("**") for cells in accuracies] == [True, False, False]


def test_the_best_of_a_run_and_not_its_end() -> None:
    from tables import ends

    frame = made_frame({("local-sgd", 0.1, 64): 0.9, ("sarah", 0.1, 64): 0.8}, seeds=1)
    frame.loc[(frame["method"] == "local-sgd") & (frame["round"] == 10), ["train_loss", "test_accuracy"]] = 0.7, 0.95
    assert ends(frame, "train_loss", "q")[1:] == [("Local SGD", "0.9000 (1)"), ("SARAH", "**0.8000 (1)**")]
    best = ends(frame, "train_loss", "q", value="best")
    assert best[1:] == [("Local SGD", "**0.7000 (1)**"), ("SARAH", "0.8000 (1)")]
    assert ends(frame, "test_accuracy", "q", value="best")[1] == ("Local SGD", "**95.0 (1)**")


def test_runs_cut_at_a_number_of_gradients() -> None:
    """One spends 64 a round and is cut between rounds 6 and 8, the other 32 and has just spent as much."""
    from tables import ends, until

    frame = made_frame({("sarah", 0.1, 64): 0.5, ("local-sgd", 0.1, 32): 0.9}, seeds=1).assign(budget=64)
    spent = frame[frame["method"] == "local-sgd"]["gradients_per_worker"].max()
    assert spent == 20 * 32
    frame.loc[frame["method"] == "sarah", "gradients_per_worker"] *= 1.5
    cut = until(frame, spent)
    whole, own = (those[those["method"] == "sarah"].set_index("round") for those in (frame, cut))
    between = spent / 96  # rounds
    low, high = whole.loc[6, "train_loss"], whole.loc[8, "train_loss"]
    assert 6 < between < 8
    assert own.index.tolist() == [0, 2, 4, 6, 7]
    assert own["train_loss"].iloc[-1] == pytest.approx(low + (high - low) * (between - 6) / 2)
    assert own["gradients_per_worker"].iloc[-1] == spent
    assert ends(cut, "train_loss", "q")[1] == ("Local SGD", "0.9000 (1)"), "all of what has spent no more is kept"
