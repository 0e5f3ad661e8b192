"""Measure other systems against the plain PyTorch loop: `python benchmarks/peers/run.py`. See README.md beside it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import platform
import selectors
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).resolve().parent
ENVS = HERE / "envs"
sys.path.insert(0, str(HERE.parent))

from works import W1, W2, Work  # noqa: E402

TORCH = "torch==2.13.0"
WORKS = {"W1": W1, "W2": W2}
CHECK_ROUNDS = {"W1": 20, "W2": 5}
TOLERANCE = 0.05
"""Of W1's loss after these, relative to the plain loop's. W2's has hardly moved by then, and is not compared."""
ROUNDS = {"W1": 2, "W2": 1}
"""In each repetition."""
LOCK = "FEWROUNDS_BENCH_LOCK"
PATIENCE = 900
"""Seconds without an answer after which a system is given up."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "PYTHONPATH": os.pathsep.join([str(HERE.parent), str(HERE)]),
    "PFL_PYTORCH_DEVICE": "cpu",
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_HOME": str(ENVS / "flower" / "home"),
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # else Ray's actors alone give way to whatever else runs
}


@dataclasses.dataclass(frozen=True)
class Peer:
    requirements: tuple[str, ...]
    works: tuple[str, ...]
    cores: str
    """As `taskset -c` takes them."""
    draws: str
    torch: bool = True


PEERS = {
    "pfl": Peer(
        ("pfl[pytorch]==0.6.0",),
        works=("W1", "W2"),
        cores="0",
        draws="W1 with replacement; W2 one epoch in a fixed order",
    ),
    "flower": Peer(
        ("flwr[simulation]==1.41.0",),
        works=("W1",),
        cores="0,1",
        draws="with replacement",
    ),
    "fedjax": Peer(
        # Of the jax versions tried, 0.4.30 is the fastest, 0.4.38 and 0.5.3 run, and 0.10.2 has no jax.tree_map.
        (
            "fedjax==0.0.17",
            "jax==0.4.30",
            "jaxlib==0.4.30",
            "dm-haiku==0.0.12",
            "optax==0.2.2",
            "numpy==1.26.4",
            "scipy==1.12.0",
            "ml-dtypes==0.4.1",
        ),
        works=("W1",),
        cores="0",
        draws="without replacement within a round",
        torch=False,
    ),
}


class PeerError(Exception):
    """A peer that does not install, does not run or does other work than it should."""


def environment(name: str, peer: Peer) -> Path:
    """The Python of the peer's own environment, made if it is not there or was made of other requirements."""
    folder = ENVS / name
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    wanted = "\n".join(([TORCH] if peer.torch else []) + list(peer.requirements)) + "\n"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"{name}: installing {' '.join(wanted.split())}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch, "constraints.txt")
        constraints.write_text(TORCH + "\n")
        install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
        commands = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
        if peer.torch:
            commands.append([*install, TORCH])
        commands.append([*install, *peer.requirements])
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise PeerError("does not install: " + last_line(done.stderr))
    stamp.write_text(wanted)
    return python


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


