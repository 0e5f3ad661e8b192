"""The engine whose workers are sites: it asks them, checks what they answer, and decides what a missing one means."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from fewrounds.draws import Draws
from fewrounds.engine.base import BaseEngine, Committed, Evaluation, Parts
from fewrounds.engine.host import Kept
from fewrounds.silo.messages import Message, SiteError, SiteLostError, name_of, packed, unpacked

MEMORY = "memory"
"""In a checkpoint: the rounds in which the sites last wrote their workers' memory, which stays with them."""

LARGE = "the step size may be too large"


class Sites(Protocol):
    """The way to the sites."""

    def ask(self, message: Message, workers: Sequence[int]) -> dict[int, Message | SiteLostError]:
        """Ask these sites the same thing at the same time; what each says, or that it is lost."""

    def is_there(self, p: int) -> bool:
        """Whether this site answers at all; known soon."""


class SiloEngine(BaseEngine):
    """One worker a site. Vectors that a site holds are named by number and not sent again."""

    def __init__(
        self,
        sites: Sites,
        names: Sequence[str],
        sizes: Sequence[float],
        weights: str,
        draws: Draws,
        start: Tensor,
        l2: float,
        tested: Sequence[float],
        *,
        least: int | None = None,
        welcome: Callable[[int], bool] = lambda p: False,
        retry_seconds: float = 30.0,
    ) -> None:
        """`least`: with how many sites a round may go on where others are lost; None if it may not.

        Every `retry_seconds`, `welcome` is asked whether a lost site is back and ready.
        """
        super().__init__(sizes, weights, draws, start.nbytes)
        self.names = tuple(names)
        self.wire_up = self.wire_down = 0
        """Bytes of vectors that tasks have really moved."""
        self.oldest = 0
        """No round up to this one will be repeated."""
        self._sites = sites
        self._like = start
        self._l2 = l2
        self._tested = tuple(tested)
        self._least = least
        self._welcome = welcome
        self._retry_seconds = retry_seconds
        self._tried = time.monotonic()
        """When lost sites were last asked whether they are back."""
        self._attempt = secrets.token_hex(8)
        self._gradients: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        """By site: the round in which it last wrote its worker's memory."""
        self._numbers: dict[int, tuple[Tensor, int, int]] = {}
        """id(vector): the vector, its number, and the round it was last used in."""
        self._next = 0
        self._sent: dict[int, dict[int, int]] = {p: {} for p in range(len(self.sizes))}
        """By site: the numbers of the vectors it holds, with the round they were last used in."""

    @property
    def present(self) -> list[int]:
        return [p for p in range(len(self.sizes)) if p not in self.absent]

    def leave_out(self, p: int, why: str) -> None:
        """Go on without this site, if so few may."""
        if self._least is None or len(self.present) - 1 < self._least:
            raise SiteLostError(f"site {self.names[p]} is lost: {why}")
        self.absent[p] = why
        self._tried = time.monotonic()

    def participants(self, m: int | None) -> Sequence[int] | None:
        here = self.present
        if m is None or not self.absent:
            return super().participants(m)
        return [here[i] for i in self.draws.subset(self.round, len(here), min(m, len(here)))]

    def restore(self, committed: Committed) -> None:
        self.committed = committed

    def evaluate(self, x: Tensor, gradient: bool = True) -> Evaluation:
        replies = self._ask({"do": "evaluate", "x": packed(x), "gradient": gradient}, self.present)
        share = sum(self.weights[p] for p in replies)
        total = torch.zeros_like(x) if gradient else None
        loss = accuracy = 0.0
        wrong: dict[int, str] = {}
        for p, reply in replies.items():
            w = self.weights[p] / share
            own = self._number(p, reply, "loss")
            loss, accuracy = loss + w * own, accuracy + w * self._number(p, reply, "accuracy")
            if not math.isfinite(own):
                wrong[p] = f"a loss of {own}"
            if total is not None:
                (part,) = self._vectors(p, reply, 1, "evaluate", finite=False)
                total.add_(part, alpha=w)
                if not torch.isfinite(part).all():
                    wrong.setdefault(p, "NaN or infinite values")
        if wrong and len(wrong) < len(replies) and torch.isfinite(x).all():  # all of them: the run has diverged
            p, what = next(iter(wrong.items()))
            raise SiteError(
                f"site {self.names[p]}: its answer to evaluate after round {self.round} has {what}: {LARGE}"
            )
        with_test = {p: self._tested[p] for p in replies if self._tested[p]}
        tests = [
            sum(n * self._number(p, replies[p], figure) for p, n in with_test.items()) / sum(with_test.values())
            if with_test
            else math.nan
            for figure in ("test_loss", "test_accuracy")
        ]
        value = x.new_tensor(loss) + 0.5 * self._l2 * x.dot(x)
        return Evaluation(value, x.new_tensor(accuracy), total, *tests)

    # ------------------------------------------------------------------ a round

    def _begin(self, round: int) -> None:
        self._gradients = {}
        self._memory = {p: int(written) for (_, p), written in self.committed.kept.items()}
        if self.absent and time.monotonic() - self._tried >= self._retry_seconds:
            for p in [p for p in self.absent if self._welcome(p)]:
                del self.absent[p]
                self._sent[p] = {}
                held = tuple((vector, have - {p}) for vector, have in self.committed.held)
                self.committed = dataclasses.replace(self.committed, held=held)
            self._tried = time.monotonic()
        self._numbers = {key: entry for key, entry in self._numbers.items() if entry[2] >= round - 1}
        self._sent = {p: {n: used for n, used in own.items() if used >= round - 1} for p, own in self._sent.items()}

    def _finish(self) -> tuple[dict[int, int], Kept]:
        return self._gradients, {(MEMORY, p): torch.tensor(written) for p, written in self._memory.items() if written}

    def _mean(
        self, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any], among: Sequence[int]
    ) -> tuple[Parts, int]:
        wanted = [p for p in among if p not in self.absent]
        replies = self._run(task, vectors, settings, wanted)
        while not replies:  # all who were to take part are lost: others are drawn in their place
            wanted = list(self.participants(min(len(among), len(self.present))) or self.present)
            self._send(vectors, wanted)
            replies = self._run(task, vectors, settings, wanted)
        share = self.share(list(replies))
        total: Parts | None = None
        for p, parts in replies.items():
            own = tuple(part * (self.weights[p] / share) for part in parts)
            total = own if total is None else tuple(a + b for a, b in zip(total, own, strict=True))
        assert total is not None, "_ask refuses to go on with no site at all"
        return total, len(replies)

    def _at(self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any]) -> Parts:
        while True:
            if p not in self.absent and (found := self._run(task, vectors, settings, [p])):
                return found[p]
            p = self.pick(self._among)  # the one that was drawn is gone
            self._send(vectors, [p])

    def _figures(
        self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any], count: int
    ) -> Tensor:
        found = self._run(task, vectors, settings, [p], count)
        if p not in found:
            raise SiteLostError(f"site {self.names[p]} is lost: {self.absent[p]}")
        return found[p][0]

    def _every(self, p: int, task: Callable[..., Any], vectors: Parts, settings: dict[str, Any]) -> Parts:
        found = self._run(task, vectors, settings, self.present)
        return found[p if p in found else self.pick()]

    def _run(
        self,
        task: Callable[..., Any],
        vectors: Parts,
        settings: dict[str, Any],
        workers: Sequence[int],
        length: int | None = None,
    ) -> dict[int, Parts]:
        """What each of these sites that answers sends for the task: vectors, or of another length."""
        numbers = [self._numbered(vector) for vector in vectors]
        message: Message = {
            "do": "task",
            "task": name_of(task),
            "settings": settings,
            "round": self.round,
            "attempt": self._attempt,
            "oldest": self.oldest,
            "memory": [self._memory.get(p, 0) for p in range(len(self.sizes))],
            "vectors": numbers,
        }
        groups: dict[tuple[int, ...], list[int]] = {}
        for p in workers:  # as a rule all of them lack the same vectors
            groups.setdefault(tuple(n for n in dict.fromkeys(numbers) if n not in self._sent[p]), []).append(p)
        by_number = dict(zip(numbers, vectors, strict=True))
        out: dict[int, Parts] = {}
        for lacking, group in groups.items():
            new = {str(number): packed(by_number[number]) for number in lacking}
            replies = self._ask({**message, "new": new}, group)
            self.wire_down += len(group) * sum(map(len, new.values()))
            for p, reply in replies.items():
                self._sent[p].update(dict.fromkeys(numbers, self.round))
                out[p] = self._vectors(p, reply, None, message["task"], length=length)
                self._gradients[p] = self._gradients.get(p, 0) + self._count(p, reply, "gradients")
                self._memory[p] = self._count(p, reply, "memory")
                self.wire_up += sum(map(len, reply["vectors"]))
        if len({len(parts) for parts in out.values()}) > 1:
            raise SiteError(f"round {self.round}: the sites sent different numbers of vectors for {message['task']}")
        return {p: out[p] for p in sorted(out)}

    # ------------------------------------------------------------------ asking

    def _ask(self, message: Message, workers: Sequence[int]) -> dict[int, Message]:
        """The replies of those that answer. A site that is lost is left out, if the settings allow that."""
        found = self._sites.ask(message, workers)
        out: dict[int, Message] = {}
        for p in workers:
            reply = found[p]
            if isinstance(reply, SiteLostError):
                self.leave_out(p, str(reply))
            elif not isinstance(reply, dict) or "error" in reply:
                said = reply.get("error") if isinstance(reply, dict) else f"it answered with a {type(reply).__name__}"
                raise SiteError(f"site {self.names[p]}: {' '.join(str(said).split())[:300]}")
            else:
                out[p] = reply
        return out

    def _vectors(
        self, p: int, reply: Message, count: int | None, what: str, finite: bool = True, length: int | None = None
    ) -> Parts:
        blobs = reply.get("vectors")
        if not isinstance(blobs, list) or not blobs or (count is not None and len(blobs) != count):
            raise SiteError(f"site {self.names[p]}: its answer to {what} has no vectors, or too many")
        try:
            parts = tuple(
                unpacked(blob, length or len(self._like), self._like.dtype, self._like.device) for blob in blobs
            )
        except ValueError as error:
            raise SiteError(f"site {self.names[p]}: its answer to {what} has {error}") from None
        if finite and not all(bool(torch.isfinite(part).all()) for part in parts):
            raise SiteError(
                f"site {self.names[p]}: its answer to {what} in round {self.round} has NaN or infinite values: {LARGE}"
            )
        return parts

    def _number(self, p: int, reply: Message, name: str) -> float:
        value = reply.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise SiteError(f"site {self.names[p]}: its answer has no number {name}")
        return float(value)

    def _count(self, p: int, reply: Message, name: str) -> int:
        value = reply.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise SiteError(f"site {self.names[p]}: its answer has no number {name}")
        return value

    def _numbered(self, vector: Tensor) -> int:
        known = self._numbers.get(id(vector))
        if known is None or known[0] is not vector:
            self._next += 1
            known = vector, self._next, self.round
        self._numbers[id(vector)] = vector, known[1], self.round
        return known[1]
