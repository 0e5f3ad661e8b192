"""Large matrix products that a step adds to a vector: taken out of its graph and added where the vector lies.

The gradient of a dense layer is the product of two thin matrices. To write it down and then to take the step costs as
much as the product itself where the weights are larger than a processor's cache; `addmm_` does both in one pass. So the
graph returns the two thin matrices, and what is left of the sum, and the product is added afterwards. The numbers that
it is scaled by (η) have to be known to the host, so this is done for the CPU only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

if TYPE_CHECKING:
    from fewrounds.engine.programs import Program

LARGE = 2**16
"""Entries from which on a product is taken out."""

Number = Callable[[Sequence[Tensor]], float]
"""A number that depends on the numbers among the inputs."""

_aten = torch.ops.aten
_RESHAPES = (_aten.view.default, _aten._unsafe_view.default, _aten.reshape.default, _aten.detach.default)
_VIEWS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys(_RESHAPES, Tensor.view),
    _aten.detach.default: Tensor.detach,
    _aten.t.default: Tensor.t,
    _aten.select.int: Tensor.select,
}
"""Operations that only look at a tensor in another way, and the methods for them (which are called faster)."""


@dataclass(frozen=True)
class Factor:
    """A view of an input of a program, or of something that it returns."""

    of_input: bool
    index: int
    views: tuple[tuple[Callable[..., Tensor], tuple[Any, ...]], ...]

    def __call__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
        tensor = (inputs if self.of_input else outputs)[self.index]
        for view, arguments in self.views:
            tensor = view(tensor, *arguments)
        return tensor


@dataclass(frozen=True)
class Sum:
    """beta times a base, plus products of matrices. The base is the tensor that becomes the sum."""

    base: Factor
    beta: Number
    shape: tuple[int, int]
    products: tuple[tuple[Number, Factor, Factor], ...]

    def __call__(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
        base, beta = self.base(inputs, outputs), self.beta(inputs)
        matrix = base.view(self.shape)
        for alpha, left, right in self.products:
            matrix.addmm_(left(inputs, outputs), right(inputs, outputs), beta=beta, alpha=alpha(inputs))
            beta = 1.0
        return base


def take_out(graph: GraphModule, numbers: int, may_overwrite: set[int]) -> Callable[[Program], Program]:
    """Take large products out of a graph; the result makes its program one that returns what the graph did before.

    The first inputs are numbers. The inputs that may be overwritten are of no use to anyone after the step.
    """
    taken = _Taking(graph, numbers, may_overwrite)
    if not taken.sums:
        return lambda program: program
    plan = taken.plan

    def complete(program: Program) -> Program:
        def run(inputs: list[Tensor]) -> Sequence[Tensor]:
            given = list(inputs)
            found = program(inputs)
            return [found[place] if isinstance(place, int) else place(given, found) for place in plan]

        return run

    return complete


class _Taking:
    def __init__(self, graph: GraphModule, numbers: int, may_overwrite: set[int]) -> None:
        self.graph: Graph = graph.graph
        self.inputs = {node: i for i, node in enumerate(self.graph.find_nodes(op="placeholder"))}
        self.numbers = numbers
        self.output = self.graph.output_node()
        before: list[Node] = list(self.output.args[0])  # type: ignore[arg-type]
        self.sums: dict[Node, tuple[Node, list[tuple[Number, Node]]]] = {}
        with self.graph.inserting_before(self.output):
            for node in before:
                if len(node.users) == 1 and before.count(node) == 1:
                    rest, products = self._split(node)
                    if products and rest is not None:
                        self.sums[node] = rest, products
        self._rewrite(graph, before, may_overwrite)

    def _rewrite(self, graph: GraphModule, before: list[Node], may_overwrite: set[int]) -> None:
        """Have the graph return the bases and factors instead of the sums."""
        factors = {f for _, products in self.sums.values() for _, mm in products for f in mm.args[:2]}
        read_later = {_owner(f) for f in factors if isinstance(f, Node)}
        read_later |= {_owner(node) for node in before if node not in self.sums}
        overwritten: dict[Node, tuple[Node, Number]] = {}
        for node, (rest, _) in list(self.sums.items()):
            multiple = self._multiple_of_an_input(rest)
            taken = {origin for origin, _ in overwritten.values()}
            if multiple and self.inputs[multiple[0]] in may_overwrite and multiple[0] not in read_later | taken:
                overwritten[node] = multiple
            elif _owner(rest) in self.inputs or _owner(rest) in read_later:
                del self.sums[node]  # the base would be a tensor that someone else needs
            else:
                read_later.add(_owner(rest))
        returned: list[Node] = []

        def factor(node: Node) -> Factor:
            origin, views = self._origin(node)
            if origin in self.inputs:
                return Factor(True, self.inputs[origin], views)
            if origin not in returned:
                returned.append(origin)
            return Factor(False, returned.index(origin), views)

        self.plan: list[int | Sum] = []
        for node in before:
            if node not in self.sums:
                returned.append(node)
                self.plan.append(len(returned) - 1)
                continue
            rest, products = self.sums[node]
            if node in overwritten:
                origin, beta = overwritten[node]
                base = Factor(True, self.inputs[origin], ())
            else:
                returned.append(rest)  # by itself, whatever else is a view of it
                base, beta = Factor(False, len(returned) - 1, ()), _one
            terms = [(alpha, factor(mm.args[0]), factor(mm.args[1])) for alpha, mm in products]  # type: ignore[arg-type]
            rows, columns = products[0][1].meta["val"].shape
            self.plan.append(Sum(base, beta, (rows, columns), tuple(terms)))
        if self.sums:
            self.output.args = (returned,)
            self.graph.eliminate_dead_code()
            graph.recompile()

    def _split(self, node: Node) -> tuple[Node | None, list[tuple[Number, Node]]]:
        """What is left of a sum without the large products in it, and the products with what each is multiplied by."""
        if self._is_large_product(node):
            return None, [(_one, node)]
        whole: tuple[Node | None, list[tuple[Number, Node]]] = (node, [])
        read = self._read(node)
        if read is None:
            return whole
        rests: list[tuple[Node, Number, Any]] = []
        products: list[tuple[Number, Node]] = []
        for term, number, scalar in read:
            rest, found = self._split(term) if len(term.users) == 1 else (term, [])
            products += [(_times(number, alpha), product) for alpha, product in found]
            if rest is not None:
                rests.append((rest, number, scalar))
        if not products:
            return whole
        shapes = {tuple(product.meta["val"].shape) for _, product in products}
        if len(shapes) > 1:
            return whole
        return self._add_up(node, rests), products

    def _add_up(self, node: Node, rests: list[tuple[Node, Number, Any]]) -> Node | None:
        """The sum of what is left, as new nodes with the shape of the whole."""
        total: Node | None = None
        for rest, _, scalar in rests:
            part = rest
            if rest.meta["val"].shape != node.meta["val"].shape:
                part = self._new(node, _aten.view.default, part, list(node.meta["val"].shape))
            if total is not None and not isinstance(scalar, Node):
                total = self._new(node, _aten.add.Tensor, total, part, alpha=scalar)
                continue
            if isinstance(scalar, Node) or scalar != 1:
                part = self._new(node, _aten.mul.Tensor, part, scalar)
            total = part if total is None else self._new(node, _aten.add.Tensor, total, part)
        return total

    def _new(self, like: Node, function: Any, *arguments: Any, **options: Any) -> Node:
        node = self.graph.call_function(function, arguments, options)
        node.meta["val"] = like.meta["val"]
        return node

    def _read(self, node: Node) -> list[tuple[Node, Number, Any]] | None:
        """A node as a sum of terms times numbers (as functions, and as graphs have them), or None if it is no such sum.

        Reading a transposed transpose as a sum of one term removes it.
        """
        a: tuple[Any, ...] = node.args
        alpha: Any = node.kwargs.get("alpha", 1)
        terms: list[tuple[Any, Any]]
        match node.target:
            case _aten.add.Tensor:
                terms = [(a[0], 1), (a[1], alpha)]
            case _aten.sub.Tensor:
                terms = [(a[0], 1), (a[1], -alpha)]
            case _aten.neg.default:
                terms = [(a[0], -1)]
            case _aten.mul.Tensor | _aten.mul.Scalar:
                terms = [(a[0], a[1])] if self._number(a[1]) else [(a[1], a[0])]
            case _ if node.target in _RESHAPES:
                terms = [(a[0], 1)]
            case _aten.t.default if isinstance(a[0], Node) and a[0].target is _aten.t.default and len(a[0].users) == 1:
                terms = [(a[0].args[0], 1)]
            case _:
                return None
        size = node.meta["val"].numel()
        read = []
        for term, scalar in terms:
            number = self._number(scalar)
            if number is None or not isinstance(term, Node) or term.meta["val"].numel() != size:
                return None
            if term.meta["val"].dtype != node.meta["val"].dtype:
                return None
            read.append((term, number, scalar))
        return read

    def _number(self, value: Any) -> Number | None:
        """A number among the inputs, or one that the graph has."""
        if isinstance(value, (int, float)):
            return lambda _: value
        index = self.inputs.get(value, math.inf) if isinstance(value, Node) else math.inf
        return (lambda inputs: float(inputs[int(index)])) if index < self.numbers else None

    def _multiple_of_an_input(self, node: Node) -> tuple[Node, Number] | None:
        if node in self.inputs:
            return node, _one
        found = [(self._multiple_of_an_input(term), number) for term, number, _ in self._read(node) or ()]
        if not found or any(multiple is None for multiple, _ in found):
            return None
        origins = {multiple[0] for multiple, _ in found if multiple}
        parts = [_times(number, multiple[1]) for multiple, number in found if multiple]
        return (origins.pop(), lambda inputs: sum(part(inputs) for part in parts)) if len(origins) == 1 else None

    def _is_large_product(self, node: Node) -> bool:
        return node.target is _aten.mm.default and node.meta["val"].numel() >= LARGE

    def _origin(self, node: Node) -> tuple[Node, tuple[tuple[Callable[..., Tensor], tuple[Any, ...]], ...]]:
        """What a node is a view of, and the views from there to the node."""
        views: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = []
        while node.target in _VIEWS:
            views.append((_VIEWS[node.target], tuple(node.args[1:])))
            node = node.args[0]  # type: ignore[assignment]
        return node, tuple(reversed(views))


def _owner(node: Node) -> Node:
    """The node whose memory a node is in."""
    while node.target in _VIEWS or getattr(node.target, "is_view", False):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _one(_: Sequence[Tensor]) -> float:
    return 1.0


def _times(a: Number, b: Number) -> Number:
    return lambda inputs: a(inputs) * b(inputs)
