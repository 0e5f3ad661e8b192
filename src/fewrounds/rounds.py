"""The loop over the rounds of a run: evaluation, checkpoints, callbacks and progress around a method and an engine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fewrounds.checkpoint import Checkpoints, Snapshot
from fewrounds.engine.base import BaseEngine
from fewrounds.errors import SettingError
from fewrounds.interrupt import held_back
from fewrounds.ledger import Ledger
from fewrounds.methods.base import Method, State
from fewrounds.progress import Progress

SHARE = 12
"""By default rounds take so many gradients for one that evaluations take, which are then under a tenth of the time."""


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
    absent: tuple[int, ...] = ()
    """The workers that were gone (silos only)."""


class Ran(NamedTuple):
    """What the rounds have come to (see `fewrounds.Result`)."""

    x: Tensor
    rows: tuple[dict[str, float], ...]
    trace: Tensor | None
    ledger: Ledger
    outcome: str


@dataclass
class Rounds:
    """The loop over rounds."""

    method: Method
    engine: BaseEngine
    rounds: int
    evaluate_every: int
    evaluate_last: int
    callbacks: list[Callable[[RoundRecord], object]]
    keep_trace: bool
    progress: bool

    def go(self, x0: Tensor, checkpoints: Checkpoints | None, save_rounds: float, save_seconds: float) -> Ran:
        state = self.method.init(x0)
        found = checkpoints.load(state, trace=self.keep_trace) if checkpoints else None
        self.engine.team.together(lambda: self._refuse_longer(found))
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

        committed, stop = self.engine.committed, 0
        saved_round, saved_at = done, time.monotonic()
        with (
            Progress(self.method.name, self.rounds, done, self.progress and self.engine.team.rank == 0) as progress,
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
                    absent = tuple(self.engine.absent)
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
                    self._call_back(done, state.x, committed.ledger, row, absent)
                    progress.update(done, row)
                    if checkpoints:
                        due = done - saved_round >= save_rounds or time.monotonic() - saved_at >= save_seconds
                        # One process is interrupted or finds it time to save: all of them are, after the same round.
                        save, stop = self.engine.team.counts([due, interrupt.pressed])
                        if save:
                            checkpoints.save(snapshot())
                            saved_round, saved_at = done, time.monotonic()
                        if stop:
                            raise KeyboardInterrupt
            except KeyboardInterrupt:
                # Struck in the midst of a round (a second Ctrl-C), the others are not there to save it with.
                if checkpoints and (stop or self.engine.team.size == 1):
                    checkpoints.save(snapshot())
                    progress.say(f"interrupted after round {done}; saved in {checkpoints.folder}")
                raise
            if outcome == "diverged":
                progress.say(f"{self.method.name} diverged: the loss was not finite after round {done}")
        if checkpoints and (saved_round < done or found is None):
            checkpoints.save(snapshot())
        points = torch.stack(trace) if trace is not None else None
        return Ran(self.method.output(state), tuple(history), points, self.engine.committed.ledger, outcome)

    def _refuse_longer(self, found: Snapshot | None) -> None:
        if found is not None and found.round > self.rounds:
            raise SettingError(f"rounds = {self.rounds}, but the checkpoint is at round {found.round} already")

    def _call_back(
        self, round: int, x: Tensor, ledger: Ledger, row: dict[str, float] | None, absent: tuple[int, ...]
    ) -> None:
        for callback in self.callbacks if self.engine.team.rank == 0 else ():
            copy = dict(row) if row is not None else None  # what a callback does to it stays with it
            callback(RoundRecord(round, self.rounds, x.clone(), self.engine.picked, ledger, copy, absent))

    def _is_due(self, round: int) -> bool:
        return self._is_due_in_full(round) or round > self.rounds - self.evaluate_last

    def _is_due_in_full(self, round: int) -> bool:
        return round % self.evaluate_every == 0 or round == self.rounds

    def _evaluate(self, round: int, state: State, seconds: float) -> dict[str, float]:
        train = self.engine.evaluate(state.x, gradient=self._is_due_in_full(round))
        return {
            "round": round,
            "train_loss": float(train.loss),
            "train_accuracy": float(train.accuracy),
            "test_loss": train.test_loss,
            "test_accuracy": train.test_accuracy,
            "gradient_norm": math.nan if train.gradient is None else float(train.gradient.norm()),
            "picked": self.engine.picked if round else -1,
            **self.engine.committed.ledger.columns(),
            "seconds": seconds,
        }


def default_cadence(rounds: int, gradients_per_round: float, sources: Sequence[Any], test: Any) -> int:
    """Rounds between evaluations: about 100 in a run, or fewer, but 5, where they would take over a tenth of the time.

    It follows from counts alone (a test sample takes half a gradient), so that it is the same on every machine.
    """
    train = sum(evaluated_samples(source) for source in sources)
    full = train + (evaluated_samples(test) / 2 if test is not None else 0)
    affordable = math.ceil(SHARE * full / (gradients_per_round * len(sources)))
    return max(1, rounds // 100, min(affordable, rounds // 5))


def evaluated_samples(source: Any) -> float:
    """How many samples of a worker, or of the test set, are evaluated."""
    if isinstance(source, (int, float)):
        return float(source)
    size = getattr(source, "size", None) or len(source)
    return float(size) if math.isfinite(size) else float(source.evaluation_samples)
