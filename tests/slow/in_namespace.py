"""Run by `unshare --map-root-user --net`: a federation whose site west is behind a network of its own.

The server, north and south are in this namespace; west is in another, at the end of a cable that can be measured and
cut. What happened is written as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from federation import FILE, SITE, Federation, in_one_process

from fewrounds.draws import Draws

WEST = 2
HERE, THERE = "10.99.0.1", "10.99.0.2"
REACHES, ENDS = 200, 360
"""Seconds in which a run must have come so far."""
PLACED = FILE.replace("[server]", f'[server]\nhost = "{HERE}"')

MANY = 600

LARGE = """import torch
import fewrounds as fr


def problem():
    torch.manual_seed(0)
    return fr.Problem(fr.models.mlp([3072, 100, 10]), loss=torch.nn.functional.cross_entropy)


def data():
    generator = torch.Generator().manual_seed({number})  # (not used: {tests})
    return torch.randn(8, 3072, generator=generator), torch.randint(10, (8,), generator=generator)
"""


def sh(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def cable() -> Iterator[list[str]]:
    """Another namespace at the end of a cable; the words before a command that is to run there."""
    sh("ip", "link", "set", "lo", "up")
    holder = subprocess.Popen(["unshare", "--net", "sleep", "100000"])
    try:
        until = time.monotonic() + 30
        while os.readlink(f"/proc/{holder.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert time.monotonic() < until, "it has not left this namespace"
            time.sleep(0.02)
        inside = ["nsenter", "--target", str(holder.pid), "--net"]
        sh("ip", "link", "add", "here", "type", "veth", "peer", "name", "there")
        sh("ip", "link", "set", "there", "netns", str(holder.pid))
        sh("ip", "addr", "add", f"{HERE}/24", "dev", "here")
        sh("ip", "link", "set", "here", "up")
        sh(*inside, "ip", "link", "set", "lo", "up")
        sh(*inside, "ip", "addr", "add", f"{THERE}/24", "dev", "there")
        sh(*inside, "ip", "link", "set", "there", "up")
        yield inside
    finally:
        holder.kill()
        holder.wait()


def moved() -> int:
    """Bytes that have crossed the cable so far, both ways."""
    (line,) = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("here:")]
    numbers = line.split(":")[1].split()
    return int(numbers[0]) + int(numbers[8])


@contextlib.contextmanager
def started(folder: Path, site: str) -> Iterator[tuple[Federation, list[str]]]:
    """A federation whose west is at the end of the cable, and the words before a command that is to run there."""
    with cable() as inside:
        here = Federation(folder, PLACED, site)
        here.prefixes["west"] = inside
        here.start()
        try:
            yield here, inside
        finally:
            here.stop()


def picks(rounds: int) -> list[int]:
    return [Draws(1).pick(round, [1 / 3] * 3) for round in range(1, rounds + 1)]


def wire(folder: Path) -> dict:
    """What more rounds cost on the cable, and what the ledger says they cost."""
    few, many = 5, 25
    out = {}
    with started(folder, LARGE) as (here, _):
        for method in ("local-sgd", "scaffold", "bvr-l-sgd"):
            costs = []
            for rounds in (few, many):
                before = moved()
                sets = [f"train.method='{method}'", f"train.rounds={rounds}", "train.evaluate_every=100"]
                done = here.run(f"{method} {rounds}", *sets, "method.b=1", "method.K=1")
                assert done.returncode == 0, done.stderr
                ledger = here.record(f"{method} {rounds}")["ledger"]
                vectors = ledger["vectors_up"] + ledger["vectors_down"]
                if method == "bvr-l-sgd":  # every round one site is asked once more: v goes there, x comes back
                    here_too = picks(rounds).count(WEST)
                    told, messages = (vectors - 2 * rounds) / 3 + 2 * here_too, rounds + here_too
                else:
                    told, messages = vectors / 3, rounds
                costs.append((moved() - before, told * ledger["vector_bytes"], messages))
            out[method] = {
                name: after - before
                for name, before, after in zip(("crossed", "told", "messages"), *costs, strict=True)
            }
    return out


def cut(folder: Path) -> dict:
    """A cut that heals, with each setting."""
    out = {}
    with started(folder, SITE) as (here, inside):

        def trial(name: str, seconds: float, *sets: str) -> None:
            running = here.begin(name, "train.rounds=100", "train.evaluate_every=10", *sets)
            running.reaches(20, REACHES)
            sh(*inside, "ip", "link", "set", "there", "down")
            time.sleep(seconds)
            sh(*inside, "ip", "link", "set", "there", "up")
            code = running.ends(ENDS)
            out[name] = {"code": code, "said": running.said}
            if code == 0:
                expected = in_one_process(rounds=100)
                out[name]["ledger"] = here.record(name)["ledger"]
                out[name]["same ledger"] = out[name]["ledger"] == expected.ledger.to_json()
                out[name]["same x"] = torch.allclose(here.model(name), expected.x, rtol=1e-10, atol=1e-10)
                out[name]["not one bit differs"] = torch.equal(here.model(name), undisturbed)

        done = here.run("undisturbed", "train.rounds=100", "train.evaluate_every=10")
        assert done.returncode == 0, done.stderr
        undisturbed = here.model("undisturbed")
        trial("short", 3)
        trial("long", 45)
        trial("stop", 45, "loss.on_loss='stop'")
        (here.kits / "north" / "fault").write_text("slow")  # so that west is back before the end on any machine
        trial("continue", 45, "loss.on_loss='continue'", f"train.rounds={MANY}")
    return out


if __name__ == "__main__":
    what, folder, result = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    found = {"wire": wire, "cut": cut}[what](folder)
    result.write_text(json.dumps(found, indent=1))
