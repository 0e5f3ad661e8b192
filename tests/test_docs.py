"""Every Python block of the README and the docs runs, and the page on adding a method does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fewrounds.methods.base as base

ROOT = Path(__file__).parent.parent
PAGES = [
    path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if "```python" in path.read_text()
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


def test_the_demo_ends_in_a_table_and_a_picture(tmp_path: Path) -> None:
    demo = [sys.executable, str(ROOT / "examples" / "digits_demo.py"), "--rounds", "3", "--output", str(tmp_path)]
    done = subprocess.run(demo, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
    rows = [line for line in done.stdout.splitlines() if "±" in line][1:]
    assert [row.split("  ")[0] for row in rows] == ["minibatch SGD", "Local SGD", "SARAH", "SCAFFOLD", "BVR-L-SGD"]
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    picture = tmp_path / "loss-against-rounds.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = subprocess.run([*demo, "--q", "2"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.splitlines() == ["digits_demo: q = 2.0: must lie between 0 and 1"]


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
