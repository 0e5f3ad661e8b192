"""The processes that train together: one by itself, or the ranks that torchrun has started.

Every process holds the workers p with p mod N = rank, runs the same rounds and has the same vectors; what differs
between them goes through here.
"""

from __future__ import annotations

import atexit
import os
import time
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from fewrounds.errors import FewroundsError, SettingError, in_words

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Value = TypeVar("Value")
Parts = tuple[Tensor, ...]


class Team(Protocol):
    rank: int
    size: int

    def owner(self, p: int) -> int:
        """The rank that holds worker p."""

    def together(self, action: Callable[[], Value]) -> Value:
        """Do something that may be refused. What one process refuses, all refuse, in the same words.

        The others must not be needed to do it: one that was refused does not answer them. `raised_everywhere` knows
        the error.
        """

    def gather(self, value: Value) -> list[Value]:
        """The value of every rank, by rank."""

    def share(self, value: Value) -> Value:
        """The value of rank 0."""

    def sum(self, parts: Parts | None, kind: Any, everyone: bool, like: Tensor, note: Tensor) -> tuple[Parts, Tensor]:
        """The sum over the ranks of vectors like this one, in one exchange; None from a rank that has nothing to add.

        `everyone` says that every rank has. Calls of one kind have as many vectors. The notes, some numbers that every
        rank has, are added up on the way.
        """

    def from_owner(self, p: int, parts: Parts | None, kind: Any, like: Tensor, note: Tensor) -> tuple[Parts, Tensor]:
        """The vectors that worker p's rank has, and its note, in one exchange; None from the others."""

    def counts(self, numbers: Sequence[int]) -> list[int]:
        """The sums of whole numbers over the ranks."""

    def to_first(self, p: int, parts: Sequence[Tensor] | None, count: int, like: Tensor) -> list[Tensor]:
        """Vectors of worker p, handed to rank 0; the others get none."""

    def from_first(self, p: int, parts: Sequence[Tensor] | None, count: int, like: Tensor) -> list[Tensor]:
        """Vectors that rank 0 has, handed to worker p's rank; the others get none."""


