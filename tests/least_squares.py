"""Least squares whose gradient is known in closed form: workers with optima, and rows with lengths, of their own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

import fewrounds as fr
from fewrounds.theory.advise import NEEDED


@dataclass
class Squares:
    problem: fr.Problem
    workers: list[tuple[np.ndarray, np.ndarray]]
    x0: np.ndarray
    measured: fr.Measurement

    def gradient_norm2(self, x: np.ndarray) -> float:
        found = np.mean([X.T @ (X @ x - y) / len(y) for X, y in self.workers], axis=0)
        return float(found @ found)

    def loss(self, x: np.ndarray) -> float:
        return float(np.mean([0.5 * np.mean((X @ x - y) ** 2) for X, y in self.workers]))

    @property
    def least(self) -> float:
        A = np.mean([X.T @ X / len(y) for X, y in self.workers], axis=0)
        return self.loss(np.linalg.solve(A, np.mean([X.T @ y / len(y) for X, y in self.workers], axis=0)))

    def trace(self, method: fr.Method, rounds: int) -> np.ndarray:
        how = {"x0": self.x0, "trace": True, "progress": False, "evaluate_every": rounds}
        return fr.train(self.problem, self.workers, method, rounds, **how).trace.numpy()


def squares(seed: int, *, P: int = 4, d: int = 10, n: int = 100, tail: float = 0.0, apart: float = 2.0) -> Squares:
    """Rows are scaled by exp(tail · N(0, 1)), optima lie `apart` · N(0, 1) from one that all share."""
    rng = np.random.default_rng(seed)
    shared, workers = rng.normal(size=d), []
    for _ in range(P):
        columns, lengths = np.exp(0.3 * rng.normal(size=d)), np.exp(tail * rng.normal(size=(n, 1)))
        X = rng.normal(size=(n, d)) * columns * lengths / np.sqrt(d)
        workers.append((X, X @ (shared + apart * rng.normal(size=d)) + 0.1 * rng.normal(size=n)))

    def loss(x: torch.Tensor, z: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return 0.5 * (z[0] @ x - z[1]).square().mean()

    problem, x0 = fr.Problem(loss=loss, dim=d, dtype=torch.float64), np.zeros(d)
    how = {"only": NEEDED, "all_pairs": False, "tolerance": 1e-2, "smooth_samples": 4}
    return Squares(problem, workers, x0, fr.measure(problem, workers, x0, **how))
