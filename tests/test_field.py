"""The methods of the paper's related work: what each reduces to, and where each goes on unequal quadratics."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import fewrounds as fr
from fewrounds.draws import Draws
from fewrounds.opening import open_engine
from problems import CASES, Case, quadratic
from quadratics import biased_fixed_point, curvatures, optimum, per_worker_quadratic, trace

TIGHT = {"rtol": 1e-11, "atol": 1e-11}


# ---------------------------------------------------------------------- reductions


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("b_tilde", [None, 5])
def test_pr_spider_with_one_local_step_is_sarah(case_name: str, b_tilde: int | None) -> None:
    case = CASES[case_name]()
    spider = trace(case, fr.PRSPIDER(eta=0.05, K=1, b=2, b_tilde=b_tilde), 20)
    np.testing.assert_allclose(spider, trace(case, fr.SARAH(eta=0.05, b=2, b_tilde=b_tilde), 20), **TIGHT)


@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize("K", [1, 3])
def test_ce_lsgd_that_forgets_nothing_is_a_stage_of_bvr_l_sgd(case_name: str, K: int) -> None:
    """No momentum decay and a full first gradient: the recursion of BVR-L-SGD's rounds."""
    case = CASES[case_name]()
    ce = trace(case, fr.CELSGD(eta=0.05, K=K, b=2, beta=0.0), 12)
    np.testing.assert_allclose(ce, trace(case, fr.BVRLSGD(eta=0.05, K=K, b=2, T=12), 12), **TIGHT)


def test_ce_lsgd_with_full_batches_restarts_by_itself() -> None:
    """Where a batch is all there is, ṽ is the gradient whatever β: every round is the first of a stage."""
    case = per_worker_quadratic()
    stages = trace(case, fr.BVRLSGD(eta=0.1, K=3, b=1, T=1), 12)
    for beta in (0.0, 0.3, 1.0):
        np.testing.assert_allclose(trace(case, fr.CELSGD(eta=0.1, K=3, b=1, beta=beta), 12), stages, **TIGHT)


@pytest.mark.parametrize("case_name", CASES)
def test_mime_with_one_worker_is_sgd_corrected_by_svrg(case_name: str) -> None:
    """P = 1 and no momentum: an epoch of SVRG a round, anchored at its start, written out here."""
    case = one_worker(CASES[case_name]())
    eta, K, b = 0.05, 4, 2
    xs = [case.x0]
    for t in range(1, 7):
        anchor, mu = xs[-1], case.full(0, xs[-1])
        y = anchor - eta * mu  # the first correction is 0
        for index in Draws(0).generator("local", t, 0).integers(case.sizes[0], size=(K - 1, b)):
            y = y - eta * (case.gradient(0, y, index) - case.gradient(0, anchor, index) + mu)
        xs.append(y)
    np.testing.assert_allclose(trace(case, fr.MIME(eta=eta, K=K, b=b, beta=0.0), 6), np.array(xs), **TIGHT)


def test_mime_with_one_worker_takes_the_steps_of_svrg_where_samples_do_not_matter() -> None:
    """Every K rounds of SVRG with stages of K rounds are one of MIME, if all samples share the Hessian."""
    case = one_worker(quadratic(shared_hessian=True))
    mime = trace(case, fr.MIME(eta=0.1, K=4, b=1, beta=0.0), 5)
    svrg = trace(case, fr.SVRG(eta=0.1, b=1, T=4), 20)
    np.testing.assert_allclose(mime, svrg[::4], **TIGHT)


@pytest.mark.parametrize("case_name", CASES)
def test_mimelite_without_momentum_is_local_sgd(case_name: str) -> None:
    case = CASES[case_name]()
    lite = trace(case, fr.MIMELite(eta=0.05, K=3, b=2, beta=0.0), 10)
    np.testing.assert_allclose(lite, trace(case, fr.LocalSGD(eta=0.05, K=3, b=2), 10), **TIGHT)


@pytest.mark.parametrize("case_name", CASES)
def test_mime_with_one_step_is_gradient_descent_with_momentum(case_name: str) -> None:
    case = CASES[case_name]()
    x, m = case.x0, np.zeros_like(case.x0)
    xs = [x]
    for _ in range(10):
        m = 0.1 * np.mean([case.full(p, x) for p in range(3)], axis=0) + 0.9 * m
        x = x - 0.5 * m
        xs.append(x)
    np.testing.assert_allclose(trace(case, fr.MIME(eta=0.5, K=1, b=2), 10), np.array(xs), **TIGHT)


