"""The contract, over every method in the registry and the variants that take another path through it."""

from __future__ import annotations

import itertools
import math

import pytest

import contract
import fewrounds as fr
from contract import Cost
from fewrounds.draws import Draws
from fewrounds.engine.base import BaseEngine
from fewrounds.methods import REGISTRY
from problems import classifier

METHODS = [fr.method(name, **contract.example_settings(cls)) for name, cls in REGISTRY.items()] + [
    fr.BVRLSGD(eta=0.05, K=3, b=2, form="theory"),
    fr.BVRLSGD(eta=0.05, K=2, b=1, b_tilde=4),
    fr.BVRLSGD(eta=0.05, K=3, b=2, combine="mean"),
    fr.SARAH(eta=0.05, b=2, b_tilde=4),
    fr.SCAFFOLD(eta=0.05, K=2, b=3, option="I"),
    fr.LocalGD(eta=0.05, K=3, k_hat="random"),
    fr.SCAFFOLD(eta=0.05, K=2, b=3, participants=2),
    fr.SVRG(eta=0.05, b=2, b_tilde=4),
    fr.PRSPIDER(eta=0.05, K=2, b=1, b_tilde=4),
    fr.FedGLOMO(eta=0.05, K=2, b=2, b_tilde=4, participants=2),
    fr.MIME(eta=0.05, K=2, b=2, b_tilde=4, participants=2),
    fr.MIMELite(eta=0.05, K=2, b=2, b_tilde=4, participants=2),
    fr.CELSGD(eta=0.05, K=2, b=2, b_tilde=4, participants=2),
    fr.FedGLOMO(eta=0.05, K=2, b=2, beta=1.0),
    fr.CELSGD(eta=0.05, K=2, b=2, beta=1.0),
    fr.InexactDANE(eta=0.05, K=3, b_tilde=4),
    fr.InexactDANE(eta=0.05, K=3, b_tilde=11),  # more than any worker has: all data
    fr.InexactDANE(eta=0.05, K=3, b=2, mu=0.1),
    fr.InexactDANE(eta=0.05, K=3, b=2, solver="sarah", b_tilde=4),
    fr.InexactDANE(eta=0.05, K=3, b=2, solver="sgd"),
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


def rounds_of(m, sizes, R: int) -> list[list[int]]:
    """Who takes part in each round (seed 1)."""
    everyone = list(range(len(sizes)))
    return [
        everyone if m.participants is None else Draws(1).subset(r, len(sizes), m.participants) for r in range(1, R + 1)
    ]


def scaffold(m, sizes, picked) -> Cost:
    """x and c down, Δy and Δc up; option I adds a pass over the data."""
    rounds = rounds_of(m, sizes, len(picked))
    each = [m.K * m.b + (n if m.option == "I" else 0) for n in sizes]
    took_part = [p for among in rounds for p in among]
    gradients = [took_part.count(p) * cost for p, cost in enumerate(each)]
    return Cost(gradients, up=2 * len(took_part), down=2 * len(took_part))


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


def pr_spider(m, sizes, picked) -> Cost:
    """A stage's start: x down, the gradient up. Its second round: v down (x̃ is known), x and v up. Others: both."""
    P, R = len(sizes), len(picked)
    starts, others = stage_starts(m, sizes, m.K * m.b, R)
    T = math.ceil(1 + (sum(sizes) / P if m.b_tilde is None else m.b_tilde) / (m.K * m.b))
    down = sum(1 if r % T < 2 else 2 for r in range(R))
    return Cost([s + others * 2 * m.K * m.b for s in starts], up=P * (R + others), down=P * down)


def large(m, sizes) -> list[int]:
    """The cost of a gradient of all data, or of b̃ samples, by worker."""
    full = m.b_tilde is None or m.b_tilde >= sum(sizes) / len(sizes)
    return list(sizes) if full else [m.b_tilde] * len(sizes)


def those_who_lack(rounds: list[list[int]]) -> int:
    """How many vectors x_{t-2} are sent: to those that did not get it as x_{t-1} in the round before."""
    return sum(len(set(now) - set(before)) for before, now in itertools.pairwise(rounds))


def fedglomo(m, sizes, picked) -> Cost:
    """x down and d up; from the second round on also x_{t-2} down."""
    rounds = rounds_of(m, sizes, len(picked))
    points = [(p, 1 if r == 0 or m.beta == 1 else 2) for r, among in enumerate(rounds) for p in among]
    one = [g + 2 * (m.K - 1) * m.b for g in large(m, sizes)]
    gradients = [sum(n for q, n in points if q == p) * one[p] for p in range(len(sizes))]
    again = 0 if m.beta == 1 else those_who_lack(rounds)
    return Cost(gradients, up=len(points), down=len(points) + again)


def mime(m, sizes, picked) -> Cost:
    """x down, the gradient up, m down, y up."""
    took_part = [p for among in rounds_of(m, sizes, len(picked)) for p in among]
    one = [g + 2 * (m.K - 1) * m.b for g in large(m, sizes)]
    return Cost([took_part.count(p) * g for p, g in enumerate(one)], up=2 * len(took_part), down=2 * len(took_part))


def mimelite(m, sizes, picked) -> Cost:
    """x and m down, y and the gradient up."""
    took_part = [p for among in rounds_of(m, sizes, len(picked)) for p in among]
    one = [g + m.K * m.b for g in large(m, sizes)]
    return Cost([took_part.count(p) * g for p, g in enumerate(one)], up=2 * len(took_part), down=2 * len(took_part))


def ce_lsgd(m, sizes, picked) -> Cost:
    """x down to those who take part, one vector up; ṽ to p̂ and x back; x_{t-2} to those who lack it."""
    rounds = rounds_of(m, sizes, len(picked))
    gradients = [2 * (m.K - 1) * m.b * picked.count(p) for p in range(len(sizes))]
    for r, among in enumerate(rounds):
        for p in among:
            gradients[p] += large(m, sizes)[p] if r == 0 else (1 if m.beta == 1 else 2) * m.K * m.b
    took_part = sum(map(len, rounds))
    again = 0 if m.beta == 1 else those_who_lack(rounds)
    return Cost(gradients, up=took_part + len(rounds), down=took_part + len(rounds) + again)


def inexact_dane(m, sizes, picked) -> Cost:
    """x down, the gradient up, h down, y up."""
    P, R = len(sizes), len(picked)
    if m.b is None:
        solving = [(m.K - (large(m, sizes) == list(sizes))) * n for n in sizes]
    else:
        solving = [m.K * m.b if m.solver == "sgd" else 2 * (m.K - 1) * m.b] * P
    return Cost([R * (g + s) for g, s in zip(large(m, sizes), solving, strict=True)], up=2 * P * R, down=2 * P * R)


FORMULAS = {
    "svrg": sarah,
    "pr-spider": pr_spider,
    "fedglomo": fedglomo,
    "mime": mime,
    "mimelite": mimelite,
    "ce-lsgd": ce_lsgd,
    "inexact-dane": inexact_dane,
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


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_aggregations_are_counted(method, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often a round waits for vectors from all who take part."""
    waits: dict[int, int] = {}

    def counting(verb):
        def counted(engine, *args, **kwargs):
            waits[engine.round] = waits.get(engine.round, 0) + 1
            return verb(engine, *args, **kwargs)

        return counted

    for name in ("mean", "every"):
        monkeypatch.setattr(BaseEngine, name, counting(getattr(BaseEngine, name)))
    contract.run(classifier(), method)
    assert set(waits.values()) == {method.aggregations}
