"""The plain PyTorch loop of benchmarks/plain.py as a system: `plain_peer.py W1|W2 fused|default`."""

from __future__ import annotations

import sys

from plain import LocalSGDLoop
from protocol import System, claim_stdout, serve
from torch_side import WORKS, mean_loss, model_at_start, tensors


class Plain(System):
    package = "torch"

    def __init__(self, name: str, fused: bool) -> None:
        self.work = WORKS[name]
        super().__init__(self.work.workers)
        self.model = model_at_start(name)
        self.loop = LocalSGDLoop(self.model, tensors(self.work), self.work, fused=fused)

    def rounds(self, n: int) -> None:
        for _ in range(n):
            self.loop.round()
        # The loop counts over all workers, and every participant takes K steps.
        self.samples = self.loop.steps * self.work.b
        if self.work.participants == self.work.workers:
            self.steps = [self.loop.steps // self.work.workers] * self.work.workers

    def loss(self) -> float:
        self.model.load_state_dict(dict(zip(self.model.state_dict(), self.loop.server, strict=True)))
        return mean_loss(self.model, self.loop.data)


if __name__ == "__main__":
    out = claim_stdout()
    serve(Plain(sys.argv[1], sys.argv[2] == "fused"), out)
