"""Runs on quadratics, and where they end in closed form."""

from __future__ import annotations

import numpy as np

import fewrounds as fr
from problems import Case, quadratic


def trace(case: Case, method: fr.Method, rounds: int, **options) -> np.ndarray:
    result = fr.train(
        case.problem,
        case.workers,
        method,
        rounds,
        x0=case.x0,
        trace=True,
        progress=False,
        evaluate_every=rounds,
        **options,
    )
    return result.trace.numpy()


def curvatures(case: Case) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """(A_p, m_p) with ∇f_p(x) = A_p (x - m_p), from the samples of each worker."""
    As = [A.mean(axis=0) for A, _ in case.workers]
    ms = [np.linalg.solve(A.mean(axis=0), np.einsum("nij,nj->i", A, m) / len(m)) for A, m in case.workers]
    return As, ms


def biased_fixed_point(case: Case, eta: float, K: int) -> np.ndarray:
    """The x that solves Σ_p [I - (I - ηA_p)^K] (x - m_p) = 0."""
    As, ms = curvatures(case)
    shrinks = [np.eye(5) - np.linalg.matrix_power(np.eye(5) - eta * A, K) for A in As]
    return np.linalg.solve(sum(shrinks), sum(M @ m for M, m in zip(shrinks, ms, strict=True)))


def optimum(case: Case) -> np.ndarray:
    As, ms = curvatures(case)
    return np.linalg.solve(sum(As), sum(A @ m for A, m in zip(As, ms, strict=True)))


def per_worker_quadratic() -> Case:
    """One sample a worker: every batch is the full local gradient, so stochastic methods are deterministic."""
    return quadratic(sizes=(1, 1, 1, 1), seed=4)
