"""Products that are taken out of a step and added in place: the same sums, and nothing overwritten that is needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import fewrounds as fr
from contract import examples, run
from fewrounds.engine import products
from fewrounds.engine.loop import Loop, Programs
from fewrounds.engine.products import Sum, take_out
from fewrounds.engine.programs import How, Policy, _trace
from problems import classifier

ETA = torch.tensor(0.1, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _every_product_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "LARGE", 1)


def matrix(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def taken(
    function: Callable[..., list[Tensor]], inputs: list[Tensor], may_overwrite: set[int]
) -> tuple[int, list[int]]:
    """How many products are left, and which inputs were overwritten; the values are compared with the function's."""
    graph = _trace(function, inputs)
    wanted = function(*inputs)
    complete = take_out(graph, 1, may_overwrite)
    given = [tensor.clone() for tensor in inputs]
    with torch.no_grad():
        got = complete(lambda tensors: graph.forward(*tensors))(list(given))
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    left = sum(node.target is torch.ops.aten.mm.default for node in graph.graph.nodes)
    changed = [i for i, (now, before) in enumerate(zip(given, inputs, strict=True)) if not torch.equal(now, before)]
    return left, changed


W, V, A, B = matrix(1, 4, 5), matrix(2, 4, 5), matrix(3, 2, 4), matrix(4, 2, 5)


def test_a_step_along_a_product_is_taken_in_place() -> None:
    left, changed = taken(lambda eta, w, a, b: [w - eta * (a.t() @ b + 0.5 * w)], [ETA, W, A, B], {1})
    assert (left, changed) == (0, [1])


def test_nothing_is_overwritten_that_may_not_be() -> None:
    left, changed = taken(lambda eta, w, a, b: [w - eta * (a.t() @ b + 0.5 * w)], [ETA, W, A, B], set())
    assert (left, changed) == (0, [])


def test_with_several_vectors_the_rest_is_added_up_first() -> None:
    def function(eta: Tensor, w: Tensor, v: Tensor, a: Tensor, b: Tensor) -> list[Tensor]:
        return [w - eta * (a.t() @ b + 0.5 * w + v), -(v - 2 * (a.t() @ b))]

    left, changed = taken(function, [ETA, W, V, A, B], {1, 2})
    assert (left, changed) == (0, [2])


@pytest.mark.parametrize(
    "function",
    [
        lambda eta, w, a, b: [(w.view(20) - eta * (b.t() @ a).t().reshape(20)).view(4, 5)],
        lambda eta, w, a, b: [(w.view(1, 20) + 3 * (a.t() @ b).view(1, 20)).view(4, 5)],
        lambda eta, w, a, b: [eta * w - (a.t() @ b - a.t() @ (2 * b)) * eta],
        lambda eta, w, a, b: [-(eta * (a.t() @ b)).view(5, 4).t() + w],
        lambda eta, w, a, b: [w + (a.t() @ b).t().reshape(4, 5)],
    ],
    ids=["transposed", "reshaped", "two products", "reshaped and transposed", "transposed and reshaped"],
)
def test_any_way_to_write_it(function: Callable[..., list[Tensor]]) -> None:
    taken(function, [ETA, W, A, B], {1})


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda eta, w, a, b: [w + a.t() @ b, w], "w is returned as it was"),
        (lambda eta, w, a, b: [w + a.t() @ b, w.view(20)], "so is a view of w"),
        (lambda eta, w, a, b: [w + a.t() @ w[:2]], "w is a factor"),
        (lambda eta, w, a, b: [w + w[:, :4] @ w], "w is both factors"),
        (lambda eta, w, a, b: [w + a.t() @ b, w - a.t() @ b], "w is the base of two sums"),
        (lambda eta, w, a, b: [(w + a.t() @ b) * w], "no sum"),
        (lambda eta, w, a, b: [(w + a.t() @ b), (w + a.t() @ b) @ b.t()], "the sum is used again"),
        (lambda eta, w, a, b: [w + eta * eta * (a.t() @ b)], "a product of numbers"),
        (lambda eta, w, a, b: [w[:1] + a.t() @ b], "a base that is repeated"),
        (lambda eta, w, a, b: (lambda d: [d + a.t() @ b, d - a.t() @ b])(2 * w), "one base for both"),
        (lambda eta, w, a, b: [(lambda d: d.t() @ b + d.t() @ b)(a - 1)], "no base at all"),
    ],
)
def test_what_is_needed_is_left_alone(function: Callable[..., list[Tensor]], why: str) -> None:
    """The values must be right whichever of these can be taken out; `taken` compares them."""
    for may_overwrite in (set(), {1}):
        taken(function, [ETA, W, A, B], may_overwrite)


@pytest.mark.parametrize("method", examples(), ids=repr)
def test_methods_take_the_same_steps(method: fr.Method) -> None:
    """One row a block, so that the gradients of the dense layers are products of matrices."""
    case = classifier()
    case.x0 = torch.from_numpy(case.x0)
    start = case.x0.clone()
    plain = run(case, method, compile=Policy(How.AS_IT_IS), rows_at_once=1)
    traced = run(case, method, compile=Policy(How.TRACED), rows_at_once=1)
    torch.testing.assert_close(traced.trace, plain.trace, rtol=1e-11, atol=1e-11)
    assert torch.equal(case.x0, start), "the start is the caller's"


def test_the_methods_have_products_to_take_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local SGD adds both layers' gradients in place; otherwise the test above would compare nothing."""
    sums: list[Sum] = []
    add = Sum.__call__
    monkeypatch.setattr(Sum, "__call__", lambda self, *given: (sums.append(self), add(self, *given))[1])
    run(classifier(), fr.LocalSGD(eta=0.05, K=4, b=3), compile=Policy(How.TRACED), rows_at_once=1)
    assert len({id(s) for s in sums}) == 2
    assert all(s.base.of_input for s in sums)


def test_a_vector_that_is_passed_on_is_not_overwritten() -> None:
    """Two steps back and one step back: x_{k-1} becomes x_{k-2}, so it must outlive the step."""

    def step(g: Callable[[Tensor], Tensor], x: Tensor, before: Tensor, *, eta: float) -> tuple[Tensor, Tensor]:
        return x - eta * g(x), x

    case = classifier()
    X, y = (torch.as_tensor(part) for part in case.workers[0])
    start = torch.as_tensor(case.x0)[None]
    ends = []
    for how in (How.AS_IT_IS, How.TRACED):
        programs = Programs(case.problem, Policy(how), 1, say=print)
        loop = Loop(programs, step, (start, start), {"eta": 0.5}, rows=1, blocks=1)
        for k in range(3):
            loop.step((X[None, k : k + 2], y[None, k : k + 2]), 3)
        ends.append(loop.vectors())
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)
