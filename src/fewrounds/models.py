"""The paper's model, started as the paper starts it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn


def mlp(sizes: Sequence[int], seed: int = 0, activation: type[nn.Module] = nn.Softplus) -> nn.Sequential:
    """Fully connected layers, e.g. `mlp([3072, 100, 10])`; weights Glorot uniform, biases 0, drawn by the seed."""
    generator = torch.Generator().manual_seed(seed)
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        with torch.random.fork_rng(devices=[]):  # leaves torch's global generator as it was
            linear = nn.Linear(n_in, n_out)
        bound = math.sqrt(6 / (n_in + n_out))
        with torch.no_grad():
            linear.weight.uniform_(-bound, bound, generator=generator)
            linear.bias.zero_()
        layers += [linear, activation()]
    return nn.Sequential(*layers[:-1])
