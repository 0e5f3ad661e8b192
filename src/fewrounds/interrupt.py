"""Ctrl-C between rounds, and signals that mean the same."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a cluster's scheduler, a closed terminal. They may be sent to one process, or to all of a group."""
INTERRUPTED = "fewrounds: interrupted; the same command goes on from here"


class Interrupt:
    """Whether Ctrl-C has been pressed."""

    def __init__(self) -> None:
        self._pressed = False

    @property
    def pressed(self) -> bool:
        return self._pressed or _process._pressed

    def press(self) -> None:
        self._pressed = True


_process = Interrupt()
"""Pressed, it is so for all that this process does."""


def stop_process() -> None:
    """All training of this process is to end after the round that is under way, and to be saved."""
    _process.press()


def process_stops() -> bool:
    return _process.pressed


@contextmanager
def _handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, how in before.items():
            signal.signal(number, how)


def _untouched(numbers: Iterable[int]) -> list[int]:
    """Those that nobody (nohup) has set to something else; outside the main thread, which alone may set them, none."""
    here = threading.current_thread() is threading.main_thread()
    usual = (signal.SIG_DFL, signal.default_int_handler, _end)
    return [number for number in numbers if here and signal.getsignal(number) in usual]


@contextmanager
def like_ctrl_c(*numbers: int) -> Iterator[None]:
    """Meanwhile these signals interrupt as Ctrl-C does, unless somebody has set them to something else."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handled(_untouched(numbers), interrupt):
        yield


@contextmanager
def ends_at_once(active: bool) -> Iterator[None]:
    """Meanwhile these signals end the process with one line, if active: for where nothing can be lost by it.

    A KeyboardInterrupt can be lost within an import, or leave half a module behind.
    """
    with _handled(_untouched(SIGNALS if active else ()), _end):
        yield


def _end(number: int, frame: FrameType | None) -> None:
    cursor = "\r\x1b[?25h" if os.isatty(2) else ""  # a bar may have hidden it
    os.write(2, f"{cursor}{INTERRUPTED}\n".encode())
    os._exit(130)


@contextmanager
def noted(again: Callable[[], None]) -> Iterator[Interrupt]:
    """Meanwhile the first of these signals only sets `pressed`, for the caller to see; later ones call `again`.

    What follows within a second is the same wish: some programs signal a process and then its whole group. A signal
    that somebody has set to something else stays that.
    """
    interrupt, first = Interrupt(), 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if not interrupt.pressed:
            first = time.monotonic()
            interrupt.press()
        elif time.monotonic() - first > 1:
            again()

    with _handled(_untouched(SIGNALS), note):
        yield interrupt


@contextmanager
def held_back(active: bool) -> Iterator[Interrupt]:
    """While active, the first Ctrl-C (SIGINT) only sets `pressed`, for the caller to see; a second strikes at once.

    Raised wherever it happens to strike, a KeyboardInterrupt can be lost: Python ignores exceptions in a destructor.
    """
    interrupt = Interrupt()
    before = signal.getsignal(signal.SIGINT)
    if not active or threading.current_thread() is not threading.main_thread() or not callable(before):
        yield interrupt
        return

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.press()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def blocked() -> Iterator[None]:
    """Meanwhile these signals wait. Processes that are started here begin with them blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
