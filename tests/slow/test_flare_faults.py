"""Faults with real processes: whatever is killed, cut or wrong, the run ends as if nothing had been, or names the site."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

import psutil
import pytest
import torch
from federation import Federation, in_one_process

from experiments import fewrounds

pytestmark = pytest.mark.slow

ROUNDS = 60
LONG = f"train.rounds={ROUNDS}"


@contextlib.contextmanager
def fault(federation: Federation, name: str, how: str) -> Iterator[None]:
    path = federation.kits / name / "fault"
    path.write_text(how)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def kill(processes: list[psutil.Process]) -> None:
    assert processes
    for process in processes:
        process.kill()


def ended_as_if_nothing_had_been(federation: Federation, output: str, rounds: int = ROUNDS) -> None:
    expected = in_one_process(rounds=rounds)
    found = federation.model(output)
    torch.testing.assert_close(found, expected.x, rtol=1e-10, atol=1e-10)
    assert federation.record(output)["ledger"] == expected.ledger.to_json()
    assert torch.equal(found, undisturbed(federation, rounds)), "not one bit differs"


def undisturbed(federation: Federation, rounds: int = ROUNDS) -> torch.Tensor:
    output = f"undisturbed {rounds}"
    if not (federation.folder / output / "model.safetensors").exists():
        done = federation.run(output, f"train.rounds={rounds}")
        assert done.returncode == 0, done.stderr
    return federation.model(output)


@pytest.mark.parametrize("victim", ["a site's job", "a site", "a site's parent", "the server's job", "the server"])
def test_what_is_killed_comes_back_and_changes_nothing(federation: Federation, victim: str) -> None:
    undisturbed(federation)
    running = federation.begin(victim, LONG)
    running.reaches(10)
    name = "server" if "server" in victim else "south"
    parents, jobs = federation.parents(name), federation.jobs(name)
    kill(jobs if victim.endswith("job") else parents if victim.endswith("parent") else parents + jobs)
    assert running.ends() == 0, running.said
    if not victim.endswith("parent"):  # whose job may outlive it, and end the run by itself
        assert sum("submitted" in line for line in running.said) >= 2, running.said
    assert not psutil.wait_procs(jobs, 60)[1], "nothing of the old job stays"
    ended_as_if_nothing_had_been(federation, victim)


def test_the_picked_site_dies_between_aggregation_and_its_local_steps(federation: Federation) -> None:
    picked = int(in_one_process().history["picked"][15])
    name = federation.silo.sites[picked]
    with fault(federation, name, "die at local_routine 15"):
        done = federation.run("picked")
        assert not (federation.kits / name / "fault").exists(), "it has died"
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("submitted") == 2, done.stderr
    ended_as_if_nothing_had_been(federation, "picked", 20)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("nan", "site south: its answer to "),
        ("short", "site south: its answer to "),
        ("another problem", "site south has another problem than north: l2 0.02, not 0.01"),
    ],
)
def test_a_wrong_answer_stops_the_run_and_names_the_site(federation: Federation, how: str, said: str) -> None:
    federation.forget(how)
    with fault(federation, "south", how):
        done = federation.run(how)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    if how != "another problem":
        again = federation.run(how)
        assert again.returncode == 0, again.stderr
        ended_as_if_nothing_had_been(federation, how, 20)


def test_a_site_that_never_answers_stops_the_run(federation: Federation) -> None:
    """It is there, and says so, but its answer does not come."""
    with fault(federation, "south", "never"):
        running = federation.begin("never", "loss.answer_seconds=15", "loss.on_loss='stop'")
        running.reaches(2)
        assert running.ends(seconds=100) == 2, running.said  # 15 s, and FLARE's time to end a job
    assert running.said[-1].startswith("fewrounds: site south is lost: "), running.said


def test_stop_where_a_site_is_gone(federation: Federation) -> None:
    running = federation.begin("stop", LONG, "loss.on_loss='stop'")
    running.reaches(10)
    try:
        federation.stop("west")
        assert running.ends() == 2, running.said
    finally:
        federation.start("west")
    assert "west" in running.said[-1], running.said
    assert len([line for line in running.said if "submitted" in line]) == 1


def test_continue_where_a_site_is_gone(federation: Federation) -> None:
    """The mean over those who answer: in the ledger, on the page, and never fewer than allowed."""
    rounds = 250  # progress is seen once a second, and many rounds pass in one
    running = federation.begin("continue", f"train.rounds={rounds}", "loss.on_loss='continue'", "loss.least_sites=2")
    running.reaches(10)
    try:
        federation.stop("west")
        assert running.ends() == 0, running.said
        ledger = federation.record("continue")["ledger"]
        north, south, west = ledger["missed"]
        assert (north, south) == (0, 0)
        assert 0 < west <= rounds - 10
        assert any("without west" in line for line in running.said), running.said
        fewer = federation.run(
            "fewer", LONG, "loss.on_loss='continue'", "loss.least_sites=3", "loss.patience_seconds=5"
        )
        assert fewer.returncode == 2
        assert fewer.stderr.splitlines()[-1] == "fewrounds: site west was not there for 5 s"
    finally:
        federation.start("west")
    assert fewrounds("report", federation.folder / "continue").returncode == 0
    page = (federation.folder / "continue" / "index.html").read_text()
    assert "Rounds without a site" in page
    assert re.search(rf">west</t[dh]><td[^>]*>{west}</td><td[^>]*>{rounds}</td>", page)


def test_a_site_that_is_not_there_is_waited_for(federation: Federation) -> None:
    federation.stop("west")
    try:
        running = federation.begin("waited")
        until = time.monotonic() + 120
        while not any(line == "fewrounds: waiting for west" for line in running.said):
            assert time.monotonic() < until, running.said
            time.sleep(0.1)
    finally:
        federation.start("west")
    assert running.ends() == 0, running.said
    ended_as_if_nothing_had_been(federation, "waited", 20)
