"""Silos as they are meant to run: FLARE's server and clients as processes, mutual TLS on loopback, kills."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

import fewrounds as fr
from experiments import fewrounds
from fewrounds.silo import demo
from fewrounds.silo.settings import load_silo
from fewrounds.silo.site import load_definition

pytestmark = pytest.mark.slow
pytest.importorskip("nvflare")


class Here:
    """The demo's federation on this machine."""

    def __init__(self, folder: Path, rounds: int = 20, **changes: str) -> None:
        self.folder = folder
        self.file = demo.write(folder, rounds)
        self.kits = folder / "demo-kits"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str) -> None:
        for name in names or ("server", *demo.SITES):
            self.processes[name] = demo.start_one(self.kits / name)

    def stop(self) -> None:
        for process in self.processes.values():
            demo.stop(process)

    def run(self, *sets: str, output: str = "result", timeout: float = 280) -> subprocess.CompletedProcess[str]:
        options = [part for one in sets for part in ("--set", one)]
        return fewrounds("silo", "run", self.file, "-o", self.folder / output, "--kits", self.kits, *options)

    def background(self, *sets: str, output: str = "result") -> subprocess.Popen[str]:
        options = [part for one in sets for part in ("--set", one)]
        command = [sys.executable, "-m", "fewrounds", "silo", "run", str(self.file), "-o", str(self.folder / output)]
        command += ["--kits", str(self.kits), *options]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def expected(self, rounds: int = 20, **settings) -> fr.Result:
        """The same run in one process."""
        found = [load_definition(self.kits / name / "site.py") for name in demo.SITES]
        silo = load_silo(self.file)
        return fr.train(
            found[0].problem, [one.data for one in found], silo.method_to_run(), rounds, seed=silo.train.seed,
            weights=silo.train.weights, evaluate_every=5, compile=False, progress=False, **settings,
        )  # fmt: skip

    def job_processes(self, name: str) -> list[psutil.Process]:
        """The processes that a kit's FLARE process has started for a job."""
        parent = psutil.Process(self.processes[name].pid)
        return [p for p in parent.children(recursive=True) if "worker_process" in " ".join(p.cmdline()) or "runner_process" in " ".join(p.cmdline())]  # fmt: skip

    def flare_process(self, name: str) -> psutil.Process:
        return psutil.Process(self.processes[name].pid).children()[0]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    federation = Here(tmp_path / "demo")
    try:
        yield federation
    finally:
        federation.stop()


def test_the_demo(tmp_path: Path) -> None:
    done = fewrounds("silo", "demo", tmp_path / "demo", "--rounds", "6")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].split()[0] == "6"


def test_the_same_iterates_as_in_one_process(here: Here) -> None:
    here.start()
    done = here.run()
    assert done.returncode == 0, done.stderr[-3000:]
    x = load_file(here.folder / "result" / "model.safetensors")["x"]
    expected = here.expected()
    torch.testing.assert_close(x, expected.x, rtol=1e-5, atol=1e-6)
    outcome = json.loads((here.folder / "result" / "history.json").read_text())
    assert outcome["ledger"] == expected.ledger.to_json()
