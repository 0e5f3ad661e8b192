"""`train`: rounds, evaluation, checkpoints and callbacks around a method and an engine."""

from __future__ import annotations

import hashlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fewrounds.batch import Batch, batch_size
from fewrounds.checkpoint import Checkpoints, Snapshot
from fewrounds.checks import can_vmap, check_labels, check_problem, example_of
from fewrounds.data.shards import Shard, Source, share_small
from fewrounds.data.sources import Cast, Stream, check_alike, load_workers, read_batch
from fewrounds.draws import Draws
from fewrounds.engine.base import BaseEngine
from fewrounds.engine.in_process import InProcess
from fewrounds.engine.loop import Programs
from fewrounds.engine.programs import Policy
from fewrounds.errors import DataError, SettingError, finite_number, kind_of, whole_number
from fewrounds.interrupt import held_back
from fewrounds.ledger import Ledger
from fewrounds.methods.base import Method, State
from fewrounds.problem import Problem
from fewrounds.progress import Progress

if TYPE_CHECKING:
    import pandas

SHARE = 12
"""By default rounds take so many gradients for one that evaluations take, which are then under a tenth of the time."""
CACHE_BYTES = 2**20
"""Workers run side by side while their vectors fit in about this much memory, a CPU core's own cache."""


@dataclass(frozen=True)
class RoundRecord:
    """What a callback gets after every round."""

    round: int
    rounds: int
    x: Tensor
    picked: int
    """The worker whose model was taken, -1 if the models were averaged."""
    ledger: Ledger
    row: dict[str, float] | None
    """The row of `history`, if this round was evaluated."""


@dataclass(frozen=True)
class Result:
    """What `train` returns."""

    problem: Problem
    method: Method
    x: Tensor
    """The method's answer: the last iterate, unless the method's publication says otherwise."""
    rows: tuple[dict[str, float], ...]
    trace: Tensor | None
    """[rounds + 1, d]: every iterate, the start first (with trace=True)."""
    ledger: Ledger
    outcome: str
    """"finished", or "diverged" if the loss became infinite or NaN and the run ended there."""

    @cached_property
    def model(self) -> nn.Module:
        """The model with x as its parameters."""
        return self.problem.module(self.x)

    @cached_property
    def history(self) -> pandas.DataFrame:
        """One row per evaluated round; round 0 is the start. Cost columns are cumulative."""
        import pandas

        whole = ["round", "picked", "vectors_up", "vectors_down", "bytes_up", "bytes_down"]
        return pandas.DataFrame(list(self.rows)).astype(dict.fromkeys(whole, "int64"))


