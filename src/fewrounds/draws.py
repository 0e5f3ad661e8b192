"""Every random choice of a run, as a pure function of (seed, what for, round, worker).

No generator is carried along: the draw of worker 7 in round 40 is the same whatever was drawn before it,
in which process, in which block of workers, or by which method. So engines agree, a resumed run continues
exactly, and methods that are compared at one seed see the same samples (common random numbers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SERVER = -1
"""The "worker" of draws that are made once for all, such as which worker's model is taken."""


@dataclass(frozen=True)
class Draws:
    """The random choices that belong to one seed."""

    seed: int

    def generator(self, purpose: str, round: int, worker: int = SERVER) -> np.random.Generator:
        """A generator of its own for this purpose, round and worker (Philox, keyed by a 128-bit hash)."""
        label = f"{self.seed}/{purpose}/{round}/{worker}".encode()
        key = int.from_bytes(hashlib.blake2b(label, digest_size=16).digest(), "little")
        return np.random.Generator(np.random.Philox(key=key))

    def integer(self, purpose: str, round: int, n: int, worker: int = SERVER) -> int:
        """One uniform integer in 0 … n - 1."""
        return int(self.generator(purpose, round, worker).integers(n))

    def pick(self, round: int, weights: Sequence[float]) -> int:
        """The worker p̂ of this round, drawn with the given probabilities."""
        # One uniform number against the cumulated weights: the last bound is not rounded, so p̂ < P always.
        bounds = np.cumsum(np.asarray(weights, dtype=np.float64))[:-1]
        return int(np.searchsorted(bounds, self.generator("pick", round).random(), side="right"))
