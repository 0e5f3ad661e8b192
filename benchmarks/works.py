"""The works that are measured: their data, models and settings, the same for every system.

W1  cross-silo, the paper's: CIFAR-10-shaped data, 10 workers × 5,000, MLP 3072–100–10 softplus, L2 5e-3; K = 64, b = 16
W2  cross-device, as apple/pfl-research publishes it: 1,000 workers × 50, 50 taking part, one epoch of batch 10, a CNN
W3  small: data of the size of digits (10 workers × 143 samples of 64 numbers), MLP 64–100–10, K = 16, b = 16

The data are made up (class centres and noise), so that nothing is downloaded: speed depends on their
shape only. NumPy alone, because systems without torch use this file too.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Work:
    workers: int
    samples: int
    """Of each worker."""
    shape: tuple[int, ...]
    participants: int
    K: int
    b: int
    eta: float
    l2: float

    @property
    def steps(self) -> int:
        """Local steps in a round, all participants together."""
        return self.participants * self.K


W1 = Work(workers=10, samples=5000, shape=(3072,), participants=10, K=64, b=16, eta=0.01, l2=5e-3)
W2 = Work(workers=1000, samples=50, shape=(3, 32, 32), participants=50, K=5, b=10, eta=0.1, l2=0.0)
W3 = Work(workers=10, samples=143, shape=(64,), participants=10, K=16, b=16, eta=0.05, l2=5e-3)


def data(work: Work, seed: int = 0) -> list[tuple[Array, Labels]]:
    """(X, y) of each worker: 10 classes, centres of norm about 1/3 of a sample's, every class at every worker."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(work.shape))
    centres = rng.standard_normal((10, size), dtype=np.float32) / 10
    out = []
    for _ in range(work.workers):
        y = rng.integers(10, size=work.samples)
        x = rng.standard_normal((work.samples, size), dtype=np.float32) * np.float32(0.3) + centres[y]
        out.append((x.reshape(work.samples, *work.shape), y))
    return out


def mlp_start(seed: int = 0) -> list[Array]:
    """W1's start: W1 [100, 3072], b1, W2 [10, 100], b2; Glorot uniform, biases 0."""
    rng = np.random.default_rng(seed)

    def glorot(n_out: int, n_in: int) -> Array:
        bound = (6 / (n_in + n_out)) ** 0.5
        return rng.uniform(-bound, bound, size=(n_out, n_in)).astype(np.float32)

    return [glorot(100, 3072), np.zeros(100, np.float32), glorot(10, 100), np.zeros(10, np.float32)]