def train(
    problem: Problem,
    workers: Sequence[Any] | Callable[[int], Any],
    method: Method,
    rounds: int,
    *,
    x0: Any = None,
    test: Any = None,
    seed: int = 0,
    weights: str = "uniform",
    num_workers: int | None = None,
    evaluate_every: int | None = None,
    evaluate_last: int = 1,
    callbacks: Sequence[Callable[[RoundRecord], object]] = (),
    trace: bool = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    checkpoint_seconds: float | None = 60.0,
    resume: bool = True,
    rows_at_once: int | None = None,
    compile: bool | str | Policy = "auto",
    progress: bool = True,
) -> Result:
    """Minimise the problem over the workers' data by the method, for a number of communication rounds.

    workers             one item a worker: an array or tensor, a tuple of them, a map-style dataset (read into memory
                        once) or a `Stream`; or a function worker(p), with num_workers
    x0                  the start; the model's own parameters by default, 0 for a plain loss
    test                data of the same form as a worker's, for the test columns
    seed                decides every draw: same seed, same samples, whatever the method
    weights             "uniform", or "size" to weigh the mean and the draw of p̂ by the workers' sizes
    evaluate_every      rounds between evaluations over all train and test data; by default about 100 in a run, or
                        fewer (at least 5), so that they take less than a tenth of the time. The start and the end are
                        always evaluated
    evaluate_last       the last rounds, all of which are evaluated; those that evaluate_every would leave out have no
                        gradient_norm, which takes as long as all the rest
    callbacks           each is called once after every round, with a `RoundRecord`
    trace               keep every iterate in `result.trace`
    checkpoint          a folder; the run is saved there every checkpoint_every rounds or checkpoint_seconds seconds,
                        whichever comes first, and at its end. Called again with the same folder, `train` continues
                        exactly where the newest checkpoint ends (with more rounds too; what a shorter run has
                        evaluated stays in the history); resume=False refuses a folder that has one
    rows_at_once        workers that are computed side by side; never changes the result beyond rounding
    compile             True compiles the local steps (which takes a while, once for a machine: it is kept on disk),
                        False does not, "auto" does if the run has enough of them; never changes the result beyond
                        rounding
    progress            a bar on a terminal, a few lines otherwise
    """
    if not isinstance(problem, Problem):
        raise SettingError(f"the problem is {kind_of(problem)}: expected a fewrounds.Problem")
    if not isinstance(method, Method):
        raise SettingError(f"the method is {kind_of(method)}: expected one such as LocalSGD(eta=0.1, K=16, b=16)")
    rounds = whole_number("rounds", rounds)
    if evaluate_every is not None:
        evaluate_every = whole_number("evaluate_every", evaluate_every)
    last = whole_number("evaluate_last", evaluate_last)
    if checkpoint_every is not None:
        checkpoint_every = whole_number("checkpoint_every", checkpoint_every)
    seed = whole_number("seed", seed, least=None)
    if checkpoint_seconds is not None:
        checkpoint_seconds = finite_number("checkpoint_seconds", checkpoint_seconds)
    if checkpoint is not None and not (isinstance(checkpoint, (str, Path)) and str(checkpoint)):
        raise SettingError(f"checkpoint = {checkpoint!r}: must be the path of a folder")
    if not isinstance(callbacks, Sequence) or not all(callable(callback) for callback in callbacks):
        raise SettingError("callbacks must be a list of functions that take a RoundRecord")

    draws = Draws(seed)
    cast = Cast(problem.dtype, problem.device, problem.has_model)
    sources = load_workers(
        workers, cast, num_workers=num_workers, evaluation_rng=lambda p: draws.generator("evaluation", 0, p)
    )
    method.check([source.size for source in sources])
    x_start = _start(problem, x0)
    example = example_of(sources)
    test_source = None if test is None else _test_source(test, cast, example)
    check_labels(problem, sources, test_source, example, x_start)
    probe = check_problem(problem, example, x_start)
    problem.try_channels_last(x_start, example)
    rows = _rows_at_once(problem, rows_at_once, len(sources), example, x_start)
    if rows > 1:
        sources = share_small(sources)
    policy = compile if isinstance(compile, Policy) else Policy(compile)
    engine = InProcess(problem, sources, draws, weights, rows, Programs(problem, policy, rounds, _say_once(progress)))

    every = evaluate_every or default_cadence(rounds, method.gradients_per_round(engine.sizes), sources, test_source)
    run = _Run(problem, method, engine, test_source, rounds, every, last, list(callbacks), trace, progress)
    if checkpoint is None:
        return run.go(x_start, None, math.inf, math.inf)
    identity = {
        "problem": problem.description(),
        "start": hashlib.sha256(x_start.cpu().numpy().tobytes()).hexdigest(),
        "losses": probe,
        "method": {"name": method.name, **method.settings()},
        "workers": [source.fingerprint() for source in sources],
        "test": test_source.fingerprint() if test_source else None,
        "weights": weights,
        "seed": seed,
    }
    checkpoints = Checkpoints(checkpoint, identity)
    with checkpoints.locked():
        if not resume and checkpoints.exist():
            raise SettingError(f"{checkpoint} has checkpoints already: choose another folder, or resume=True")
        seconds = math.inf if checkpoint_seconds is None else checkpoint_seconds
        return run.go(x_start, checkpoints, checkpoint_every or math.inf, seconds)


