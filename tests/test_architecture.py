"""Dependencies point one way, and a method stays on one page."""

from __future__ import annotations

import ast
from pathlib import Path

import fewrounds

SOURCE = Path(fewrounds.__file__).parent


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def uses(folder: str, forbidden: tuple[str, ...]) -> dict[str, set[str]]:
    paths = [SOURCE / folder] if folder.endswith(".py") else sorted((SOURCE / folder).rglob("*.py"))
    assert paths
    wrong = {path.name: {i for i in imports(path) if i.startswith(forbidden)} for path in paths}
    return {name: found for name, found in wrong.items() if found}


def test_methods_know_no_engine_and_engines_no_method() -> None:
    assert uses("methods", ("fewrounds.engine", "fewrounds.training", "fewrounds.checkpoint")) == {}
    assert uses("engine", ("fewrounds.methods", "fewrounds.training", "fewrounds.checkpoint")) == {}


def test_the_ground_floor_knows_nothing_above_it() -> None:
    above = (
        "fewrounds.methods",
        "fewrounds.engine",
        "fewrounds.training",
        "fewrounds.checkpoint",
        "fewrounds.progress",
    )
    for part in ("problem.py", "layers.py", "draws.py", "ledger.py", "batch.py", "interfaces.py", "data"):
        assert uses(part, above) == {}


def test_the_core_knows_no_experiment() -> None:
    above = ("fewrounds.experiment", "fewrounds.report", "fewrounds.cli")
    for part in ("methods", "engine", "data", "training.py", "checkpoint.py", "checks.py", "problem.py"):
        assert uses(part, above) == {}


def test_a_method_is_at_most_one_page() -> None:
    for path in (SOURCE / "methods").glob("*.py"):
        assert len(path.read_text().splitlines()) <= 150, path.name
