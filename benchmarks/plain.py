"""What everything is measured against: plain PyTorch loops, as a careful user writes them.

A module, `torch.optim.SGD` (its fused step, the fastest it has on a CPU), indices drawn once a round, one process and
one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import works
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from works import Work

Data = Sequence[tuple[Tensor, Tensor]]


def w1_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3072, 100), nn.Softplus(), nn.Linear(100, 10))


def w3_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 100), nn.Softplus(), nn.Linear(100, 10))


def w2_model() -> nn.Sequential:
    """Channels last, which its convolutions are faster with on a CPU."""
    model = nn.Sequential(
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
    return model.to(memory_format=torch.channels_last)


def tensors(work: Work) -> list[tuple[Tensor, Tensor]]:
    """The data of every worker; images with channels last, as the model has them."""
    order = torch.channels_last if len(work.shape) == 3 else torch.contiguous_format
    return [(torch.from_numpy(X).contiguous(memory_format=order), torch.from_numpy(y)) for X, y in works.data(work)]


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


class OtherLoops:
    """The other four methods of the paper, every worker after the other, with a module for each point in use."""

    def __init__(self, make: Callable[[], nn.Module], data: Data, work: Work, T: int) -> None:
        self.model, self.previous, self.data, self.work, self.T = make(), make(), data, work, T
        self.now, self.before = list(self.model.parameters()), list(self.previous.parameters())
        self.x = [p.detach().clone() for p in self.now]
        self.x_prev = [p.clone() for p in self.x]
        self.v = [torch.zeros_like(p) for p in self.x]
        self.c = [torch.zeros_like(p) for p in self.x]
        self.c_p = [[torch.zeros_like(p) for p in self.x] for _ in data]
        self.t = 0

    def minibatch_sgd(self) -> None:
        w = self.work
        self._set(self.now, self.x)
        total = self._mean(lambda X, y: self._gradient(self.model, self.now, X, y), w.K * w.b)
        self.x = [x - w.eta * g for x, g in zip(self.x, total, strict=True)]

    def sarah(self) -> None:
        self.v = self._recursion()
        self.x_prev, self.x = self.x, [x - self.work.eta * v for x, v in zip(self.x, self.v, strict=True)]

    def scaffold(self) -> None:
        w = self.work
        dx, dc = [torch.zeros_like(x) for x in self.x], [torch.zeros_like(x) for x in self.x]
        for p, (X, y) in enumerate(self.data):
            self._set(self.now, self.x)
            correction = [c - own for c, own in zip(self.c, self.c_p[p], strict=True)]
            optimiser = torch.optim.SGD(self.now, lr=w.eta, weight_decay=w.l2, fused=True)
            index = torch.randint(len(X), (w.K, w.b))
            for k in range(w.K):
                optimiser.zero_grad()
                cross_entropy(self.model(X[index[k]]), y[index[k]]).backward()
                with torch.no_grad():
                    for parameter, add in zip(self.now, correction, strict=True):
                        parameter.grad.add_(add)
                optimiser.step()
            with torch.no_grad():
                for i, parameter in enumerate(self.now):
                    new = self.c_p[p][i] - self.c[i] + (self.x[i] - parameter) / (w.K * w.eta)
                    dx[i].add_(parameter - self.x[i], alpha=1 / w.workers)
                    dc[i].add_(new - self.c_p[p][i], alpha=1 / w.workers)
                    self.c_p[p][i] = new
        self.x = [x + d for x, d in zip(self.x, dx, strict=True)]
        self.c = [c + d for c, d in zip(self.c, dc, strict=True)]

    def bvr_l_sgd(self) -> None:
        w = self.work
        self.v = self._recursion()
        X, y = self.data[int(torch.randint(w.workers, ()))]
        before, v = self.x, self.v
        now = [x - w.eta * g for x, g in zip(before, v, strict=True)]
        index = torch.randint(len(X), (w.K, w.b))
        for k in range(1, w.K):
            difference = self._difference(now, before, X[index[k]], y[index[k]])
            v = [a + d for a, d in zip(v, difference, strict=True)]
            before, now = now, [x - w.eta * g for x, g in zip(now, v, strict=True)]
        self.x_prev, self.x = self.x, now

    def _recursion(self) -> list[Tensor]:
        w, start = self.work, self.t % self.T == 0
        self.t += 1
        if start:
            self._set(self.now, self.x)
            return self._mean(lambda X, y: self._gradient(self.model, self.now, X, y), None)
        change = self._mean(lambda X, y: self._difference(self.x, self.x_prev, X, y), w.K * w.b)
        return [v + d for v, d in zip(self.v, change, strict=True)]

    def _mean(self, function: Callable[[Tensor, Tensor], Sequence[Tensor]], n: int | None) -> list[Tensor]:
        total = [torch.zeros_like(x) for x in self.x]
        for X, y in self.data:
            index = torch.randint(len(X), (n,)) if n is not None else None
            part = function(X, y) if index is None else function(X[index], y[index])
            for sum_, one in zip(total, part, strict=True):
                sum_.add_(one, alpha=1 / self.work.workers)
        return total

    def _difference(self, x: list[Tensor], x_prev: list[Tensor], X: Tensor, y: Tensor) -> list[Tensor]:
        self._set(self.now, x)
        self._set(self.before, x_prev)
        new = self._gradient(self.model, self.now, X, y)
        old = self._gradient(self.previous, self.before, X, y)
        return [a - b for a, b in zip(new, old, strict=True)]

    def _gradient(self, model: nn.Module, parameters: list[nn.Parameter], X: Tensor, y: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(cross_entropy(model(X), y), parameters)
        return [g.add_(p.detach(), alpha=self.work.l2) for g, p in zip(found, parameters, strict=True)]

    def _set(self, parameters: list[nn.Parameter], values: Sequence[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(parameters, values, strict=True):
                parameter.copy_(value)
