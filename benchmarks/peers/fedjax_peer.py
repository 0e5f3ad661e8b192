"""FedJAX as a system, W1 only: `fedjax_peer.py W1`.

`fedjax.algorithms.fed_avg` with its jit `for_each_client` backend and in-memory client datasets. Batches are drawn by
its `shuffle_repeat_batch`: 64 batches of a fresh shuffle each round, so without replacement within a round.
"""

from __future__ import annotations

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import works
from fedjax.algorithms import fed_avg
from protocol import System, claim_stdout, serve

WORK = works.W1
Parameters = list[jax.Array]
Batch = dict[str, jax.Array]


def batch_loss(parameters: Parameters, batch: Batch) -> jax.Array:
    W1, b1, W2, b2 = parameters
    logits = jax.nn.softplus(batch["x"] @ W1 + b1) @ W2 + b2
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()


def gradient(parameters: Parameters, batch: Batch, rng: jax.Array) -> Parameters:
    return jax.grad(batch_loss)(parameters, batch)


class FedJax(System):
    package = "fedjax"

    def __init__(self) -> None:
        super().__init__(WORK.workers)
        clients = {f"{p}": {"x": X, "y": y.astype(np.int32)} for p, (X, y) in enumerate(works.data(WORK))}
        self.data = fedjax.InMemoryFederatedData(clients)
        self.fed_avg = self.algorithm(gradient)
        self.sampler = self.every_worker(self.data)
        W1, b1, W2, b2 = works.mlp_start()  # weights are [out, in] there
        self.server = self.fed_avg.init([jnp.asarray(array) for array in (W1.T, b1, W2.T, b2)])

    def algorithm(self, gradient: fedjax.core.typing.PyTree) -> fedjax.FederatedAlgorithm:
        client = optax.chain(optax.add_decayed_weights(WORK.l2), optax.sgd(WORK.eta))
        return fed_avg.federated_averaging(
            gradient,
            fedjax.optimizers.create_optimizer_from_optax(client),
            fedjax.optimizers.sgd(learning_rate=1.0),
            fedjax.ShuffleRepeatBatchHParams(batch_size=WORK.b, num_epochs=None, num_steps=WORK.K),
        )

    def every_worker(self, data: fedjax.FederatedData) -> fedjax.client_samplers.ClientSampler:
        return fedjax.client_samplers.UniformGetClientSampler(data, WORK.participants, seed=0)

    def rounds(self, n: int) -> None:
        for _ in range(n):
            self.server, _ = self.fed_avg.apply(self.server, self.sampler.sample())
        jax.block_until_ready(self.server.params)

    def check(self, n: int) -> None:
        """The same algorithm, with a call back to Python out of every compiled step that says whose it is."""

        def count(worker: np.ndarray) -> None:
            assert (worker == worker[0]).all()
            self.steps[int(worker[0])] += 1
            self.samples += len(worker)

        def counted(parameters: Parameters, batch: Batch, rng: jax.Array) -> Parameters:
            jax.debug.callback(count, batch["worker"])
            return gradient(parameters, batch, rng)

        def named(client: str, examples: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {**examples, "worker": np.full(len(examples["y"]), int(client), np.int32)}

        fed_avg, sampler = self.algorithm(counted), self.every_worker(self.data.preprocess_client(named))
        for _ in range(n):
            self.server, _ = fed_avg.apply(self.server, sampler.sample())
        jax.block_until_ready(self.server.params)
        jax.effects_barrier()

    def loss(self) -> float:
        losses = [batch_loss(self.server.params, client.all_examples()) for _, client in self.data.clients()]
        return float(sum(losses) / len(losses))


if __name__ == "__main__":
    out = claim_stdout()
    serve(FedJax(), out)
