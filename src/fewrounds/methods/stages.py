"""What minibatch SARAH and BVR-L-SGD share: stages that start from a full (or large-batch) gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fewrounds.errors import SettingError
from fewrounds.interfaces import Engine
from fewrounds.methods.base import mean_size
from fewrounds.methods.tasks import full_gradient, sample_gradient


def check_b_tilde(name: str, b_tilde: int | None, sizes: Sequence[float]) -> None:
    if b_tilde is None and math.inf in sizes:
        raise SettingError(f"{name}: b_tilde is required with a Stream, whose full gradient does not exist")


def stage_length(b_tilde: int | None, sizes: Sequence[float], batch: int) -> int:
    """T = ⌈1 + b̃ / batch⌉; without b̃, b̃ is the mean number of samples of a worker."""
    if b_tilde is not None:
        return 1 + -(-b_tilde // batch)
    return 1 + -(-int(sum(sizes)) // (len(sizes) * batch))


def is_full(b_tilde: int | None, sizes: Sequence[float]) -> bool:
    """Whether the stage gradient is over all data: b̃ ≥ (1/P) Σ_p |D_p|."""
    return b_tilde is None or b_tilde >= mean_size(sizes)


def stage_gradient(engine: Engine, x: Tensor, b_tilde: int | None) -> Tensor:
    """ṽ_0 = mean_p ∇̃^(p): ∇f_p(x), or the mean of b̃ i.i.d. sample gradients."""
    if is_full(b_tilde, engine.sizes):
        return engine.mean(full_gradient, x)
    settings: dict[str, Any] = {"n": b_tilde, "purpose": "stage"}
    return engine.mean(sample_gradient, x, **settings)


def stage_gradients_per_round(b_tilde: int | None, sizes: Sequence[float], batch: int, T: int) -> float:
    """The mean cost of a round in a stage: its start, then T - 1 differences, each at two points."""
    start = mean_size(sizes) if is_full(b_tilde, sizes) else float(b_tilde or 0)
    return (start + (T - 1) * 2 * batch) / T
