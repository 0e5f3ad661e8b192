"""Who gets in and what may run, against the real server and sites."""

from __future__ import annotations

import contextlib
import json
import pickle
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from federation import Federation

from fewrounds.silo import start
from fewrounds.silo.federation import Federation as Control
from fewrounds.silo.federation import FederationError, write_job
from fewrounds.silo.provision import provision, settle_here

pytestmark = pytest.mark.slow

SOON = 10.0
"""Seconds in which a site that has spoken to the server, and may come in, is in, twice over."""


def connected(federation: Federation) -> list[str]:
    control = Control(federation.kits / "coordinator")
    try:
        return control.connected().sites
    finally:
        control.close()


@pytest.fixture
def all_there(federation: Federation) -> Federation:
    until = time.monotonic() + 90
    while True:
        try:
            if connected(federation) == sorted(federation.silo.sites):
                return federation
        except FederationError:
            pass
        assert time.monotonic() < until
        time.sleep(1)


# ---------------------------------------------------------------------- connections


def test_without_a_certificate_nobody_gets_in(all_there: Federation) -> None:
    port = all_there.silo.server.port
    context = ssl.create_default_context(cafile=str(all_there.kits / "north" / "startup" / "rootCA.pem"))
    context.set_alpn_protocols(["h2"])
    assert _is_open(context, port, all_there.kits / "north") is True, "with a kit it works"
    assert _is_open(context, port, None) is False
    stranger = ssl.create_default_context()
    with pytest.raises(ssl.SSLError), socket.create_connection(("localhost", port)) as raw:
        stranger.wrap_socket(raw, server_hostname="localhost")  # who knows another authority is not fooled


