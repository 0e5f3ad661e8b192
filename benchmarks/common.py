"""What the parts of the benchmark share: the methods of the works, the products that bound them, one core."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import works

import fewrounds as fr


def local_sgd(work: works.Work, **settings: Any) -> fr.Method:
    return fr.LocalSGD(eta=work.eta, K=work.K, b=work.b, **settings)


def bvr_l_sgd(work: works.Work) -> fr.Method:
    return fr.BVRLSGD(eta=work.eta, K=work.K, b=work.b)


def matrix_products(inputs: int, *batches: tuple[int, int]) -> Callable[[], None]:
    """The products of gradients of an MLP inputs–100–10 and nothing else: what no system can be faster than.

    The batches are (samples in a batch, number of such batches).
    """
    W1, W2 = torch.randn(100, inputs), torch.randn(10, 100)
    out = torch.empty(100, inputs)
    factors = [
        (torch.randn(b, inputs), torch.randn(b, 100), torch.randn(b, 100), torch.randn(b, 10), count)
        for b, count in batches
    ]

    def run() -> None:
        for X, h, d1, d2, count in factors:
            for _ in range(count):
                torch.mm(X, W1.t())
                torch.mm(d1.t(), X, out=out)
                torch.mm(h, W2.t())
                torch.mm(d2.t(), h)
                torch.mm(d2, W2)

    return run


def alone_on_a_core() -> None:
    torch.set_num_threads(1)
