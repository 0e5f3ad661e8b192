"""A run from the coordinator's side: submit it, watch it, submit it again after a fault, fetch and save its result."""

from __future__ import annotations

import contextlib
import secrets
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fewrounds.errors import ResultsError, one_line
from fewrounds.experiment.store import DONE, Store, now, write_json
from fewrounds.interrupt import like_ctrl_c
from fewrounds.silo.federation import STALE, START, Federation, FederationError
from fewrounds.silo.results import save_results, saved_results
from fewrounds.silo.settings import Silo
from fewrounds.theory.estimate import Measurement

POLL = 1.0
ATTEMPTS = 3
"""So many jobs in a row that end without a single round are no accident."""
STALLED = 60.0
"""A job whose server does not answer, or has lost it, for so long is given up and submitted again."""
GRACE = 30.0
"""Where a run may go on without some sites, they are waited for so long before it does."""
END = 15.0
"""A job that has done its work is given so long to end by itself."""
STOPPED = "stopped; the same command goes on from the last whole round"
ENDS = (signal.SIGTERM, signal.SIGHUP)
"""What a process gets whose service is stopped, or whose terminal is closed."""


def run(
    silo: Silo, kit: Path, folder: Path, say: Callable[[str], None], show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run to the end, through faults, as the settings say. Called again with the same folder, it goes on."""
    federation = Federation(kit)
    store = Store(folder)
    began = now()
    with (
        like_ctrl_c(*ENDS),
        store.open(silo.name),
        contextlib.closing(federation),  # its threads would keep this process alive
    ):
        name_file = folder / "run"
        if not name_file.exists():
            name_file.write_text(f"{silo.name}-{secrets.token_hex(6)}")
        name = name_file.read_text().strip()
        if (known := saved_results(store, silo, name)) is not None:
            say(f"{folder} has the results of this run already")
            return known
        outcome = _Run(federation, silo, name, folder, say, show).to_the_end()
        save_results(store, silo, name, outcome, began)
        return outcome


def measure(
    silo: Silo, kit: Path, path: Path, say: Callable[[str], None], show: Callable[[dict[str, Any]], None]
) -> Measurement:
    """Measure the sites' problem at the start, all sites present, and save it in a JSON file."""
    name = f"{silo.name}-measure-{secrets.token_hex(6)}"
    wait = silo.loss if silo.loss.on_loss == "stop" else silo.loss.model_copy(update={"on_loss": "wait"})
    patient = silo.model_copy(update={"loss": wait})
    with (
        like_ctrl_c(*ENDS),
        contextlib.closing(Federation(kit)) as federation,
        tempfile.TemporaryDirectory() as place,
    ):
        outcome = _Run(federation, patient, name, Path(place), say, show, survey=True).to_the_end()
    with one_line(f"cannot write {path}", ResultsError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"sites": silo.sites, "measurement": outcome["measurement"]})
    return Measurement.from_json(outcome["measurement"])


class Reached(NamedTuple):
    """How far a job came."""

    ended: bool
    status: str
    round: int
    outcome: dict[str, Any] | None = None
    """What the job has said itself."""


