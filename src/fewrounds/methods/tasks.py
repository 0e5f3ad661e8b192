"""A worker's share of a round. Each task is a plain function of its rows and the vectors it is sent."""

from __future__ import annotations

import torch
from torch import Tensor

from fewrounds.interfaces import Rows


def full_gradient(rows: Rows, x: Tensor) -> Tensor:
    """∇f_p(x)."""
    return rows.full_gradient(x)


def sample_gradient(rows: Rows, x: Tensor, *, n: int, purpose: str) -> Tensor:
    """The mean gradient of n i.i.d. samples at x."""
    return rows.mean(lambda z: rows.gradient(x, z), purpose, n)


def gradient_change(rows: Rows, x: Tensor, x_prev: Tensor, *, n: int) -> Tensor:
    """g(x) - g(x_prev), both on the same n i.i.d. samples."""
    return rows.mean(lambda z: rows.gradient(x, z) - rows.gradient(x_prev, z), "change", n)


def local_routine(rows: Rows, x: Tensor, v: Tensor, *, eta: float, K: int, b: int) -> Tensor:
    """x_K of the paper's Local-Routine (Algorithm 3)."""
    # k = 1: both points are x_0, the difference is 0, so v_1 = v_0 without sampling.
    x_prev, x = x, x - eta * v
    for z in rows.batches("local", K - 1, b):
        # v_k = g_k(x_{k-1}) - g_k(x_{k-2}) + v_{k-1}
        v = rows.gradient(x, z) - rows.gradient(x_prev, z) + v
        # x_k = x_{k-1} - η v_k
        x_prev, x = x, x - eta * v
    return x


def local_routine_with_out(rows: Rows, x: Tensor, v: Tensor, *, eta: float, K: int, b: int) -> tuple[Tensor, Tensor]:
    """x_K and x_k̂ with k̂ ~ Unif[K]: all that Local-Routine returns."""
    k_hat = rows.integers("k_hat", K) + 1
    x_prev, x = x, x - eta * v
    out = x.expand(len(k_hat), -1)
    for k, z in enumerate(rows.batches("local", K - 1, b), start=2):
        v = rows.gradient(x, z) - rows.gradient(x_prev, z) + v
        x_prev, x = x, x - eta * v
        out = torch.where(k_hat == k, x, out)
    return x, out
