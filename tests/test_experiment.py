"""Whole experiments through the command line: real processes, killed and continued."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import psutil
import pytest

import fewrounds as fr
from experiments import INTERRUPTED, SMALL, fewrounds, start, tidy, wait_gone, write

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The small experiment, undisturbed."""
    folder = tmp_path_factory.mktemp("finished")
    done = fewrounds("run", write(folder), "-o", folder / "out")
    assert done.returncode == 0, done.stderr
    (folder / "stdout").write_text(done.stdout)
    (folder / "stderr").write_text(done.stderr)
    return folder / "out"


def test_the_frame_has_every_run(finished: Path) -> None:
    frame = fr.load_results(finished)
    runs = frame.groupby("run").first()
    assert len(runs) == 4 * (2 + 2)
    assert (runs["role"] == "tuning").sum() == 8
    assert set(runs.loc[runs["role"] == "tuning", "seed"]) == {0}
    assert set(runs.loc[runs["role"] == "report", "seed"]) == {1, 2}
    assert set(frame["round"]) == {0, 4, 8, 10, 11, 12}
    assert (runs["workers"] == 10).all()
    assert set(runs["K"]) == {2}
    # one reported eta a cell, and it is the one the rule chooses from the tuning runs
    for (method, q), cell in frame.groupby(["method", "q"]):
        tuned = cell[cell["role"] == "tuning"]
        scores = {eta: runs["train_accuracy"].tail(3).min() for eta, runs in tuned.groupby("eta")}
        reported = cell.loc[cell["role"] == "report", "eta"].unique()
        assert len(reported) == 1
        assert scores[reported[0]] == max(scores.values()), (method, q)


def test_a_run_is_what_train_gives(finished: Path) -> None:
    """The experiment adds nothing: the same run by hand has the same history."""
    import torch

    from fewrounds.data.digits import load_digits
    from fewrounds.data.partition import class_skew, equalise_classes

    frame = fr.load_results(finished)
    mine = frame[(frame["method"] == "bvr-l-sgd") & (frame["q"] == 0.85) & (frame["seed"] == 1)]
    (X, y), test = load_digits()
    rows = equalise_classes(y)
    rows = sorted(r for c in range(10) for r in rows[y[rows] == c][:20])
    X, y = X[rows], y[rows]
    workers = [(X[part], y[part]) for part in class_skew(y, 0.85)]
    problem = fr.Problem(fr.models.mlp([64, 8, 10], seed=1), loss=torch.nn.functional.cross_entropy, l2=5e-3)
    method = fr.BVRLSGD(eta=mine["eta"].iloc[0], K=2, b=16)
    result = fr.train(problem, workers, method, 12, test=test, seed=1, evaluate_every=4, progress=False)
    columns = [c for c in result.history if c != "seconds"]
    pd.testing.assert_frame_equal(mine[columns].reset_index(drop=True), result.history[columns])


