"""The coordinator's hand on a federation: submit a run, watch it, submit it again after a fault, fetch the result."""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fewrounds.errors import FewroundsError, SettingError
from fewrounds.experiment.store import DONE, Store, now
from fewrounds.silo.provision import ADMIN
from fewrounds.silo.results import save_results, saved_results
from fewrounds.silo.settings import Silo

POLL = 1.0
ATTEMPTS = 3
"""So many jobs in a row that end without a single round are no accident."""
STALLED = 60.0
"""A job whose server does not answer, or has lost it, for so long is given up and submitted again."""
START = 120.0
"""The same before its first sign of life: FLARE starts a process at every site."""
STALE = 35.0
"""Sites report to the server every ten seconds; one that has not for so long is not there, whatever the server says."""
GRACE = 30.0
"""Where a run may go on without some sites, they are waited for so long before it does."""
END = 15.0
"""A job that has done its work is given so long to end by itself."""


class FederationError(FewroundsError):
    """The server cannot be reached, or a run cannot go on."""


@dataclass(frozen=True)
class Connected:
    """Who is there."""

    sites: list[str]
    jobs: list[str]


class Federation:
    """A running server, reached with the coordinator's kit."""

    def __init__(self, kit: Path) -> None:
        if not (kit / "startup").is_dir():
            raise SettingError(f"{kit} is no coordinator's kit: run `fewrounds silo provision FILE` first")
        self.kit = kit
        self._open: Any = None
        self._reported: dict[str, tuple[float, float]] = {}
        """By site: when it last reported, by the server's clock, and when that was new, by ours."""

    @contextmanager
    def session(self, seconds: float = 10.0) -> Iterator[Any]:
        """FLARE's session, kept open from one command to the next; after a fault the next command opens another."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        if self._open is None:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    self._open = new_secure_session(ADMIN, str(self.kit), timeout=seconds)
            except Exception as error:
                raise FederationError(f"the server does not answer: {' '.join(str(error).split())[:200]}") from None
        try:
            yield self._open
        except Exception as error:
            if not _no_answer_yet(error):
                self.close()
            raise FederationError(f"the server has refused: {' '.join(str(error).split())[:200]}") from None

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._open is not None:
                self._open.close()
        self._open = None

    def connected(self) -> Connected:
        with self.session() as session:
            info = session.get_system_info()
            reports = {client.name: float(client.last_connect_time) for client in info.client_info}
            return Connected(self._fresh(reports), [job.job_id for job in info.job_info])

    def _fresh(self, reports: dict[str, float]) -> list[str]:
        """The sites that have reported lately. The server's clock need not agree with ours."""
        now = time.monotonic()
        for name, at in reports.items():
            if self._reported.get(name, (None, 0.0))[0] != at:
                self._reported[name] = at, now
        newest = max(reports.values(), default=0.0)
        return sorted(
            name for name, at in reports.items() if newest - at < STALE and now - self._reported[name][1] < STALE
        )

    def submit(self, silo: Silo, run: str, sites: list[str]) -> str:
        with tempfile.TemporaryDirectory() as place, self.session() as session:
            path = write_job(silo, run, sites, Path(place))
            job: str = session.submit_job(str(path))
            return job

    def progress(self, job: str) -> dict[str, Any] | None:
        """What the job says of itself; None if it does not."""
        from fewrounds.silo.job import PROGRESS

        try:
            with self.session(5.0) as session:
                found = session.do_app_command(job, PROGRESS, {})
        except FederationError:
            return None
        return found if isinstance(found, dict) and "round" in found else None

    def status(self, job: str) -> str:
        try:
            with self.session() as session:
                return str(session.get_job_status(job))
        except FederationError as error:
            return str(error)

    def abort(self, job: str) -> None:
        with contextlib.suppress(Exception), self.session() as session:
            session.abort_job(job)

    def fetch(self, job: str, folder: Path) -> dict[str, Any] | None:
        """The outcome of a job that has ended, with its model in the folder; None if it left none."""
        from fewrounds.silo.job import MODEL, OUTCOME

        with tempfile.TemporaryDirectory() as place, self.session() as session:
            where = Path(session.download_job_result(job, place))
            outcome = next(where.rglob(OUTCOME), None)
            if outcome is None:
                return None
            content: dict[str, Any] = json.loads(outcome.read_text())
            model = outcome.parent / MODEL
            if model.exists():
                shutil.copy(model, folder / MODEL)
            return content


def _no_answer_yet(error: Exception) -> bool:
    """Whether it was the job that did not answer (it starts, or has ended), and the server did."""
    return type(error).__name__ == "NoReply" or "no app command func" in str(error)


