"""What a method may ask of an engine, and a task of the workers it runs on. Nothing else crosses this line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fewrounds.batch import Batch

Out = TypeVar("Out", Tensor, tuple[Tensor, ...])
"""What a task sends back: one vector or several, each [rows, d], or [d] where the rows agree."""


class Memory(Protocol):
    """Vectors that stay with their worker from round to round (SCAFFOLD's c_p)."""

    def get(self, name: str, default: Tensor) -> Tensor:
        """The vectors [rows, d] last set under this name; the default for workers that have none."""

    def set(self, name: str, value: Tensor) -> None:
        """Keep a vector for each row. It counts from the end of the round on."""


class Rows(Protocol):
    """A block of workers, one a row. Vectors are [rows, d], or [d] where the rows share one."""

    @property
    def memory(self) -> Memory: ...

    def gradient(self, x: Tensor, z: Batch) -> Tensor:
        """[rows, d]: the mean gradient of each row's batch at its x."""

    def full_gradient(self, x: Tensor) -> Tensor:
        """[rows, d]: ∇f_p(x), over all data of each worker."""

    def batches(self, purpose: str, count: int, b: int) -> Iterator[Batch]:
        """`count` batches of b i.i.d. samples for each row, drawn for this purpose, round and worker."""

    def mean(self, function: Callable[[Batch], Tensor], purpose: str, n: int) -> Tensor:
        """The mean of function(z) over n i.i.d. samples for each row, in parts that fit in memory."""

    def integers(self, purpose: str, n: int) -> Tensor:
        """[rows, 1]: a uniform integer in 0 … n - 1 for each row."""


class Engine(Protocol):
    """Carries vectors between the server and the workers, and counts what it carries."""

    @property
    def sizes(self) -> tuple[float, ...]:
        """The number of samples of each worker; infinite for a stream."""

    @property
    def round(self) -> int:
        """The number of the round under way; the first is 1."""

    def mean(self, task: Callable[..., Out], /, *vectors: Tensor, **settings: Any) -> Out:
        """Every worker runs the task; the weighted mean of what they send comes back."""

    def at(self, p: int, task: Callable[..., Out], /, *vectors: Tensor, **settings: Any) -> Out:
        """Only worker p runs the task."""

    def every(self, p: int, task: Callable[..., Out], /, *vectors: Tensor, **settings: Any) -> Out:
        """Every worker runs the task and sends its result; worker p's is taken."""

    def pick(self) -> int:
        """The worker p̂ of this round, drawn by the weights and recorded in the history."""

    def integer(self, purpose: str, n: int) -> int:
        """One uniform integer in 0 … n - 1, drawn for this purpose and round."""
