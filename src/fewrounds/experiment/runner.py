"""Runs an experiment: every run in a process of its own kind of pool, each saved as it ends, none twice."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewrounds.errors import FewroundsError, ResultsError, SettingError, in_words, raised_everywhere
from fewrounds.experiment import grid, tuning
from fewrounds.experiment.config import Experiment
from fewrounds.experiment.grid import RunSpec
from fewrounds.experiment.process import ended_as, failure, run_here, run_one, start_process
from fewrounds.experiment.progress import GridProgress
from fewrounds.experiment.store import Store, known_eta, setting_columns
from fewrounds.experiment.survey import advised_choice
from fewrounds.experiment.work import check, data_digest, prepare
from fewrounds.interrupt import Interrupt, blocked, noted

if TYPE_CHECKING:
    from fewrounds.engine.team import Team


class Runner:
    """The runs of an experiment, in order: a cell's tuning runs first, then, with the chosen step size, its others."""

    def __init__(self, experiment: Experiment, store: Store, jobs: int, compile: bool | str = "auto") -> None:
        self.experiment = experiment
        self.compile = compile
        self._alike: Counter[str] = Counter()
        """How many runs of each kind there will be."""
        self.store = store
        self.jobs = jobs
        self.specs: dict[str, RunSpec] = {}
        self.chosen: list[dict[str, Any]] = []
        self.failures: dict[str, str] = {}
        self._tuning: list[tuple[RunSpec, dict[str, RunSpec]]] = []
        self._queue: deque[str] = deque()
        self._suspects: deque[str] = deque()
        self._interrupt = Interrupt()

    def run(self) -> None:
        cells = grid.cells(self.experiment)
        for cell in cells:
            check(grid.with_values(cell, 0.1, 0, ""))
            if self.experiment.tuning and self.experiment.tuning.rule == "paper" and not prepare(cell.data).classes:
                source = cell.data["source"]
                raise SettingError(f"tuning.rule = 'paper' needs classes, {source} has none; use 'final-loss'")
        for cell in cells:
            given = self.experiment.train.eta
            each = len(given) if isinstance(given, list) else 1
            tries = len(grid.tuning_runs(self.experiment, cell))
            self._alike[_kind(cell)] += tries + each * len(self.experiment.train.seed)
        for cell in cells:
            tried = self._add(grid.tuning_runs(self.experiment, cell))
            if tried:
                self._tuning.append((cell, tried))
                continue
            eta = known_eta(self.experiment, cell)
            if self.experiment.train.eta == "auto":
                advised = advised_choice(self.experiment, self.store, cell)
                eta = advised["eta"]
                self.chosen.append({**setting_columns(cell.identity()), **advised})
            self._add(grid.report_runs(self.experiment, cell, eta))
        self._choose()
        self._save_grid()
        to_come = len(self._tuning) * len(self.experiment.train.seed)
        with self._listening() as self._interrupt, GridProgress(self.specs, to_come) as progress:
            for run in self.specs:
                if run not in self._queue:
                    progress.end(run, "", known=True)
            while self._queue or self._suspects:
                if self._suspects:
                    self._run_alone(self._suspects.popleft(), progress)
                else:
                    self._run_pool(self._queue, self.jobs, progress)
        self._save_grid()

    def _listening(self) -> AbstractContextManager[Interrupt]:
        return noted(again=_kill_children)

    def _add(self, specs: list[RunSpec]) -> dict[str, RunSpec]:
        added = {spec.fingerprint(data_digest(spec)): spec for spec in specs}
        for run, spec in added.items():
            self.specs[run] = spec
            if not self.store.is_done(run):
                self._queue.append(run)
        return added

    def _choose(self) -> None:
        """Choose the step size of every cell whose tuning has ended, and add its reported runs."""
        for cell, tried in list(self._tuning):
            assert self.experiment.tuning is not None
            if any(run not in self.failures and not self.store.is_done(run) for run in tried):
                continue
            self._tuning.remove((cell, tried))
            choice = tuning.choice(self.experiment.tuning, self.store, tried)
            self.chosen.append({**setting_columns(cell.identity()), **choice})
            if choice["eta"] is not None:
                self._add(grid.report_runs(self.experiment, cell, choice["eta"]))

    def _save_grid(self) -> None:
        self.store.save_grid(self.specs, self.experiment.model_dump(mode="json"), self.chosen)

    def _run_alone(self, run: str, progress: GridProgress) -> None:
        """A process died while this run was under way, perhaps another's. By itself, it is clear whose fault it is."""
        self._run_pool(deque([run]), 1, progress)
        if run in self._suspects:
            self._suspects.remove(run)
            reason = "its process died twice (killed, or out of memory)"
            self.store.save_run(run, failure(run, self.specs[run], reason), None)
            self._note(run, "failed", reason, progress)

    def _run_pool(self, queue: deque[str], jobs: int, progress: GridProgress) -> None:
        """Work off the queue. Returns when it is empty, or a process has died: then those under way are suspects."""
        context = multiprocessing.get_context("spawn")
        with blocked():
            resource_tracker.ensure_running()  # it, too, should outlive a closed terminal
        with blocked():  # anew: ensure_running takes off two of them
            messages = context.Queue()
            pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=start_process, initargs=(messages,))
        under_way: dict[Future[tuple[str, str]], str] = {}
        with pool:
            try:
                while queue or under_way:
                    if self._interrupt.pressed:
                        raise KeyboardInterrupt
                    while queue and len(under_way) < jobs:
                        run = queue[0]  # taken off the queue only once it is under way
                        spec = self.specs[run]
                        alike = self._alike[_kind(spec)]
                        with blocked():
                            future = pool.submit(run_here, run, spec, str(self.store.folder), self.compile, alike)
                        under_way[future] = run
                        queue.popleft()
                    ended, _ = wait(under_way, timeout=0.3, return_when=FIRST_COMPLETED)
                    while not messages.empty():
                        progress.at(*messages.get())
                    for future in ended:
                        outcome, reason = future.result()
                        self._note(under_way.pop(future), outcome, reason, progress)
            except BrokenProcessPool:
                for run in under_way.values():
                    record = self.store.record(run)
                    if record is not None and self.store.is_done(run):  # it ended just before
                        self._note(run, *ended_as(record["outcome"], self.store.history(run)), progress)
                    else:
                        self._suspects.append(run)
            except BaseException:
                for process in multiprocessing.active_children():
                    process.terminate()  # SIGTERM: a run saves a checkpoint and ends
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        if self._interrupt.pressed:
            raise KeyboardInterrupt

    def _note(self, run: str, outcome: str, reason: str, progress: GridProgress) -> None:
        """A run has ended. With the last of a cell's tuning runs, its reported runs are known."""
        if outcome == "unwritable":
            raise ResultsError(reason)
        if outcome == "interrupted":
            raise KeyboardInterrupt
        if outcome == "failed":
            self.failures[run] = reason
        progress.end(run, f"{outcome}, {reason}")
        if self.specs[run].role == "tuning":
            known = set(self.specs)
            self._choose()
            progress.add({new: self.specs[new] for new in self.specs if new not in known})
            self._save_grid()


