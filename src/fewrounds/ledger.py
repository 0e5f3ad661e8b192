"""What a run has spent: rounds, single-sample gradients of each worker, vectors and bytes moved."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Ledger:
    """Exact counts since the start of a run. Evaluation is not part of them.

    A gradient of one sample at one point counts one, so both points of a difference count. A vector is one
    d-vector that travels between the server and one worker. A worker keeps the vectors it was sent in this
    round and the one before, so those are not sent (and not counted) again.
    """

    gradients: tuple[int, ...]
    """Single-sample gradients computed so far, by worker."""
    vector_bytes: int
    """The size of one d-vector."""
    rounds: int = 0
    vectors_up: int = 0
    vectors_down: int = 0
    missed: tuple[int, ...] = ()
    """Rounds that were done without a worker, by worker; () as long as there is none (only silos can have some)."""

    @property
    def gradients_per_worker(self) -> float:
        return sum(self.gradients) / len(self.gradients)

    @property
    def bytes_up(self) -> int:
        return self.vectors_up * self.vector_bytes

    @property
    def bytes_down(self) -> int:
        return self.vectors_down * self.vector_bytes

    def after_round(
        self, gradients: dict[int, int], vectors_up: int, vectors_down: int, absent: Collection[int] = ()
    ) -> Ledger:
        """The ledger after one more round that cost this much and was done without the absent workers."""
        missed = self.missed
        if absent:
            missed = tuple(n + (p in absent) for p, n in enumerate(missed or (0,) * len(self.gradients)))
        return replace(
            self,
            rounds=self.rounds + 1,
            gradients=tuple(count + gradients.get(p, 0) for p, count in enumerate(self.gradients)),
            vectors_up=self.vectors_up + vectors_up,
            vectors_down=self.vectors_down + vectors_down,
            missed=missed,
        )

    def columns(self) -> dict[str, float]:
        """The cumulative cost columns of `history`."""
        return {
            "gradients_per_worker": self.gradients_per_worker,
            "vectors_up": self.vectors_up,
            "vectors_down": self.vectors_down,
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "gradients": list(self.gradients),
            "vector_bytes": self.vector_bytes,
            "rounds": self.rounds,
            "vectors_up": self.vectors_up,
            "vectors_down": self.vectors_down,
            **({"missed": list(self.missed)} if self.missed else {}),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Ledger:
        return cls(**{**content, **{key: tuple(content.get(key, ())) for key in ("gradients", "missed")}})
