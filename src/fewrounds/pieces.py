"""A vector kept as one tensor a parameter, so that a step can change each where it lies."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor


class Pieces:
    """The d-vectors of a block of workers, cut where the model's parameters begin: tensors [rows, size].

    A method's step sees it as a vector: it can be added, subtracted, and multiplied or divided by a number or,
    entry by entry, by another vector.
    """

    __slots__ = ("parts",)

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts = tuple(parts)

    def _with(self, function: Callable[[Any, Any], Tensor], other: Any) -> Pieces:
        if isinstance(other, Pieces):
            return Pieces([function(a, b) for a, b in zip(self.parts, other.parts, strict=True)])
        return Pieces([function(a, other) for a in self.parts])

    def __add__(self, other: Any) -> Pieces:
        return self._with(operator.add, other)

    def __sub__(self, other: Any) -> Pieces:
        return self._with(operator.sub, other)

    def __mul__(self, other: Any) -> Pieces:
        return self._with(operator.mul, other)

    def __truediv__(self, other: Any) -> Pieces:
        return self._with(operator.truediv, other)

    def __neg__(self) -> Pieces:
        return Pieces([-a for a in self.parts])

    __radd__ = __add__
    __rmul__ = __mul__

    def __rsub__(self, other: Any) -> Pieces:
        return Pieces([other - a for a in self.parts])
