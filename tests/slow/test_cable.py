"""A site behind a real cable, in a network namespace: what crosses it is counted, and it is cut."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
UNSHARE = ["unshare", "--user", "--map-root-user", "--net"]
A_MESSAGE = 8_000
"""Bytes that a message and its answer may take besides their vectors: FLARE's envelopes, TLS, heartbeats meanwhile."""


SECONDS = {"wire": 1200, "cut": 2400}
"""More than all that is waited for inside."""
REQUIRED = os.environ.get("FEWROUNDS_REQUIRE_NAMESPACES") == "1"


def _can() -> bool:
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
    return tools and subprocess.run([*UNSHARE, "ip", "link"], capture_output=True).returncode == 0


needs_namespaces = pytest.mark.skipif(
    not (REQUIRED or _can()),
    reason="there are no network namespaces here (FEWROUNDS_REQUIRE_NAMESPACES=1 makes this a failure)",
)


def run(what: str, folder: Path) -> dict:
    paths = [str(HERE), str(HERE.parent)]
    command = [*UNSHARE, sys.executable, str(HERE / "in_namespace.py"), what, str(folder / what), str(folder / "found")]
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, own), *paths])}
    with (folder / "errors").open("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=env, start_new_session=True)
        try:
            code = process.wait(SECONDS[what])
        finally:
            _end(process)
    assert code == 0, (folder / "errors").read_text()[-3000:]
    found: dict = json.loads((folder / "found").read_text())
    return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """All of it: told to end, it ends the sites and the server, which are sessions of their own."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@needs_namespaces
def test_the_ledger_says_what_crosses_the_wire(tmp_path: Path) -> None:
    found = run("wire", tmp_path)
    assert set(found) == {"local-sgd", "scaffold", "bvr-l-sgd"}
    for method, costs in found.items():
        surplus = costs["crossed"] - costs["told"]
        assert costs["told"] > 20 * 2 * 1_200_000, method
        assert 0 < surplus < 0.03 * costs["told"] + A_MESSAGE * costs["messages"], (method, costs)


@needs_namespaces
def test_a_cut_that_heals(tmp_path: Path) -> None:
    found = run("cut", tmp_path)
    for name in ("short", "long"):
        assert found[name]["code"] == 0, found[name]
        assert found[name]["same x"], name
        assert found[name]["not one bit differs"], name
        assert found[name]["same ledger"], name
    assert found["stop"]["code"] == 2
    assert "site west is lost" in found["stop"]["said"][-1]
    gone_on = found["continue"]
    assert gone_on["code"] == 0, gone_on["said"]
    north, south, west = gone_on["ledger"]["missed"]
    assert (north, south) == (0, 0)
    assert 0 < west < gone_on["ledger"]["rounds"] - 40, "and it was back before the end"
