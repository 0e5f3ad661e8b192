"""A running federation, reached with the coordinator's kit: who is there, submit a job, ask it, fetch its result."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewrounds.errors import FewroundsError, SettingError
from fewrounds.silo.provision import ADMIN
from fewrounds.silo.settings import Silo

START = 120.0
"""Seconds in which a job must give its first sign of life: FLARE starts a process at every site."""
STALE = 35.0
"""Sites report to the server every ten seconds; one that has not for so long is not there, whatever the server says."""


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
        from nvflare.fuel.flare_api.flare_api import Session

        if self._open is None:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    # Not by new_secure_session: interrupted, that leaves threads which keep the process alive for ever.
                    self._open = Session(ADMIN, str(self.kit))
                    self._open.try_connect(seconds)
            except Exception as error:
                self.close()
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

    def submit(self, silo: Silo, run: str, sites: list[str], survey: bool = False) -> str:
        with tempfile.TemporaryDirectory() as place, self.session() as session:
            path = write_job(silo, run, sites, Path(place), survey)
            job: str = session.submit_job(str(path))
            return job

    def unfinished(self, run: str) -> list[str]:
        """The jobs of a run that have not ended, by what the server says."""
        with self.session() as session:
            jobs = session.list_jobs(name_prefix=_job_name(run))
            return [job["job_id"] for job in jobs if not str(job["status"]).startswith("FINISHED")]

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


def _job_name(run: str) -> str:
    """By which the jobs of a run are found again."""
    return f"fewrounds-{run}"


def write_job(silo: Silo, run: str, sites: list[str], folder: Path, survey: bool = False) -> Path:
    """The job as FLARE wants it, without the code that its exporter adds: a training, or a measurement."""
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
        "measure": silo.measure.settings() if survey else None,
    }
    recipe = CollabRecipe(
        _job_name(run), server=Coordinator(plan), client=SiteJob(), min_clients=len(sites),
        sync_task_timeout=START,
    )  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()):
        job = recipe.finalize()
        job.export_job(str(folder))
    path = folder / _job_name(run)
    for custom in list(path.rglob("custom")):
        shutil.rmtree(custom)
    meta = json.loads((path / "meta.json").read_text())
    meta["mandatory_clients"] = sites
    (path / "meta.json").write_text(json.dumps(meta, indent=2))
    return path
