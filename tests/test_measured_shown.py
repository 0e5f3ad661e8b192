"""What is shown of measurements: every split under a name of its own, every figure, and what it cost."""

from __future__ import annotations

from pathlib import Path

import pytest

import fewrounds as fr
from experiments import write
from fewrounds.experiment import survey
from fewrounds.experiment.advice import _titled, show_advice, show_measurements
from fewrounds.experiment.config import load_experiment
from fewrounds.experiment.store import Store
from fewrounds.report.measured import lines_of
from fewrounds.theory.advise import NEEDED

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


def few(folder: Path, *changes: str):
    return load_experiment(write(folder, FEW), ["partition.seed=7", *changes])


def the_saved(folder: Path) -> fr.Measurement:
    (one,) = survey.saved(Store(folder))
    return fr.Measurement.from_json(one["measurement"])


def test_the_table_has_every_figure_and_what_it_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_measurements(few(tmp_path), tmp_path / "out")
    said, m = " ".join(capsys.readouterr().out.split()), the_saved(tmp_path / "out")
    assert f"L_p, greatest {max(m.L_workers):.3g}" in said
    assert f"ζ to the mean {m.zeta_to_mean:.3g}" in said
    assert sum(m.costs.values()) == m.gradients
    for words, name in (("L", "L"), ("ζ to the mean", "zeta_to_mean"), ("ζ₁", "zeta1"), ("σ²", "sigma2")):
        assert f", {words} {m.costs[name]:,}" in said.replace(": L", ", L")
    assert f"L_p of all {sum(one.gradients for one in m.L_workers):,}" in said


def test_advice_measures_what_it_needs_and_measure_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def measurings() -> int:
        return capsys.readouterr().err.count("measuring")

    out = tmp_path / "out"
    show_advice(few(tmp_path), out, rounds=4)
    advised = the_saved(out)
    assert measurings() == 1
    assert set(NEEDED) == set(advised.costs)
    show_measurements(few(tmp_path), out)
    assert measurings() == 1, "one of advice is not complete"
    whole = the_saved(out)
    assert whole.zeta_to_mean > 0
    assert {name: getattr(whole, name) for name in advised.costs} == {
        name: getattr(advised, name) for name in advised.costs
    }
    assert whole.gradients > advised.gradients
    show_advice(few(tmp_path), out, rounds=4)
    show_measurements(few(tmp_path), out)
    assert measurings() == 0, "one of measure serves both"
    assert the_saved(out) == whole


def test_only_some_figures_are_measured_and_none_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, some = tmp_path / "out", few(tmp_path, "measure.only=['zeta_to_mean', 'L']")
    show_measurements(some, out)
    assert set(the_saved(out).costs) == {"zeta_to_mean", "L"}
    assert "–" in capsys.readouterr().out
    show_advice(some, out, rounds=4)
    assert set(the_saved(out).costs) == {*NEEDED, "zeta_to_mean"}
    capsys.readouterr()
    show_measurements(some, out)
    assert "measuring" not in capsys.readouterr().err
    show_measurements(few(tmp_path, "measure.only=['L']", "measure.rounds=[0, 2]"), tmp_path / "along")
    at = {one["round"]: fr.Measurement.from_json(one["measurement"]) for one in survey.saved(Store(tmp_path / "along"))}
    assert set(at[2].costs) == {"L"}
    assert set(at[0].costs) == set(NEEDED), "the training there needs a step size"
    with pytest.raises(fr.SettingError, match="measure.only.*there is no figure 'zetta'; did you mean 'zeta'"):
        few(tmp_path, "measure.only=['zetta']")
