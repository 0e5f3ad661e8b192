"""A worker's share of a round. Each task is a plain function of its rows and the vectors it is sent."""

from __future__ import annotations

from torch import Tensor

from fewrounds.interfaces import Gradient, Rows


def large_gradient(rows: Rows, x: Tensor, *, n: int | None, stash: str | None = None) -> Tensor:
    """∇̃^(p)(x): ∇f_p(x), or the mean gradient of n i.i.d. samples. The worker may need its own again in this round."""
    gradient = rows.full_gradient(x) if n is None else rows.average(gradient_at, "stage", n, x=x)
    if stash is not None:
        rows.memory.stash(stash, gradient)
    return gradient


def sample_gradient(rows: Rows, x: Tensor, *, n: int, purpose: str) -> Tensor:
    """The mean gradient of n i.i.d. samples at x."""
    return rows.average(gradient_at, purpose, n, x=x)


def gradient_at(g: Gradient, *, x: Tensor) -> Tensor:
    return g(x)


def gradient_change(rows: Rows, x: Tensor, x_prev: Tensor, *, n: int) -> Tensor:
    """g(x) - g(x_prev), both on the same n i.i.d. samples."""
    return rows.average(change, "change", n, x=x, x_prev=x_prev)


def change(g: Gradient, *, x: Tensor, x_prev: Tensor) -> Tensor:
    return g(x) - g(x_prev)


def local_routine(rows: Rows, x: Tensor, v: Tensor, *, eta: float, K: int, b: int) -> Tensor:
    """x_K of the paper's Local-Routine (Algorithm 3)."""
    # k = 1: both points are x_0, the difference is 0, so v_1 = v_0 without sampling.
    start = (x - eta * v, x, v)
    return rows.iterate(recursive_step, start, "local", K - 1, b, eta=eta)[0]


def local_routine_with_out(rows: Rows, x: Tensor, v: Tensor, *, eta: float, K: int, b: int) -> tuple[Tensor, Tensor]:
    """x_K and x_k̂ with k̂ ~ Unif[K]: all that Local-Routine returns."""
    start = (x - eta * v, x, v)
    further = rows.integers("k_hat", K)  # k̂ - 1 steps after the first
    x_K, _, _, out = rows.iterate(recursive_step, start, "local", K - 1, b, keep=further, eta=eta)
    return x_K, out


def recursive_step(g: Gradient, x: Tensor, x_prev: Tensor, v: Tensor, *, eta: float) -> tuple[Tensor, Tensor, Tensor]:
    """v_k = g_k(x_{k-1}) - g_k(x_{k-2}) + v_{k-1},  x_k = x_{k-1} - η v_k."""
    v = g(x) - g(x_prev) + v
    return x - eta * v, x, v
