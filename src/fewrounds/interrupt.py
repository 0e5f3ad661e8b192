"""Ctrl-C between rounds, and signals that mean the same."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether Ctrl-C has been pressed."""

    def __init__(self) -> None:
        self.pressed = False


@contextmanager
def like_ctrl_c(*numbers: int) -> Iterator[None]:
    """Meanwhile these signals interrupt as Ctrl-C does, unless somebody (nohup) has set them to something else."""
    here = threading.current_thread() is threading.main_thread()
    ours = [number for number in numbers if here and signal.getsignal(number) is signal.SIG_DFL]

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in ours:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


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
        interrupt.pressed = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)
