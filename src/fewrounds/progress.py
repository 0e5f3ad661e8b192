"""A run's progress: a bar on a terminal, a few plain lines otherwise."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any, Self

LINES = 10
"""About how many lines a run prints where there is no terminal."""


class Progress:
    """Shows rounds and the newest figures on standard error. With show=False it is silent."""

    def __init__(self, name: str, rounds: int, done: int, show: bool) -> None:
        self._name = name
        self._rounds = rounds
        self._show = show and done < rounds
        self._every = max(1, rounds // LINES)
        self._done = done
        self._figures = ""
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        if self._show and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
            )
            self._bar = Bar(*columns, console=Console(stderr=True))
            self._bar.start()
            self._task = self._bar.add_task(self._name, total=self._rounds, completed=self._done, figures="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, text: str) -> None:
        """One line, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        elif self._show:
            print(f"fewrounds: {text}", file=sys.stderr, flush=True)

    def note(self, row: dict[str, float]) -> None:
        """The figures to show until there are newer ones."""
        self._figures = f"loss {row['train_loss']:.4g}"
        accuracy = row["test_accuracy"]
        if accuracy == accuracy:
            self._figures += f"  test accuracy {accuracy:.3f}"

    def update(self, round: int, row: dict[str, float] | None) -> None:
        """Round `round` is done; `row` has its figures if it was evaluated."""
        if not self._show:
            return
        if row is not None:
            self.note(row)
        if self._bar is not None:
            self._bar.update(self._task, completed=round, figures=self._figures)
        elif round % self._every == 0 or round == self._rounds:
            figures = f"  {self._figures}" if self._figures else ""
            print(f"{self._name}  round {round}/{self._rounds}{figures}", file=sys.stderr, flush=True)
