"""What is said while data are prepared: lines and a bar on standard error, where someone is looking."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Tick = Callable[[float], None]


def warn(text: str) -> None:
    """One line on standard error that is always shown."""
    print(f"fewrounds: {text}", file=sys.stderr, flush=True)


class Report:
    """Lines, and a bar if standard error is a terminal. With show=False it is silent."""

    def __init__(self, show: bool) -> None:
        self._show = show
        self._bar: Any = None

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(f"fewrounds: {text}", highlight=False, markup=False, soft_wrap=True)
        elif self._show:
            warn(text)

    @contextmanager
    def step(self, what: str, total: float | None = None) -> Iterator[Tick]:
        """A step of the work; the function it gives is told how much more is done. Without a total the bar pulses."""
        if self._bar is not None:  # a step within a step is a second line under the same bar
            inner = self._bar.add_task(what, total=total)
            yield lambda done: self._bar.advance(inner, done)
            self._bar.remove_task(inner)
            return
        if not self._show or not sys.stderr.isatty():
            yield lambda done: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=total)
            self._bar = bar
            try:
                yield lambda done: bar.advance(task, done)
            finally:
                self._bar = None
