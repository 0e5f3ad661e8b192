"""The eigenvalue of greatest absolute value of a symmetric operator that is known by its products alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from fewrounds.errors import ProblemError

RESTARTS = 30
"""Of the eigensolver, before a lower precision is tried."""

Product = Callable[[Tensor], Tensor]


class Top(NamedTuple):
    """The eigenvalue (with its sign), its unit eigenvector, and ‖A u - λ u‖: an eigenvalue is within it of λ."""

    value: float
    vector: Tensor
    residual: float
    products: int


def largest(product: Product, start: Tensor, tolerance: float) -> Top:
    """By the implicitly restarted Lanczos method (ARPACK), to a residual of tolerance·|λ| if that can be reached.

    It holds about twenty vectors. The start must not be 0.
    """
    products = 0

    def apply(v: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        nonlocal products
        products += 1
        out = product(torch.from_numpy(np.ascontiguousarray(v).reshape(-1)).to(start))
        if not bool(torch.isfinite(out).all()):
            raise ProblemError("the Hessian at this point has NaN or infinite values")
        found: npt.NDArray[np.float64] = out.double().cpu().numpy()
        return found

    def ended(u: npt.NDArray[np.float64]) -> Top:
        u = u / np.linalg.norm(u)
        image = apply(u)
        value = float(u @ image)
        return Top(value, torch.from_numpy(u).to(start), float(np.linalg.norm(image - value * u)), products)

    first = start.double().cpu().numpy()
    if not apply(first).any():  # A = 0 (a random vector is in no proper subspace), which ARPACK does not take
        return Top(0.0, start / start.norm(), 0.0, products)
    dim = len(first)
    if dim == 1:
        return ended(np.ones(1))
    operator = LinearOperator((dim, dim), matvec=apply, dtype=np.float64)
    while True:
        try:
            # Of an operator of low rank it goes on from a random vector: the same one on every rank.
            rng = np.random.default_rng(0)
            _, vectors = eigsh(operator, k=1, which="LM", v0=first, tol=tolerance, maxiter=RESTARTS, rng=rng)
            return ended(vectors[:, 0])
        except ArpackNoConvergence:
            tolerance *= 10
