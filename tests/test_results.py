"""The tables in results/ are what the frames beside them say."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pandas as pd

from fewrounds.report.marked import filled

RESULTS = Path(__file__).parents[1] / "results"


def script(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("build", folder / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_field() -> None:
    folder = RESULTS / "field"
    frame, about = pd.read_parquet(folder / "frame.parquet"), json.loads((folder / "about.json").read_text())
    text = (folder / "README.md").read_text()
    tables = script(folder).tables(frame, about)
    assert filled(text, tables) == text
    assert {len(rows) for name, rows in tables.items() if name.startswith("loss")} == {13}, "twelve methods"
    # strict means strict: no run has spent more than its budget
    last = frame.loc[frame.groupby("run")["round"].idxmax()]
    finished = last[last["outcome"] == "finished"]
    assert (finished["gradients_per_worker"] <= finished["budget"] * finished["round"]).all()
    assert (frame["budget_mode"] == "strict").all()
