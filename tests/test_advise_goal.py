"""Advice towards an ε: steps that get there, stage batches that are large enough and no larger, and what it takes."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fewrounds as fr
from fewrounds.theory.advise import step_size
from fewrounds.theory.limits import BARE, FACTORS
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
