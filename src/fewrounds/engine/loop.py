"""The steps of a block of workers, one after the other: as programs where that pays, as they are otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fewrounds.batch import Batch, leaves
from fewrounds.engine.programs import How, Policy, Program, build
from fewrounds.interfaces import Gradient, Step
from fewrounds.pieces import Pieces
from fewrounds.problem import Problem

WIDE = 2**17
"""Entries from which on vectors are kept in pieces: joining the gradient of each parameter costs more than it saves."""


@dataclass(frozen=True)
class AddShare:
    """The step that adds one part's share of a mean."""

    expression: Step

    @property
    def __name__(self) -> str:
        return str(getattr(self.expression, "__name__", "expression"))

    def __call__(self, g: Gradient, total: Tensor, *, share: float, **points: Tensor) -> Tensor:
        return total + share * self.expression(g, **points)  # type: ignore[operator]


@dataclass(frozen=True)
class Ready:
    """A step as a program."""

    run: Program
    gradients: int
    """How often its step asks for a gradient."""
    stays: dict[int, int]
    """Vector i after the step is vector stays[i] from before it (x_{k-1} becomes x_{k-2}); the others are new."""


class Programs:
    """The steps of a run as programs, by what they were traced with."""

    def __init__(self, problem: Problem, policy: Policy, rounds: int, say: Callable[[str], None]) -> None:
        self.problem = problem
        self._policy = policy
        self._rounds = rounds
        self._say = say
        self._programs: dict[Any, Ready | None] = {}

    def find(self, loop: Loop, z: Batch, calls_per_round: int) -> Ready | None:
        """The program for a loop's steps on such batches, or None if they are to run as they are."""
        signature = tuple((part.shape, part.dtype) for part in leaves(z))
        key = (loop.function, loop.rows, signature, len(loop.state), tuple(loop.points), tuple(loop.numbers))
        if key not in self._programs:
            how = self._policy.how(calls_per_round * self._rounds)
            self._programs[key] = None if how is How.AS_IT_IS else self._build(loop, z, how)
        return self._programs[key]

    def _build(self, loop: Loop, z: Batch, how: How) -> Ready | None:
        asked = 0
        stays: dict[int, int] = {}

        def gradient(x: Pieces, z: Batch) -> Pieces:
            nonlocal asked
            asked += 1
            return Pieces(self.problem.gradients_of(x.parts, z))

        def one_step(*inputs: Tensor) -> list[Tensor]:
            """The pieces of every vector that is new."""
            nonlocal asked, stays
            asked = 0
            rest = list(inputs)

            def take(n: int) -> list[Tensor]:
                taken, rest[:] = rest[:n], rest[n:]
                return taken

            pieces = len(self.problem.split(loop.state[0]))
            numbers = dict(zip(loop.numbers, take(len(loop.numbers)), strict=True))
            state = [Pieces(take(pieces)) for _ in loop.state]
            points = {name: Pieces(take(pieces)) for name in loop.points}
            batch: Batch = rest[0] if isinstance(z, Tensor) else tuple(rest)
            new = _tuple(loop.function(lambda x: gradient(x, batch), *state, **points, **numbers))
            stays = {i: j for i, vector in enumerate(new) for j, old in enumerate(state) if vector is old}
            return [part for i, vector in enumerate(new) if i not in stays for part in vector.parts]

        name = getattr(loop.function, "__name__", type(loop.function).__name__)

        def no_longer_needed() -> set[int]:
            """The inputs that are pieces of vectors which a step replaces, and does not pass on under another name."""
            passed_on = {*stays.keys(), *stays.values()}
            return {
                i for k, where in enumerate(loop.places) if k not in passed_on for i in range(where.start, where.stop)
            }

        examples = [*loop.inputs(), *leaves(z)]
        program = build(
            one_step, examples, how, name, self._say, numbers=len(loop.numbers), may_overwrite=no_longer_needed
        )
        return None if program is None else Ready(program, asked, stays)


class Loop:
    """The vectors of a block of workers while they take steps."""

    def __init__(
        self,
        programs: Programs,
        function: Step,
        start: tuple[Tensor, ...],
        constants: dict[str, Any],
        rows: int,
        blocks: int,
    ) -> None:
        self.function = function
        self.rows = rows
        self.gradients = 0
        """Single-sample gradients that each row has computed."""
        self._programs = programs
        self._problem = problem = programs.problem
        self._blocks = blocks
        self.state = [vector.expand(rows, -1).contiguous() for vector in start]
        self.points = {name: c.expand(rows, -1).contiguous() for name, c in constants.items() if isinstance(c, Tensor)}
        self.numbers = {name: c for name, c in constants.items() if not isinstance(c, Tensor)}
        self._in_pieces = rows * problem.dim >= WIDE
        self._vectors: list[Any] | None = None
        self._given: list[Tensor] | None = None
        first, pieces = len(self.numbers), len(problem.split(self.state[0]))
        self.places = [slice(first + i * pieces, first + (i + 1) * pieces) for i in range(len(self.state))]
        """Where in what is given the pieces of each vector of the state are."""
        self._shape: Any = None
        self._program: Ready | None = None

    def step(self, z: Batch, count: int) -> None:
        """One step on a batch [rows, b, …], out of `count` in a row."""
        first = leaves(z)[0]
        if first.shape != self._shape:
            self._shape = first.shape
            self._program = self._programs.find(self, z, count * self._blocks)
        if self._program is None:
            self._step_as_it_is(z)
            return
        program = self._program
        if self._given is None:
            self._given = self.inputs()
        old = [self._given[where] for where in self.places]
        new = iter(program.run([*self._given, *leaves(z)]))
        for i, where in enumerate(self.places):
            place = program.stays.get(i)
            self._given[where] = old[place] if place is not None else [next(new) for _ in old[i]]
        self.gradients += program.gradients * first.shape[1]

    def inputs(self) -> list[Tensor]:
        """What a program takes besides the batch: numbers, and the pieces of every vector.

        Those of the state are its own: a program may overwrite them.
        """
        state = self.state[0]
        numbers = [torch.tensor(value, dtype=state.dtype, device=state.device) for value in self.numbers.values()]
        split = self._problem.split
        vectors = [part.clone(memory_format=torch.contiguous_format) for v in self.state for part in split(v)]
        points = [part.contiguous() for v in self.points.values() for part in split(v)]
        return [*numbers, *vectors, *points]

    def vectors(self) -> tuple[Tensor, ...]:
        """The vectors now, each [rows, d]."""
        if self._given is not None:
            return tuple(torch.cat(self._given[where], dim=1) for where in self.places)
        if self._vectors is None:
            return tuple(self.state)
        return tuple(torch.cat(v.parts, dim=1) if isinstance(v, Pieces) else v for v in self._vectors)

    def _step_as_it_is(self, z: Batch) -> None:
        if self._vectors is None:
            self._vectors = [self._cut(v) for v in self.state]
            self._cut_points = {name: self._cut(v) for name, v in self.points.items()}

        def gradient(x: Any) -> Any:
            self.gradients += leaves(z)[0].shape[1]
            if isinstance(x, Pieces):
                return Pieces(self._problem.gradients_of(x.parts, z))
            return self._problem.gradients(x, z)

        new = self.function(gradient, *self._vectors, **self._cut_points, **self.numbers)
        self._vectors = list(_tuple(new))

    def _cut(self, vector: Tensor) -> Any:
        return Pieces(self._problem.split(vector)) if self._in_pieces else vector


def _tuple(out: Any) -> tuple[Any, ...]:
    return out if isinstance(out, tuple) else (out,)
