"""What lies beside the rounds (starting, compiling, evaluating), and where the time of a step of W1 goes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import plain
import torch
import works
from common import alone_on_a_core, bvr_l_sgd, local_sgd, matrix_products
from plain import tensors
from torch.nn.functional import cross_entropy

import fewrounds as fr

HERE = Path(__file__).parent
ROUNDS = 325
"""Of W1: the fewest for which the default cadence does not come from the least number of evaluations."""


def start() -> dict[str, Any]:
    """Seconds until `fewrounds --help` has answered, and imports, in turn."""
    commands = {
        "fewrounds --help": ["-m", "fewrounds", "--help"],
        "import fewrounds": ["-c", "import fewrounds"],
        "import fewrounds; fewrounds.train": ["-c", "import fewrounds; fewrounds.train"],
        "import torch": ["-c", "import torch"],
        "import torch, numpy": ["-c", "import torch, numpy"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    with measure.alone():
        for _ in range(6):
            for name, arguments in commands.items():
                run = [sys.executable, *arguments]
                times[name].append(measure.timed(lambda: subprocess.run(run, check=True, capture_output=True)))  # noqa: B023
    return {
        **{name: {"seconds": float(np.median(values[1:]))} for name, values in times.items()},
        "compiling W1's step of Local SGD, once for a machine": {"seconds": _compiling()},
    }


def _compiling() -> float:
    """Seconds that it takes to compile the step of W1 where nothing has been compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FEWROUNDS_HOME": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-c", "import costs; print(costs.compile_once())"]
        done = subprocess.run(command, check=True, env=environment, cwd=HERE, stdout=subprocess.PIPE)
    return float(done.stdout)


def compile_once() -> float:
    """Seconds that a run of W1 spends on compiling."""
    from fewrounds.engine import programs

    spent = 0.0
    build = programs._build

    def clocked(*arguments: Any) -> None:
        nonlocal spent
        spent += measure.timed(lambda: build(*arguments))

    programs._build = clocked
    alone_on_a_core()
    problem, data = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=works.W1.l2), tensors(works.W1)
    fr.train(problem, data, local_sgd(works.W1), 1, compile=True, progress=False)
    return spent


def evaluation() -> dict[str, Any]:
    """W1 with a test set of 10,000 at the default cadence: the share of the time that evaluation takes."""
    work, data = works.W1, tensors(works.W1)
    test = (torch.cat([X[:1000] for X, _ in data]), torch.cat([y[:1000] for _, y in data]))
    problem = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=work.l2)
    out = {}
    for method in (local_sgd(work), bvr_l_sgd(work)):
        fr.train(problem, data, method, 2, test=test, compile=True, progress=False)  # compiled, and in the cache
        with measure.alone():
            began = time.perf_counter()
            ends: list[float] = []
            result = fr.train(
                problem, data, method, ROUNDS, test=test, compile=True, progress=False,
                callbacks=[lambda record: ends.append(time.perf_counter())],  # noqa: B023
            )  # fmt: skip
        whole, training = ends[-1] - began, result.rows[-1]["seconds"]
        rows = [row["round"] for row in result.rows]
        out[method.name] = {"share": (whole - training) / whole, "evaluated": rows, "seconds": whole}
    return out


def profile() -> dict[str, Any]:
    """Where the time of a step of W1 goes: the parts of the engine under a clock, and the bare products beside them."""
    from fewrounds.data import shards
    from fewrounds.engine import host, loop, products, programs

    spent: dict[str, float] = {}

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            out = function(*arguments, **options)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
            return out

        return run

    def gather(*arguments: Any) -> Any:
        batches = shards.gather(*arguments)
        while (z := clocked("gather", next)(batches, None)) is not None:
            yield z

    load = programs._load
    changed = [
        (host, "gather", gather),
        (loop.Loop, "step", clocked("step", loop.Loop.step)),
        (products.Sum, "__call__", clocked("product", products.Sum.__call__)),
        (programs, "_load", lambda package: clocked("program", load(package))),
        (programs, "_loaded", {}),
    ]
    work, data, rounds = works.W1, tensors(works.W1), 12
    problem = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=work.l2)
    products_alone = matrix_products(3072, (work.b, work.steps))
    whole: list[float] = []
    bare: list[float] = []

    def after_round(record: fr.RoundRecord) -> None:
        nonlocal began
        if record.round == 2:
            spent.clear()  # tracing and loading
        elif record.round > 2:
            whole.append(time.perf_counter() - began)
        bare.append(measure.timed(products_alone))
        began = time.perf_counter()

    began = 0.0
    usual = [(where, name, getattr(where, name)) for where, name, _ in changed]
    try:
        for where, name, new in changed:
            setattr(where, name, new)
        with measure.without_evaluation():
            fr.train(
                problem, data, local_sgd(work), rounds + 2, compile=True, progress=False, evaluate_every=10**9,
                callbacks=[after_round],
            )  # fmt: skip
    finally:
        for where, name, old in usual:
            setattr(where, name, old)
    steps = rounds * work.steps
    a_step = {name: value / steps for name, value in spent.items()}
    a_round = sum(whole) / steps
    return {
        "the whole step": a_round,
        "gathering its batch": a_step["gather"],
        "the compiled program: forward product, activations, loss, small layers": a_step["program"],
        "the product that adds the gradient to the weights": a_step["product"],
        "handing tensors over, in Python": a_step["step"] - a_step["program"] - a_step["product"],
        "the rest: drawing, averaging, the ledger": a_round - a_step["gather"] - a_step["step"],
        "for comparison: its bare matrix products": sum(bare) / len(bare) / work.steps,
    }
