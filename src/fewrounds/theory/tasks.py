"""What a worker computes for a measurement. Only vectors and a few figures leave it.

A Hessian-vector product of one sample is counted as two gradients. `n` is the number of samples that stand for a
worker's data; None for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from fewrounds.batch import Batch, batch_size, concatenate, map_batch
from fewrounds.checks import can_vmap
from fewrounds.data.shards import PART
from fewrounds.interfaces import Rows, Worker
from fewrounds.problem import Problem
from fewrounds.theory.spectrum import Product, largest

AT_ONCE = 2**23
"""The most numbers that the gradients of single samples may take at once."""


def hessian_product(rows: Rows, x: Tensor, v: Tensor, *, n: int | None, again: bool = False) -> Tensor:
    """∇²f_p(x) v; with `again` from other samples, where samples stand for the data."""
    return torch.stack([_product(worker, x, v, n, again) for worker in rows.workers])


def mean_gradient(rows: Rows, x: Tensor, *, n: int | None, again: bool = False) -> Tensor:
    """∇f_p(x); with `again` from other samples, where samples stand for the data."""
    return torch.stack([_gradient(worker, x, n, again) for worker in rows.workers])


def smoothness(rows: Rows, x: Tensor, start: Tensor, *, n: int | None, tolerance: float, count: int) -> Tensor:
    """‖∇²f_p(x)‖ and its error bar: the residual, or how far it is from uᵀ∇²f_p u of other samples."""
    assert count == 2
    out = []
    for worker in rows.workers:
        top = largest(lambda v, w=worker: _product(w, x, v, n), start, tolerance)  # type: ignore[misc]
        error = top.residual
        if _standing(worker, n) is not None:
            error = max(error, abs(top.value - float(top.vector @ _product(worker, x, top.vector, n, again=True))))
        out.append([abs(top.value), error])
    return x.new_tensor(out)


def sample_smoothness(rows: Rows, x: Tensor, start: Tensor, *, tolerance: float, count: int) -> Tensor:
    """‖∇²ℓ(x, z)‖ of `count` samples z; -1 in the place of those that a worker does not have."""
    out = x.new_full((len(rows.workers), count), -1.0)
    for row, worker in zip(out, rows.workers, strict=True):
        z = _some(worker, "smooth", count)
        for i in range(batch_size(z)):
            one = map_batch(lambda part, i=i: part[i : i + 1], z)  # type: ignore[misc]
            top = largest(_product_of(worker.problem, x, one), start, tolerance)
            worker.count(2 * top.products)
            row[i] = abs(top.value)
    return out


def spread(rows: Rows, x: Tensor, *, n: int | None, samples: int, count: int) -> Tensor:
    """E‖∇ℓ(x, z) - ∇f_p(x)‖² over the worker's samples z, from some or all of them, and its standard error; then the
    variance of the mean gradient of those that stand for the data."""
    assert count == 3
    return torch.stack([_spread(worker, x, n, samples) for worker in rows.workers])


def _product_of(problem: Problem, x: Tensor, z: Batch) -> Product:
    return lambda v: problem.hessian_product(x, z, v)


def _product(worker: Worker, x: Tensor, v: Tensor, n: int | None, again: bool = False) -> Tensor:
    return _mean(worker, n, 2, lambda z: worker.problem.hessian_product(x, z, v), again)


def _gradient(worker: Worker, x: Tensor, n: int | None, again: bool = False) -> Tensor:
    return _mean(worker, n, 1, lambda z: worker.problem.gradient(x, z), again)


def _standing(worker: Worker, n: int | None) -> int | None:
    """How many samples stand for the worker's data; None if they are all of it."""
    if n is not None and n < worker.size:
        return n
    return None if worker.size < math.inf else sum(batch_size(z) for z in worker.everything())


def _chosen(worker: Worker, n: int | None, again: bool) -> Iterable[Batch]:
    """The samples that stand for the worker's data, or as many others."""
    if again and (count := _standing(worker, n)) is not None:
        return _parts(worker.drawn("measure again", count))
    return worker.everything() if n is None or n >= worker.size else _parts(worker.drawn("measure", n))


def _parts(z: Batch) -> Iterator[Batch]:
    """As `everything` has them: what second derivatives take to work with does not grow with the samples."""
    for first in range(0, batch_size(z), PART):
        yield map_batch(lambda part, first=first: part[first : first + PART], z)  # type: ignore[misc]


def _mean(worker: Worker, n: int | None, cost: int, function: Callable[[Batch], Tensor], again: bool = False) -> Tensor:
    """The mean over the samples of what is a mean over a batch, and costs so many gradients a sample."""
    mean, count = _mean_over(_chosen(worker, n, again), function)
    worker.count(cost * count)
    return mean


def _mean_over(parts: Iterable[Batch], function: Callable[[Batch], Tensor]) -> tuple[Tensor, int]:
    """The mean, and the number of samples."""
    total, count = torch.zeros(()), 0
    for z in parts:
        part = function(z) * batch_size(z)
        total = part + total.to(part.device)
        count += batch_size(z)
    return total / count, count


def _spread(worker: Worker, x: Tensor, n: int | None, samples: int) -> Tensor:
    z = _some(worker, "spread", samples)
    m, size = batch_size(z), worker.size
    known = m < size < math.inf and (n is None or n >= size)  # ∇f_p is; otherwise their own mean stands for it
    if known:
        centre = _gradient(worker, x, None)
    else:
        centre, _ = _mean_over(_parts(z), lambda part: worker.problem.gradient(x, part))
    worker.count(m if known else 2 * m)
    few = map_batch(lambda part: part[:8], z)
    at_once = max(1, AT_ONCE // len(x)) if m > 1 and can_vmap(worker.problem, few, x) else 1
    squares = []
    for first in range(0, m, at_once):
        rows = map_batch(lambda part, first=first: part[first : first + at_once].unsqueeze(1), z)  # type: ignore[misc]
        squares.append((worker.problem.gradients(x, rows) - centre).square().sum(dim=1))
    found = torch.cat(squares)
    standing = _standing(worker, n)
    share = 0.0 if standing is None else (1 - standing / size) / standing  # (of samples without replacement)
    if m == size:
        return torch.stack([found.mean(), found.new_zeros(()), share * found.mean()])
    value = found.mean() if known else found.sum() / (m - 1)
    error = found.std() / math.sqrt(m) * math.sqrt(1 - m / size)
    return torch.stack([value, error, share * value])


def _some(worker: Worker, purpose: str, m: int) -> Batch:
    """m samples, or all of a worker that has no more."""
    if worker.size > m:
        return worker.drawn(purpose, m)
    return concatenate(list(worker.everything()))
