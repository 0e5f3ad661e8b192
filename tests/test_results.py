"""The tables in results/ are what the runs beside them say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from fewrounds.experiment.archive import read
from fewrounds.experiment.config import load_experiment
from fewrounds.report.marked import filled

ROOT = Path(__file__).parents[1]


def script(folder: Path) -> ModuleType:
    """build.py of a folder of results."""
    spec = importlib.util.spec_from_file_location(f"build_{folder.name}", folder / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_field() -> None:
    folder = ROOT / "results" / "field"
    frame, content = read(folder / "runs.parquet")
    text = (folder / "README.md").read_text()
    tables = script(folder).tables(frame, content)
    assert filled(text, tables) == text, "run python results/field/build.py --again"
    assert {len(rows) for name, rows in tables.items() if name.startswith("loss")} == {13}, "twelve methods"


def test_the_field_is_whole_and_within_its_budget() -> None:
    """Every run of the file is there, and none has spent more than the budget that all have."""
    frame, content = read(ROOT / "results" / "field" / "runs.parquet")
    experiment = load_experiment(ROOT / "experiments" / "field.toml")
    assert content["grid"]["experiment"] == experiment.model_dump(mode="json"), "the file has changed since"
    assert set(content["grid"]["runs"]) == set(content["records"])
    cells = {(c["dataset"], c["q"], c["method"]) for c in content["grid"]["chosen"]}
    assert len(cells) == 2 * 2 * 12
    finished = frame[frame["outcome"] == "finished"]
    last = finished.loc[finished.groupby("run")["round"].idxmax()]
    assert (last["round"] == 295).all()
    assert (last["gradients_per_worker"] <= 256 * last["round"]).all()
    assert (last["gradients_per_worker"] > 0.9 * 256 * last["round"]).all(), "and none was given much less"
    assert set(frame["budget_mode"]) == {"strict"}