@pytest.mark.parametrize("case_name", CASES)
def test_inexact_dane_with_sarah_is_bvr_l_sgd_that_averages(case_name: str) -> None:
    """Without regularisation: a stage a round, and the mean of the workers' models."""
    case = CASES[case_name]()
    dane = trace(case, fr.InexactDANE(eta=0.05, K=3, b=2, solver="sarah"), 10)
    bvr = trace(case, fr.BVRLSGD(eta=0.05, K=3, b=2, T=1, combine="mean"), 10)
    np.testing.assert_allclose(dane, bvr, **TIGHT)


@pytest.mark.parametrize("case_name", CASES)
def test_inexact_dane_with_svrg_is_mime_without_momentum(case_name: str) -> None:
    case = CASES[case_name]()
    dane = trace(case, fr.InexactDANE(eta=0.05, K=3, b=2), 10)
    np.testing.assert_allclose(dane, trace(case, fr.MIME(eta=0.05, K=3, b=2, beta=0.0), 10), **TIGHT)


@pytest.mark.parametrize("K", [1, 4])
def test_fedglomo_without_momentum_is_local_gd_on_full_batches(K: int) -> None:
    """One sample a worker, so that every batch is full and the recursion is the gradient."""
    case = per_worker_quadratic()
    glomo = trace(case, fr.FedGLOMO(eta=0.05, K=K, b=2, beta=1.0), 10)
    np.testing.assert_allclose(glomo, trace(case, fr.LocalGD(eta=0.05, K=K), 10), **TIGHT)


@pytest.mark.parametrize(
    "method",
    [
        fr.FedGLOMO(eta=0.05, K=3, b=2),
        fr.MIME(eta=0.05, K=3, b=2),
        fr.MIMELite(eta=0.05, K=3, b=2),
        fr.CELSGD(eta=0.05, K=3, b=2),
        fr.SCAFFOLD(eta=0.05, K=3, b=2),
    ],
    ids=repr,
)
def test_everyone_taking_part_is_the_method_itself(method: fr.Method) -> None:
    case = CASES["classifier"]()
    options = {"x0": case.x0, "seed": 4, "trace": True, "progress": False}
    usual = fr.train(case.problem, case.workers, method, 9, **options)
    everyone = fr.train(
        case.problem, case.workers, fr.method(method.name, **{**method.settings(), "participants": 3}), 9, **options
    )
    torch.testing.assert_close(everyone.trace, usual.trace, rtol=1e-12, atol=1e-12)
    assert everyone.ledger == usual.ledger
    with pytest.raises(fr.SettingError, match=f"{method.name}: participants = 4, but there are 3 workers"):
        fr.train(
            case.problem, case.workers, fr.method(method.name, **{**method.settings(), "participants": 4}), 1,
            progress=False,
        )  # fmt: skip


def one_worker(case: Case) -> Case:
    return Case(case.problem, case.workers[:1], case.x0, case.gradient)


# ---------------------------------------------------------------------- estimators


def test_svrg_is_unbiased_and_sarah_is_not() -> None:
    """Given the rounds before: the mean of SVRG's v over the samples of a round is ∇f(x), that of SARAH's is not.

    SARAH's is ∇f(x) plus the error that v had the round before. One state, and the samples of 1,500 rounds.
    """
    case = quadratic(d=3)
    eta = 0.2
    engine = open_engine(case.problem, case.workers, x0=torch.from_numpy(case.x0), seed=1, compile=False).engine

    def gradient(x: torch.Tensor) -> np.ndarray:
        return np.mean([case.full(p, x.numpy()) for p in range(3)], axis=0)

    for method in (fr.SVRG(eta=eta, b=1, T=10**6), fr.SARAH(eta=eta, b=1, T=10**6)):
        s = method.init(torch.from_numpy(case.x0))
        for round in (1, 2, 3):
            engine.begin(round)
            s = method.round(s, engine)
        before = s.v.numpy() - gradient(s.x_prev) if isinstance(method, fr.SARAH) else np.zeros(3)
        found = []
        for round in range(4, 1504):
            engine.begin(round)
            found.append((s.x - method.round(s, engine).x).numpy() / eta)
        errors = np.array(found) - gradient(s.x)
        deviation = errors.std(axis=0, ddof=1) / np.sqrt(len(found))
        # six normal scores, all below 5.2: a false alarm has probability 1.2e-6
        assert (np.abs(errors.mean(axis=0) - before) < 5.2 * deviation).all(), method
        if isinstance(method, fr.SARAH):
            assert (np.abs(errors.mean(axis=0)) > 10 * deviation).any(), "its bias is there to be seen"


