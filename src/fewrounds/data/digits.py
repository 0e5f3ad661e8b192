"""scikit-learn's digits: 1,797 images of 8×8 pixels in ten classes, shipped with scikit-learn."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fewrounds.data.partition import equalise_classes

Arrays = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


def load_digits(test_fraction: float = 0.2, seed: int = 0) -> tuple[Arrays, Arrays]:
    """(train, test), each (X, y) with equally many images of every class and pixels scaled to [-1, 1]."""
    from sklearn.datasets import load_digits as load

    X, y = load(return_X_y=True)
    images = ((X / 16 - 0.5) / 0.5).astype(np.float32)
    labels = y.astype(np.int64)
    rng = np.random.default_rng([seed, 3])
    kept = equalise_classes(labels, seed)
    train: list[int] = []
    test: list[int] = []
    for c in range(10):
        members = rng.permutation(kept[labels[kept] == c])
        cut = round(test_fraction * len(members))
        test.extend(members[:cut])
        train.extend(members[cut:])
    return (images[train], labels[train]), (images[test], labels[test])
