"""The two objects that FLARE runs, at the server and at each site. The job names them; their code is installed."""

from __future__ import annotations

import json
import queue
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted
from safetensors.torch import save

from fewrounds.checkpoint import write_whole
from fewrounds.errors import FewroundsError, SettingError
from fewrounds.methods.base import method
from fewrounds.rounds import RoundRecord
from fewrounds.silo.lead import Plan, facts_of, lead, survey
from fewrounds.silo.messages import Message, SiteLostError
from fewrounds.silo.site import Site, load_definition
from fewrounds.theory.measure import How

PROGRESS = "fewrounds"
"""The command by which the coordinator asks a running job how far it is."""
PING_SECONDS = 10.0
"""How often a site that has not answered yet is asked whether it is still there, and how long it may take to say so."""
PINGS = 2
"""A site that has not said so so many times in a row is lost."""
LATE_SECONDS = 30.0
"""So long after it should have, FLARE is no longer waited for to say that a site has not answered."""
BUSY_SECONDS = 5.0
LOCK_SECONDS = 60.0
SERVER = "server"
"""By this name FLARE says that it is the server who calls."""
OUTCOME = "outcome.json"
MODEL = "model.safetensors"


class SiteJob:
    """Resident at a site for the whole job: the model, the data and the memory are loaded once."""

    @collab.init
    def prepare(self) -> None:
        self.site: Site | None = None
        self.kit = Path(collab.workspace.get_root_dir())
        self.name = collab.site_name
        self.busy = threading.Lock()

    @collab.publish
    def ask(self, message: Message) -> Message:
        if collab.caller != SERVER:  # FLARE lets sites call each other
            return {"error": "only the coordinator may ask"}
        if not self.busy.acquire(timeout=BUSY_SECONDS):  # FLARE does not stop a call that it no longer waits for
            return {"busy": True}
        try:
            if self.site is None and not self._load():  # now, because it may take longer than FLARE waits above
                return {"error": "its site.py cannot be used: the reason is in the site's own log"}
            assert self.site is not None
            return self.site.answer(message)
        finally:
            self.busy.release()

    def _load(self) -> bool:
        try:
            self.site = Site(self.name, load_definition(self.kit / "site.py"), self.kit / "fewrounds")
        except FewroundsError as error:
            print(f"fewrounds: {error}", file=sys.stderr, flush=True)
        except Exception:
            traceback.print_exc()
        return self.site is not None

    @collab.publish
    def alive(self) -> bool:
        return True


class FlareSites:
    """The way to the sites through FLARE."""

    def __init__(self, names: Sequence[str], seconds: float) -> None:
        self.names = names
        self.seconds = seconds
        self.answers = 0
        """So many have come so far, by which the coordinator sees that something happens."""
        self.present = [p for p, name in enumerate(names) if name in {client.name for client in collab.clients}]

    def ask(self, message: Message, workers: Sequence[int]) -> dict[int, Message | SiteLostError]:
        """Wait for the answers; a site that takes long is asked now and then whether it is still there."""
        names = {self.names[p]: p for p in workers}
        results = collab.get_clients(list(names))(timeout=self.seconds, blocking=False).ask(message)
        heard: queue.SimpleQueue[tuple[str, Message] | None] = queue.SimpleQueue()

        def listen() -> None:
            for found in results:
                heard.put(found)
            heard.put(None)

        threading.Thread(target=listen, daemon=True).start()
        out: dict[int, Message | SiteLostError] = {}
        silent: dict[str, int] = {}
        until = time.monotonic() + self.seconds + LATE_SECONDS
        while len(out) < len(names):
            if time.monotonic() > until:  # FLARE should have said so
                out.update({p: _no_answer() for p in names.values() if p not in out})
                break
            try:
                found = heard.get(timeout=PING_SECONDS)
            except queue.Empty:
                waiting = [name for name, p in names.items() if p not in out]
                silent = {name: silent.get(name, 0) + 1 for name in self._not_there(waiting)}
                _not_aborted()
                for name in [name for name, times in silent.items() if times >= PINGS]:
                    out[names[name]] = _no_answer()
                continue
            if found is None:  # all have answered, or failed
                _not_aborted()
                for name, p in names.items():
                    if p not in out:
                        out[p] = _lost(results.failures.get(name))
            else:
                name, reply = found
                self.answers += 1
                busy = isinstance(reply, dict) and "busy" in reply
                lost = SiteLostError("it is still busy with what it was asked before")
                out.setdefault(names[name], lost if busy else reply)
        return out

    def is_there(self, p: int) -> bool:
        return p in self.present and not self._not_there([self.names[p]])

    def _not_there(self, names: Sequence[str]) -> list[str]:
        """Those of these sites that do not say that they are there."""
        results = collab.get_clients(list(names))(timeout=PING_SECONDS).alive()
        answered = {name for name, _ in results}
        return [name for name in names if name not in answered]


