"""One run on one core against plain loops: W1, W2 and W3."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import plain
import works
from common import alone_on_a_core, bvr_l_sgd, local_sgd, matrix_products
from plain import tensors
from torch import Tensor
from torch.nn.functional import cross_entropy

import fewrounds as fr
from fewrounds.engine.programs import How, Policy

__all__ = ["alone_on_a_core", "w1", "w1_compiled", "w2", "w2_once", "w3"]

HERE = Path(__file__).parent
TRACED = Policy(How.TRACED)

PROCESSES = 3
"""Ratios differ between processes by some percent (where memory happens to lie): the median of so many is given."""


def w1() -> dict[str, Any]:
    return {**several("w1_compiled"), **w1_not_compiled()}


def w2() -> dict[str, Any]:
    return several("w2_once")


def several(name: str) -> dict[str, Any]:
    """The measurement of this name, each time in a process of its own; of each figure the one with the median ratio."""
    code = f"import json, one_core; one_core.alone_on_a_core(); print(json.dumps(one_core.{name}()))"
    command = [sys.executable, "-c", code]
    found = []
    for _ in range(PROCESSES):
        done = subprocess.run(command, check=True, cwd=HERE, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout))
    out = {}
    for key in found[0]:
        runs = sorted((one[key] for one in found), key=lambda one: float(one["ratio"]))
        out[key] = {**runs[len(runs) // 2], "ratios": [one["ratio"] for one in runs]}
    return out


def w1_loops() -> tuple[fr.Problem, list[tuple[Tensor, Tensor]], dict[str, Callable[[], None]]]:
    work, data = works.W1, tensors(works.W1)
    problem = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=work.l2)
    loops = {
        "plain": plain.LocalSGDLoop(plain.w1_model(), data, work).round,
        "plain, default step": plain.LocalSGDLoop(plain.w1_model(), data, work, fused=False).round,
        "matrix products": matrix_products(3072, (work.b, work.steps)),
    }
    return problem, data, loops


def w1_compiled() -> dict[str, Any]:
    problem, data, loops = w1_loops()
    return {
        "local-sgd": ratio(measure.against(loops, problem, data, local_sgd(works.W1), 9, compile=True)),
        "bvr-l-sgd": ratio(measure.against(loops, problem, data, bvr_l_sgd(works.W1), 9, compile=True)),
    }


def w1_not_compiled() -> dict[str, Any]:
    problem, data, loops = w1_loops()
    return {
        "local-sgd, not compiled": ratio(measure.against(loops, problem, data, local_sgd(works.W1), 5, compile=TRACED)),
        "bvr-l-sgd, not compiled": ratio(measure.against(loops, problem, data, bvr_l_sgd(works.W1), 5, compile=TRACED)),
    }


def w2_once() -> dict[str, Any]:
    work, data = works.W2, tensors(works.W2)
    problem = fr.Problem(plain.w2_model(), loss=cross_entropy)
    loops = {"plain": plain.LocalSGDLoop(plain.w2_model(), data, work).round}
    method = local_sgd(work, participants=work.participants)
    return {
        "local-sgd": ratio(measure.against(loops, problem, data, method, 3, compile=True)),
        "local-sgd, not compiled": ratio(measure.against(loops, problem, data, method, 2, compile=TRACED)),
    }


def ratio(found: dict[str, float]) -> dict[str, Any]:
    seconds = {name: value for name, value in found.items() if name != "ratio"}
    return {"ratio": found.get("ratio", seconds["ours"] / seconds["plain"]), "seconds": seconds}


def w3() -> dict[str, Any]:
    """All five methods, each against its own plain loop; the total is the sum of the five."""
    work, data = works.W3, tensors(works.W3)
    problem = fr.Problem(plain.w3_model(), loss=cross_entropy, l2=work.l2)
    n = work.K * work.b
    T = 1 + -(-work.samples // n)
    small, large = (work.b, work.steps), (n, work.workers)
    methods = {
        "minibatch_sgd": (fr.MinibatchSGD(eta=work.eta, b=n), [large]),
        "sarah": (fr.SARAH(eta=work.eta, b=n), [large, large]),
        "local_sgd": (local_sgd(work), [small]),
        "scaffold": (fr.SCAFFOLD(eta=work.eta, K=work.K, b=work.b), [small]),
        "bvr_l_sgd": (bvr_l_sgd(work), [large, large, (work.b, 2 * (work.K - 1))]),
    }
    out: dict[str, Any] = {}
    for label, how in (("compiled", True), ("not compiled", TRACED)):
        sums = {"ours": 0.0, "plain": 0.0, "matrix products": 0.0}
        for name, (method, batches) in methods.items():
            loop: Callable[[], None]
            if name == "local_sgd":
                loop = plain.LocalSGDLoop(plain.w3_model(), data, work).round
            else:
                loop = getattr(plain.OtherLoops(plain.w3_model, data, work, T), name)
            others = {"plain": loop, "matrix products": matrix_products(64, *batches)}
            t = measure.against(others, problem, data, method, 100, period=T, compile=how)
            out[f"{name.replace('_', '-')}, {label}"] = ratio(t)
            sums = {key: sums[key] + t[key] for key in sums}
        out[f"all five, {label}"] = ratio(sums)
    return out