@dataclass
class _Run:
    """The loop over rounds."""

    problem: Problem
    method: Method
    engine: BaseEngine
    test: Source | None
    rounds: int
    evaluate_every: int
    evaluate_last: int
    callbacks: list[Callable[[RoundRecord], object]]
    keep_trace: bool
    progress: bool

    def go(self, x0: Tensor, checkpoints: Checkpoints | None, save_rounds: float, save_seconds: float) -> Result:
        state = self.method.init(x0)
        found = checkpoints.load(state, trace=self.keep_trace) if checkpoints else None
        if found is not None and found.round > self.rounds:
            raise SettingError(f"rounds = {self.rounds}, but the checkpoint is at round {found.round} already")
        if found is None:
            first = self._evaluate(0, state, 0.0)
            history, trace, seconds, done = [first], [state.x] if self.keep_trace else None, 0.0, 0
            outcome = "finished" if math.isfinite(first["train_loss"]) else "diverged"
        else:
            state, done, seconds, outcome = found.state, found.round, found.seconds, found.outcome
            history, trace = list(found.history), list(found.trace) if found.trace is not None else None
            self.engine.restore(found.committed)

        def snapshot() -> Snapshot:
            """The run as it was after round `done`, whatever has happened since."""
            kept = tuple(row for row in history if row["round"] <= done)
            points = tuple(trace[: done + 1]) if trace is not None else None
            return Snapshot(done, state, committed, kept, points, seconds, outcome)

        committed = self.engine.committed
        saved_round, saved_at = done, time.monotonic()
        with (
            Progress(self.method.name, self.rounds, done, self.progress) as progress,
            held_back(checkpoints is not None) as interrupt,
        ):
            progress.note(history[-1])
            if found is not None and done < self.rounds:
                progress.say(f"continuing after round {done}")
            try:
                while done < self.rounds and outcome != "diverged":
                    began = time.perf_counter()
                    self.engine.begin(done + 1)
                    new_state = self.method.round(state, self.engine)
                    self.engine.commit()
                    now = seconds + time.perf_counter() - began
                    row = self._evaluate(done + 1, new_state, now) if self._is_due(done + 1) else None
                    if row is not None:
                        history.append(row)
                    if trace is not None:
                        del trace[done + 1 :]
                        trace.append(new_state.x)
                    diverged = row is not None and not math.isfinite(row["train_loss"])
                    # One assignment, so that an interrupt finds a whole round.
                    done, state, committed, seconds, outcome = (
                        done + 1,
                        new_state,
                        self.engine.committed,
                        now,
                        "diverged" if diverged else outcome,
                    )
                    self._call_back(done, state.x, committed.ledger, row)
                    progress.update(done, row)
                    due = done - saved_round >= save_rounds or time.monotonic() - saved_at >= save_seconds
                    if checkpoints and due:
                        checkpoints.save(snapshot())
                        saved_round, saved_at = done, time.monotonic()
                    interrupt.check()
            except KeyboardInterrupt:
                if checkpoints:
                    checkpoints.save(snapshot())
                    progress.say(f"interrupted after round {done}; saved in {checkpoints.folder}")
                raise
            if outcome == "diverged":
                progress.say(f"{self.method.name} diverged: the loss was not finite after round {done}")
        if checkpoints and (saved_round < done or found is None):
            checkpoints.save(snapshot())
        return Result(
            problem=self.problem,
            method=self.method,
            x=self.method.output(state),
            rows=tuple(history),
            trace=torch.stack(trace) if trace is not None else None,
            ledger=self.engine.committed.ledger,
            outcome=outcome,
        )

    def _call_back(self, round: int, x: Tensor, ledger: Ledger, row: dict[str, float] | None) -> None:
        for callback in self.callbacks:  # copies: what a callback does to them stays with it
            copy = dict(row) if row is not None else None
            callback(RoundRecord(round, self.rounds, x.clone(), self.engine.picked, ledger, copy))

    def _is_due(self, round: int) -> bool:
        return self._is_due_in_full(round) or round > self.rounds - self.evaluate_last

    def _is_due_in_full(self, round: int) -> bool:
        return round % self.evaluate_every == 0 or round == self.rounds

    def _evaluate(self, round: int, state: State, seconds: float) -> dict[str, float]:
        train = self.engine.evaluate(state.x, gradient=self._is_due_in_full(round))
        test_loss, test_accuracy = self._test_metrics(state.x)
        return {
            "round": round,
            "train_loss": float(train.loss),
            "train_accuracy": float(train.accuracy),
            "test_loss": test_loss,
            "test_accuracy": test_accuracy,
            "gradient_norm": math.nan if train.gradient is None else float(train.gradient.norm()),
            "picked": self.engine.picked if round else -1,
            **self.engine.committed.ledger.columns(),
            "seconds": seconds,
        }

    def _test_metrics(self, x: Tensor) -> tuple[float, float]:
        if self.test is None:
            return math.nan, math.nan
        loss = accuracy = 0.0
        for z in self.test.everything():
            share = batch_size(z) / self.test.size
            metrics = self.problem.metrics(x, z)
            loss, accuracy = loss + share * float(metrics.loss), accuracy + share * float(metrics.accuracy)
        return loss, accuracy


