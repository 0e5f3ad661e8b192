"""What the coordinator does about a job: without FLARE, whose part is played, and with a clock that is set."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fewrounds.interrupt import like_ctrl_c
from fewrounds.silo import control, job
from fewrounds.silo.federation import Connected, FederationError
from fewrounds.silo.messages import SiteLostError
from fewrounds.silo.settings import Silo

SITES = ["north", "south"]


class Clock:
    """Moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(control, "time", found)
    return found


class Played:
    """A federation whose jobs say what the test wants."""

    def __init__(self, says: Callable[[], dict[str, Any] | None], earlier: tuple[str, ...] = ()) -> None:
        self.says = says
        self.jobs = list(earlier)
        self.did: list[str] = []

    def submit(self, silo: Silo, run: str, sites: list[str], survey: bool) -> str:
        self.did.append(f"submit to {', '.join(sites)}")
        self.jobs.append("new")
        return "new"

    def unfinished(self, run: str) -> list[str]:
        return list(self.jobs)

    def abort(self, job: str) -> None:
        self.did.append(f"abort {job}")
        if "lost" not in job:
            self.jobs.remove(job)

    def connected(self) -> Connected:
        return Connected(SITES, [job for job in self.jobs if "lost" not in job])

    def status(self, job: str) -> str:
        return "RUNNING"

    def progress(self, job: str) -> dict[str, Any] | None:
        return self.says()

    def close(self) -> None: ...


def run(played: Played, patience: float = 100.0) -> dict[str, Any]:
    silo = Silo.model_validate(
        {"name": "trial", "sites": SITES, "train": {"method": "local-sgd", "rounds": 9},
         "loss": {"patience_seconds": patience}}
    )  # fmt: skip
    nothing = lambda *_: None  # noqa: E731
    return control._Run(played, silo, "trial-1", Path(), nothing, nothing).to_the_end()


def at(round: int, answers: int) -> dict[str, Any]:
    return {"round": round, "rounds": 9, "answers": answers}


ENDED = {**at(4, 9), "ended": {"outcome": "stopped", "reason": "site north: it is over"}}


def test_a_job_that_stands_still_is_given_up_after_the_patience(clock: Clock) -> None:
    """It says where it is whenever it is asked, and that is always the same."""
    played = Played(lambda: at(3, 7))
    with pytest.raises(FederationError, match=r"^no progress for 100 s: no site has answered since round 3$"):
        run(played)
    assert 100 <= clock.now <= 105
    assert played.did == ["submit to north, south", "abort new"]


@pytest.mark.parametrize("moves", ["round", "answers"])
def test_a_long_round_is_progress_as_long_as_sites_answer(clock: Clock, moves: str) -> None:
    def says() -> dict[str, Any]:
        if clock.now > 1000:
            return ENDED
        step = int(clock.now // 90)
        return at(step, 1) if moves == "round" else at(1, step)

    with pytest.raises(FederationError, match="it is over"):
        run(Played(says))
    assert clock.now > 1000


def test_an_earlier_job_of_the_run_is_ended_first(clock: Clock) -> None:
    """Its `silo run` was killed. A job that the server has lost is not waited for, whatever its status says."""
    played = Played(lambda: ENDED, earlier=("orphan", "lost"))
    with pytest.raises(FederationError, match="it is over"):
        run(played)
    assert played.did[:3] == ["abort orphan", "abort lost", "submit to north, south"]
    assert clock.now < 10


@pytest.mark.parametrize("when", ["submit", "watch"])
def test_whenever_it_is_interrupted_no_job_stays(clock: Clock, when: str) -> None:
    def says() -> dict[str, Any]:
        raise KeyboardInterrupt

    class Interrupted(Played):
        def submit(self, *arguments: Any) -> str:
            job = super().submit(*arguments)
            if when == "submit":
                raise KeyboardInterrupt
            return job

    played = Interrupted(says)
    with pytest.raises(KeyboardInterrupt):
        run(played)
    assert played.jobs == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_service_that_is_stopped_and_a_terminal_that_is_closed_interrupt(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(KeyboardInterrupt), like_ctrl_c(number):
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN)  # as nohup does
        with like_ctrl_c(number):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)


# ---------------------------------------------------------------------- asking sites


class Replies:
    """What FLARE hands out for a call to several sites."""

    def __init__(self, found: Iterator[tuple[str, Any]]) -> None:
        self.found = found
        self.failures: dict[str, Any] = {}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return self.found


class Collab:
    """FLARE as it would be if it forgot to say that a site has not answered."""

    is_aborted = False
    clients = ()

    def __init__(self) -> None:
        self.over = threading.Event()

    def get_clients(self, names: list[str]) -> Callable[..., Any]:
        self.names = names
        return lambda **_: self

    def ask(self, message: dict) -> Replies:
        def found() -> Iterator[tuple[str, Any]]:
            yield "north", {"vectors": []}
            self.over.wait()

        return Replies(found())

    def alive(self) -> list[tuple[str, bool]]:
        return [(name, True) for name in self.names]


def test_an_answer_that_never_comes_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    flare = Collab()
    monkeypatch.setattr(job, "collab", flare)
    monkeypatch.setattr(job, "PING_SECONDS", 0.02)
    monkeypatch.setattr(job, "LATE_SECONDS", 0.1)
    sites = job.FlareSites(SITES, 0.1)
    try:
        found = sites.ask({"do": "task"}, [0, 1])
    finally:
        flare.over.set()
    assert found[0] == {"vectors": []}
    assert isinstance(found[1], SiteLostError)
    assert sites.answers == 1
