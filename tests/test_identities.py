"""The identities that follow from the paper, one test each, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fewrounds as fr
from fewrounds.draws import Draws
from problems import CASES, classifier, quadratic
from quadratics import biased_fixed_point, curvatures, optimum, per_worker_quadratic, trace

TIGHT = {"rtol": 1e-11, "atol": 1e-11}


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("b_tilde", [None, 5])
def test_bvr_l_sgd_with_one_local_step_is_sarah(case_name: str, b_tilde: int | None) -> None:
    """Remark "Generalization of SARAH": K = 1 matches exactly."""
    case = CASES[case_name]()
    bvr = trace(case, fr.BVRLSGD(eta=0.05, K=1, b=2, b_tilde=b_tilde), 20)
    sarah = trace(case, fr.SARAH(eta=0.05, b=2, b_tilde=b_tilde), 20)
    np.testing.assert_array_equal(bvr, sarah)


@pytest.mark.parametrize("case_name", CASES)
def test_local_sgd_with_one_step_is_minibatch_sgd(case_name: str) -> None:
    case = CASES[case_name]()
    local = trace(case, fr.LocalSGD(eta=0.05, K=1, b=3), 20)
    minibatch = trace(case, fr.MinibatchSGD(eta=0.05, b=3), 20)
    np.testing.assert_allclose(local, minibatch, **TIGHT)


@pytest.mark.parametrize("case_name", CASES)
def test_practical_and_theory_form_have_the_same_iterates(case_name: str) -> None:
    """Remark "Practical Implementation"."""
    case = CASES[case_name]()
    practical = trace(case, fr.BVRLSGD(eta=0.05, K=3, b=2), 20)
    theory = trace(case, fr.BVRLSGD(eta=0.05, K=3, b=2, form="theory"), 20)
    np.testing.assert_allclose(practical, theory, **TIGHT)


def test_equal_hessians_make_bvr_l_sgd_gradient_descent() -> None:
    """All samples share the Hessian A, so every difference is A(x - x') exactly, even at b = 1."""
    case = quadratic(shared_hessian=True)
    eta, K, T, S = 0.1, 4, 3, 5
    x = trace(case, fr.BVRLSGD(eta=eta, K=K, b=1, T=T), S * T)[-1]
    A = case.workers[0][0][0]
    _, ms = curvatures(case)
    x_star = np.mean(ms, axis=0)
    shrink = np.linalg.matrix_power(np.eye(5) - eta * A, K * T * S)
    np.testing.assert_allclose(x, x_star + shrink @ (case.x0 - x_star), rtol=1e-10, atol=1e-10)
    assert np.linalg.norm(shrink @ (case.x0 - x_star)) > 1e-3, "not yet converged, so the power K·T·S is tested"


def test_local_gd_has_the_biased_fixed_point() -> None:
    case = quadratic()
    eta, K = 0.3, 5
    x = trace(case, fr.LocalGD(eta=eta, K=K), 200)[-1]
    np.testing.assert_allclose(x, biased_fixed_point(case, eta, K), rtol=1e-10, atol=1e-10)
    assert np.linalg.norm(x - optimum(case)) > 1e-3, "the bias is there"


def test_local_sgd_on_full_gradients_has_the_biased_fixed_point() -> None:
    case = per_worker_quadratic()
    x = trace(case, fr.LocalSGD(eta=0.2, K=4, b=2), 300)[-1]
    np.testing.assert_allclose(x, biased_fixed_point(case, 0.2, 4), rtol=1e-10, atol=1e-10)
    assert np.linalg.norm(x - optimum(case)) > 1e-2


@pytest.mark.parametrize(
    "method",
    [
        fr.SCAFFOLD(eta=0.1, K=4, b=2),
        fr.SCAFFOLD(eta=0.1, K=4, b=2, option="I"),
        fr.BVRLSGD(eta=0.1, K=4, b=2),
        fr.BVRLSGD(eta=0.1, K=4, b=2, form="theory"),
        fr.BVRLSGD(eta=0.1, K=4, b=2, combine="mean"),
        fr.SARAH(eta=0.3, b=2),
        fr.MinibatchSGD(eta=0.3, b=2),
    ],
    ids=repr,
)
def test_unbiased_methods_reach_the_optimum(method: fr.Method) -> None:
    case = per_worker_quadratic()
    x = trace(case, method, 600)[-1]
    np.testing.assert_allclose(x, optimum(case), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["sarah", "bvr-l-sgd"])
def test_b_tilde_of_the_mean_size_is_the_full_gradient(name: str) -> None:
    """Line 3 of Algorithm 2: b̃ ≥ the mean size. At 4 with sizes 5, 3 and 4 it is full, at 3 it is sampled."""
    case = quadratic(sizes=(5, 3, 4))
    settings = {"eta": 0.05, "b": 2, "T": 3, **({"K": 2} if name == "bvr-l-sgd" else {})}
    full, equal, less = (trace(case, fr.method(name, **settings, b_tilde=b_tilde), 6) for b_tilde in (None, 4, 3))
    np.testing.assert_array_equal(equal, full)
    assert abs(less - full).max() > 1e-3


def test_mean_of_control_variates_is_c() -> None:
    """SCAFFOLD keeps c = mean_p c_p; at the optimum of full gradients c_p is each worker's gradient there."""
    case = per_worker_quadratic()
    seen = {}

    class Watched(fr.SCAFFOLD):
        def round(self, s, engine):
            new = super().round(s, engine)
            seen["c"], seen["c_p"] = new.c, [engine._host.staged["c", p] for p in range(4)]
            return new

    trace(case, Watched(eta=0.1, K=4, b=2), 600)
    np.testing.assert_allclose(seen["c"], sum(seen["c_p"]) / 4, **TIGHT)
    x_star = optimum(case)
    for p in range(4):
        np.testing.assert_allclose(seen["c_p"][p], case.full(p, x_star), rtol=1e-9, atol=1e-9)
    assert np.linalg.norm(case.full(0, x_star)) > 0.1


def test_theory_output_is_an_inner_iterate_of_a_random_round() -> None:
    """x^out is x_k̂ of the picked worker: on one worker with K = 1 it is one of the iterates x_1 … x_R, uniformly."""
    case = quadratic(sizes=(3,), seed=5)
    counts = np.zeros(4)
    for seed in range(400):
        result = fr.train(
            case.problem, case.workers, fr.BVRLSGD(eta=0.1, K=1, b=1, form="theory"), 4, x0=case.x0, seed=seed,
            trace=True, progress=False,
        )  # fmt: skip
        hits = [bool((result.x == x).all()) for x in result.trace]
        assert sum(hits) == 1
        assert not hits[0]
        counts[hits.index(True) - 1] += 1
    # 400 draws over 4 rounds: a chi-square above 27.9 has probability 4e-6 (3 degrees of freedom)
    assert ((counts - 100) ** 2 / 100).sum() < 27.9


def test_local_gd_with_random_k_hat_answers_with_a_random_round() -> None:
    case = quadratic(sizes=(3,), seed=5)
    answers = []
    for seed in range(60):
        result = fr.train(
            case.problem, case.workers, fr.LocalGD(eta=0.1, K=3, k_hat="random"), 4, x0=case.x0, seed=seed, trace=True,
            progress=False,
        )  # fmt: skip
        answers.append([bool((result.x == x).all()) for x in result.trace].index(True))
    # each of 4 rounds is missed by 60 draws with probability 3e-8
    assert set(answers) == {1, 2, 3, 4}


def test_theory_output_with_local_steps_is_the_drawn_inner_step() -> None:
    case = quadratic(sizes=(3,), seed=5)
    seen = set()
    for seed in range(20):
        result = fr.train(
            case.problem, case.workers, fr.BVRLSGD(eta=0.1, K=3, b=1, form="theory"), 1, x0=case.x0, seed=seed,
            progress=False,
        )  # fmt: skip
        draws = Draws(seed)
        index = draws.generator("local", 1, 0).integers(3, size=(2, 1))
        v, path = case.full(0, case.x0), [case.x0, case.x0 - 0.1 * case.full(0, case.x0)]
        for k in (2, 3):
            v = case.gradient(0, path[-1], index[k - 2]) - case.gradient(0, path[-2], index[k - 2]) + v
            path.append(path[-1] - 0.1 * v)
        k_hat = 1 + draws.integer("k_hat", 1, 3, worker=0)
        np.testing.assert_allclose(result.x.numpy(), path[k_hat], **TIGHT)
        seen.add(k_hat)
    assert seen == {1, 2, 3}


def test_only_those_who_take_part_are_counted() -> None:
    case = classifier()
    method = fr.LocalSGD(eta=0.05, K=3, b=2, participants=2)
    result = fr.train(case.problem, case.workers, method, 9, x0=case.x0, seed=4, progress=False)
    took_part = [p for t in range(1, 10) for p in Draws(4).subset(t, 3, 2)]
    assert list(result.ledger.gradients) == [6 * took_part.count(p) for p in range(3)]
    assert (result.ledger.vectors_up, result.ledger.vectors_down) == (18, 18)
    assert result.ledger.gradients_per_worker == pytest.approx(9 * method.gradients_per_round(case.sizes))


def test_everyone_taking_part_is_local_sgd() -> None:
    case = classifier()
    options = {"x0": case.x0, "seed": 4, "trace": True, "progress": False}
    everyone = fr.train(case.problem, case.workers, fr.LocalSGD(eta=0.05, K=3, b=2, participants=3), 9, **options)
    usual = fr.train(case.problem, case.workers, fr.LocalSGD(eta=0.05, K=3, b=2), 9, **options)
    torch.testing.assert_close(everyone.trace, usual.trace, rtol=1e-12, atol=1e-12)
    assert everyone.ledger == usual.ledger


@pytest.mark.parametrize(
    ("participants", "message"),
    [(4, "participants = 4, but there are 3 workers"), (0, "participants"), (1.5, "participants")],
)
def test_a_wrong_number_of_participants_is_named(participants: float, message: str) -> None:
    case = classifier()

    def attempt() -> None:
        method = fr.LocalSGD(eta=0.05, K=3, b=2, participants=participants)
        fr.train(case.problem, case.workers, method, 1, progress=False)

    with pytest.raises(fr.SettingError, match=message):
        attempt()