def _kill_children() -> None:
    """Asked a second time: runs end at once, and go on from the checkpoints that they have."""
    for process in multiprocessing.active_children():
        process.kill()


def _kind(spec: RunSpec) -> str:
    """What runs have in common that share compiled steps."""
    train = {key: spec.train[key] for key in ("method", "budget", "budget_mode", "dtype")}
    return json.dumps([spec.data, spec.partition["workers"], spec.model, train, spec.settings], sort_keys=True)


class TeamRunner(Runner):
    """One run after the other, each trained by all ranks of a team together. This is rank 0, which keeps the books."""

    def __init__(self, experiment: Experiment, store: Store, team: Team, compile: bool | str = "auto") -> None:
        super().__init__(experiment, store, jobs=1, compile=compile)
        self._team = team

    def _listening(self) -> AbstractContextManager[Interrupt]:
        return nullcontext(Interrupt())  # ranks hear of it from each other, after a round

    def _run_pool(self, queue: deque[str], jobs: int, progress: GridProgress) -> None:
        while queue:
            run = queue.popleft()
            spec = self.specs[run]
            work = (run, spec, str(self.store.folder), self.compile, self._alike[_kind(spec)])
            self._team.share(work)
            with _names_the_rank(self._team):
                outcome, reason = run_one(*work, engine="torchrun", note=progress.at)
            self._note(run, outcome, reason, progress)


def follow(team: Team) -> None:
    """A rank that is not the first: it takes part in every run until there are no more."""
    from fewrounds.experiment.work import execute

    nothing: tuple[str, RunSpec, str, bool | str, int] | None = None
    with _names_the_rank(team):
        while (work := team.share(nothing)) is not None:
            run, spec, folder, compile, runs = work
            try:
                execute(
                    spec,
                    checkpoint=Store(folder).run_folder(run) / "checkpoint",
                    compile=compile,
                    runs=runs,
                    engine="torchrun",
                )
            except KeyboardInterrupt:
                return
            except Exception as error:
                if not raised_everywhere(error):
                    raise  # rank 0 records the others


@contextmanager
def _names_the_rank(team: Team) -> Iterator[None]:
    """What goes wrong on one rank alone ends it, and with it all: the others wait for it in the midst of a round."""
    try:
        yield
    except Exception as error:
        raise FewroundsError(f"rank {team.rank}: {in_words(error)}") from error


def run_experiment(
    experiment: Experiment,
    folder: str | Path,
    jobs: int | None = None,
    compile: bool | str = "auto",
    team: Team | None = None,
) -> Runner:
    """Run what has not been run yet. Stopped at any time, the same call goes on."""
    if experiment.tuning is not None:
        tuning.check_rule(experiment.tuning.rule)
    store = Store(folder)
    with store.open(experiment.name):
        if team is not None:
            runner: Runner = TeamRunner(experiment, store, team, compile)
        else:
            runner = Runner(experiment, store, jobs or os.cpu_count() or 1, compile)
        runner.run()
    if team is not None:
        team.share(None)
    return runner
