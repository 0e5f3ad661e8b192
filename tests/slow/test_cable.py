"""A site behind a real cable, in a network namespace: what crosses it is counted, and it is cut."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]
A_MESSAGE = 8_000
"""Bytes that a message and its answer may take besides their vectors: FLARE's envelopes, TLS, heartbeats meanwhile."""


def _can() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
    return tools and subprocess.run([*UNSHARE, "ip", "link"], capture_output=True).returncode == 0


def run(what: str, folder: Path) -> dict:
    paths = os.pathsep.join([str(HERE), str(HERE.parent)])
    command = [*UNSHARE, sys.executable, str(HERE / "in_namespace.py"), what, str(folder / what), str(folder / "found")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env={**os.environ, "PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict = json.loads((folder / "found").read_text())
    return found


@pytest.mark.skipif(not _can(), reason="no network namespaces here")
def test_the_ledger_says_what_crosses_the_wire(tmp_path: Path) -> None:
    found = run("wire", tmp_path)
    assert set(found) == {"local-sgd", "scaffold"}
    for method, costs in found.items():
        surplus = costs["crossed"] - costs["told"]
        assert costs["told"] > 20 * 2 * 1_200_000, method
        assert 0 < surplus < 0.03 * costs["told"] + A_MESSAGE * costs["messages"], (method, costs)


@pytest.mark.skipif(not _can(), reason="no network namespaces here")
def test_a_cut_that_heals(tmp_path: Path) -> None:
    found = run("cut", tmp_path)
    for name in ("short", "long"):
        assert found[name]["code"] == 0, found[name]
        assert found[name]["same x"], name
        assert found[name]["same ledger"], name
    assert found["stop"]["code"] == 2
    assert "site west is lost" in found["stop"]["said"][-1]
    gone_on = found["continue"]
    assert gone_on["code"] == 0, gone_on["said"]
    north, south, west = gone_on["ledger"]["missed"]
    assert (north, south) == (0, 0)
    assert 0 < west < 750, "and it was back before the end"
