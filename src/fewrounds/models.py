"""Models for experiments: the paper's, started as the paper starts it, and a small convolutional one."""

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


def cnn(shape: Sequence[int], classes: int, seed: int = 0) -> nn.Sequential:
    """Two 3×3 convolutions (32, 64), max-pool, dense 128: a common small model for images [C, H, W]."""
    channels, height, width = shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(channels, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            nn.ReLU(),
            nn.Linear(128, classes),
        )
