"""One point of the growth in P: `python scaling.py METHOD P` prints seconds a worker and round, and memory, as JSON.

Every worker has 50 samples of 3,072 numbers and takes K = 8 steps of batch 16, whatever P is, so it costs the same;
the number of rounds is chosen so that the total work is the same too, and whole stages (of two rounds) are counted.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import resource
import sys
import threading
import time

import plain
import psutil
import torch
from torch.nn.functional import cross_entropy

import fewrounds as fr
from fewrounds.methods.base import REGISTRY as METHODS

SAMPLES, K, b, TOTAL = 50, 8, 16, 4000


def main(name: str, P: int) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    workers = [
        (torch.randn(SAMPLES, 3072, generator=generator), torch.randint(10, (SAMPLES,), generator=generator))
        for _ in range(P)
    ]
    problem = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=5e-3)
    settings = {"K": K, "b": b} if METHODS[name].local else {"b": K * b}
    method = fr.method(name, eta=0.001, **settings)
    options = {"compile": True, "progress": False, "evaluate_every": 10**9}
    fr.train(problem, workers[:10], method, 2, **options)  # compiled and loaded, and little left behind
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    process, peak, ended = psutil.Process(), 0, threading.Event()
    before = process.memory_info().rss

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.01):
            peak = max(peak, process.memory_info().rss - before)

    threading.Thread(target=watch, daemon=True).start()
    ends: list[float] = []
    fr.train(
        problem, workers, method, 4 + TOTAL // P, callbacks=[lambda record: ends.append(time.perf_counter())], **options
    )
    ended.set()
    # Not the first three rounds, which touch memory for the first time, nor the last, which ends with an evaluation.
    rounds = [after - before for before, after in itertools.pairwise(ends[2:-1])]
    found = {
        "seconds_per_worker": sum(rounds) / (len(rounds) * P),
        "rounds": len(rounds),
        "megabytes": peak / 1e6,
        "vectors": peak / (4 * problem.dim),
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
