"""How run.py talks to one system: requests on the system's standard input, one JSON line back for each.

    rounds N   runs N rounds                                        {"seconds": ...}
    check N    the same, with steps counted at their closest        {"seconds": ...}
    state      what has been done since the start                   {"steps": [...], "samples": ..., "loss": ...}

A system ends when its standard input does. Standard library only: systems without torch use this file too.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from typing import Any, TextIO


class System:
    """One system with one work: subclasses run the rounds and count what was really done."""

    package: str

    def __init__(self, workers: int) -> None:
        self.steps = [0] * workers
        """Local steps of each worker since the start, counted where they are taken."""
        self.samples = 0
        """Samples in all batches since the start."""

    def rounds(self, n: int) -> None:
        raise NotImplementedError

    def check(self, n: int) -> None:
        """As `rounds`; for systems in which counting every step costs time."""
        self.rounds(n)

    def loss(self) -> float:
        """The mean loss over all data, without L2."""
        raise NotImplementedError


def claim_stdout() -> TextIO:
    """Standard output for the protocol alone: what libraries print goes to standard error from now on."""
    ours = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return ours


def serve(system: System, out: TextIO) -> None:
    """Answer requests until there are no more."""

    def answer(values: dict[str, Any]) -> None:
        out.write(json.dumps(values) + "\n")

    answer({"version": f"{system.package} {importlib.metadata.version(system.package)}"})
    for line in sys.stdin:
        name, *arguments = line.split()
        if name == "state":
            answer({"steps": system.steps, "samples": system.samples, "loss": system.loss()})
            continue
        run = {"rounds": system.rounds, "check": system.check}[name]
        begin = time.perf_counter()
        run(int(arguments[0]))
        answer({"seconds": time.perf_counter() - begin})