class Alone:
    """One process with all workers."""

    rank = 0
    size = 1

    def owner(self, p: int) -> int:
        return 0

    def together(self, action: Callable[[], Value]) -> Value:
        return action()

    def gather(self, value: Value) -> list[Value]:
        return [value]

    def share(self, value: Value) -> Value:
        return value

    def sum(self, parts: Parts | None, kind: Any, everyone: bool, like: Tensor, note: Tensor) -> tuple[Parts, Tensor]:
        assert parts is not None, "there is at least one worker"
        return parts, note

    def from_owner(self, p: int, parts: Parts | None, kind: Any, like: Tensor, note: Tensor) -> tuple[Parts, Tensor]:
        assert parts is not None, "the one process holds every worker"
        return parts, note

    def counts(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def to_first(self, p: int, parts: Sequence[Tensor] | None, count: int, like: Tensor) -> list[Tensor]:
        return list(parts or ())

    def from_first(self, p: int, parts: Sequence[Tensor] | None, count: int, like: Tensor) -> list[Tensor]:
        return list(parts or ())


class Ranks:
    """The processes of torch.distributed: gloo between CPUs, NCCL between GPUs."""

    def __init__(self, device: torch.device) -> None:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        if not dist.is_available():
            raise SettingError("engine = 'torchrun': this torch was built without torch.distributed")
        if device.type == "cuda" and device.index is not None:
            torch.cuda.set_device(device)  # where NCCL puts what it is not told to put elsewhere
        if not dist.is_initialized():
            if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
                raise SettingError(
                    "engine = 'torchrun', but this process was not started by torchrun: "
                    "torchrun --nproc-per-node 2 your_script.py"
                )
            store, rank, size = next(rendezvous("env://"))
            store = PrefixStore(common_name(store, rank, size), store)
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=store, rank=rank, world_size=size)
            atexit.register(_leave)  # its threads would abort the process at its end, now and then
        self._dist = dist
        self._device = device
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self._lengths: dict[Any, int] = {}

    def owner(self, p: int) -> int:
        return p % self.size

    def together(self, action: Callable[[], Value]) -> Value:
        error: Exception | None = None
        try:
            value = action()
        except Exception as refused:
            error = refused
        found = self.gather(None if error is None else self._told(error))
        first = next((one for one in found if one is not None), None)
        if first is None:
            return value
        kind, words = first
        error = error or kind(words)
        error.everywhere = True  # type: ignore[attr-defined]
        raise error

    def _told(self, error: Exception) -> tuple[type[FewroundsError], str]:
        if isinstance(error, FewroundsError):
            return type(error), str(error)
        return FewroundsError, f"rank {self.rank}: {in_words(error)}"

    def gather(self, value: Value) -> list[Value]:
        out: list[Any] = [None] * self.size
        self._dist.all_gather_object(out, value)
        return out

    def share(self, value: Value) -> Value:
        box = [value]
        self._dist.broadcast_object_list(box, src=0, device=self._device)
        return box[0]

    def sum(self, parts: Parts | None, kind: Any, everyone: bool, like: Tensor, note: Tensor) -> tuple[Parts, Tensor]:
        if not everyone and kind not in self._lengths:
            longest = torch.tensor(len(parts or ()), device=like.device)
            self._dist.all_reduce(longest, op=self._dist.ReduceOp.MAX)
            self._lengths[kind] = int(longest)
        if parts is None:
            parts = (torch.zeros_like(like),) * self._lengths[kind]
        flat = torch.cat([*parts, note])
        self._dist.all_reduce(flat)
        return self._cut(flat, len(parts), like)

    def from_owner(self, p: int, parts: Parts | None, kind: Any, like: Tensor, note: Tensor) -> tuple[Parts, Tensor]:
        if kind not in self._lengths:
            length = torch.tensor(len(parts or ()), device=like.device)
            self._dist.broadcast(length, src=self.owner(p))
            self._lengths[kind] = int(length)
        count = self._lengths[kind]
        flat = like.new_empty(count * len(like) + len(note)) if parts is None else torch.cat([*parts, note])
        self._dist.broadcast(flat, src=self.owner(p))
        return self._cut(flat, count, like)

    def _cut(self, flat: Tensor, count: int, like: Tensor) -> tuple[Parts, Tensor]:
        *parts, note = torch.split(flat, [len(like)] * count + [len(flat) - count * len(like)])
        return tuple(parts), note

    def counts(self, numbers: Sequence[int]) -> list[int]:
        total = torch.tensor(list(numbers), dtype=torch.int64, device=self._device)
        self._dist.all_reduce(total)
        return [int(number) for number in total.tolist()]

    def to_first(self, p: int, parts: Sequence[Tensor] | None, count: int, like: Tensor) -> list[Tensor]:
        return self._hand_over(parts, count, like, source=self.owner(p), target=0)

    def from_first(self, p: int, parts: Sequence[Tensor] | None, count: int, like: Tensor) -> list[Tensor]:
        return self._hand_over(parts, count, like, source=0, target=self.owner(p))

    def _hand_over(
        self, parts: Sequence[Tensor] | None, count: int, like: Tensor, source: int, target: int
    ) -> list[Tensor]:
        if self.rank not in (source, target):
            return []
        if source == target:
            return list(parts or ())
        out = []
        for i in range(count):
            vector = parts[i].contiguous() if parts is not None and self.rank == source else torch.empty_like(like)
            if self.rank == source:
                self._dist.send(vector, dst=target)
            else:
                self._dist.recv(vector, src=source)
                out.append(vector)
        return out


def common_name(store: Store, rank: int, size: int, patience: float = 1800.0) -> str:
    """A name that is known to these processes alone, for what they keep in the store.

    torchrun starts ranks anew with the store they had, and the addresses of the dead in it; the number of restarts is
    none that all know, because each machine counts its own. Rank 0 makes the name up. It tells it to a rank under a
    word that this one has made up, over and over until the rank has used it: a word in the store may be a dead one's.
    """
    mine = uuid.uuid4().hex
    if rank:
        store.set(f"rank {rank}", mine)
        name = store.get(f"for {mine}").decode()  # waits for it
        store.set(f"{name} has {rank}", "")
        return str(name)
    end = time.monotonic() + patience
    missing = list(range(1, size))
    while missing:
        for other in missing:
            if store.check([f"rank {other}"]):
                store.set(f"for {store.get(f'rank {other}').decode()}", mine)
        missing = [other for other in missing if not store.check([f"{mine} has {other}"])]
        if missing and time.monotonic() > end:
            raise SettingError(f"rank {missing[0]} has not come within {patience:g} s")
        time.sleep(0.01 if missing else 0)
    return mine


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def team_of(engine: str, device: torch.device) -> Team:
    """The processes for the engine of this name."""
    if engine == "in-process":
        return Alone()
    if engine == "torchrun":
        return Ranks(device)
    raise SettingError(f"engine = {engine!r}: must be 'in-process' or 'torchrun'")