def _is_open(context: ssl.SSLContext, port: int, kit: Path | None) -> bool:
    """Whether the server speaks HTTP/2 with us: its first frame, SETTINGS, comes after the client has been checked."""
    if kit is not None:
        context = ssl.create_default_context(cafile=str(kit / "startup" / "rootCA.pem"))
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    try:
        with (
            socket.create_connection(("localhost", port), timeout=10) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            return len(secure.recv(9)) == 9
    except (ssl.SSLError, ConnectionError):
        return False


def test_in_clear_text_nobody_gets_in(all_there: Federation) -> None:
    channel = grpc.insecure_channel(f"localhost:{all_there.silo.server.port}")
    with channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(timeout=5)


def _started(kit: Path, change: Callable[[list[str]], list[str]] = lambda command: command) -> subprocess.Popen[bytes]:
    settle_here(kit)
    with (kit / "test.log").open("wb") as log:
        return subprocess.Popen(
            change(start.command(kit)), env=start.environment(kit), stdout=log, stderr=log, start_new_session=True
        )


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_a_kit_of_another_authority_does_not_get_in(all_there: Federation, tmp_path: Path) -> None:
    """The same project, names and address, provisioned by somebody else."""
    all_there.stop("west")
    try:
        provision(all_there.silo, tmp_path / "kits")
        kit = tmp_path / "kits" / "west"
        (kit / "site.py").write_text((all_there.kits / "west" / "site.py").read_text())
        process = _started(kit)
        try:
            _never_in(all_there, "west", lambda: "CERTIFICATE_VERIFY_FAILED" in (kit / "test.log").read_text())
        finally:
            _stop(process)
        with pytest.raises(FederationError, match="does not answer"):
            Control(tmp_path / "kits" / "coordinator").connected()
    finally:
        all_there.start("west")


def test_a_site_cannot_take_the_name_of_another(all_there: Federation, tmp_path: Path) -> None:
    """South's kit is real, but it says that it is west."""
    all_there.stop("west", "south")
    try:
        kit = tmp_path / "south"
        shutil.copytree(all_there.kits / "south", kit, ignore=shutil.ignore_patterns("fewrounds", "*.log", "*.txt"))
        process = _started(kit, lambda command: ["uid=west" if part == "uid=south" else part for part in command])
        try:
            said = "authenticated as 'south' but claimed endpoint 'west' requires identity 'west'"
            _never_in(all_there, "west", lambda: said in all_there.log("server"))
        finally:
            _stop(process)
    finally:
        all_there.start("west", "south")


def _never_in(federation: Federation, name: str, is_refused: Callable[[], bool]) -> None:
    """It has tried, and was told that it may not."""
    gone = time.monotonic() + 60
    while name in connected(federation):  # until the server has noticed that the real one is gone
        assert time.monotonic() < gone
        time.sleep(1)
    told = time.monotonic() + 120
    while not is_refused():
        assert name not in connected(federation)
        assert time.monotonic() < told
        time.sleep(1)
    until = time.monotonic() + SOON
    while time.monotonic() < until:
        assert name not in connected(federation)
        time.sleep(1)


# ---------------------------------------------------------------------- jobs


def _submit(federation: Federation, folder: Path, change: Callable[[Path], None]) -> str:
    """What becomes of a job that somebody with the coordinator's kit has changed by hand."""
    path = write_job(federation.silo, "a-run", federation.silo.sites, folder)
    change(path)
    control = Control(federation.kits / "coordinator")
    try:
        with control.session() as session:
            job = session.submit_job(str(path))
        until = time.monotonic() + 90
        while not (status := control.status(job)).startswith("FINISHED"):
            assert time.monotonic() < until, status
            time.sleep(1)
        return status
    except FederationError as error:
        return str(error)
    finally:
        control.close()


def test_a_job_that_brings_code_is_refused(all_there: Federation, tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    def with_code(job: Path) -> None:
        custom = job / "app" / "custom"
        custom.mkdir()
        text = f"import pathlib\npathlib.Path({str(marker)!r}).touch()\nclass Thing:\n    pass\n"
        (custom / "thing.py").write_text(text)
        _rename(job, "client", "fewrounds.silo.job.SiteJob", "thing.Thing")

    said = _submit(all_there, tmp_path, with_code)
    assert said == "FINISHED:FAILED_TO_RUN"
    assert "BYOC not permitted" in all_there.log("server")
    assert not marker.exists()


@pytest.mark.parametrize("where", ["client", "server"])
def test_a_job_that_names_other_classes_is_refused(all_there: Federation, tmp_path: Path, where: str) -> None:
    """Everything that is installed could be named; the site's list says what may be."""
    marker = tmp_path / "ran"
    known = {"client": "fewrounds.silo.job.SiteJob", "server": "fewrounds.silo.job.Coordinator"}[where]

    def other_class(job: Path) -> None:
        _rename(job, where, known, "subprocess.Popen", {"args": ["touch", str(marker)]})

    who = {"client": "north", "server": "server"}[where]
    before = len(all_there.log(who))
    said = _submit(all_there, tmp_path, other_class)
    assert said in ("FINISHED:ABNORMAL", "FINISHED:EXECUTION_EXCEPTION")
    refusal = (
        "component not authorized: Component 'subprocess.Popen' at config path 'components.#1' is not in allow_list"
    )
    assert refusal in all_there.log(who)[before:]
    assert not marker.exists()
    time.sleep(3)
    assert not marker.exists()


def _rename(job: Path, where: str, known: str, other: str, arguments: dict | None = None) -> None:
    path = job / "app" / "config" / f"config_fed_{where}.json"
    config = json.loads(path.read_text())
    (component,) = [one for one in config["components"] if one["path"] == known]
    component.update(path=other, args=arguments or {})
    path.write_text(json.dumps(config))


def test_the_coordinator_may_not_look_into_a_site(all_there: Federation) -> None:
    control = Control(all_there.kits / "coordinator")
    asked: list[Callable[[Any], object]] = [
        lambda session: session.ls_target("north"),
        lambda session: session.cat_target("north", file="site.py"),
        lambda session: session.tail_target_log("north"),
    ]
    try:
        for ask in asked:
            with pytest.raises(FederationError, match="not authorized"), control.session() as session:
                ask(session)
    finally:
        control.close()


def test_the_coordinator_may_not_stop_a_site(all_there: Federation) -> None:
    before = all_there.parents("north")
    control = Control(all_there.kits / "coordinator")
    asked: list[Callable[[Any], object]] = [
        lambda session: session.restart("client", ["north"]),
        lambda session: session.shutdown("client", ["north"]),
    ]
    try:
        for ask in asked:
            with contextlib.suppress(FederationError), control.session() as session:
                ask(session)
    finally:
        control.close()
    time.sleep(5)
    assert all_there.parents("north") == before, "the same process"
    assert connected(all_there) == sorted(all_there.silo.sites)


# ---------------------------------------------------------------------- what a site sends


def test_a_site_cannot_ask_another(all_there: Federation) -> None:
    """FLARE carries calls between sites of a job; a site answers the coordinator alone."""
    said = all_there.folder / "said"
    site = all_there.kits / "south" / "site.py"
    usual = site.read_text()
    curious = f"""

from nvflare.collab import collab
honest = site.Site.answer


def answer(self, message):
    if message["do"] == "task" and message["round"] == 2:
        task = {{**message, "task": "fewrounds.methods.tasks:sample_gradient", "attempt": "mine", "round": 1}}
        replies = collab.get_clients(["north"])(timeout=10).ask(task)
        Path({str(said)!r}).write_text(repr(list(replies)))
    return honest(self, message)


site.Site.answer = answer
"""
    site.write_text(usual + curious)
    try:
        done = all_there.run("curious")
    finally:
        site.write_text(usual)
    assert done.returncode == 0, done.stderr
    assert said.read_text() == "[('north', {'error': 'only the coordinator may ask'})]"


def test_bytes_from_a_site_are_numbers_and_nothing_else(all_there: Federation) -> None:
    """A pickle of the right length where a vector should be: it is read as numbers, or refused, and never loaded."""
    marker = all_there.folder / "owned"
    site = all_there.kits / "south" / "site.py"
    usual = site.read_text()
    evil = f"""

class Evil:
    def __reduce__(self):
        return os.system, ("touch {marker}",)


import pickle
honest = site.Site.answer


def answer(self, message):
    reply = honest(self, message)
    if message["do"] == "task":
        reply["vectors"] = [pickle.dumps(Evil()).ljust(len(blob), b"\\0") for blob in reply["vectors"]]
    return reply


site.Site.answer = answer
"""
    site.write_text(usual + evil)
    try:
        done = all_there.run("pickle")
    finally:
        site.write_text(usual)
    assert "Traceback" not in done.stderr
    assert "submitted" in done.stderr, "it was asked, and has answered"
    assert not marker.exists()


def test_a_checkpoint_that_somebody_has_changed_cannot_run_code(all_there: Federation) -> None:
    """The server reads safetensors and JSON: a pickle in their place is damage, and is said to be."""
    assert all_there.run("changed").returncode == 0
    run = (all_there.folder / "changed" / "run").read_text().strip()
    marker = all_there.folder / "owned too"
    folder = all_there.kits / "server" / "runs" / run

    class Evil:
        def __reduce__(self) -> tuple[Callable, tuple]:
            return Path.touch, (marker,)

    found = [path for path in folder.rglob("*.safetensors") if "start" not in path.name]
    assert found
    for path in found:
        path.write_bytes(pickle.dumps(Evil()))
    done = all_there.run("changed", "train.rounds=22")
    assert not marker.exists()
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