def test_fedglomo_carries_the_momentum_over() -> None:
    """β decides: with 1 the server forgets at once, with less it does not."""
    case = CASES["classifier"]()
    first, other = (trace(case, fr.FedGLOMO(eta=0.05, K=3, b=2, beta=beta), 4) for beta in (1.0, 0.3))
    np.testing.assert_array_equal(first[:2], other[:2])
    assert abs(first[2:] - other[2:]).max() > 1e-4


# ---------------------------------------------------------------------- fixed points


@pytest.mark.parametrize(
    "method",
    [
        fr.SVRG(eta=0.3, b=2),
        fr.PRSPIDER(eta=0.1, K=4, b=2),
        fr.PRSPIDER(eta=0.1, K=4, b=2, T=6),
        fr.MIME(eta=0.1, K=4, b=2),
        fr.MIME(eta=0.1, K=4, b=2, beta=0.0),
        fr.CELSGD(eta=0.1, K=4, b=2),
        fr.InexactDANE(eta=0.1, K=4),
        fr.InexactDANE(eta=0.1, K=4, mu=0.5, eta_dane=0.8),
        fr.InexactDANE(eta=0.1, K=4, b=2, solver="svrg"),
        fr.InexactDANE(eta=0.1, K=4, b=2, solver="sarah"),
        fr.InexactDANE(eta=0.1, K=4, b=2, solver="sgd"),
    ],
    ids=repr,
)
def test_methods_without_bias_reach_the_optimum(method: fr.Method) -> None:
    case = per_worker_quadratic()
    np.testing.assert_allclose(trace(case, method, 400)[-1], optimum(case), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("beta", [0.2, 1.0])
def test_fedglomo_has_the_bias_of_local_gd(beta: float) -> None:
    """d is zero where K local steps lead nowhere on average, momentum or not."""
    case = per_worker_quadratic()
    x = trace(case, fr.FedGLOMO(eta=0.2, K=4, b=2, beta=beta), 600)[-1]
    np.testing.assert_allclose(x, biased_fixed_point(case, 0.2, 4), rtol=1e-9, atol=1e-9)
    assert np.linalg.norm(x - optimum(case)) > 1e-2


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9])
def test_mimelite_is_biased_less_by_momentum(beta: float) -> None:
    """Fixed point: m = ∇f(x), and the mean of K steps along (1 - β) ∇f_p(y) + β m is 0; solved here as an equation."""
    case = per_worker_quadratic()
    eta, K = 0.2, 4
    x = trace(case, fr.MIMELite(eta=eta, K=K, b=2, beta=beta), 600)[-1]
    As, ms = curvatures(case)
    A, Am = np.mean(As, axis=0), np.mean([A @ m for A, m in zip(As, ms, strict=True)], axis=0)
    left, right = np.zeros((5, 5)), np.zeros(5)
    for A_p, m_p in zip(As, ms, strict=True):
        # y_k - x = M (y_{k-1} - x) - η [(1 - β) A_p (x - m_p) + β (A x - Am)],  M = I - η (1 - β) A_p
        M = np.eye(5) - eta * (1 - beta) * A_p
        S = sum(np.linalg.matrix_power(M, k) for k in range(K))
        left += S @ ((1 - beta) * A_p + beta * A)
        right += S @ ((1 - beta) * A_p @ m_p + beta * Am)
    np.testing.assert_allclose(x, np.linalg.solve(left, right), rtol=1e-8, atol=1e-8)
    distance = np.linalg.norm(x - optimum(case))
    assert 1e-3 < distance < {0.0: 0.2, 0.5: 0.05, 0.9: 0.002}[beta], "the bias is there, and shrinks with β"
    if beta == 0:
        np.testing.assert_allclose(x, biased_fixed_point(case, eta, K), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("mu", "eta_dane"), [(0.0, 1.0), (0.6, 1.0), (0.3, 0.7)])
def test_inexact_dane_with_exact_solutions_follows_its_linear_iteration(mu: float, eta_dane: float) -> None:
    """x_t - x* = [I - η_D mean_p (A_p + μI)^{-1} A] (x_{t-1} - x*) on quadratics, once K steps solve the subproblem."""
    case = quadratic()
    As, _ = curvatures(case)
    x = trace(case, fr.InexactDANE(eta=0.6, K=300, mu=mu, eta_dane=eta_dane), 5)
    mean_inverse = np.mean([np.linalg.inv(A + mu * np.eye(5)) for A in As], axis=0)
    shrink = np.eye(5) - eta_dane * mean_inverse @ np.mean(As, axis=0)
    x_star = optimum(case)
    for t in range(6):
        expected = x_star + np.linalg.matrix_power(shrink, t) @ (case.x0 - x_star)
        np.testing.assert_allclose(x[t], expected, rtol=1e-9, atol=1e-9)
    assert np.linalg.norm(x[3] - x_star) > 1e-4, "not yet converged, so the matrix is tested"


