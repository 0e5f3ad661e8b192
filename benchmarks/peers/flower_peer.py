"""Flower's simulation as a system, W1 only: `flower_peer.py W1`.

A `ServerApp` with the `FedAvg` strategy and a `ClientApp` in PyTorch, by `run_simulation` and its Ray backend: one CPU
for each client, so as many actors at once as there are cores. No evaluation.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TextIO

from flower_client import WORK, app, own_data, own_model
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import System, claim_stdout, serve
from torch_side import mean_loss, model_at_start


class Flower(System):
    package = "flwr"

    def __init__(self, grid: Grid) -> None:
        super().__init__(WORK.workers)
        self.grid = grid
        self.strategy = FedAvg(
            fraction_train=1.0,
            fraction_evaluate=0.0,
            min_train_nodes=WORK.workers,
            min_available_nodes=WORK.workers,
            train_metrics_aggr_fn=self.count,
        )
        self.arrays = ArrayRecord(model_at_start("W1").state_dict())
        self.done = 0

    def count(self, replies: Iterable[RecordDict], weighted_by: str) -> MetricRecord:
        """What the clients counted in their loops."""
        for reply in replies:
            metrics = reply["metrics"]
            self.steps[int(metrics["worker"])] += int(metrics["steps"])
            self.samples += int(metrics["samples"])
        return MetricRecord()

    def rounds(self, n: int) -> None:
        config = ConfigRecord({"rounds-before": self.done})
        self.arrays = self.strategy.start(self.grid, self.arrays, num_rounds=n, train_config=config).arrays
        self.done += n

    def loss(self) -> float:
        model = own_model()
        model.load_state_dict(self.arrays.to_torch_state_dict())
        return mean_loss(model, own_data())


def simulate(out: TextIO) -> None:
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        serve(Flower(grid), out)

    cores = len(os.sched_getaffinity(0))
    resources = {"num_cpus": 1, "num_gpus": 0.0}
    run_simulation(
        server_app=server,
        client_app=app,
        num_supernodes=WORK.workers,
        backend_config={"client_resources": resources, "init_args": {"num_cpus": cores, "logging_level": "error"}},
    )


if __name__ == "__main__":
    simulate(claim_stdout())
