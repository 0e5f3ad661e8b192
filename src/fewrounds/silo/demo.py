"""A whole federation on this machine: a server and three sites as processes of their own, over TLS on loopback."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fewrounds.silo import control
from fewrounds.silo.provision import provision
from fewrounds.silo.settings import load_silo

SITES = ("north", "south", "west")

FILE = """# Three sites on one machine, each with its own part of scikit-learn's digits.
name = "demo"
sites = ["north", "south", "west"]

[server]
host = "localhost"
port = {port}

[train]
method = "bvr-l-sgd"
rounds = {rounds}
weights = "size"
evaluate_every = 5

[method]
eta = 0.1
K = 8
b = 16
"""

SITE = '''"""Site {number} of 3 in the demo: the digits that it has, and the model that all sites share."""

import torch
from sklearn.datasets import load_digits

import fewrounds as fr


def problem():
    torch.manual_seed(0)
    model = fr.models.mlp([64, 32, 10])
    return fr.Problem(model, loss=torch.nn.functional.cross_entropy, l2=5e-3)


def data():
    X, y = load_digits(return_X_y=True)
    mine = ((y // 4) == {number} - 1) | (torch.arange(len(y)).numpy() % 20 == {number})
    return (X[mine] / 16).astype("float32"), y[mine]
'''


def write(folder: Path, rounds: int) -> Path:
    """The coordinator's file and the kits, with a site.py in each site's."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "silo.toml"
    file.write_text(FILE.format(port=free_port(), rounds=rounds))
    provision(load_silo(file), folder / "demo-kits")
    for number, name in enumerate(SITES, start=1):
        (folder / "demo-kits" / name / "site.py").write_text(SITE.format(number=number))
    return file


@contextlib.contextmanager
def started(kits: Path, names: Sequence[str]) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """These kits' processes, as `fewrounds silo start` runs them, each with a log beside its folder."""
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in names:
            processes[name] = start_one(kits / name)
        yield processes
    finally:
        for process in processes.values():
            stop(process)


def start_one(kit: Path, prefix: Sequence[str] = ()) -> subprocess.Popen[bytes]:
    command = [*prefix, sys.executable, "-m", "fewrounds", "silo", "start", str(kit)]
    with kit.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all it has started: they are a session of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    folder: Path, rounds: int, say: Callable[[str], None], show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Provision, start, train, fetch, stop."""
    file = write(folder, rounds)
    kits = folder / "demo-kits"
    say(f"kits in {kits}; starting a server and three sites (their logs are beside the kits)")
    with started(kits, ["server", *SITES]):
        return control.run(load_silo(file), kits / "coordinator", folder / "result", say, show)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
