"""The contract, over every method in the registry and the variants that take another path through it."""

from __future__ import annotations

import math

import pytest

import contract
import fewrounds as fr
from contract import Cost
from fewrounds.draws import Draws
from fewrounds.methods import REGISTRY

METHODS = [fr.method(name, **contract.example_settings(cls)) for name, cls in REGISTRY.items()] + [
    fr.BVRLSGD(eta=0.05, K=3, b=2, form="theory"),
    fr.BVRLSGD(eta=0.05, K=2, b=1, b_tilde=4),
    fr.BVRLSGD(eta=0.05, K=3, b=2, combine="mean"),
    fr.SARAH(eta=0.05, b=2, b_tilde=4),
    fr.SCAFFOLD(eta=0.05, K=2, b=3, option="I"),
    fr.LocalGD(eta=0.05, K=3, k_hat="random"),
]


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("check", contract.ALL, ids=lambda check: check.__name__)
def test_contract(check, method) -> None:
    check(method)


# What each method costs, derived by hand. P workers, R rounds so far, n_p samples at worker p.


def one_exchange(gradients: list[int], P: int, R: int) -> Cost:
    """x down to all, one vector up from all, every round."""
    return Cost(gradients, up=P * R, down=P * R)


def minibatch_sgd(m, sizes, picked) -> Cost:
    P, R = len(sizes), len(picked)
    return one_exchange([m.b * R] * P, P, R)


def local_sgd(m, sizes, picked) -> Cost:
    P, R = len(sizes), len(picked)
    return one_exchange([m.K * m.b * R] * P, P, R)


def local_gd(m, sizes, picked) -> Cost:
    P, R = len(sizes), len(picked)
    steps = m.K * R
    if m.k_hat == "random":  # k̂ steps in each round, k̂ as drawn (seed 1)
        steps = sum(1 + Draws(1).integer("k_hat", r, m.K) for r in range(1, R + 1))
    return one_exchange([steps * n for n in sizes], P, R)


def scaffold(m, sizes, picked) -> Cost:
    """x and c down, Δy and Δc up; option I adds a pass over the data."""
    P, R = len(sizes), len(picked)
    extra = [n if m.option == "I" else 0 for n in sizes]
    return Cost([R * (m.K * m.b + e) for e in extra], up=2 * P * R, down=2 * P * R)


def stage_starts(m, sizes, batch: int, R: int) -> tuple[list[int], int]:
    """Cost of the stage gradients by worker, and the number of rounds that are no stage start."""
    mean = sum(sizes) / len(sizes)
    b_tilde = mean if m.b_tilde is None else m.b_tilde
    T = math.ceil(1 + b_tilde / batch)
    starts = math.ceil(R / T)
    return [starts * (n if b_tilde >= mean else m.b_tilde) for n in sizes], R - starts


def sarah(m, sizes, picked) -> Cost:
    P, R = len(sizes), len(picked)
    starts, others = stage_starts(m, sizes, m.b, R)
    return one_exchange([s + others * 2 * m.b for s in starts], P, R)


def bvr_l_sgd(m, sizes, picked) -> Cost:
    """ṽ^(p) up from all, x down to all; practical: ṽ to p̂ and x back; theory: ṽ to all, x_K and x_k̂ back from all.

    Where the workers' models are averaged: ṽ to all, x_K back from all.
    """
    P, R = len(sizes), len(picked)
    starts, others = stage_starts(m, sizes, m.K * m.b, R)
    routine = 2 * (m.K - 1) * m.b
    runs = [R if m.form == "theory" or m.combine == "mean" else picked.count(p) for p in range(P)]
    gradients = [s + others * 2 * m.K * m.b + routine * n for s, n in zip(starts, runs, strict=True)]
    if m.form == "theory":
        return Cost(gradients, up=3 * P * R, down=2 * P * R)
    answers = P if m.combine == "mean" else 1
    return Cost(gradients, up=(P + answers) * R, down=(P + answers) * R)


FORMULAS = {
    "minibatch-sgd": minibatch_sgd,
    "local-sgd": local_sgd,
    "local-gd": local_gd,
    "scaffold": scaffold,
    "sarah": sarah,
    "bvr-l-sgd": bvr_l_sgd,
}


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_counts_exactly(method) -> None:
    contract.check_counts_exactly(method, FORMULAS[method.name])


@pytest.mark.parametrize("method", [m for m in METHODS if getattr(m, "k_hat", "") != "random"], ids=repr)
def test_expected_cost(method) -> None:
    contract.check_expected_cost(method, rounds=24)  # a whole number of stages for every method here
