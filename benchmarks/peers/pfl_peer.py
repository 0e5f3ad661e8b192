"""apple/pfl-research as a system: `pfl_peer.py W1|W2`.

`FederatedAveraging` on the `SimulatedBackend` with a `PyTorchModel`, in-memory datasets, the fused SGD step as local
optimiser, no evaluation and no callbacks. W1 draws its 64 batches anew each round, with replacement, by a dataset of
its own (pfl's own in-memory dataset would go through the same first 64 batches every round); W2 is pfl's own dataset,
one epoch in a fixed order.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from protocol import System, claim_stdout, serve
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_side import WORKS, mean_loss, model_at_start, tensors

NO_EVALUATION = 10**9


class DrawnDataset(PyTorchTensorDataset):
    """A user who trains on K batches of b, drawn uniformly each time."""

    def __init__(self, X: Tensor, y: Tensor, K: int, b: int) -> None:
        super().__init__((X, y))
        self.X, self.y, self.K, self.b = X, y, K, b

    def iter(self, batch_size: int | None) -> Iterator[list[Tensor]]:
        if batch_size != self.b:  # pfl evaluates before its first round, whatever the frequency
            yield from super().iter(batch_size)
            return
        for index in torch.randint(len(self.y), (self.K, self.b)):
            yield [self.X[index], self.y[index]]


class Pfl(System):
    package = "pfl"

    def __init__(self, name: str) -> None:
        work = self.work = WORKS[name]
        super().__init__(work.workers)
        self.data = tensors(work)
        self.module = self.with_loss(model_at_start(name))
        torch.manual_seed(0)
        if name == "W1":
            users: list[PyTorchTensorDataset] = [DrawnDataset(X, y, work.K, work.b) for X, y in self.data]
        else:
            users = [PyTorchTensorDataset(pair) for pair in self.data]

        def user(number: int) -> PyTorchTensorDataset:
            self.user = number
            return users[number]

        dataset = FederatedDataset(user, MinimizeReuseUserSampler(list(range(work.workers))))
        self.backend = SimulatedBackend(training_data=dataset, val_data=dataset)
        self.algorithm = FederatedAveraging()
        self.model = PyTorchModel(
            model=self.module,
            local_optimizer_create=self.local_optimiser,
            central_optimizer=torch.optim.SGD(self.module.parameters(), lr=1.0),
        )
        self.train = NNTrainHyperParams(local_batch_size=work.b, local_num_epochs=1, local_learning_rate=work.eta)
        self.done = 0

    def with_loss(self, model: nn.Module) -> nn.Module:
        """The `loss` and `metrics` that pfl asks of a module."""

        def loss(X: Tensor, y: Tensor) -> Tensor:
            self.samples += len(y)
            return cross_entropy(model(X), y)

        @torch.no_grad()
        def metrics(X: Tensor, y: Tensor) -> dict[str, Weighted]:
            return {"loss": Weighted(float(cross_entropy(model(X), y)) * len(y), len(y))}

        model.loss, model.metrics = loss, metrics
        return model

    def local_optimiser(self, parameters: Iterator[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        optimiser = torch.optim.SGD(parameters, lr=lr, weight_decay=self.work.l2, fused=True)
        optimiser.register_step_post_hook(self.count)
        return optimiser

    def count(self, *_: object) -> None:
        self.steps[self.user] += 1

    def rounds(self, n: int) -> None:
        """`run` goes on where the last one ended."""
        self.done += n
        parameters = NNAlgorithmParams(
            central_num_iterations=self.done,
            evaluation_frequency=NO_EVALUATION,
            train_cohort_size=self.work.participants,
            val_cohort_size=0,
        )
        self.algorithm.run(
            parameters,
            self.backend,
            self.model,
            self.train,
            NNEvalHyperParams(local_batch_size=None),
            send_metrics_to_platform=False,
        )

    def loss(self) -> float:
        return mean_loss(self.module, self.data)


if __name__ == "__main__":
    out = claim_stdout()
    serve(Pfl(sys.argv[1]), out)
