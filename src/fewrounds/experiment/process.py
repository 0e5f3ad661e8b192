"""What a process of the pool does: one run at a time, saved as it ends, and its own end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fewrounds.errors import CheckpointError, ResultsError, in_words, raised_everywhere
from fewrounds.experiment.grid import RunSpec
from fewrounds.experiment.store import Store, now
from fewrounds.interrupt import process_stops, stop_process

if TYPE_CHECKING:
    import pandas

_messages: Any = None
_unsaved = False
"""Whether there are rounds that a checkpoint is still to be made of, or a result."""


def start_process(messages: Any) -> None:
    """A process begins with Ctrl-C and its like blocked, and hears of them from its parent alone, as SIGTERM."""
    global _messages
    _messages = messages
    signal.signal(signal.SIGTERM, _stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _stop(number: int, frame: Any) -> None:
    stop_process()
    if not _unsaved:
        os._exit(1)  # one that waits for work would wait for ever: another that has ended can hold the queue's lock


def _end_with_parent() -> None:
    """A parent that was killed leaves no runs behind that would hold on to their folders."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_here(*work: Any) -> tuple[str, str]:
    """`run_one` in a process of the pool; if that is to stop, it ends when the run is saved, and returns nothing."""
    global _unsaved
    try:
        return run_one(*work)
    finally:
        _unsaved = False
        if process_stops():
            sys.stderr.flush()
            os._exit(1)


def run_one(
    run: str,
    spec: RunSpec,
    folder: str,
    compile: bool | str,
    runs: int,
    engine: str = "in-process",
    note: Callable[[str, int], None] | None = None,
) -> tuple[str, str]:
    """Do one run and save it. Returns its outcome and a reason; only a folder that cannot be written ends the rest."""
    from fewrounds.experiment.work import execute

    store = Store(folder)
    last = 0.0

    def tell(record: Any) -> None:
        global _unsaved
        nonlocal last
        _unsaved = True
        if time.monotonic() - last > 0.5:
            last = time.monotonic()
            if note is not None:
                note(run, record.round)
            else:
                _messages.put((run, record.round))

    began = now()
    try:
        result = execute(
            spec,
            checkpoint=store.run_folder(run) / "checkpoint",
            callbacks=(tell,),
            compile=compile,
            runs=runs,
            engine=engine,
        )
    except KeyboardInterrupt:
        return "interrupted", ""
    except Exception as error:
        if isinstance(error, OSError) or (isinstance(error, CheckpointError) and isinstance(error.__cause__, OSError)):
            return "unwritable", str(error)
        if engine == "torchrun" and not raised_everywhere(error):
            raise
        reason = in_words(error)
        store.save_run(run, failure(run, spec, reason), None)
        return "failed", reason
    settings = result.method.settings()
    record = {
        "run": run,
        **spec.identity(),
        "outcome": result.outcome,
        "reason": "",
        "K": settings.get("K"),
        "b": settings.get("b"),
        "method_settings": settings,
        "workers": len(result.ledger.gradients),
        "ledger": result.ledger.to_json(),
        "began": began,
        "ended": now(),
    }
    try:
        store.save_run(run, record, result.history)
    except ResultsError as error:
        return "unwritable", str(error)
    return ended_as(result.outcome, result.history)


def ended_as(outcome: str, history: pandas.DataFrame) -> tuple[str, str]:
    return outcome, f"train loss {history['train_loss'].iloc[-1]:.4g}"


def failure(run: str, spec: RunSpec, reason: str) -> dict[str, Any]:
    """The record of a run that has failed."""
    return {"run": run, **spec.identity(), "outcome": "failed", "reason": reason, "ended": now()}