def test_running_again_is_a_no_op_and_a_new_value_runs_only_what_is_new(finished: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "out"
    shutil.copytree(finished, folder)
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/run.json")}
    again = fewrounds("run", write(tmp_path), "-o", folder)
    assert again.returncode == 0, again.stderr
    assert again.stderr == "", "no run was run"
    more = fewrounds("run", write(tmp_path), "-o", folder, "--set", "train.seed=[1, 2, 3]")
    assert more.returncode == 0, more.stderr
    assert more.stderr.count("\n") == 4, "one new seed in each of four cells"
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    fewer = fewrounds("run", write(tmp_path), "-o", folder, "--set", "train.seed=2")
    assert fewer.returncode == 0
    assert set(fr.load_results(folder).query("role == 'report'")["seed"]) == {2}, (
        "the frame is of the experiment as last run"
    )


def test_kill_minus_nine_in_the_middle_of_a_grid(finished: Path, tmp_path: Path) -> None:
    folder, file = tmp_path / "out", write(tmp_path)
    process = start("run", file, "-o", folder)
    assert process.stderr.readline()
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    for _ in range(4):
        assert process.stderr.readline()
    process.kill()
    process.communicate()
    wait_gone(children)
    done = len(list(folder.glob("runs/*/run.json")))
    assert 5 <= done < 16
    again = fewrounds("run", file, "-o", folder)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("\n") == 16 - done, "what was there was not run again"
    pd.testing.assert_frame_equal(tidy(folder), tidy(finished))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_its_like_end_in_one_line_and_it_goes_on(finished: Path, tmp_path: Path, number: int) -> None:
    folder, file = tmp_path / "out", write(tmp_path)
    process = start("run", file, "-o", folder)
    for _ in range(3):
        assert process.stderr.readline()
    os.kill(process.pid, number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    lines = [line for line in errors.splitlines() if not line.startswith("[")]
    assert lines == [INTERRUPTED]
    assert fewrounds("run", file, "-o", folder).returncode == 0
    pd.testing.assert_frame_equal(tidy(folder), tidy(finished))


def test_a_killed_worker_process_is_replaced(finished: Path, tmp_path: Path) -> None:
    folder, file = tmp_path / "out", write(tmp_path)
    process = start("run", file, "-o", folder, "--jobs", "1")
    assert process.stderr.readline()
    workers = []
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.NoSuchProcess):  # git, which is asked for the commit, ends at once
            if "spawn_main" in " ".join(child.cmdline()):
                workers.append(child)
    assert len(workers) == 1
    assert process.stderr.readline()
    workers[0].kill()
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    pd.testing.assert_frame_equal(tidy(folder), tidy(finished))


MODEL = """
import os, torch

def build(shape, classes, seed):
    if seed == 2:
        raise RuntimeError("no model for seed 2\\nat all")
    if seed == 3:
        os.kill(os.getpid(), 9)
    return torch.nn.Linear(shape[0], classes)
"""


def test_a_run_that_fails_is_recorded_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "mymodel.py").write_text(MODEL)
    text = (
        SMALL.replace("hidden = [8]", 'kind = "mymodel:build"')
        .replace("q = [0.1, 0.85]", "q = 0.5")
        .replace("seed = [1, 2]", "seed = [1, 2, 3]")
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out", env=environment)
    assert done.returncode == 0, done.stderr
    failed = [line for line in done.stderr.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 4
    assert sum("RuntimeError: no model for seed 2 at all" in line for line in failed) == 2
    assert sum("its process died twice (killed, or out of memory)" in line for line in failed) == 2
    frame = fr.load_results(tmp_path / "out")
    assert set(frame.query("role == 'report'")["seed"]) == {1}
    records = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("runs/*/run.json")]
    assert sorted(r["outcome"] for r in records).count("failed") == 4
    # failed runs are tried again, the others are not
    again = fewrounds(
        "run", write(tmp_path, text), "-o", tmp_path / "out", "--set", "train.seed=[1, 2]", env=environment
    )
    assert sum(line.startswith("[") for line in again.stderr.splitlines()) == 2


def test_rates_that_diverge_stop_early_and_are_not_chosen(tmp_path: Path) -> None:
    text = (
        SMALL.replace("eta = [0.05, 0.2]", "eta = [0.05, 1e30]")
        .replace("q = [0.1, 0.85]", "q = 0.5")
        .replace("rounds = 12", "rounds = 40")
    )
    done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    frame = fr.load_results(tmp_path / "out")
    wild = frame[frame["eta"] == 1e30]
    assert set(wild["outcome"]) == {"diverged"}
    assert wild["round"].max() < 40
    assert set(frame.query("role == 'report'")["eta"]) == {0.05}


@pytest.mark.slow
def test_a_cell_in_which_every_rate_diverges_says_so_everywhere(tmp_path: Path) -> None:
    text = SMALL.replace("eta = [0.05, 0.2]", "eta = [1e30, 1e35]").replace("q = [0.1, 0.85]", "q = 0.5")
    done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "note: local-sgd digits q=0.5 budget=32: no step size chosen, every step size diverged" in done.stdout
    page = fewrounds("report", tmp_path / "out")
    assert page.returncode == 0, page.stderr


def test_diverged_runs_are_not_averaged_into_the_table(tmp_path: Path) -> None:
    text = (
        SMALL.split("[tuning]")[0]
        .replace("rounds = 12", "rounds = 12\neta = [0.05, 1e30]")
        .replace("q = [0.1, 0.85]", "q = 0.5")
    )
    done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out")
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("local-sgd")]
    assert rows[0][1] == "0.05"
    assert rows[1][1:6] == ["1e+30", "2", "of", "2", "diverged"]