@pytest.mark.parametrize("mu", [0.0, 1.0])
def test_what_the_rate_of_inexact_dane_rests_on(mu: float) -> None:
    """Round by round and worker by worker: f(y) ≤ f(x) - (μ - ζ)/2 ‖y - x‖² and ‖∇f(y)‖ ≤ (μ + ζ) ‖y - x‖."""
    case = quadratic()
    As, _ = curvatures(case)
    A, x_star = np.mean(As, axis=0), optimum(case)
    zeta = max(np.linalg.norm(A_p - A, 2) for A_p in As)  # ‖∇²f_p - ∇²f‖ is what the argument needs
    mu = mu * 2 * zeta

    def above(x: np.ndarray) -> float:  # f(x) - f*
        return 0.5 * (x - x_star) @ A @ (x - x_star)

    xs = trace(case, fr.InexactDANE(eta=0.6, K=400, mu=mu), 4)
    for x, after in pairwise(xs):
        ys = [x - np.linalg.solve(A_p + mu * np.eye(5), A @ (x - x_star)) for A_p in As]
        np.testing.assert_allclose(after, np.mean(ys, axis=0), rtol=1e-9, atol=1e-9)
        for y in ys:
            far = np.linalg.norm(y - x)
            assert above(y) <= above(x) - (mu - zeta) / 2 * far**2 + 1e-12
            assert np.linalg.norm(A @ (y - x_star)) <= (mu + zeta) * far + 1e-12


@pytest.mark.parametrize("settings", [{}, {"b": 1}, {"b": 1, "solver": "sarah"}], ids=str)
def test_inexact_dane_solves_the_stated_subproblem_where_gradients_are_sampled(settings: dict) -> None:
    """f_p(y) - ⟨t - η_D h, y⟩ + (μ/2) ‖y - x‖² with t = ∇̃^(p)(x), of "svrg" and "sarah" ∇f_p(x), solved here directly.

    All samples share the Hessian, so that steps on single samples do not wander.
    """
    case = quadratic(sizes=(8, 8, 8), shared_hessian=True)
    mu, eta_dane = 0.4, 0.8
    method = fr.InexactDANE(eta=0.3, K=200, mu=mu, eta_dane=eta_dane, b_tilde=4, **settings)
    A, x = case.workers[0][0][0], case.x0
    drawn = [Draws(0).generator("stage", 1, p).integers(8, size=4) for p in range(3)]
    large = [case.gradient(p, x, index) for p, index in enumerate(drawn)]
    h, ends = np.mean(large, axis=0), []
    for p in range(3):
        t = case.full(p, x) if settings else large[p]
        # A (y - m_p) - t + η_D h + μ (y - x) = 0
        m_p = x - np.linalg.solve(A, case.full(p, x))
        ends.append(np.linalg.solve(A + mu * np.eye(5), A @ m_p + t - eta_dane * h + mu * x))
    np.testing.assert_allclose(trace(case, method, 1)[-1], np.mean(ends, axis=0), rtol=1e-8, atol=1e-8)
    assert np.linalg.norm(large[0] - case.full(0, x)) > 0.1, "or both readings would be the same"


def test_equal_hessians_make_variance_reduced_local_steps_gradient_descent() -> None:
    """All samples share the Hessian: K steps a round of each are K steps of gradient descent, even at b = 1."""
    case = quadratic(shared_hessian=True)
    eta, K, R = 0.1, 4, 5
    A, x_star = case.workers[0][0][0], optimum(case)

    def descent(steps: int) -> np.ndarray:
        return x_star + np.linalg.matrix_power(np.eye(5) - eta * A, steps) @ (case.x0 - x_star)

    for method in (
        fr.MIME(eta=eta, K=K, b=1, beta=0.0),
        fr.CELSGD(eta=eta, K=K, b=1, beta=0.0),
        fr.InexactDANE(eta=eta, K=K, b=1),
        fr.InexactDANE(eta=eta, K=K, b=1, solver="sarah"),
    ):
        np.testing.assert_allclose(trace(case, method, R)[-1], descent(K * R), rtol=1e-10, atol=1e-10)
    # a stage's start is one step, every other round K
    spider = trace(case, fr.PRSPIDER(eta=eta, K=K, b=1, T=R), R)[-1]
    np.testing.assert_allclose(spider, descent(1 + K * (R - 1)), rtol=1e-10, atol=1e-10)
