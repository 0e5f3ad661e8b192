"""What is shown of measurements: every split under a name of its own, every figure, and what it cost."""

from __future__ import annotations

from pathlib import Path

import fewrounds as fr
from experiments import write
from fewrounds.experiment import survey
from fewrounds.experiment.advice import _titled
from fewrounds.experiment.config import load_experiment
from fewrounds.report.measured import lines_of

FEW = """
name = "few"

[data]
source = "digits"
limit = 6

[partition]
kind = "iid"
workers = 3
seed = [0, 7]

[model]
hidden = [2]

[train]
method = ["minibatch-sgd"]
eta = "auto"
budget = 8
rounds = 4

[measure]
samples = 4
smooth_samples = 1
tolerance = 0.1
rounds = [0]
"""


def saved_measurement(**changes) -> dict:
    content = {
        "dataset": "digits", "partition": "iid", "workers": 3, "partition_seed": 0, "l2": 0.0, "round": 0, "along": {},
        "problem": "p", "made": "2026-01-01", "measurement": fr.Measurement(1.0).to_json(),
    }  # fmt: skip
    return {**content, **changes}


def test_splits_of_another_seed_are_lines_of_their_own() -> None:
    seeds = [saved_measurement(partition_seed=seed, problem=f"p{seed}") for seed in (7, 0)]
    assert list(lines_of(seeds)) == ["partition_seed = 0", "partition_seed = 7"]
    assert list(lines_of(seeds[:1])) == ["digits"], "said only where it tells them apart"


def test_every_problem_has_a_title_of_its_own(tmp_path: Path) -> None:
    def titles(*changes: str) -> list[str]:
        return [title for title, _ in _titled(survey.problems(load_experiment(write(tmp_path, FEW), list(changes))))]

    assert titles() == ["digits, iid, partition seed = 0", "digits, iid, partition seed = 7"]
    assert titles("partition.seed=7") == ["digits, iid"]
    many = titles("partition.kind=['dirichlet', 'shards']", "partition.alpha=0.5", "partition.shards_per_worker=2",
                  "partition.workers=[2, 3]", "model.l2=[0.0, 0.1]")  # fmt: skip
    assert len(many) == len(set(many)) == 16
    assert "digits, dirichlet, alpha = 0.5, workers = 2, partition seed = 0, l2 = 0.1" in many