def _not_aborted() -> None:
    """While a job is being ended, sites that do not answer are not lost."""
    if collab.is_aborted:
        raise RunAborted("the job is being ended")


def _lost(failure: Any) -> SiteLostError:
    """What a failed call means. (FLARE calls it a timeout whatever the reason, at once where a process has died.)"""
    if isinstance(failure, RunAborted) or isinstance(getattr(failure, "cause", None), RunAborted):
        raise RunAborted(str(failure))
    return _no_answer()


def _no_answer() -> SiteLostError:
    return SiteLostError("it does not answer")


class Coordinator:
    """The rounds, in the server's job process."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan

    @collab.main
    def run(self) -> None:
        plan = self.plan
        workspace = collab.workspace
        if not re.fullmatch(r"[A-Za-z0-9-]+", plan["run"]):  # it names a folder of the server
            raise SettingError(f"{plan['run']!r} is no name of a run")
        folder = Path(workspace.get_root_dir()) / "runs" / plan["run"]
        folder.mkdir(parents=True, exist_ok=True)
        progress: dict[str, Any] = {"round": 0, "rounds": plan["rounds"], "row": None, "without": []}
        job = collab.fl_ctx.get_job_id()
        sites = FlareSites(plan["sites"], plan["answer_seconds"])
        collab.fl_ctx.get_engine().register_app_command(PROGRESS, lambda *_: {**progress, "answers": sites.answers})

        def note(record: RoundRecord) -> None:
            without = [name for p, name in enumerate(plan["sites"]) if p in record.absent]
            progress.update(round=record.round, row=record.row or progress["row"], without=without)

        todo = Plan(
            run=plan["run"],
            method=method(plan["method"], **plan["settings"]),
            rounds=plan["rounds"],
            seed=plan["seed"],
            weights=plan["weights"],
            evaluate_every=plan["evaluate_every"],
            compile=plan["compile"],
            least=plan["least"],
        )
        outcome: dict[str, Any]
        result = Path(workspace.get_run_dir(job))
        try:
            with _after_any_other_job(folder / "lock"):
                if plan["measure"] is not None:
                    outcome = self._measured(sites, todo, folder)
                else:
                    outcome = self._trained(sites, todo, folder, note, result)
        except SiteLostError as error:
            outcome = {"outcome": "lost", "reason": str(error)}
        except FewroundsError as error:
            reason = str(error).replace(str(folder), "the server's folder of this run")
            outcome = {"outcome": "stopped", "reason": reason}
        write_whole(result / OUTCOME, json.dumps(outcome).encode())
        # FLARE may wait long for a site that is gone before it ends the job
        progress["ended"] = {key: outcome[key] for key in ("outcome", "reason") if key in outcome}

    def _trained(
        self, sites: FlareSites, todo: Plan, folder: Path, note: Callable[[RoundRecord], None], result: Path
    ) -> dict[str, Any]:
        ran = lead(sites, self.plan["sites"], todo, folder, [note], sites.present)
        write_whole(result / MODEL, save({"x": ran.x.contiguous()}))
        return {
            "outcome": ran.outcome,
            "rows": list(ran.rows),
            "ledger": ran.ledger.to_json(),
            "l2": facts_of(folder)[0]["problem"]["l2"],
        }

    def _measured(self, sites: FlareSites, todo: Plan, folder: Path) -> dict[str, Any]:
        found = survey(sites, self.plan["sites"], todo, folder, How(**self.plan["measure"]), sites.present)
        return {"outcome": "finished", "measurement": found.to_json()}


@contextmanager
def _after_any_other_job(path: Path) -> Iterator[None]:
    """A job of the same run that was given up may still be about to end."""
    try:
        lock = filelock.FileLock(path, timeout=LOCK_SECONDS)
        lock.acquire()
    except filelock.Timeout:
        raise SiteLostError(f"an earlier job of this run has not ended for {LOCK_SECONDS:g} s") from None
    try:
        yield
    finally:
        lock.release()
