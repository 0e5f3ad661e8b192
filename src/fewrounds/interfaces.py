"""What a method may ask of an engine, and a task of the workers it runs on. Nothing else crosses this line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fewrounds.batch import Batch
from fewrounds.problem import Problem

Out = TypeVar("Out", Tensor, tuple[Tensor, ...])
"""What a task sends back: one vector or several, each [rows, d], or [d] where the rows agree."""


class Memory(Protocol):
    """Vectors that stay with their worker from round to round (SCAFFOLD's c_p)."""

    def get(self, name: str, default: Tensor) -> Tensor:
        """The vectors [rows, d] last set under this name; the default for workers that have none."""

    def set(self, name: str, value: Tensor) -> None:
        """Keep a vector for each row. It counts from the end of the round on."""

    def stash(self, name: str, value: Tensor) -> None:
        """Keep a vector for each row for the further tasks of this round, and no longer."""

    def stashed(self, name: str) -> Tensor:
        """The vectors [rows, d] that an earlier task of this round has stashed."""


Gradient = Callable[[Tensor], Tensor]
"""g_k: the mean gradient of the step's batch, the same samples wherever it is asked for within the step."""

Step = Callable[..., Tensor | tuple[Tensor, ...]]
"""step(g, *vectors, **constants): the vectors after one local step, written with +, -, * and / alone.

It is traced and compiled where that pays, so it must be a function of a module, and the same for every k.
"""


class Worker(Protocol):
    """One worker, for tasks that need more than gradients: what it minimises, and its samples."""

    @property
    def problem(self) -> Problem: ...

    @property
    def size(self) -> float: ...

    def everything(self) -> Iterator[Batch]:
        """All samples (of a stream: its evaluation samples), in parts."""

    def drawn(self, purpose: str, n: int) -> Batch:
        """n samples (of finite data: different ones), drawn for this purpose and worker, the same in every round."""

    def count(self, gradients: int) -> None:
        """Note that so many single-sample gradients have been computed."""


class Rows(Protocol):
    """A block of workers, one a row. Vectors are [rows, d], or [d] where the rows share one."""

    @property
    def memory(self) -> Memory: ...

    def iterate(
        self,
        step: Step,
        start: tuple[Tensor, ...],
        purpose: str,
        count: int,
        b: int,
        *,
        keep: Sequence[int] | None = None,
        **constants: Tensor | float,
    ) -> tuple[Tensor, ...]:
        """The vectors after `count` steps from `start`, each on a fresh batch of b i.i.d. samples for each row.

        The batches are those drawn for this purpose, round and worker. With `keep`, a number of steps for each row,
        the first vector as it was after so many steps is returned as well, last.
        """

    def average(self, expression: Step, purpose: str, n: int, **points: Tensor | float) -> Tensor:
        """[rows, d]: expression(g, **points) with g over n i.i.d. samples for each row; linear in g."""

    def full_gradient(self, x: Tensor) -> Tensor:
        """[rows, d]: ∇f_p(x), over all data of each worker."""

    def integers(self, purpose: str, n: int) -> list[int]:
        """A uniform integer in 0 … n - 1 for each row."""

    @property
    def workers(self) -> Sequence[Worker]:
        """The workers of the rows, one by one."""


class Engine(Protocol):
    """Carries vectors between the server and the workers, and counts what it carries."""

    @property
    def sizes(self) -> tuple[float, ...]:
        """The number of samples of each worker; infinite for a stream."""

    @property
    def round(self) -> int:
        """The number of the round under way; the first is 1."""

    def mean(
        self, task: Callable[..., Out], /, *vectors: Tensor, among: Sequence[int] | None = None, **settings: Any
    ) -> Out:
        """Every worker (or each of those in `among`) runs the task; the weighted mean of what they send comes back."""

    def at(self, p: int, task: Callable[..., Out], /, *vectors: Tensor, **settings: Any) -> Out:
        """Only worker p runs the task."""

    def every(self, p: int, task: Callable[..., Out], /, *vectors: Tensor, **settings: Any) -> Out:
        """Every worker runs the task and sends its result; worker p's is taken."""

    def figures(self, p: int, task: Callable[..., Tensor], /, *vectors: Tensor, count: int, **settings: Any) -> Tensor:
        """Only worker p runs the task, and sends `count` numbers: [rows, count]. They are not counted as a vector."""

    def pick(self, among: Sequence[int] | None = None) -> int:
        """The worker p̂ of this round, of all or of these, drawn by the weights and recorded in the history."""

    def participants(self, m: int | None) -> Sequence[int] | None:
        """The m workers that take part in this round, drawn uniformly; None, for everyone, if m is None."""

    def share(self, among: Sequence[int] | None) -> float:
        """The weight of these workers together; 1 for everyone."""

    def integer(self, purpose: str, n: int) -> int:
        """One uniform integer in 0 … n - 1, drawn for this purpose and round."""