class Child:
    """A system in a process of its own, answering the requests of protocol.py."""

    def __init__(self, python: Path, script: str, *arguments: str, cores: str, errors: TextIO) -> None:
        self.errors = errors
        self.process = subprocess.Popen(
            ["taskset", "-c", cores, str(python), str(HERE / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | ONE_THREAD,
        )
        try:
            self.version: str = self.answer()["version"]
        except PeerError:
            self.close()
            raise

    def ask(self, request: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise PeerError("ended: " + self.complaint()) from None
        return self.answer()

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(PATIENCE):
                raise PeerError(f"no answer in {PATIENCE} s")
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise PeerError("does not run: " + self.complaint())
        return json.loads(line)

    def complaint(self) -> str:
        """The last line that names an error."""
        self.errors.seek(0)
        text = self.errors.read()
        named = [line for line in text.splitlines() if "Error" in line]
        return last_line(named[-1] if named else text)

    def close(self) -> None:
        """Its input ends, and it with it."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def child(python: Path, script: str, *arguments: str, cores: str) -> Iterator[Child]:
    with tempfile.TemporaryFile("w+") as errors:
        one = Child(python, script, *arguments, cores=cores, errors=errors)
        try:
            yield one
        finally:
            one.close()


@contextlib.contextmanager
def machine_to_ourselves() -> Iterator[None]:
    """Hold the lock that other measurements on this machine hold too, if there is one."""
    path = os.environ.get(LOCK)
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def checked(name: str, work: Work, system: Child, plain: Child) -> tuple[float, float]:
    """Run CHECK_ROUNDS in both and compare: start, steps of every worker, batch size, loss. The two losses."""
    rounds = CHECK_ROUNDS[name]
    starts = [one.ask("state")["loss"] for one in (system, plain)]
    if abs(starts[0] - starts[1]) > 1e-4:
        raise PeerError(f"starts at loss {starts[0]:.4f}, not {starts[1]:.4f}")
    for one in (system, plain):
        one.ask(f"check {rounds}")
    state, expected = system.ask("state"), plain.ask("state")
    steps: list[int] = state["steps"]
    if sum(steps) != rounds * work.steps or any(count % work.K for count in steps):
        raise PeerError(f"{sum(steps)} steps in {rounds} rounds, not {work.steps} a round in {work.K}s")
    if work.participants == work.workers and len(set(steps)) != 1:
        raise PeerError(f"workers take {min(steps)} to {max(steps)} steps, not the same number")
    if state["samples"] != sum(steps) * work.b:
        raise PeerError(f"{state['samples']} samples in {sum(steps)} steps, not {work.b} each")
    if name == "W1" and abs(state["loss"] / expected["loss"] - 1) > TOLERANCE:
        raise PeerError(f"loss {state['loss']:.4f} after {rounds} rounds, plain {expected['loss']:.4f}")
    return state["loss"], expected["loss"]


def measured(systems: dict[str, Child], repetitions: int, rounds: int) -> dict[str, list[float]]:
    """Seconds a round of each system, one after the other in every repetition."""
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for repetition in range(repetitions + 1):
        with machine_to_ourselves():
            for name, system in systems.items():
                taken = system.ask(f"rounds {rounds}")["seconds"] / rounds
                if repetition:  # the first warms up
                    seconds[name].append(taken)
    return seconds


def compare(name: str, work_name: str, peer: Peer, python: Path, repetitions: int) -> dict[str, Any]:
    """One peer with one work, from its check to its ratio."""
    here = Path(sys.executable)
    with (
        child(here, "plain_peer.py", work_name, "fused", cores="0") as fused,
        child(here, "plain_peer.py", work_name, "default", cores="0") as default,
        child(python, f"{name}_peer.py", work_name, cores=peer.cores) as system,
    ):
        loss, plain_loss = checked(work_name, WORKS[work_name], system, fused)
        seconds = measured({"plain": fused, "plain default": default, "peer": system}, repetitions, ROUNDS[work_name])
        load = os.getloadavg()[1]
        medians = {key: statistics.median(values) for key, values in seconds.items()}
        return {
            "version": system.version,
            "cores": len(peer.cores.split(",")),
            "draws": peer.draws,
            "seconds": medians["peer"],
            "plain_seconds": medians["plain"],
            "plain_default_seconds": medians["plain default"],
            "ratio": medians["peer"] / medians["plain"],
            "ratio_to_default": medians["peer"] / medians["plain default"],
            "ratio_of_fastest": min(seconds["peer"]) / min(seconds["plain"]),
            "all_seconds": seconds,
            "load": load,
            "loss": loss,
            "plain_loss": plain_loss,
        }


def cpu() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def table(results: dict[str, dict[str, Any]]) -> str:
    head = ("system", "work", "cores", "s/round", "plain s/round", "ratio", "ratio (default SGD)", "loss", "plain loss")
    rows = [head]
    for key, result in results.items():
        name, work = key.split()
        if "failed" in result:
            rows.append((name, work, "", "", "", "", "", "", result["failed"]))
            continue
        numbers = ("seconds", "plain_seconds", "ratio", "ratio_to_default")
        losses = (f"{result['loss']:.4f}", f"{result['plain_loss']:.4f}")
        rows.append(
            (result["version"], work, str(result["cores"]), *(f"{result[number]:.2f}" for number in numbers), *losses)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PEERS, help="this peer alone; the others' results in the file stay")
    parser.add_argument("--output", type=Path, default=HERE / "results.json", help="results, also read to be added to")
    parser.add_argument("--repetitions", type=int, default=7)
    options = parser.parse_args()

    results: dict[str, dict[str, Any]] = {}
    if options.only and options.output.exists():
        results = json.loads(options.output.read_text())["results"]
    for name, peer in PEERS.items():
        if options.only not in (None, name):
            continue
        for work in peer.works:
            try:
                python = environment(name, peer)
                results[f"{name} {work}"] = compare(name, work, peer, python, options.repetitions)
            except PeerError as error:
                results[f"{name} {work}"] = {"failed": str(error)}
            print(table({f"{name} {work}": results[f"{name} {work}"]}).splitlines()[-1], flush=True)
            machine = {"cpu": cpu(), "cores": os.cpu_count(), "python": platform.python_version()}
            settings = {"repetitions": options.repetitions, "rounds": ROUNDS, "check_rounds": CHECK_ROUNDS}
            document = {"machine": machine, "settings": settings, "results": results}
            options.output.write_text(json.dumps(document, indent=2) + "\n")
    print("\n" + table(results))


if __name__ == "__main__":
    main()
