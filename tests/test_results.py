"""The tables in results/ are what the runs beside them say."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from fewrounds.experiment.archive import read
from fewrounds.experiment.config import Experiment, load_experiment
from fewrounds.report.marked import filled

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


@pytest.mark.parametrize(
    ("part", "tuned", "reported", "rounds", "lost"),
    [
        ("a", 5 * 4 * 6, 5 * 4 * 3, 1000, set()),
        ("b", 0, 5 * 3 * 2, 500, set()),
        ("c", 0, 5 * 3 * 2, 500, {("bvr-l-sgd", 0.85)}),
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
    ends = frame.loc[frame.groupby("run")["round"].idxmax()]
    assert ends["role"].value_counts().to_dict() == {
        role: count for role, count in {"tuning": tuned, "report": reported}.items() if count
    }
    assert (ends.loc[ends["outcome"] == "finished", "round"] == rounds).all()
    diverged = ends[(ends["role"] == "report") & (ends["outcome"] != "finished")]
    assert set(zip(diverged["method"], diverged["q"], strict=True)) == lost
    assert not any(choice["at_edge"] for choice in content["grid"].get("chosen", []))