def default_cadence(rounds: int, gradients_per_round: float, sources: Sequence[Any], test: Any) -> int:
    """Rounds between evaluations: about 100 in a run, or fewer, but 5, where they would take over a tenth of the time.

    It follows from counts alone (a test sample takes half a gradient), so that it is the same on every machine.
    """
    train = sum(_evaluated(source) for source in sources)
    full = train + (_evaluated(test) / 2 if test is not None else 0)
    affordable = math.ceil(SHARE * full / (gradients_per_round * len(sources)))
    return max(1, rounds // 100, min(affordable, rounds // 5))


def _evaluated(source: Any) -> float:
    """How many samples of a worker, or of the test set, are evaluated."""
    size = getattr(source, "size", None) or len(source)
    return float(size) if math.isfinite(size) else float(source.evaluation_samples)


def _say_once(show: bool) -> Callable[[str], None]:
    """Prints a line on standard error, unless it has been printed before or nothing is to be shown."""

    def say(text: str) -> None:
        if show and text not in _said:
            _said.add(text)
            print(f"fewrounds: {text}", file=sys.stderr, flush=True)

    return say


_said: set[str] = set()


def _start(problem: Problem, x0: Any) -> Tensor:
    if x0 is None:
        return problem.start
    try:
        start = torch.as_tensor(x0).detach().to(problem.device, problem.dtype).clone()
    except (TypeError, ValueError, RuntimeError) as error:
        raise SettingError(f"x0 is not a vector of numbers: {error}") from error
    if start.shape != (problem.dim,):
        raise SettingError(f"x0 has shape {list(start.shape)}, but the problem needs [{problem.dim}]")
    if not torch.isfinite(start).all():
        raise SettingError("x0 has a NaN or infinite value")
    return start


def _test_source(test: Any, cast: Cast, example: Batch) -> Source:
    if isinstance(test, Stream):
        raise DataError("the test set is a Stream: expected arrays or a map-style dataset, which have an exact loss")
    z = cast(read_batch(test, "the test set", has_target=cast.has_target), "the test set")
    check_alike(z, example, "the test set", "worker 0")
    return Shard(z)


def _rows_at_once(problem: Problem, wanted: int | None, workers: int, example: Batch, x: Tensor) -> int:
    """As asked, or: all workers for a small model or a GPU, one at a time for a model that would spill the cache."""
    if wanted is not None:
        wanted = whole_number("rows_at_once", wanted)
        if wanted > 1 and not can_vmap(problem, example, x):
            raise SettingError(f"rows_at_once = {wanted}: torch cannot vmap this problem, use 1")
        return min(wanted, workers)
    most = workers
    if problem.device.type == "cpu":
        most = max(1, min(workers, CACHE_BYTES // (x.element_size() * problem.dim)))
    return most if most > 1 and can_vmap(problem, example, x) else 1
