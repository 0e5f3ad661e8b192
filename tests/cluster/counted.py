"""Run by torchrun: every method with all exchanges counted at torch.distributed's door, as one file of rank 0."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

import fewrounds as fr
from cluster.every_method import SIZES, methods
from fewrounds.engine.base import BaseEngine
from problems import classifier

NAMES = ("all_reduce", "broadcast", "all_gather_object", "broadcast_object_list", "send", "recv")


class Count:
    """What was asked of the engine and of torch.distributed between the beginning and the end of rounds."""

    def __init__(self) -> None:
        self.counting = False
        self.verbs: list[tuple[str, int, int]] = []
        """(verb, vectors that it gave, vectors that the ledger counted up for them)."""
        self.tasks: set[object] = set()
        self.exchanges: list[tuple[str, int, int]] = []
        """(operation, numbers, bytes)."""


count = Count()


def wrap_exchange(name: str) -> None:
    usual = getattr(dist, name)

    def counted(*arguments: Any, **options: Any) -> Any:
        if count.counting:
            first = arguments[0]
            size = (first.numel(), first.nbytes) if isinstance(first, torch.Tensor) else (-1, -1)
            count.exchanges.append((name, *size))
        return usual(*arguments, **options)

    setattr(dist, name, counted)


def wrap_verb(name: str) -> None:
    usual = getattr(BaseEngine, name)

    def counted(self: BaseEngine, *arguments: Any, **options: Any) -> Any:
        before = self._up
        out = usual(self, *arguments, **options)
        count.tasks.add(arguments[0 if name == "mean" else 1])
        count.verbs.append((name, 1 if isinstance(out, torch.Tensor) else len(out), self._up - before))
        return out

    setattr(BaseEngine, name, counted)


def wrap_round() -> None:
    begin, commit = BaseEngine.begin, BaseEngine.commit

    def counted_begin(self: BaseEngine, round: int) -> None:
        count.counting = True
        begin(self, round)

    def counted_commit(self: BaseEngine) -> None:
        commit(self)
        count.counting = False

    BaseEngine.begin, BaseEngine.commit = counted_begin, counted_commit


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in NAMES:
        wrap_exchange(name)
    for name in ("mean", "at", "every"):
        wrap_verb(name)
    wrap_round()
    found = {}
    for name, method in methods().items():
        case, count = classifier(SIZES), Count()
        result = fr.train(
            case.problem, case.workers, method, 6, x0=case.x0, seed=1, evaluate_every=6, engine="torchrun",
            progress=False,
        )  # fmt: skip
        found[name] = {
            "verbs": count.verbs,
            "tasks": len(count.tasks),
            "exchanges": count.exchanges,
            "ledger": result.ledger.to_json(),
        }
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))
