"""`fewrounds measure`, `fewrounds advise` and eta = "auto", as a person runs them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import fewrounds as fr
from experiments import SMALL, fewrounds, write

QUICK = """
[measure]
samples = 8
smooth_samples = 1
tolerance = 0.1
all_pairs = false
rounds = [0, 5]
"""
AUTO = SMALL[: SMALL.index("[tuning]")].replace("budget = 32", 'budget = 32\neta = "auto"') + QUICK


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the small experiment's problems were measured."""
    folder = tmp_path_factory.mktemp("measured")
    done = fewrounds("measure", write(folder, AUTO), "-o", folder / "out")
    assert done.returncode == 0, done.stderr
    (folder / "said").write_text(done.stdout)
    return folder


def contents(folder: Path) -> dict[tuple[float, int], dict]:
    found = [json.loads(path.read_text()) for path in (folder / "out" / "measurements").glob("*.json")]
    return {(one["q"], one["round"]): one for one in found}


@pytest.mark.slow
def test_every_split_is_measured_along_a_training(measured: Path) -> None:
    found = contents(measured)
    assert set(found) == {(q, round) for q in (0.1, 0.85) for round in (0, 5)}
    figures = {key: fr.Measurement.from_json(one["measurement"]) for key, one in found.items()}
    assert figures[0.85, 0].zeta > 2 * figures[0.1, 0].zeta, "the more skewed, the more heterogeneous"
    assert figures[0.85, 0].zeta1 > 2 * figures[0.1, 0].zeta1
    assert figures[0.1, 5].loss < figures[0.1, 0].loss
    assert figures[0.1, 0].loss == pytest.approx(figures[0.85, 0].loss, rel=1e-5), "the same start and the same data"
    said = (measured / "said").read_text()
    for one in figures.values():
        assert f"{one.zeta:.3g}" in said
        assert f"± {one.zeta.error:.1g}" in said
        assert f"{one.gradients:,}" in said
    assert (measured / "out" / "figures" / "measured.png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_report_on_measurements_alone_says_what_to_do(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured / "out", tmp_path / "out")
    (tmp_path / "out" / "grid.json").unlink(missing_ok=True)
    for command in (["report", tmp_path / "out"], ["pack", tmp_path / "out", tmp_path / "x.parquet"]):
        done = fewrounds(*command)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "out has measurements, but no runs: `fewrounds run FILE --output" in line


@pytest.mark.slow
def test_nothing_is_measured_twice(measured: Path, tmp_path: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in (measured / "out" / "measurements").iterdir()}
    again = fewrounds("measure", measured / "experiment.toml", "-o", measured / "out")
    assert again.returncode == 0, again.stderr
    assert "measuring" not in again.stderr
    assert "training" not in again.stderr
    assert again.stdout == (measured / "said").read_text()
    assert {path: path.stat().st_mtime_ns for path in (measured / "out" / "measurements").iterdir()} == times
    shutil.copytree(measured / "out", tmp_path / "out")
    other = fewrounds(
        "measure", measured / "experiment.toml", "-o", tmp_path / "out",
        "--set", "measure.rounds=[0]", "--set", "measure.samples=9",
    )  # fmt: skip
    assert other.stderr.count("measuring") == 2, "with other settings it is another measurement"


@pytest.mark.slow
def test_advice_is_what_the_library_says(measured: Path) -> None:
    done = fewrounds("advise", measured / "experiment.toml", "-o", measured / "out", "--budget", "64", "--rounds", "50")
    assert done.returncode == 0, done.stderr
    assert "measuring" not in done.stderr
    for q in (0.1, 0.85):
        m = fr.Measurement.from_json(contents(measured)[q, 0]["measurement"])
        advice = fr.advise(m, 64, rounds=50)
        assert f"q = {q}, budget = 64, 50 rounds" in done.stdout
        for choice in advice.choices:
            assert f"{choice.method.eta:.3g}" in done.stdout
        assert " ".join(advice.why.split())[:60] in " ".join(done.stdout.split())
    timed = fewrounds(
        "advise", measured / "experiment.toml", "-o", measured / "out",
        "--seconds-per-round", "5", "--seconds-per-gradient", "0.001",
    )  # fmt: skip
    assert timed.returncode == 0, timed.stderr
    assert "seconds" in timed.stdout
    goal = fewrounds("advise", measured / "experiment.toml", "-o", measured / "out", "--epsilon", "0.01")
    assert goal.returncode == 0, goal.stderr
    for q in (0.1, 0.85):
        m = fr.Measurement.from_json(contents(measured)[q, 0]["measurement"])
        first = fr.advise(m, 32, epsilon=0.01).choices[0]
        assert f"{first.rounds:.3g}" in goal.stdout
    both = fewrounds("advise", measured / "experiment.toml", "--epsilon", "0.01", "--rounds", "5")
    assert both.returncode == 2
    assert "give --rounds or --epsilon, not both" in both.stderr


@pytest.mark.slow
def test_auto_runs_with_the_advised_step_sizes(measured: Path) -> None:
    done = fewrounds("run", measured / "experiment.toml", "-o", measured / "out", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    assert "measuring" not in done.stderr, "it was measured before"
    frame = fr.load_results(measured / "out")
    for (method, q), rows in frame.groupby(["method", "q"]):
        m = fr.Measurement.from_json(contents(measured)[q, 0]["measurement"])
        expected = fr.advise(m, 32, rounds=12).of(method).method
        assert rows["eta"].unique() == pytest.approx([expected.eta], rel=5e-3)
        assert (rows["K"].unique(), rows["b"].unique()) == (expected.K, expected.b)
    last = frame[frame["round"] == 12]
    assert (last["outcome"] == "finished").all()
    assert (last["train_loss"] < frame.loc[frame["round"] == 0, "train_loss"].min()).all()
    again = fewrounds("run", measured / "experiment.toml", "-o", measured / "out")
    assert again.returncode == 0, again.stderr
    pd.testing.assert_frame_equal(fr.load_results(measured / "out"), frame)
    report = fewrounds("report", measured / "out")
    assert report.returncode == 0, report.stderr
    page = (measured / "out" / "index.html").read_text()
    assert "Chosen by: fewrounds advise, from a measurement at the start." in page
    assert "How heterogeneous the data are" in page


@pytest.mark.slow
def test_advice_on_a_file_is_what_the_file_runs(measured: Path, tmp_path: Path) -> None:
    """With settings of single methods, and a method that is not among the usual ones."""
    shutil.copytree(measured / "out", tmp_path / "out")
    text = AUTO.replace('"bvr-l-sgd"]', '"bvr-l-sgd", "svrg"]').replace("q = [0.1, 0.85]", "q = [0.85]")
    path = write(tmp_path, text + "\n[methods.bvr-l-sgd]\nb = 4\nb_tilde = 10\n[methods.svrg]\nb_tilde = 5\n")
    shown = fewrounds("advise", path, "-o", tmp_path / "out")
    assert shown.returncode == 0, shown.stderr
    assert "measuring" not in shown.stderr
    done = fewrounds("run", path, "-o", tmp_path / "out", "--jobs", "1", "--set", "train.seed=1")
    assert done.returncode == 0, done.stderr
    frame = fr.load_results(tmp_path / "out")
    rows = {line.split()[0]: line.split() for line in shown.stdout.splitlines() if line.split()[:1]}
    for method, own in frame.groupby("method"):
        (eta,) = own["eta"].unique()
        assert f"{eta:.3g}" in rows[method], method
    assert "4" in rows["bvr-l-sgd"]
    m = fr.Measurement.from_json(contents(measured)[0.85, 0]["measurement"])
    usual = fr.advise(m, 32, rounds=12).of("bvr-l-sgd").method.eta
    assert f"{usual:.3g}" not in rows["bvr-l-sgd"], "its own settings matter"
    assert "minibatch-sgd" in rows, "the usual ones are there to compare with"


UNADVISED = """
import sys
from dataclasses import dataclass
import fewrounds as fr
from fewrounds.methods.base import register
from fewrounds.cli import main

@register("own")
@dataclass(frozen=True)
class Own(fr.LocalSGD):
    pass

main()
"""


@pytest.mark.parametrize(("command", "change"), [("run", "train.method=['own']"), ("measure", "measure.method=own")])
def test_a_method_without_advice_is_refused_before_anything_is_measured(
    tmp_path: Path, command: str, change: str
) -> None:
    arguments = [command, str(write(tmp_path, AUTO)), "-o", str(tmp_path / "out"), "--set", change]
    done = subprocess.run([sys.executable, "-c", UNADVISED, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "there is no advice on 'own': give its eta" in line
    assert not (tmp_path / "out").exists()


def test_a_dry_run_measures_nothing(tmp_path: Path) -> None:
    done = fewrounds("run", write(tmp_path, AUTO), "-o", tmp_path / "out", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "advised" in done.stdout
    assert not (tmp_path / "out" / "measurements").exists()


@pytest.mark.parametrize(
    ("command", "sets", "said"),
    [
        ("measure", ["measure.rounds=[]"], "measure.rounds"),
        ("measure", ["measure.rounds=[-1]"], "measure.rounds"),
        ("measure", ["measure.n=0"], "measure.n"),
        ("measure", ["measure.method=sarha"], "did you mean 'sarah'"),
        ("run", ["train.eta=automatic"], "train.eta"),
        ("run", ["tuning.eta=[0.1]"], "give either train.eta, train.eta_from or a [tuning] section"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, command: str, sets: list[str], said: str) -> None:
    options = [word for one in sets for word in ("--set", one)]
    done = fewrounds(command, write(tmp_path, AUTO), "-o", tmp_path / "out", *options)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert said in line


@pytest.mark.slow
def test_a_broken_measurement_is_named(measured: Path, tmp_path: Path) -> None:
    shutil.copytree(measured / "out", tmp_path / "out")
    broken = next((tmp_path / "out" / "measurements").glob("*.json"))
    broken.write_text("{")
    (tmp_path / "out" / "measurements" / "zz.json").write_text("{")
    done = fewrounds("measure", measured / "experiment.toml", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "zz.json cannot be read: delete it, and measure again" in done.stderr.splitlines()[-1]
    assert json.loads(broken.read_text()), "its own are made anew"


@pytest.mark.slow
def test_a_measurement_without_a_figure_that_advice_needs_is_made_anew(measured: Path, tmp_path: Path) -> None:
    """As those of earlier versions, which did not look ahead."""
    shutil.copytree(measured / "out", tmp_path / "out")
    for path in (tmp_path / "out" / "measurements").glob("*.json"):
        content = json.loads(path.read_text())
        if content["q"] == 0.1 and content["round"] == 0:
            del content["measurement"]["L_ahead"]
            path.write_text(json.dumps(content))
    done = fewrounds("advise", measured / "experiment.toml", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("measuring") == 1
    assert contents(tmp_path)[0.1, 0]["measurement"]["L_ahead"]["value"] > 0


@pytest.mark.slow
def test_ranks_are_refused(measured: Path) -> None:
    done = fewrounds("measure", measured / "experiment.toml", env={**os.environ, "TORCHELASTIC_RUN_ID": "x"})
    assert done.returncode == 2
    assert (
        done.stderr
        == "fewrounds: fewrounds measure runs in one process; under torchrun: fr.measure(engine='torchrun')\n"
    )


@pytest.mark.slow
def test_budget_or_seconds(measured: Path) -> None:
    done = fewrounds("advise", measured / "experiment.toml", "--budget", "8", "--seconds-per-round", "1")
    assert done.returncode == 2
    assert "give --budget, or --seconds-per-round and --seconds-per-gradient, not both" in done.stderr


def test_advice_needs_a_budget(tmp_path: Path) -> None:
    text = (
        AUTO.replace("budget = 32\n", "") + "\n[methods.local-sgd]\nK = 2\nb = 4\n[methods.bvr-l-sgd]\nK = 2\nb = 4\n"
    )
    done = fewrounds("advise", write(tmp_path, text), "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "the file has no train.budget: give --budget, or the seconds" in done.stderr


def test_a_goal_that_no_gradient_is_known_to_is_one_line(tmp_path: Path) -> None:
    done = fewrounds("advise", write(tmp_path, AUTO), "-o", tmp_path / "out", "--epsilon", "1e-200")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "epsilon = 1e-200: must be 1e-30 or more" in line
    assert not (tmp_path / "out").exists()
