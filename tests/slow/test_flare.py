"""Silos as they are meant to run, over FLARE: the demo, the docs' commands, and the same iterates as in one process."""

from __future__ import annotations

import json
import math
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from federation import Federation, in_one_process

import fewrounds as fr
from cluster.every_method import methods
from experiments import fewrounds
from fewrounds.experiment.store import load_results
from fewrounds.silo import demo
from problems import classifier

pytestmark = pytest.mark.slow

METHODS = [name for name in methods() if "of 7" not in name or name == "scaffold, 2 of 7"]
RUNS = [(name, ("uniform", "size")[number % 2]) for number, name in enumerate(METHODS)]
RUNS += [(name, "uniform" if (name, "size") in RUNS else "size") for name in ("scaffold", "bvr-l-sgd")]
DOCS = Path(__file__).parents[2] / "docs" / "silos.md"


def test_the_demo(tmp_path: Path) -> None:
    done = fewrounds("silo", "demo", tmp_path / "demo", "--rounds", "6", timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^ +6 ", done.stdout, flags=re.MULTILINE), done.stdout
    shown = fewrounds("report", tmp_path / "demo" / "result")
    assert shown.returncode == 0, shown.stderr
    assert "Across 3 sites: north, south, west." in (tmp_path / "demo" / "result" / "index.html").read_text()
    again = fewrounds("silo", "demo", tmp_path / "demo")
    assert again.returncode == 2
    assert "is there already" in again.stderr


@pytest.mark.parametrize(("name", "weights"), RUNS, ids=[", ".join(run) for run in RUNS])
def test_every_method_has_the_same_iterates_as_in_one_process(federation: Federation, name: str, weights: str) -> None:
    """(With both weightings for each: test_silo.py, where the same sites are asked without a wire.)"""
    output, method = f"{name}, {weights}", methods()[name]
    settings = {key: value for key, value in method.settings().items() if value is not None}
    done = federation.run(
        output, f"train.method='{method.name}'", f"train.weights='{weights}'", f"method={_toml(settings)}"
    )
    assert done.returncode == 0, done.stderr
    expected = in_one_process(method, weights=weights)
    torch.testing.assert_close(federation.model(output), expected.x, rtol=1e-10, atol=1e-10)
    assert federation.record(output)["ledger"] == expected.ledger.to_json()
    found = load_results(federation.folder / output)
    assert len(found) == 21
    for column in ("train_loss", "gradient_norm", "picked", "bytes_up", "bytes_down", "gradients_per_worker"):
        for a, b in zip(found[column], expected.history[column], strict=True):
            assert math.isclose(a, b, rel_tol=1e-10, abs_tol=1e-12), column


def _toml(settings: dict[str, object]) -> str:
    return "{" + ", ".join(f"{key} = {value!r}" for key, value in settings.items()) + "}"


def test_sites_are_measured_as_in_one_process(federation: Federation) -> None:
    sets = ("measure.samples=4", "measure.smooth_samples=2", "measure.tolerance=0.01", "measure.n='all'")
    options = [word for one in sets for word in ("--set", one)]
    folder = federation.folder / "measured"
    done = fewrounds("silo", "measure", federation.file, "-o", folder, *options, timeout=600)
    assert done.returncode == 0, done.stderr
    case = classifier()
    expected = fr.measure(case.problem, case.workers, seed=1, samples=4, smooth_samples=2, tolerance=0.01)
    found = fr.Measurement.from_json(json.loads((folder / "measurement.json").read_text())["measurement"])
    for name in ("L", "L_ahead", "L_sample", "zeta", "zeta_to_mean", "zeta1", "sigma2", "gradient_norm2"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=1e-8), name
        assert getattr(found, name).gradients == getattr(expected, name).gradients, name
    assert str(found) in done.stdout


def test_what_is_done_is_not_done_again(federation: Federation) -> None:
    assert federation.run("once").returncode == 0
    again = federation.run("once")
    assert again.returncode == 0
    assert "has the results of this run already" in again.stderr
    longer = federation.run("once", "train.rounds=25")
    assert longer.returncode == 0, longer.stderr
    torch.testing.assert_close(federation.model("once"), in_one_process(rounds=25).x, rtol=1e-10, atol=1e-10)
    other = federation.run("once", "train.rounds=25", "method.K=4")
    assert other.returncode == 2
    assert "its method has K 3, this one 4" in other.stderr
    assert "Traceback" not in other.stderr


def test_an_interrupted_run_goes_on(federation: Federation) -> None:
    """By Ctrl-C, by kill -9 (its job goes on without it, and is ended), by a terminal that is closed."""
    settings = ("train.rounds=150", "train.evaluate_every=50")
    slow = federation.kits / "north" / "fault"
    slow.write_text("slow")  # so that no job is at its end before it is found
    running = federation.begin("interrupted", *settings)
    running.reaches(5)
    running.process.send_signal(signal.SIGINT)
    assert running.ends() == 130, running.said
    assert running.said[-1].endswith("the same command goes on from the last whole round")
    killed = federation.begin("interrupted", *settings)
    killed.reaches(10)
    killed.process.kill()  # its job goes on
    killed.ends()
    closed = federation.begin("interrupted", *settings)
    closed.reaches(killed.rounds() + 5)
    closed.process.send_signal(signal.SIGHUP)
    assert closed.ends() == 130, closed.said
    assert sum("submitted" in line for line in closed.said) == 1, closed.said
    slow.unlink()
    done = federation.run("interrupted", *settings)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("submitted") == 1, done.stderr
    torch.testing.assert_close(federation.model("interrupted"), in_one_process(rounds=150).x, rtol=1e-10, atol=1e-10)


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """Each command of docs/silos.md, in its order, with the files that the page shows."""
    text = DOCS.read_text()
    (toml,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (python,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "hospitals.toml").write_text(toml.replace("port = 8002", f"port = {demo.free_port()}"))
    commands = re.findall(r"^\$ (fewrounds .*)$", text, flags=re.MULTILINE)
    assert commands[0].startswith("fewrounds silo demo")  # has a test of its own
    started: list[subprocess.Popen[bytes]] = []
    done: set[str] = set()
    try:
        for command in commands[1:]:
            words = [sys.executable, "-m", *shlex.split(command)]
            if "silo start" not in command:
                found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
                assert found.returncode == 0, (command, found.stderr)
            else:
                kits = [Path(words[-1])]
                if kits[0].name == "north":  # the page shows one of the sites, the others do the same
                    kits = [kits[0].with_name(name) for name in ("north", "south", "west")]
                    for kit in kits:
                        (tmp_path / kit / "site.py").write_text(python)
                for kit in kits:
                    with (tmp_path / f"{kit.name}.log").open("wb") as log:
                        words[-1] = str(kit)
                        started.append(
                            subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
                        )
            done.add(command.removeprefix("fewrounds ").removeprefix("silo ").split()[0])
    finally:
        for process in started:
            demo.stop(process)
    assert done == {"provision", "start", "status", "run", "measure", "advise"}
    assert (tmp_path / "runs" / "hospitals" / "model.safetensors").exists()
    frame = fr.load_results(tmp_path / "runs" / "hospitals")
    assert frame["train_loss"].iloc[-1] < frame["train_loss"].iloc[0]
