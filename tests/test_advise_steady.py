"""Advice where the curvature stays as it is, as that of least squares does: no step may be too long for any worker."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import fewrounds as fr
from fewrounds.data.digits import load_digits
from fewrounds.data.partition import class_skew
from fewrounds.theory.advise import NEEDED
from fewrounds.theory.limits import LIMITS, USUAL
from fewrounds.theory.steps import step_size
from least_squares import squares
from measured import measurement


def test_where_curvature_stays_steps_are_held_to_one_over_l() -> None:
    alike = {"L_workers": (20.0,) * 10}
    falls, stays = measurement(L_ahead=17.9, **alike), measurement(L_ahead=18.1, **alike)
    unknown = measurement(L_ahead=math.nan, **alike)  # as those of earlier versions
    for name in USUAL:
        made = fr.advise(falls, 1000, rounds=100, methods=[name]).best
        at = {m: step_size(m, made, 100) for m in (falls, stays, unknown)}
        assert at[falls].limits == at[unknown].limits
        assert at[falls].limits["smoothness"] == pytest.approx(5 * at[falls].by_theory["smoothness"])
        for kind in {"smoothness", "heterogeneity"} & set(at[stays].limits):
            assert at[stays].limits[kind] == pytest.approx(at[stays].by_theory[kind])
            assert at[stays].by_theory[kind] == at[falls].by_theory[kind]
    assert "leaves the curvature as it is" in fr.advise(stays, 1000, rounds=100).why
    assert "leaves the curvature as it is" not in fr.advise(falls, 1000, rounds=100).why
    lower = fr.advise(stays, 1000, rounds=100, methods=["minibatch-sgd"], factors={"smoothness": 0.5}).choices[0]
    assert lower.limits["smoothness"] == pytest.approx(0.5 * lower.by_theory["smoothness"])


def test_where_curvature_stays_local_steps_are_held_to_that_of_any_worker() -> None:
    m = measurement(L_ahead=20.0, L_workers=(20.0,) * 9 + (45.0,))
    local, together = fr.LocalSGD(eta=1.0, K=4, b=16), fr.MinibatchSGD(eta=1.0, b=64)
    assert step_size(m, local, 100).limits["smoothness"] == pytest.approx(1 / (45 + 5 / 16))
    assert step_size(m, together, 100).limits["smoothness"] == pytest.approx(1 / (20 + 30 / 640))
    beyond = dataclasses.replace(m, L_workers=(*m.L_workers[:9], fr.Estimate(80.0)))  # than a quantile over samples
    assert step_size(beyond, local, 100).limits["smoothness"] == pytest.approx(1 / 80)
    falls = dataclasses.replace(m, L_ahead=fr.Estimate(10.0))
    assert step_size(falls, local, 100).limits["smoothness"] == pytest.approx(5 / (20 + 30 / 16))


@pytest.fixture(scope="module", params=[1, 2, 3], ids=["alike", "one worker curved more", "one worker curved most"])
def least_squares(request):
    """Digits by least squares; the features of one worker so many times as great."""
    (X, y), _ = load_digits()
    scales = [request.param, *[1] * 9]
    parts = class_skew(y, q=0.35)
    data = [(scale * X[part], y[part].astype("float32")) for scale, part in zip(scales, parts, strict=True)]
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1)
    problem = fr.Problem(model, loss=lambda out, y: torch.nn.functional.mse_loss(out[:, 0], y), l2=1e-3)
    return problem, data, fr.measure(problem, data, all_pairs=False, only=NEEDED, tolerance=1e-2, smooth_samples=4)


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_least_squares_converges_with_advised_steps(least_squares, name: str) -> None:
    """With 5/L, as networks bear, it would not; nor local steps with 1/L of the mean, where one worker has more."""
    problem, data, m = least_squares
    assert m.L_ahead == pytest.approx(m.L, rel=1e-2)
    made = fr.advise(m, 256, rounds=30, methods=[name]).best
    assert made.eta <= 1 / (max(m.L_workers) if made.settings().get("K", 1) > 1 else m.L)
    losses = fr.train(problem, data, made, rounds=30, progress=False).history["train_loss"]
    assert losses.iloc[-1] < 0.6 * losses.iloc[0], losses
    assert losses.max() <= 1.5 * losses.iloc[0]


@pytest.mark.parametrize("name", ["scaffold", "bvr-l-sgd", "pr-spider", "mime", "inexact-dane"])
def test_workers_curved_in_other_directions_do_not_drive_each_other_apart(name: str) -> None:
    """What K steps along one are too many for is hardly curved for the other: 1/L of both is not enough, 1/(K ζ) is."""
    problem = fr.Problem(loss=lambda x, z: 0.5 * (z @ x.square()).mean(), dim=2, dtype=torch.float64)
    data = [torch.tensor([one] * 64, dtype=torch.float64) for one in ([1.0, 0.01], [0.01, 1.0])]
    start = torch.ones(2, dtype=torch.float64)
    m = fr.measure(problem, data, start)
    made = fr.advise(m, 1024, rounds=30, methods=[name]).best
    losses = fr.train(problem, data, made, rounds=30, x0=start, progress=False).history["train_loss"]
    assert losses.iloc[-1] < 0.1 * losses.iloc[0], losses


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_rows_of_all_lengths_make_no_method_diverge_and_the_first_is_among_the_best(seed: int) -> None:
    """The factors of noise and drift that fit networks put a Local SGD first that multiplied the loss."""
    case = squares(seed, d=20, n=200, tail=0.6, apart=0.5)
    advice = fr.advise(case.measured, 256, rounds=20)
    ends = {}
    for choice in advice.choices:
        assert choice.limits == pytest.approx(choice.by_theory)
        gaps = [case.loss(x) - case.least for x in case.trace(choice.method, 20)]
        assert max(gaps) <= 1.5 * gaps[0], choice.method.name
        ends[choice.method.name] = gaps[-1]
    names = list(ends)
    assert ends[names[0]] < 0.05 * gaps[0]
    assert ends[names[0]] <= sorted(ends.values())[2], ends
    assert names.index("local-sgd") > 1, "with the bias and the noise"
    assert "fitted factors are for curvature that falls" in advice.why
    assert "train losses" not in advice.why


def test_of_methods_that_go_as_far_those_come_first_whose_noise_vanishes() -> None:
    m = measurement(L_ahead=20.0, L_sample=20.0, sigma2=1e-3, sigma2_mean=1e-3, zeta1=1e-3)
    advice = fr.advise(m, 64, rounds=100, methods=["minibatch-sgd", "sarah"])
    assert len({choice.epsilon for choice in advice.choices}) == 1
    assert advice.best.name == "sarah"
    assert "of those that go as far it is one whose noise vanishes" in advice.why
    assert fr.advise(m, 64, epsilon=0.01).of("local-sgd").stays_noisy
