"""Every random choice of a run, as a pure function of (seed, what for, round, worker).

No generator is carried along: the draw of worker 7 in round 40 is the same whatever was drawn before it,
in which process, in which block of workers, or by which method. So engines agree, a resumed run continues
exactly, and methods that are compared at one seed see the same samples (common random numbers).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SERVER = -1
"""The "worker" of draws that are made once for all, such as which worker's model is taken."""


@dataclass(frozen=True)
class Draws:
    """The random choices that belong to one seed."""

    seed: int

    def generator(self, purpose: str, round: int, worker: int = SERVER) -> np.random.Generator:
        """A generator of its own for this purpose, round and worker (Philox, keyed by a 128-bit hash)."""
        return np.random.Generator(np.random.Philox(key=int.from_bytes(self._key(purpose, round, worker), "little")))

    def integers(self, purpose: str, round: int, worker: int, n: int, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
        """Uniform integers in 0 … n - 1: what `generator(…).integers` gives first, without building a generator."""
        bits, generator = _reused()
        key = np.frombuffer(self._key(purpose, round, worker), dtype="<u8")
        bits.state = {
            "bit_generator": "Philox",
            "state": {"counter": _ZERO, "key": key},
            "buffer": _ZERO,
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }
        return generator.integers(n, size=shape, dtype=np.int64)

    def _key(self, purpose: str, round: int, worker: int) -> bytes:
        return hashlib.blake2b(f"{self.seed}/{purpose}/{round}/{worker}".encode(), digest_size=16).digest()

    def integer(self, purpose: str, round: int, n: int, worker: int = SERVER) -> int:
        """One uniform integer in 0 … n - 1."""
        return int(self.generator(purpose, round, worker).integers(n))

    def subset(self, round: int, n: int, m: int) -> list[int]:
        """The m of n workers that take part in this round, in ascending order; every subset is as likely."""
        return sorted(self.generator("participants", round).choice(n, size=m, replace=False).tolist())

    def pick(self, round: int, weights: Sequence[float]) -> int:
        """The worker p̂ of this round, drawn with the given probabilities."""
        # One uniform number against the cumulated weights: the last bound is not rounded, so p̂ < P always.
        bounds = np.cumsum(np.asarray(weights, dtype=np.float64))[:-1]
        return int(np.searchsorted(bounds, self.generator("pick", round).random(), side="right"))


_ZERO = np.zeros(4, dtype=np.uint64)
_local = threading.local()


def _reused() -> tuple[np.random.Philox, np.random.Generator]:
    """A generator of this thread whose state is set anew for every draw, which is faster than building one."""
    if not hasattr(_local, "bits"):
        _local.bits = np.random.Philox(key=0)
        _local.generator = np.random.Generator(_local.bits)
    return _local.bits, _local.generator