def test_settings_that_differ_are_never_averaged_together(tmp_path: Path) -> None:
    text = (
        SMALL.split("[tuning]")[0]
        .replace("rounds = 12", 'rounds = 3\neta = 0.1\nweights = ["uniform", "size"]')
        .replace("q = [0.1, 0.85]", "kind = 'dirichlet'\nalpha = [0.5, 5.0]\nworkers = 4")
    )
    done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for alpha in ("0.5", "5.0"):
        for weights in ("uniform", "size"):
            assert f"alpha = {alpha}, weights = {weights}" in done.stdout
    frame = fr.load_results(tmp_path / "out")
    mine = frame.query("alpha == 0.5 and weights == 'size' and method == 'local-sgd' and round == 3")
    shown = done.stdout.split("alpha = 0.5, weights = size")[1].split("local-sgd")[1].split()
    assert shown[1] == f"{mine['train_loss'].mean():.3f}"


def test_a_damaged_history_is_made_anew(finished: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "out"
    shutil.copytree(finished, folder)
    first, second = sorted(folder.glob("runs/*/history.parquet"))[:2]
    first.write_bytes(first.read_bytes()[:100])
    second.unlink()
    broken = fewrounds("report", folder)
    assert broken.returncode == 2
    assert "is missing or damaged: run the experiment again" in broken.stderr
    assert fewrounds("run", write(tmp_path), "-o", folder).returncode == 0
    pd.testing.assert_frame_equal(tidy(folder), tidy(finished))


def test_a_changed_model_of_the_users_own_is_run_again(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    text = SMALL.replace("hidden = [8]", 'kind = "ownmodel:build"').replace("q = [0.1, 0.85]", "q = 0.5")
    runs = []
    for hidden in (3, 4):
        (tmp_path / "ownmodel.py").write_text(
            f"import fewrounds as fr\ndef build(shape, classes, seed): return fr.models.mlp([shape[0], {hidden}, classes], seed)"
        )
        assert fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out", env=environment).returncode == 0
        runs.append(set(fr.load_results(tmp_path / "out")["run"]))
    assert not runs[0] & runs[1]


def test_without_tuning_every_eta_is_reported(tmp_path: Path) -> None:
    text = (
        SMALL.split("[tuning]")[0]
        .replace("rounds = 12", "rounds = 2\neta = [0.05, 0.2]")
        .replace("q = [0.1, 0.85]", "kind = 'iid'\nworkers = 3")
    )
    done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    frame = fr.load_results(tmp_path / "out")
    assert len(frame.groupby("run")) == 2 * 2 * 2
    assert set(frame["role"]) == {"report"}
    assert (frame["workers"] == 3).all()


# ---------------------------------------------------------------------- what is shown


def test_the_output_fits_a_terminal_of_80_columns(finished: Path) -> None:
    shown = (finished.parent / "stdout").read_text()
    assert "After the last round (mean ± standard deviation of 2 seeds)" in shown
    assert "q = 0.85" in shown
    table = shown.split("\nResults: ")[0]
    assert max(map(len, table.splitlines())) <= 80
    progress = (finished.parent / "stderr").read_text().splitlines()
    assert len(progress) == 16
    assert progress[-1].startswith("[16/16] ")


def test_dry_run_counts_and_runs_nothing(finished: Path, tmp_path: Path) -> None:
    done = fewrounds("run", write(tmp_path), "-o", tmp_path / "out", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "16 runs (8 to tune, 8 reported), 0 of them there already" in done.stdout
    assert "single-sample gradients to compute" in done.stdout
    assert "MB on disk" in done.stdout
    assert not (tmp_path / "out").exists()
    gradients = float(done.stdout.split(" single-sample")[0].split()[-1])
    spent = fr.load_results(finished).groupby("run").last().eval("gradients_per_worker * workers").sum()
    assert gradients == pytest.approx(spent, rel=0.01)
    known = fewrounds("run", write(tmp_path), "-o", finished, "--dry-run")
    assert "16 of them there already" in known.stdout
    assert "\n0 single-sample gradients to compute\nabout 0 s on " in known.stdout
    assert known.stdout.endswith(" cores, 0.0 MB on disk\n")


def test_dry_run_when_some_cells_are_tuned(finished: Path, tmp_path: Path) -> None:
    """It knows the steps where all were tried, and none of a cell that lacks one; a seed more is a run more."""
    folder = shutil.copytree(finished, tmp_path / "out")
    frame = fr.load_results(finished)
    cell = frame[(frame["method"] == "local-sgd") & (frame["q"] == 0.1)]
    for _, runs in cell.groupby("role"):
        shutil.rmtree(folder / "runs" / runs["run"].iloc[0])
    seeds = ["--set", "train.seed=[1, 2, 3]"]
    asked = fewrounds("run", write(tmp_path), "-o", folder, "--dry-run", *seeds)
    assert asked.returncode == 0, asked.stderr
    assert "20 runs (8 to tune, 12 reported), 13 of them there already" in asked.stdout, "7 tuned, 3 cells of 2"
    last = frame.groupby("run").tail(1).set_index(["method", "q"])
    spent = (last["gradients_per_worker"] * last["workers"]).groupby(level=[0, 1]).first()
    expected = spent.sum() + 3 * spent["local-sgd", 0.1]
    assert float(asked.stdout.split(" single-sample")[0].split()[-1]) == pytest.approx(expected, rel=0.01)


def test_step_sizes_that_another_experiment_chose(finished: Path, tmp_path: Path) -> None:
    """Another budget and other rounds, the same methods and splits."""
    text = SMALL.split("[tuning]")[0].replace("rounds = 12", f"rounds = 3\neta_from = '{finished}'")
    done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out", "--set", "train.budget=16")
    assert done.returncode == 0, done.stderr
    chosen = fr.load_results(finished).query("role == 'report'").groupby(["method", "q"])["eta"].unique()
    used = fr.load_results(tmp_path / "out").groupby(["method", "q"])["eta"].unique()
    assert len(used) == 4
    for cell, etas in used.items():
        assert etas.tolist() == chosen[cell].tolist()
    known = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out", "--set", "train.budget=16", "--dry-run")
    assert known.returncode == 0, known.stderr
    assert "\n0 single-sample gradients to compute" in known.stdout, "all of them are there"
    asked = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out", "--set", "partition.q=0.5")
    assert asked.returncode == 2
    assert f"train.eta_from = '{finished}': no step size was chosen there for local-sgd digits q=0.5" in asked.stderr


def test_settings_of_a_method_and_further_rates_are_axes(tmp_path: Path) -> None:
    text = SMALL.replace("rounds = 12", "rounds = 4").replace("q = [0.1, 0.85]", "q = 0.85")
    text += '\n[tuning.more]\nbvr-l-sgd = 0.07\n[methods.bvr-l-sgd]\ncombine = ["pick", "mean"]\nT = 3\n'
    done = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    frame = fr.load_results(tmp_path / "out").query("method == 'bvr-l-sgd'")
    assert set(frame["combine"]) == {"pick", "mean"}
    assert (frame["aggregations"] == frame["combine"].map({"pick": 1, "mean": 2})).all()
    assert 0.07 in set(frame.query("role == 'tuning'")["eta"])
    assert "combine = mean" in done.stdout, "never averaged together"
    assert "bvr-l-sgd q=0.85 budget=32 combine=" in done.stdout.replace("digits ", ""), "the notes tell them apart"
    planned = fewrounds("run", write(tmp_path, text), "-o", tmp_path / "out", "--dry-run").stdout
    assert "bvr-l-sgd combine=mean " in planned
    assert "T=" not in planned, "one value is no axis"
    last = frame.query("role == 'tuning' and eta == 0.07").groupby("combine")["train_loss"].last()
    assert last["pick"] != last["mean"]