@dataclass(frozen=True)
class _Run:
    """A run, which may take several jobs."""

    federation: Federation
    silo: Silo
    name: str
    folder: Path
    say: Callable[[str], None]
    show: Callable[[dict[str, Any]], None]
    survey: bool = False
    """Whether the sites are measured, and nothing is trained."""

    def to_the_end(self) -> dict[str, Any]:
        furthest, in_vain = 0, 0
        until = time.monotonic() + self.silo.loss.patience_seconds
        while True:
            reached, outcome = self._once(until)
            if reached.round > furthest:
                furthest, in_vain, until = reached.round, 0, time.monotonic() + self.silo.loss.patience_seconds
            else:
                in_vain += 1
            if outcome is not None and outcome["outcome"] in DONE:
                return outcome
            why = reached.status if outcome is None else outcome["reason"]
            if outcome is not None and outcome["outcome"] == "stopped":
                raise FederationError(why)
            if self.silo.loss.on_loss == "stop":
                gone = _gone(self.federation, self.silo.sites, wait=STALE + 10) if outcome is None else []
                if outcome is not None or gone:
                    raise FederationError(
                        why if outcome is not None else f"site {gone[0]} is lost: it no longer reports"
                    )
            if in_vain >= ATTEMPTS:
                raise FederationError(f"{ATTEMPTS} jobs in a row ended without a round, the last: {why}")
            self.say(f"{'the job was lost: ' if outcome is None else ''}{why}; it goes on from its last whole round")

    def _once(self, until: float) -> tuple[Reached, dict[str, Any] | None]:
        """One job: how far it came, and its outcome if it has left one."""
        try:
            sites = self._wait_for_sites(until)
        except KeyboardInterrupt:
            self.say(STOPPED)
            raise
        try:
            try:
                self._end_earlier_jobs()
                job = self.federation.submit(self.silo, self.name, sites, self.survey)
            except FederationError as error:
                time.sleep(POLL)
                return Reached(False, str(error), 0), None
            self.say(f"job {job[:8]} submitted to {', '.join(sites)}")
            reached = _watch(self.federation, job, sites, self.show, self.silo.loss.patience_seconds)
        except KeyboardInterrupt:
            with contextlib.suppress(FederationError):
                self.federation.close()  # whatever it was in the middle of
                for job in self.federation.unfinished(self.name):
                    self.federation.abort(job)
            self.say(STOPPED)
            raise
        if reached.outcome is not None and "reason" in reached.outcome:
            return reached, reached.outcome
        with contextlib.suppress(FederationError):
            return reached, self.federation.fetch(job, self.folder) if reached.ended else None
        return reached, None

    def _end_earlier_jobs(self) -> None:
        """A job whose `silo run` was killed goes on without it, and would keep the next one waiting."""
        earlier = self.federation.unfinished(self.name)
        for job in earlier:
            self.federation.abort(job)
        until = time.monotonic() + STALLED
        # not by their status: a server that was started again says for ever that a job it has lost is running
        while earlier and set(earlier) & set(self.federation.connected().jobs) and time.monotonic() < until:
            time.sleep(POLL)

    def _wait_for_sites(self, until: float) -> list[str]:
        """The sites to run with: all of them, or after a while those that are there, where that is allowed."""
        grace = min(until, time.monotonic() + GRACE)
        told: list[str] | None = None
        reached = False
        while True:
            try:
                here = [name for name in self.federation.connected().sites if name in self.silo.sites]
                reached = True
            except FederationError:
                if not reached and told is None:
                    self.say("waiting for the server")
                    told = []
                here = []
            missing = [name for name in self.silo.sites if name not in here]
            if not missing and here:
                return here
            if reached and missing != told:
                self.say(f"waiting for {', '.join(missing)}")
                told = missing
            if self.silo.least is not None and len(here) >= self.silo.least and time.monotonic() > grace:
                self.say(f"going on without {', '.join(missing)}")
                return here
            if time.monotonic() > until:
                what = f"site {missing[0]} was" if reached else "the server was"
                raise FederationError(f"{what} not there for {self.silo.loss.patience_seconds:g} s")
            time.sleep(POLL)


def _watch(
    federation: Federation, job: str, sites: list[str], show: Callable[[dict[str, Any]], None], patience: float
) -> Reached:
    """Follow a job until it has ended, or gives no sign of life for a while, or makes no progress for so long."""
    sign = moved = time.monotonic()
    last: dict[str, Any] | None = None
    while True:
        status = federation.status(job)
        round = int(last["round"]) if last else 0
        if status.startswith("FINISHED"):
            return Reached(True, status, round, last.get("ended") if last else None)
        found = federation.progress(job) if status == "RUNNING" else None
        if found is not None:
            if last is None or found["round"] != last["round"]:
                show(found)
            if last is None or any(found.get(key) != last.get(key) for key in ("round", "answers")):
                moved = time.monotonic()
            if last is None or "ended" not in last:
                sign = time.monotonic()
            last = found
            if "reason" in found.get("ended", {}):
                federation.abort(job)
                return Reached(True, status, int(found["round"]), found["ended"])
        if last is None and (gone := _gone(federation, sites)):
            federation.abort(job)
            return Reached(False, f"site {gone[0]} was gone before it began", round)
        if last is not None and "ended" not in last and time.monotonic() - moved > patience:
            federation.abort(job)
            raise FederationError(f"no progress for {patience:g} s: no site has answered since round {last['round']}")
        if time.monotonic() - sign > (START if last is None else END if "ended" in last else STALLED):
            federation.abort(job)
            ended = last is not None and "ended" in last and _has_finished(federation, job)
            return Reached(ended, status, round)
        time.sleep(POLL)


def _gone(federation: Federation, sites: list[str], wait: float = 0.0) -> list[str]:
    """The sites that no longer report; it takes a while before that shows."""
    until = time.monotonic() + wait
    while True:
        with contextlib.suppress(FederationError):
            here = federation.connected().sites
            gone = [name for name in sites if name not in here]
            if gone or time.monotonic() >= until:
                return gone
        if time.monotonic() >= until:
            return []
        time.sleep(POLL)


def _has_finished(federation: Federation, job: str) -> bool:
    """Wait until a job that was told to end has."""
    until = time.monotonic() + STALLED
    while time.monotonic() < until:
        if federation.status(job).startswith("FINISHED"):
            return True
        time.sleep(POLL)
    return False
