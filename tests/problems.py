"""Problems with nothing degenerate: unequal Hessians, sizes and optima, starts and optima away from 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import fewrounds as fr

Vector = np.ndarray
SIZES = (7, 4, 9)


@dataclass
class Case:
    """A problem as fewrounds sees it, and its gradient as a NumPy function that shares no code with it."""

    problem: fr.Problem
    workers: list[Any]
    x0: Vector
    gradient: Callable[[int, Vector, Vector], Vector]
    """gradient(p, x, index): the mean gradient of these samples of worker p."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(w[0]) for w in self.workers)

    def full(self, p: int, x: Vector) -> Vector:
        return self.gradient(p, x, np.arange(self.sizes[p]))


def quadratic(sizes: tuple[int, ...] = SIZES, d: int = 5, seed: int = 1, shared_hessian: bool = False) -> Case:
    """ℓ(x, (A, m)) = ½ (x - m)ᵀ A (x - m), eigenvalues of A in [0.3, 2]."""
    rng = np.random.default_rng(seed)
    orthogonal = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(sum(sizes))]
    A = np.stack([Q @ np.diag(rng.uniform(0.3, 2.0, d)) @ Q.T for Q in orthogonal])
    if shared_hessian:
        A[:] = A[0]
    m = rng.normal(size=(sum(sizes), d)) + 3
    cuts = np.cumsum(sizes)[:-1]
    workers = list(zip(np.split(A, cuts), np.split(m, cuts), strict=True))

    def loss(x: torch.Tensor, z: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        A, m = z
        r = x - m
        return 0.5 * torch.einsum("ni,nij,nj->n", r, A, r).mean()

    def gradient(p: int, x: Vector, index: Vector) -> Vector:
        A, m = workers[p]
        return np.mean([A[i] @ (x - m[i]) for i in index], axis=0)

    problem = fr.Problem(loss=loss, dim=d, dtype=torch.float64)
    return Case(problem, workers, rng.normal(size=d) - 1, gradient)


def classifier(sizes: tuple[int, ...] = SIZES, seed: int = 2, l2: float = 0.01) -> Case:
    """The paper's kind of model, small: 6-5-3, softplus, cross-entropy, L2. Workers see shifted inputs."""
    rng = np.random.default_rng(seed)
    workers = []
    for p, n in enumerate(sizes):
        X = rng.normal(size=(n, 6)) + 0.5 * p
        workers.append((X, rng.integers(3, size=n)))
    model = fr.models.mlp([6, 5, 3], seed=seed).double()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.bias.copy_(torch.from_numpy(rng.normal(size=layer.bias.shape)))
    problem = fr.Problem(model, loss=nn.functional.cross_entropy, l2=l2, dtype=torch.float64)

    def gradient(p: int, x: Vector, index: Vector) -> Vector:
        """By hand: softmax regression on a softplus layer, the chain rule written out."""
        X, y = workers[p][0][index], workers[p][1][index]
        W1, b1 = x[:30].reshape(5, 6), x[30:35]
        W2, b2 = x[35:50].reshape(3, 5), x[50:53]
        a = X @ W1.T + b1
        h = np.logaddexp(0, a)
        o = h @ W2.T + b2
        s = np.exp(o - o.max(1, keepdims=True))
        s /= s.sum(1, keepdims=True)
        s[np.arange(len(y)), y] -= 1
        do = s / len(y)
        da = do @ W2 / (1 + np.exp(-a))
        parts = [(da.T @ X).ravel(), da.sum(0), (do.T @ h).ravel(), do.sum(0)]
        return np.concatenate(parts) + l2 * x

    return Case(problem, workers, problem.start.numpy(), gradient)


CASES = {"quadratic": quadratic, "classifier": classifier}
