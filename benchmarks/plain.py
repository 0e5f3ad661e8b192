"""What everything is measured against: plain PyTorch loops, as a careful user writes them.

A module, `torch.optim.SGD` (its fused step, the fastest it has on a CPU), indices drawn once a round, one process and
one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from works import Work

Data = Sequence[tuple[Tensor, Tensor]]


def w1_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3072, 100), nn.Softplus(), nn.Linear(100, 10))


def w2_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


class LocalSGDLoop:
    """Local SGD: `round()` runs one, `seconds` of it are the caller's to take."""

    def __init__(self, model: nn.Module, data: Data, work: Work, *, fused: bool = True, seed: int = 0) -> None:
        self.model, self.data, self.work, self.fused = model, data, work, fused
        self.parameters = list(model.parameters())
        self.server = [p.detach().clone() for p in self.parameters]
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = 0

    def round(self) -> None:
        w = self.work
        taking_part = torch.randperm(w.workers, generator=self.generator)[: w.participants]
        total = [torch.zeros_like(p) for p in self.server]
        for p in taking_part.tolist():
            X, y = self.data[p]
            with torch.no_grad():
                for parameter, value in zip(self.parameters, self.server, strict=True):
                    parameter.copy_(value)
            optimiser = torch.optim.SGD(self.parameters, lr=w.eta, weight_decay=w.l2, fused=self.fused)
            index = torch.randint(w.samples, (w.K, w.b), generator=self.generator)
            for k in range(w.K):
                optimiser.zero_grad()
                cross_entropy(self.model(X[index[k]]), y[index[k]]).backward()
                optimiser.step()
                self.steps += 1
            with torch.no_grad():
                for sum_, parameter in zip(total, self.parameters, strict=True):
                    sum_.add_(parameter, alpha=1 / w.participants)
        self.server = total

    def loss(self) -> float:
        """The mean loss over all data, without L2."""
        with torch.no_grad():
            for parameter, value in zip(self.parameters, self.server, strict=True):
                parameter.copy_(value)
            losses = [float(cross_entropy(self.model(X), y)) for X, y in self.data]
        return sum(losses) / len(losses)


Round = Callable[[], None]
