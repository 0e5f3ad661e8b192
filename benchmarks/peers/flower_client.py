"""The client of flower_peer.py: a module of its own, so that an actor keeps its data and model between messages."""

from __future__ import annotations

import functools

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from plain import Data, w1_model
from torch import nn
from torch.nn.functional import cross_entropy
from torch_side import WORKS, tensors

WORK = WORKS["W1"]

app = ClientApp()


@functools.cache
def own_model() -> nn.Module:
    return w1_model()


@functools.cache
def own_data() -> Data:
    return tensors(WORK)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round of one worker: the same loop as plain.py's."""
    worker = int(context.node_config["partition-id"])
    config = message.content["config"]
    number = int(config["rounds-before"]) + int(config["server-round"])
    generator = torch.Generator().manual_seed(number * WORK.workers + worker)
    model, (X, y) = own_model(), own_data()[worker]
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=WORK.eta, weight_decay=WORK.l2, fused=True)
    index = torch.randint(WORK.samples, (WORK.K, WORK.b), generator=generator)
    steps = samples = 0
    for k in range(WORK.K):
        optimiser.zero_grad()
        batch = y[index[k]]
        cross_entropy(model(X[index[k]]), batch).backward()
        optimiser.step()
        steps += 1
        samples += len(batch)
    metrics = {"num-examples": WORK.samples, "worker": worker, "steps": steps, "samples": samples}
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    return Message(content=reply, reply_to=message)
