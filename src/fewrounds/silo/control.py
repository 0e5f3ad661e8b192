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
from typing import Any

from fewrounds.errors import FewroundsError, SettingError
from fewrounds.silo.provision import ADMIN
from fewrounds.silo.settings import Silo

POLL = 1.0
STALLED = 60.0
"""A job whose server does not answer, or has lost it, for so long is given up and submitted again."""


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

    @contextmanager
    def session(self, seconds: float = 10.0) -> Iterator[Any]:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        with contextlib.redirect_stdout(io.StringIO()):
            try:
                session = new_secure_session(ADMIN, str(self.kit), timeout=seconds)
            except Exception as error:
                raise FederationError(f"the server does not answer: {' '.join(str(error).split())[:200]}") from None
        try:
            yield session
        finally:
            with contextlib.suppress(Exception):
                session.close()

    def connected(self) -> Connected:
        with self.session() as session:
            info = session.get_system_info()
            return Connected(sorted(c.name for c in info.client_info), [job.job_id for job in info.job_info])

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
        except Exception:
            return None
        return found if isinstance(found, dict) and "round" in found else None

    def status(self, job: str) -> str:
        with self.session() as session:
            return str(session.get_job_status(job))

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
        sync_task_timeout=120,
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
    folder.mkdir(parents=True, exist_ok=True)
    name_file = folder / "run"
    if not name_file.exists():
        name_file.write_text(f"{silo.name}-{secrets.token_hex(6)}")
    name = name_file.read_text().strip()
    while True:
        sites = _wait_for_sites(federation, silo, say)
        job = federation.submit(silo, name, sites)
        say(f"job {job[:8]} submitted to {', '.join(sites)}")
        try:
            ended = _watch(federation, job, show)
        except KeyboardInterrupt:
            federation.abort(job)
            say("stopped; the same command goes on from the last whole round")
            raise
        outcome = federation.fetch(job, folder) if ended else None
        if outcome is None:
            say("the job was lost; it goes on from its last whole round")
        elif outcome["outcome"] == "stopped" or (outcome["outcome"] == "lost" and silo.loss.on_loss == "stop"):
            raise FederationError(outcome["reason"])
        elif outcome["outcome"] == "lost":
            say(outcome["reason"])
        else:
            (folder / "history.json").write_text(json.dumps(outcome, indent=1))
            return outcome


def _wait_for_sites(federation: Federation, silo: Silo, say: Callable[[str], None]) -> list[str]:
    """The sites to run with: all of them, or after a while those that are there, where that is allowed."""
    until = time.monotonic() + silo.loss.patience_seconds
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
        if (
            silo.least is not None
            and len(here) >= silo.least
            and time.monotonic() > until - silo.loss.patience_seconds + 30
        ):
            say(f"going on without {', '.join(missing)}")
            return here
        if time.monotonic() > until:
            what = f"site {missing[0]} was" if reached else "the server was"
            raise FederationError(f"{what} not there for {silo.loss.patience_seconds:g} s")
        time.sleep(POLL)


def _watch(federation: Federation, job: str, show: Callable[[dict[str, Any]], None]) -> bool:
    """Follow a job until it has ended. False if it is lost: no sign of progress for a while."""
    sign, last = time.monotonic(), None
    while True:
        try:
            status = federation.status(job)
        except FederationError:
            status = "unknown"
        if status.startswith("FINISHED"):
            return True
        found = federation.progress(job) if status == "RUNNING" else None
        if found is not None and found != last:
            show(found)
            sign, last = time.monotonic(), found
        if time.monotonic() - sign > STALLED and found is None:
            federation.abort(job)
            return False
        time.sleep(POLL)
