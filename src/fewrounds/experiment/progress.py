"""Progress over a whole grid: a bar with the time left on a terminal, a line a run otherwise."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from fewrounds.experiment.grid import RunSpec


class GridProgress:
    """Counts rounds over all runs, those still to come (after tuning) included."""

    def __init__(self, specs: dict[str, RunSpec], to_come: int) -> None:
        self._rounds = {run: spec.train["rounds"] for run, spec in specs.items()}
        self._labels = {run: spec.label() for run, spec in specs.items()}
        self._to_come = to_come
        self._done: dict[str, int] = {}
        self._ended = 0
        self._known = 0
        self._bar: Any = None
        self._task: Any = None
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (
                TextColumn("{task.fields[runs]}"),
                BarColumn(bar_width=24),
                TextColumn("{task.percentage:3.0f} %"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task("", total=self._total(), runs="")
            self._show()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._show()
            self._bar.stop()

    def add(self, specs: dict[str, RunSpec]) -> None:
        """Runs that were still to come are known now."""
        self._rounds.update({run: spec.train["rounds"] for run, spec in specs.items()})
        self._labels.update({run: spec.label() for run, spec in specs.items()})
        self._to_come = max(0, self._to_come - len(specs))
        self._show()

    def at(self, run: str, round: int) -> None:
        if run in self._rounds:
            self._done[run] = max(round, self._done.get(run, 0))
            self._show()

    def end(self, run: str, how: str, known: bool = False) -> None:
        """A run has ended; `known` if it was there already."""
        self._done[run] = self._rounds[run]
        self._ended += 1
        self._known += self._rounds[run] if known else 0
        self._show()
        if self._bar is None and not known:
            left = self._left()
            remaining = f"  ({left} left)" if left else ""
            line = f"[{self._ended}/{len(self._rounds) + self._to_come}] {self._labels[run]}: {how}{remaining}"
            print(line, file=sys.stderr, flush=True)

    def _total(self) -> int:
        per_run = max(self._rounds.values(), default=0)
        return int(sum(self._rounds.values()) + self._to_come * per_run)

    def _left(self) -> str:
        done = sum(self._done.values()) - self._known
        rest = self._total() - self._known - done
        if done <= 0 or rest <= 0:
            return ""
        return duration((time.monotonic() - self._began) * rest / done)

    def _show(self) -> None:
        if self._bar is not None:
            runs = f"run {self._ended}/{len(self._rounds) + self._to_come}"
            self._bar.update(self._task, total=self._total(), completed=sum(self._done.values()), runs=runs)


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`, `2.1 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} days"
