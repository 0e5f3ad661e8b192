"""Faults of ranks under torchrun, and what they really exchange."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks import HERE, torchrun

pytestmark = pytest.mark.slow


def few_runs(folder: Path) -> Path:
    """An experiment of two runs."""
    from experiments import SMALL, write

    text = SMALL.replace("rounds = 12", "rounds = 3").replace("q = [0.1, 0.85]", "q = 0.85").partition("[tuning]")[0]
    return write(folder, text.replace('["local-sgd", "bvr-l-sgd"]', '"local-sgd"\neta = 0.05'))


def test_data_that_one_rank_lacks_fail_the_run_on_all(tmp_path: Path) -> None:
    """Each run is recorded, and the ranks go on to the next."""
    path = few_runs(tmp_path)
    done = torchrun(2, HERE / "cluster" / "a_bad_rank.py", "data", "run", path, "-o", tmp_path / "out")
    assert done.stderr.count("failed: local-sgd") == 2, done.stderr[-2000:]
    assert done.stderr.count("digits is not on this machine") >= 2


def test_an_error_in_a_round_of_one_rank_ends_all(tmp_path: Path) -> None:
    """The others wait for that rank in the midst of the round, so none can go on."""
    path = few_runs(tmp_path)
    done = torchrun(2, HERE / "cluster" / "a_bad_rank.py", "round 2", "run", path, "-o", tmp_path / "out")
    assert done.returncode != 0
    assert "fewrounds: rank 1: the loss cannot be computed here" in done.stderr.splitlines()
    again = torchrun(2, "-m", "fewrounds", "run", path, "-o", tmp_path / "out")
    assert again.returncode == 0, again.stderr[-2000:]
    assert "After the last round" in again.stdout
