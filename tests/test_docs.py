"""Every Python block of the README and the docs runs, and the page on adding a method does what it says."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path

import pytest

import fewrounds.methods.base as base
from experiments import fewrounds
from fewrounds.experiment.config import load_experiment

ROOT = Path(__file__).parent.parent
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if "```python" in path.read_text()
    and path.name not in ("cluster.md", "silos.md")  # their files are run in test_torchrun.py and slow/test_flare.py
]


def test_there_are_pages_with_code() -> None:
    assert {path.name for path in PAGES} >= {"README.md", "add-a-method.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_code_of_a_page_runs_top_down(page: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = dict(base.REGISTRY)
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL))
    try:
        exec(compile(code, page.name, "exec", dont_inherit=True), {"__name__": "page"})
    finally:
        base.REGISTRY.clear()
        base.REGISTRY.update(known)


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_method_has_its_section() -> None:
    text = (ROOT / "docs" / "methods.md").read_text()
    for name, cls in base.REGISTRY.items():
        if cls.__module__.startswith("fewrounds."):
            assert f"`{name}`" in text
            assert f"`fr.{cls.__name__}(" in text


COMMANDS = [
    (page.name, line.removeprefix("$ "))
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), flags=re.DOTALL)
    for line in block.splitlines()
    if line.startswith("$ fewrounds ")
    and not (line.startswith("$ fewrounds silo ") or page.name == "silos.md")  # those: slow/test_flare.py
]


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=() if page == "README.md" else pytest.mark.slow)
        for page in sorted({page for page, _ in COMMANDS})
    ],
)
def test_the_commands_of_a_page_run_top_down(page: str, tmp_path: Path) -> None:
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    for _, command in [c for c in COMMANDS if c[0] == page]:
        done = fewrounds(*shlex.split(command)[1:], cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout


def test_the_demo_is_the_papers_five_methods_by_the_papers_rule() -> None:
    """What `make demo` runs, and what the README says of it."""
    demo = load_experiment(ROOT / "experiments" / "demo.toml")
    assert demo.train.method == ["minibatch-sgd", "local-sgd", "sarah", "scaffold", "bvr-l-sgd"]
    assert demo.partition.q == [0.85]
    assert demo.tuning.eta == [0.005, 0.01, 0.05, 0.1, 0.5, 1.0]
    assert (demo.tuning.rule, demo.tuning.last) == ("paper", 100)
    assert "fewrounds run experiments/demo.toml" in (ROOT / "Makefile").read_text()


def test_the_errors_shown_in_the_readme_are_the_real_ones() -> None:
    import numpy as np
    from torch import nn

    import fewrounds as fr

    def label() -> None:
        problem = fr.Problem(nn.Linear(2, 3), loss=nn.functional.cross_entropy)
        good = (np.ones((3, 2), dtype=np.float32), np.array([0, 1, 2]))
        bad = (good[0], np.array([0, 1, 3]))
        fr.train(problem, [good, bad], fr.MinibatchSGD(eta=0.1, b=1), 1)

    mistakes = [
        label,
        lambda: fr.Problem(nn.Sequential(nn.Linear(2, 3), nn.Dropout()), loss=nn.functional.cross_entropy),
        lambda: fr.method("bvr-lsgd", eta=0.1),
    ]
    shown = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("fewrounds.errors.")]
    for mistake, line in zip(mistakes, shown, strict=True):
        with pytest.raises(fr.FewroundsError) as caught:
            mistake()
        assert line == f"{type(caught.value).__module__}.{type(caught.value).__name__}: {caught.value}"


def test_the_tables_on_choosing_are_those_of_the_results(monkeypatch) -> None:
    import json

    from fewrounds.report.marked import filled

    monkeypatch.syspath_prepend(ROOT / "experiments")
    import choosing

    tables = choosing.tables(json.loads(choosing.RESULTS.read_text()))
    for name, rows in tables.items():
        assert {len(row) for row in rows} == {len(rows[0])}, name
    page = (ROOT / "docs" / "choosing.md").read_text()
    assert filled(page, tables) == page, "run python experiments/choosing.py page"


def test_what_seeds_do_not_tell_apart_is_tied(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    import choosing_tables

    found = [("a", 1.0, 0.1), ("b", 1.06, 0.02), ("c", 1.09, 0.02), ("d", 1.095, None), ("e", math.nan, None)]
    cells = [{"method": name, "tuned_loss": value, "tuned_loss_sd": sd} for name, value, sd in found]
    apart = [[cell["method"] for cell in tied] for tied in choosing_tables.told_apart(cells[::-1], "tuned_loss")]
    assert apart == [["a", "b"], ["c", "d"], ["e"]], "c is within the spread of neither a nor b"
    assert choosing_tables.places(cells, "tuned_loss") == [1.5, 1.5, 3.5, 3.5, 5]


@pytest.mark.slow
def test_the_factors_are_those_that_the_calibration_gives(monkeypatch) -> None:
    from fewrounds.theory.limits import FACTORS

    monkeypatch.syspath_prepend(ROOT / "experiments")
    import choosing

    assert choosing.packed("calibration"), "results/choosing/calibration.parquet: python experiments/choosing.py pack"
    assert choosing.fitted() == FACTORS


def test_the_results_on_choosing_are_those_of_the_packed_runs(monkeypatch) -> None:
    import json

    monkeypatch.syspath_prepend(ROOT / "experiments")
    import choosing

    for name in [*choosing.CALIBRATION, *(name for pair in choosing.PAIRS.values() for name in pair)]:
        assert choosing.packed(name), f"results/choosing/{name}.parquet: python experiments/choosing.py pack"
    found = json.loads(json.dumps(choosing.collected()))
    kept = json.loads(choosing.RESULTS.read_text())
    assert json.dumps(found, sort_keys=True) == json.dumps(kept, sort_keys=True), (
        "python experiments/choosing.py collect"
    )
