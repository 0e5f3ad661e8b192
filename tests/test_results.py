"""The tables in results/ are what the runs beside them say."""

from __future__ import annotations

from pathlib import Path

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
