"""A federation on this machine for tests: FLARE's server and three sites as processes, mutual TLS on loopback."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
import torch
from safetensors.torch import load_file

import fewrounds as fr
from experiments import fewrounds
from fewrounds.experiment.store import Store
from fewrounds.silo import demo
from fewrounds.silo.provision import provision
from fewrounds.silo.settings import load_silo
from problems import Case, classifier

SITES = ("north", "south", "west")
ETA, K, B = 0.05, 3, 2
BVR = fr.BVRLSGD(eta=ETA, K=K, b=B)

FILE = """name = "tests"
sites = ["north", "south", "west"]
[server]
port = {port}
[train]
method = "bvr-l-sgd"
rounds = 20
seed = 1
evaluate_every = 1
compile = false
[method]
eta = 0.05
K = 3
b = 2
"""

SITE = '''"""A site that does as it should, unless a file named `fault` lies beside this one."""
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, {tests!r})
import numpy as np
from fewrounds.silo import site
from problems import classifier

FAULT = Path(__file__).with_name("fault")
usual = site.Site.answer


def fault():
    return FAULT.read_text() if FAULT.exists() else ""


def problem():
    return classifier(l2=0.02 if fault() == "another problem" else 0.01).problem


def data():
    return classifier().workers[{number}]


def answer(self, message):
    how = fault()
    if message["do"] == "task" and how.startswith("die at "):
        task, round = how.removeprefix("die at ").split()
        if message["task"].endswith(":" + task) and message["round"] >= int(round):
            FAULT.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
    reply = usual(self, message)
    if message["do"] == "task" and message["round"] >= 3:
        if how == "nan":
            reply["vectors"] = [np.full(len(blob) // 8, np.nan).tobytes() for blob in reply["vectors"]]
        if how == "short":
            reply["vectors"] = [blob[:-8] for blob in reply["vectors"]]
        if how == "slow":
            time.sleep(0.15)
        if how == "never":
            time.sleep(10_000)
    return reply


site.Site.answer = answer
'''


class Federation:
    def __init__(self, folder: Path, file: str = FILE, site: str = SITE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.file = folder / "silo.toml"
        self.file.write_text(file.format(port=demo.free_port()))
        self.silo = load_silo(self.file)
        self.kits = folder / f"{self.silo.name}-kits"
        provision(self.silo, self.kits)
        for number, name in enumerate(self.silo.sites):
            text = site.format(tests=str(Path(__file__).parents[1]), number=number)
            (self.kits / name / "site.py").write_text(text)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.prefixes: dict[str, list[str]] = {}
        """What comes before the command of a kit's process."""

    # ------------------------------------------------------------------ its processes

    def start(self, *names: str) -> None:
        for name in names or ("server", *self.silo.sites):
            if name not in self.processes:
                self.processes[name] = demo.start_one(self.kits / name, self.prefixes.get(name, ()))

    def stop(self, *names: str) -> None:
        for name in names or tuple(self.processes):
            jobs = self.jobs(name)  # sessions of their own, which a site that sleeps would keep
            demo.stop(self.processes.pop(name))
            for job in jobs:
                with contextlib.suppress(psutil.Error):
                    job.kill()

    def parents(self, name: str) -> list[psutil.Process]:
        """FLARE's own process of a kit."""
        return self._children(name, lambda command: "_train" in command)

    def jobs(self, name: str) -> list[psutil.Process]:
        """The processes that it has started for jobs."""
        return self._children(name, lambda command: "worker_process" in command or "runner_process" in command)

    def _children(self, name: str, wanted: Callable[[str], bool]) -> list[psutil.Process]:
        found = []
        if self.processes[name].poll() is not None:
            return []
        for process in psutil.Process(self.processes[name].pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if wanted(" ".join(process.cmdline())):
                    found.append(process)
        return found

    def log(self, name: str) -> str:
        return (self.kits / f"{name}.log").read_text(errors="replace")

    # ------------------------------------------------------------------ runs

    def arguments(self, output: str, sets: Sequence[str]) -> list[str | Path]:
        options = [part for one in sets for part in ("--set", one)]
        return ["silo", "run", self.file, "-o", self.folder / output, *options]

    def run(self, output: str, *sets: str) -> subprocess.CompletedProcess[str]:
        return fewrounds(*self.arguments(output, sets), timeout=600)

    def begin(self, output: str, *sets: str) -> Running:
        return Running(self.arguments(output, sets))

    def model(self, output: str) -> torch.Tensor:
        return load_file(self.folder / output / "model.safetensors")["x"]

    def record(self, output: str) -> dict:
        run = (self.folder / output / "run").read_text().strip()
        found = Store(self.folder / output).record(run)
        assert found is not None
        return found

    def forget(self, output: str) -> None:
        shutil.rmtree(self.folder / output, ignore_errors=True)


def _hears() -> None:
    """A shell's background is deaf to Ctrl-C, and what nohup starts to a terminal that is closed."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Running:
    """`fewrounds silo run` in the background, and what it says."""

    def __init__(self, arguments: Sequence[str | Path]) -> None:
        command = [sys.executable, "-m", "fewrounds", *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=_hears,
        )
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.rstrip())

    def reaches(self, round: int, seconds: float = 300) -> None:
        """Wait until it has done so many rounds. A job that FLARE does not start is submitted again after 120 s."""
        until = time.monotonic() + seconds
        while self.rounds() < round:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until, self.said
            time.sleep(0.05)

    def rounds(self) -> int:
        """How many it has said that it has done."""
        return max([0, *(int(n) for n in re.findall(r"round (\d+) of", "\n".join(self.said)))])

    def ends(self, seconds: float = 400) -> int:
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(self.said) from None
        finally:
            self._listener.join(10)
            assert self.process.stderr is not None
            self.process.stderr.close()
        return self.process.returncode


def in_one_process(
    method: fr.Method = BVR, rounds: int = 20, case: Case | None = None, weights: str = "uniform"
) -> fr.Result:
    case = case or classifier()
    return fr.train(
        case.problem, case.workers, method, rounds, seed=1, weights=weights, evaluate_every=1, compile=False,
        progress=False,
    )  # fmt: skip
