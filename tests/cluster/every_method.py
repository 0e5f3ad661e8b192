"""Run by torchrun: every method on the ranks that were started, 20 rounds, and what came out as one file of rank 0."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

import fewrounds as fr
from contract import example_settings
from fewrounds.methods.base import REGISTRY
from problems import classifier, quadratic

SIZES = (7, 4, 9, 3, 5, 8, 6)  # seven workers: no multiple of two or three ranks
ROUNDS = 20


def methods() -> dict[str, fr.Method]:
    found: dict[str, fr.Method] = {name: cls(**example_settings(cls)) for name, cls in REGISTRY.items()}
    found["bvr-l-sgd, theory"] = fr.BVRLSGD(eta=0.05, K=3, b=2, form="theory")
    found["bvr-l-sgd, mean"] = fr.BVRLSGD(eta=0.05, K=3, b=2, combine="mean")
    found["local-sgd, 2 of 7"] = fr.LocalSGD(eta=0.05, K=3, b=2, participants=2)
    found["scaffold, 2 of 7"] = fr.SCAFFOLD(eta=0.05, K=3, b=2, participants=2)
    found["fedglomo, 3 of 7"] = fr.FedGLOMO(eta=0.05, K=3, b=2, participants=3)
    found["mime, 3 of 7"] = fr.MIME(eta=0.05, K=3, b=2, participants=3)
    found["ce-lsgd, 3 of 7"] = fr.CELSGD(eta=0.05, K=3, b=2, participants=3)
    found["inexact-dane, sgd"] = fr.InexactDANE(eta=0.05, K=3, b=2, solver="sgd")
    found["scaffold, option I"] = fr.SCAFFOLD(eta=0.05, K=3, b=2, option="I")
    return found


def runs(engine: str) -> dict[str, fr.Result]:
    out = {}
    for (name, method), weights in itertools.product(methods().items(), ("uniform", "size")):
        for case in (classifier(SIZES), quadratic(SIZES)):
            asked: list[int] = []

            def worker(p: int, case=case, asked=asked) -> object:
                asked.append(p)
                return case.workers[p]

            test = case.workers[0] if case.problem.has_model else None
            key = f"{name}, {weights}, {'model' if case.problem.has_model else 'quadratic'}"
            out[key] = fr.train(
                case.problem, worker, method, ROUNDS, num_workers=len(SIZES), x0=case.x0, test=test, seed=1,
                weights=weights, trace=True, evaluate_every=7, engine=engine, progress=False,
            )  # fmt: skip
            if engine == "torchrun":
                assert asked == list(range(dist.get_rank(), len(SIZES), dist.get_world_size())), asked
    return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = runs("torchrun")
    traces = {name: result.trace for name, result in found.items()}
    digest = torch.stack([trace.sum() for trace in traces.values()])
    everyone = [torch.empty_like(digest) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, digest)
    assert all(torch.equal(one, digest) for one in everyone), "the ranks have drifted apart"
    if dist.get_rank() == 0:
        rest = {name: (result.ledger.to_json(), result.rows) for name, result in found.items()}
        torch.save({"traces": traces, "rest": rest}, sys.argv[1])
    dist.destroy_process_group()