def write_job(silo: Silo, run: str, sites: list[str], folder: Path) -> Path:
    """The job as FLARE wants it, without the code that its exporter adds."""
    from nvflare.collab import CollabRecipe

    from fewrounds.silo.job import Coordinator, SiteJob

    plan = {
        "run": run,
        "sites": silo.sites,
        "method": silo.train.method,
        "settings": silo.method,
        "rounds": silo.train.rounds,
        "seed": silo.train.seed,
        "weights": silo.train.weights,
        "evaluate_every": silo.train.evaluate_every,
        "compile": silo.train.compile,
        "least": silo.least,
        "answer_seconds": silo.loss.answer_seconds,
    }
    recipe = CollabRecipe(
        f"fewrounds-{silo.name}", server=Coordinator(plan), client=SiteJob(), min_clients=len(sites),
        sync_task_timeout=START,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        job = recipe.finalize()
        job.export_job(str(folder))
    path = folder / f"fewrounds-{silo.name}"
    for custom in list(path.rglob("custom")):
        shutil.rmtree(custom)
    meta = json.loads((path / "meta.json").read_text())
    meta["mandatory_clients"] = sites
    (path / "meta.json").write_text(json.dumps(meta, indent=2))
    return path


def run(
    silo: Silo, kit: Path, folder: Path, say: Callable[[str], None], show: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Run to the end, through faults, as the settings say. Called again with the same folder, it goes on."""
    federation = Federation(kit)
    store = Store(folder)
    began = now()
    with store.open(silo.name), contextlib.closing(federation):  # its threads would keep this process alive
        name_file = folder / "run"
        if not name_file.exists():
            name_file.write_text(f"{silo.name}-{secrets.token_hex(6)}")
        name = name_file.read_text().strip()
        if (known := saved_results(store, silo, name)) is not None:
            say(f"{folder} has the results of this run already")
            return known
        outcome = _to_the_end(federation, silo, name, folder, say, show)
        save_results(store, silo, name, outcome, began)
        return outcome


def _to_the_end(
    federation: Federation,
    silo: Silo,
    name: str,
    folder: Path,
    say: Callable[[str], None],
    show: Callable[[dict[str, Any]], None],
) -> dict[str, Any]:
    furthest, in_vain = 0, 0
    until = time.monotonic() + silo.loss.patience_seconds
    while True:
        reached, outcome = _once(federation, silo, name, folder, until, say, show)
        if reached.round > furthest:
            furthest, in_vain, until = reached.round, 0, time.monotonic() + silo.loss.patience_seconds
        else:
            in_vain += 1
        if outcome is not None and outcome["outcome"] in DONE:
            return outcome
        why = reached.status if outcome is None else outcome["reason"]
        if outcome is not None and outcome["outcome"] == "stopped":
            raise FederationError(why)
        if silo.loss.on_loss == "stop":
            gone = _gone(federation, silo.sites, wait=STALE + 10) if outcome is None else []
            if outcome is not None or gone:
                raise FederationError(why if outcome is not None else f"site {gone[0]} is lost: it no longer reports")
        if in_vain >= ATTEMPTS:
            raise FederationError(f"{ATTEMPTS} jobs in a row ended without a round, the last: {why}")
        say(f"{'the job was lost: ' if outcome is None else ''}{why}; it goes on from its last whole round")


def _once(
    federation: Federation,
    silo: Silo,
    name: str,
    folder: Path,
    until: float,
    say: Callable[[str], None],
    show: Callable[[dict[str, Any]], None],
) -> tuple[Reached, dict[str, Any] | None]:
    """One job: how far it came, and its outcome if it has left one."""
    sites = _wait_for_sites(federation, silo, until, say)
    try:
        job = federation.submit(silo, name, sites)
    except FederationError as error:
        time.sleep(POLL)
        return Reached(False, str(error), 0), None
    say(f"job {job[:8]} submitted to {', '.join(sites)}")
    try:
        reached = _watch(federation, job, sites, show)
    except KeyboardInterrupt:
        federation.abort(job)
        say("stopped; the same command goes on from the last whole round")
        raise
    if reached.outcome is not None and "reason" in reached.outcome:
        return reached, reached.outcome
    with contextlib.suppress(FederationError):
        return reached, federation.fetch(job, folder) if reached.ended else None
    return reached, None


def _wait_for_sites(federation: Federation, silo: Silo, until: float, say: Callable[[str], None]) -> list[str]:
    """The sites to run with: all of them, or after a while those that are there, where that is allowed."""
    grace = min(until, time.monotonic() + GRACE)
    told: list[str] | None = None
    reached = False
    while True:
        try:
            here = [name for name in federation.connected().sites if name in silo.sites]
            reached = True
        except FederationError:
            if not reached and told is None:
                say("waiting for the server")
                told = []
            here = []
        missing = [name for name in silo.sites if name not in here]
        if not missing and here:
            return here
        if reached and missing != told:
            say(f"waiting for {', '.join(missing)}")
            told = missing
        if silo.least is not None and len(here) >= silo.least and time.monotonic() > grace:
            say(f"going on without {', '.join(missing)}")
            return here
        if time.monotonic() > until:
            what = f"site {missing[0]} was" if reached else "the server was"
            raise FederationError(f"{what} not there for {silo.loss.patience_seconds:g} s")
        time.sleep(POLL)


class Reached(NamedTuple):
    """How far a job came."""

    ended: bool
    status: str
    round: int
    outcome: dict[str, Any] | None = None
    """What the job has said itself."""


def _watch(federation: Federation, job: str, sites: list[str], show: Callable[[dict[str, Any]], None]) -> Reached:
    """Follow a job until it has ended, or gives no sign of life for a while."""
    sign, status = time.monotonic(), "not started"
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
            if last is None or "ended" not in last:
                sign = time.monotonic()
            last = found
            if "reason" in found.get("ended", {}):
                federation.abort(job)
                return Reached(True, status, int(found["round"]), found["ended"])
        if last is None and (gone := _gone(federation, sites)):
            federation.abort(job)
            return Reached(False, f"site {gone[0]} was gone before it began", round)
        patience = START if last is None else END if "ended" in last else STALLED
        if time.monotonic() - sign > patience:
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
