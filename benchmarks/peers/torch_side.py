"""What the systems with torch share: one thread, the works as tensors, their models at their starts, the loss."""

from __future__ import annotations

import torch
import works
from plain import Data, tensors, w1_model, w2_model
from torch import nn
from torch.nn.functional import cross_entropy

__all__ = ["WORKS", "mean_loss", "model_at_start", "tensors"]

torch.set_num_threads(1)

WORKS = {"W1": works.W1, "W2": works.W2}
LOSS_WORKERS = 100
"""The loss is over the data of the first so many: all of W1's; all of W2's would take longer than its rounds."""


def model_at_start(name: str) -> nn.Module:
    """W1: `works.mlp_start`; W2: torch's own initialisation with seed 0."""
    if name == "W2":
        torch.manual_seed(0)
        return w2_model()
    model = w1_model()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), works.mlp_start(), strict=True):
            parameter.copy_(torch.from_numpy(value))
    return model


@torch.no_grad()
def mean_loss(model: nn.Module, data: Data) -> float:
    losses = [float(cross_entropy(model(X), y)) for X, y in data[:LOSS_WORKERS]]
    return sum(losses) / len(losses)
