"""Advice towards an ε: steps that get there, stage batches that are large enough and no larger, and what it takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fewrounds as fr
from fewrounds.theory.limits import BARE, FACTORS
from fewrounds.theory.steps import step_size
from least_squares import Squares, squares
from measured import measurement


@pytest.fixture(scope="module")
def problem() -> Squares:
    return squares(0)


@pytest.mark.parametrize("name", ["minibatch-sgd", "local-sgd", "scaffold", "sarah", "bvr-l-sgd"])
def test_the_advised_step_gets_to_the_goal(name: str, problem: Squares) -> None:
    """And stays there. With the factors of noise and drift that fit train losses, SGD and the like stay above it."""
    epsilon = 0.01 * float(problem.measured.gradient_norm2)
    choice = fr.advise(problem.measured, 32, epsilon=epsilon, methods=[name]).choices[0]
    rounds = min(300, math.ceil(choice.rounds))
    reached = [problem.gradient_norm2(x) for x in problem.trace(choice.method, rounds)]
    assert np.mean(reached[-rounds // 4 :]) < epsilon


def test_noise_and_drift_are_those_of_theory_where_epsilon_is_the_goal() -> None:
    m = measurement()
    for choice in fr.advise(m, 64, epsilon=0.01).choices:
        for kind in choice.limits:
            factor = 1.0 if kind in ("noise", "local noise", "drift") else FACTORS[kind]
            assert choice.limits[kind] == pytest.approx(factor * choice.by_theory[kind]), kind
        assert step_size(m, choice.method, None, epsilon=0.01).limits == choice.limits
    own = fr.advise(m, 64, epsilon=0.01, factors={"noise": 2.0}, methods=["minibatch-sgd"]).choices[0]
    assert own.limits["noise"] == pytest.approx(2 * own.by_theory["noise"])
    assert own.limits["smoothness"] == pytest.approx(5 * own.by_theory["smoothness"])
    bare = fr.advise(m, 64, epsilon=0.01, factors=BARE, methods=["minibatch-sgd"]).choices[0]
    assert bare.limits == bare.by_theory


# ---------------------------------------------------------------------- stage batches


def staged(size: float, **fixed) -> fr.Advice:
    return fr.advise(measurement(sizes=(size,) * 10), 256, epsilon=0.07, **fixed)


def test_a_million_samples_are_as_good_as_a_stream() -> None:
    """b̃ = n/P ∧ σ²/(P ε): more would make stages longer, and steps shorter, for nothing."""
    many, endless = staged(1e6).table, staged(math.inf).table
    assert many.equals(endless)
    assert many["method"].iloc[0] == "bvr-l-sgd"
    assert set(many.set_index("method").loc[["sarah", "bvr-l-sgd"], "b_tilde"]) == {math.ceil(90 / (10 * 0.07))}


def test_all_data_where_they_are_no_more_than_needed() -> None:
    few, enough = (staged(size, methods=["bvr-l-sgd", "svrg", "pr-spider"]) for size in (129.0, 130.0))
    assert {choice.method.b_tilde for choice in few.choices} == {None}
    assert {choice.method.b_tilde for choice in enough.choices} == {129}
    assert all(math.isfinite(choice.rounds) for choice in enough.choices)
    equal = fr.advise(measurement(sigma2_mean=90.0), 64, epsilon=0.3, methods=["sarah"]).choices[0]
    assert math.isfinite(equal.rounds), "σ²/(P b̃) = ε but for rounding"


def test_who_gives_a_stage_batch_gets_it() -> None:
    own = [("bvr-l-sgd", {"b_tilde": 50}), ("sarah", {"b_tilde": None}), fr.SVRG(eta=1.0, b=256)]
    found = {choice.method.name: choice.method.b_tilde for choice in staged(1e6, methods=own).choices}
    assert found == {"bvr-l-sgd": 50, "sarah": None, "svrg": None}
    assert staged(1e6, methods=["sarah"], b_tilde=1000).best.b_tilde == 1000
    rounds = fr.advise(measurement(sizes=(1e6,) * 10), 256, rounds=100)
    assert rounds.of("bvr-l-sgd").method.b_tilde is None, "for a number of rounds all data, as in the experiments"
    mime = staged(1e6, methods=["mime"]).best
    assert mime.b_tilde == 256, "a batch of every round is no stage batch"


def test_stages_are_whole_but_for_one_that_outlasts_the_run() -> None:
    by_theory = {"smoothness": 1 / (20 + 30 / 2560), "recursion": math.sqrt(10 * 256 / 2) / 50}
    short = staged(1e6, methods=["sarah"]).choices[0]
    assert short.T == 2
    assert short.rounds == pytest.approx(3 / (min(by_theory.values()) * 0.07) + 2)
    long = staged(1e6, methods=[("sarah", {"T": 10**6})]).choices[0]
    assert long.rounds == pytest.approx(2 * 3 / (math.sqrt(10 * 256 / 10**6) / 50 * 0.07))


def test_seconds_are_of_the_stage_gradients_that_are_taken() -> None:
    """A stage of 10⁶ samples is begun once, and does not end in the rounds there are."""
    how = {"seconds_per_round": 1.0, "seconds_per_gradient": 1e-2, "epsilon": 1.0}
    m = measurement(sizes=(1e6,) * 10)
    choice = fr.advise(m, methods=[fr.SARAH(eta=1.0, b=64)], **how).choices[0]
    assert 1 < choice.rounds < choice.T
    gradients = 1e6 + (choice.rounds - 1) * 2 * 64
    assert choice.seconds == pytest.approx(choice.rounds + 1e-2 * gradients)
    local = fr.advise(m, methods=[fr.BVRLSGD(eta=1.0, K=4, b=16, b_tilde=640)], **how).choices[0]
    stages = math.ceil(local.rounds / 11)
    gradients = 640 * stages + (local.rounds - stages) * 128 + local.rounds * 2 * 3 * 16 / 10
    assert local.seconds == pytest.approx(local.rounds + 1e-2 * gradients)
