"""`fr.advise`: limits by hand, the order they imply, budgets from seconds, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

import fewrounds as fr
from fewrounds.data.digits import load_digits
from fewrounds.data.partition import class_skew
from fewrounds.methods.base import REGISTRY
from fewrounds.theory.advise import NEEDED
from fewrounds.theory.limits import BARE, LIMITS, USUAL, limits, place_of
from fewrounds.theory.steps import step_size
from measured import measurement
from problems import Case, quadratic


def test_the_limits_by_hand() -> None:
    """𝓑 = 64: K = 4 and b = 16; b̃ = 500, so T = 1 + ⌈500/64⌉ = 9."""
    m = measurement()
    bvr = fr.BVRLSGD(eta=1.0, K=4, b=16)
    assert limits(place_of(m, bvr, 0.5), "bvr-l-sgd", BARE) == pytest.approx(
        {
            "smoothness": 1 / (20 + 30 / 16),
            "heterogeneity": 1 / (4 * 2),
            "local recursion": math.sqrt(16 / 4) / 50,
            "recursion": math.sqrt(10 * 16 / (4 * 9)) / 50,
        }
    )
    assert limits(place_of(m, fr.LocalSGD(eta=1.0, K=4, b=16), 0.5), "local-sgd", BARE) == pytest.approx(
        {
            "smoothness": 1 / (20 + 30 / 16),
            "noise": 10 * 16 * 0.5 / (20 * 80),
            "local noise": math.sqrt(16 * 0.5 / 4) / (20 * math.sqrt(80)),
            "drift": math.sqrt(0.5) / (4 * 20 * 3),
        }
    )
    sgd = limits(place_of(m, fr.MinibatchSGD(eta=1.0, b=64), 0.5), "minibatch-sgd", BARE)
    assert sgd == pytest.approx({"smoothness": 1 / (20 + 30 / 640), "noise": 10 * 64 * 0.5 / (20 * 80)})
    sarah = limits(place_of(m, fr.SARAH(eta=1.0, b=64), 0.5), "sarah", BARE)
    assert sarah == pytest.approx({"smoothness": 1 / (20 + 30 / 640), "recursion": math.sqrt(10 * 64 / 9) / 50})


def test_the_limits_give_the_terms_of_the_table() -> None:
    """With the greatest step size, gap/(η K ε) is the greatest term of the method's line in the table."""
    m = measurement(L_sample=20.0, sigma2=1.0, sigma2_mean=1.0)
    budget, epsilon = 64, 1e-3
    # T = b̃/(K b) in place of 1 + ⌈b̃/(K b)⌉, and n = P b̃; σ²/(P ε) = 100 of 500 samples are enough for b̃
    table = fr.rates(L=20.0, zeta=2.0, zeta1=3.0, sigma2=1.0, n=5000, P=10, budget=budget, epsilon=epsilon, gap=3.0)
    advice = fr.advise(m, budget, epsilon=epsilon, factors=BARE)
    for name, label in (
        ("minibatch-sgd", "minibatch-sgd"),
        ("local-sgd", "local-sgd (Woodworth et al.)"),
        ("scaffold", "scaffold (quadratics)"),
    ):
        terms = table.of(label).terms
        if name != "minibatch-sgd":  # the table has 1/𝓑 where K local steps give 1/K
            terms = {**terms, "steps": terms["steps"] * budget / 4}
        if name == "scaffold":  # its line for quadratics has no local noise
            terms = {**terms, "local noise": table.of("local-sgd (Woodworth et al.)").terms["local noise"]}
        assert advice.of(name).rounds == pytest.approx(max(terms.values())), name
    # the full form of BVR-L-SGD's, and SARAH's with K = 1, for T = 1 + ⌈100/64⌉ rounds of a stage: stages are whole
    T, K, b, scale = 3, 4, 16, 20.0 * 3.0 / epsilon
    terms = [scale / K, 2.0 * 3.0 / epsilon, scale / math.sqrt(K * b), math.sqrt(T / (K * b * 10)) * scale]
    assert advice.of("bvr-l-sgd").rounds == pytest.approx(max(terms) + T)
    assert advice.of("sarah").rounds == pytest.approx(max(scale, math.sqrt(T / (64 * 10)) * scale) + T)


def test_more_heterogeneity_costs_bvr_its_lead() -> None:
    alike = fr.advise(measurement(zeta=0.1), 256, epsilon=0.01, factors=BARE)
    apart = fr.advise(measurement(zeta=4000.0), 256, epsilon=0.01, factors=BARE)
    assert alike.best.name == "bvr-l-sgd"
    assert apart.best.name in ("sarah", "minibatch-sgd")
    assert apart.of("bvr-l-sgd").limit == "heterogeneity"
    assert "hardly differ" in alike.why
    assert "bvr-l-sgd comes first" in alike.why


def test_theory_decides_between_what_the_fitted_factors_do_not_tell_apart() -> None:
    m = measurement(L_sample=20.0, zeta=0.01, zeta1=0.01, sigma2=0.1, sigma2_mean=0.1, sizes=(50.0,) * 10)
    advice = fr.advise(m, 64, rounds=100, methods=["local-sgd", "scaffold", "bvr-l-sgd"])
    assert len({round(choice.epsilon, 9) for choice in advice.choices}) == 1, "curvature limits all of them"
    assert [choice.bare for choice in advice.choices] == sorted(choice.bare for choice in advice.choices)
    assert "Hardly told apart from it is" in advice.why
    assert "none goes clearly farther in a round than its 4 steps of" in advice.why
    assert "of those that go as far theory puts it first" in advice.why


def test_a_ranked_table_with_settings_that_run() -> None:
    m = measurement()
    advice = fr.advise(m, 64, rounds=200)
    table = advice.table
    assert list(table["method"]) == [choice.method.name for choice in advice.choices]
    assert table["progress"].max() == 1
    assert all(a >= b / 1.31 for a, b in itertools.pairwise(table["progress"]))
    assert set(table["method"]) == set(USUAL) - {"local-gd"}, "a full gradient is over the budget"
    row = table.set_index("method").loc["bvr-l-sgd"]
    assert (row["K"], row["b"], row["T"]) == (4, 16, 9)
    assert advice.best == advice.choices[0].method
    assert advice.of("sarah").method.eta == min(advice.of("sarah").limits.values())
    assert str(advice).count("\n") >= len(table)
    for choice in advice.choices:
        again = step_size(m, choice.method, 200)
        assert again.method.eta == pytest.approx(choice.method.eta)
        other = fr.advise(m, 64, epsilon=choice.bare, methods=[choice.method]).choices[0]
        whole = 9 if choice.method.name in ("sarah", "bvr-l-sgd") else 0
        assert other.rounds == pytest.approx(200 + whole, rel=1e-6), "rounds and ε are two sides of one prediction"


def test_the_goal_is_a_hundredth_of_the_start_by_default() -> None:
    assert {choice.epsilon for choice in fr.advise(measurement(), 64).choices} == {0.07}


def test_a_budget_from_seconds() -> None:
    dear = fr.advise(measurement(), seconds_per_round=10.0, seconds_per_gradient=1e-4)
    cheap = fr.advise(measurement(), seconds_per_round=1e-3, seconds_per_gradient=1e-4)
    assert dear.budget > cheap.budget, "where a round costs much, more is computed in it"
    other = dear.of("minibatch-sgd")
    assert other.seconds == pytest.approx(other.rounds * (10.0 + 1e-4 * dear.budget))
    assert "seconds" in dear.table


def test_a_small_stage_batch_has_its_price() -> None:
    small, all_data = (
        fr.advise(measurement(), 64, rounds=1000, methods=["bvr-l-sgd"], factors=BARE, **fixed).choices[0]
        for fixed in ({"b_tilde": 1}, {})
    )
    assert small.epsilon == pytest.approx(80 / 10), "σ²/(P b̃)"
    assert all_data.epsilon < small.epsilon


def test_a_negative_loss_needs_its_least_value() -> None:
    m = dataclasses.replace(measurement(), loss=-3.0)
    assert fr.advise(m, 64, rounds=100, f_star=-6.0).table.equals(fr.advise(measurement(), 64, rounds=100).table)
    with pytest.raises(fr.SettingError, match="give f_star="):
        fr.advise(m, 64, rounds=100)


def test_streams_get_a_stage_batch() -> None:
    advice = fr.advise(measurement(sizes=(math.inf,) * 10), 64, epsilon=0.5)
    assert advice.of("bvr-l-sgd").method.b_tilde == math.ceil(90 / (10 * 0.5))
    assert "local-gd" not in {choice.method.name for choice in advice.choices}


def test_other_settings_stay_as_they_are() -> None:
    advice = fr.advise(measurement(), 64, methods=["bvr-l-sgd", "local-sgd"], b=8, T=3)
    assert (advice.of("bvr-l-sgd").method.b, advice.of("bvr-l-sgd").method.K) == (8, 8)
    assert advice.of("bvr-l-sgd").T == 3
    assert advice.of("local-sgd").method.b == 8


def test_settings_that_leave_a_method_nothing_to_choose() -> None:
    """b is all that minibatch SGD and SARAH have, K all that Local GD has."""
    advice = fr.advise(measurement(), 64, rounds=100, b=32)
    found = {choice.method.name: choice.method.settings() for choice in advice.choices}
    assert set(found) == set(USUAL) - {"local-gd"}
    assert {settings["b"] for settings in found.values()} == {32}
    assert found["local-sgd"]["K"] == 2
    for budget, mode, least in ((1500, "paper", True), (1499, "paper", False), (1500, "strict", True)):
        three = fr.advise(measurement(), budget, rounds=100, mode=mode, K=3)
        names = [choice.method.name for choice in three.choices]
        assert ("local-gd" in names) == least, "three steps of 500 samples"
        assert {choice.method.settings().get("K", 3) for choice in three.choices} == {3}
    strict = fr.advise(measurement(), 64, rounds=100, b=64, mode="strict")
    assert [choice.method.name for choice in strict.choices].count("sarah") == 0, "it takes two gradients a sample"
    own = fr.advise(measurement(), 64, rounds=100, methods=[fr.MinibatchSGD(eta=1.0, b=100)])
    assert own.best.b == 100, "a method with settings of its own is as it is"


def test_identical_workers_without_noise() -> None:
    """ζ = ζ₁ = σ² = 0: nothing but smoothness limits anyone."""
    zero = dict.fromkeys(("zeta", "zeta_to_mean", "zeta1", "sigma2", "sigma2_mean"), 0.0)
    advice = fr.advise(measurement(**zero, L_sample=20.0), 64, rounds=100)
    assert {choice.limit for choice in advice.choices} <= {"smoothness", "local recursion", "recursion"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "give a budget, or both seconds_per_round and seconds_per_gradient"),
        ({"seconds_per_round": 1.0}, "give a budget, or both"),
        ({"budget": 64, "seconds_per_round": 1.0, "seconds_per_gradient": 1.0}, "give a budget, or both"),
        ({"budget": 64, "rounds": 10, "epsilon": 0.1}, "give rounds or epsilon, not both"),
        ({"budget": 0}, "budget = 0"),
        ({"budget": 64, "methods": ["sarha"]}, "there is no advice on 'sarha'; did you mean 'sarah'"),
        ({"seconds_per_round": 1.0, "seconds_per_gradient": 1.0, "rounds": 5}, "seconds need epsilon, not rounds"),
        ({"budget": 64, "mode": "stricter"}, "mode = 'stricter'"),
        ({"budget": 64, "epsilom": 0.1}, "none of these methods has a setting 'epsilom'"),
        ({"budget": 64, "methods": []}, "methods is empty"),
        ({"budget": 64, "factors": {"smothness": 1.0}}, "there is no limit 'smothness'; did you mean 'smoothness'"),
        ({"budget": 64, "f_star": 3.0}, "the loss here is 3 and f_star, the least there can be, 3"),
        ({"budget": 64, "f_star": "a"}, "f_star = 'a': must be a finite number"),
        ({"budget": 64, "f_star": math.nan}, "f_star = nan: must be a finite number"),
        ({"budget": 64, "factors": 3}, "factors = 3: must be factors by limit, such as {'smoothness': 5}"),
        ({"budget": 64, "methods": "sarah"}, "methods = 'sarah': must be a list of methods, not a str"),
        ({"budget": 64, "methods": 3}, "methods = 3: must be a list of methods"),
        ({"budget": 64, "methods": [3]}, "methods: 3 is a int; a method is given by name"),
        ({"budget": 64, "methods": [fr.SARAH]}, "is the class SARAH; a method is given by name"),
        ({"budget": 64, "methods": [("sarah",)]}, "methods: ('sarah',) is a tuple; a method is given by name"),
        ({"budget": 64, "methods": [("sarah", 3)]}, "as ('sarah', {'b': 32}), or as fr.SARAH(…)"),
        ({"budget": 64, "epsilon": 1e-200}, "epsilon = 1e-200: must be 1e-30 or more"),
        (
            {"methods": ["local-gd"], "seconds_per_round": 1.0, "seconds_per_gradient": 1.0, "measured": math.inf},
            "too small for local-gd",
        ),
    ],
)
def test_unclear_wishes_are_refused(settings: dict, said: str) -> None:
    size = settings.pop("measured", 500.0)
    with pytest.raises(fr.SettingError) as refused:
        fr.advise(measurement(sizes=(size,) * 10), **settings)
    assert said in str(refused.value)


def test_what_was_not_measured_is_asked_for() -> None:
    with pytest.raises(fr.SettingError, match="advice needs zeta: measure without `only`"):
        fr.advise(measurement(zeta=math.nan), 64)
    with pytest.raises(fr.SettingError, match="advice needs sigma2_mean: measure without `only`"):
        fr.advise(measurement(sigma2_mean=math.nan), 64)
    with pytest.raises(fr.SettingError, match="advice needs L_ahead: measure without `only`"):
        fr.advise(measurement(L_ahead=math.nan), 64)
    with pytest.raises(fr.SettingError, match="advice needs L_workers: measure without `only`"):
        fr.advise(measurement(L_workers=()), 64)
    with pytest.raises(fr.SettingError, match="advice is based on what fr.measure returns, not on a float"):
        fr.advise(3.0, 64)


def test_what_the_message_lists_is_enough() -> None:
    """Of least squares, too, which steps for networks would not do for."""
    case = quadratic((60, 40, 50), d=8)
    options = {"tolerance": 1e-3, "smooth_samples": 4}
    few = fr.measure(case.problem, case.workers, case.x0, only=NEEDED, **options)
    every = fr.measure(case.problem, case.workers, case.x0, **options)
    assert fr.advise(few, 32, rounds=100).table.equals(fr.advise(every, 32, rounds=100).table)


def test_a_method_without_theory_is_refused() -> None:
    class Own(fr.LocalSGD):
        name = "own"

    with pytest.raises(fr.SettingError, match="there is no advice on 'own': give its eta"):
        step_size(measurement(), Own(eta=1.0, K=2, b=2), 10)


def test_where_nothing_is_curved_no_step_is_too_long() -> None:
    flat = dict.fromkeys(("L", "L_sample", "zeta", "zeta1", "sigma2", "sigma2_mean"), 0.0)
    with pytest.raises(fr.SettingError, match="nothing limits the steps of minibatch-sgd here .L = 0.: give its eta"):
        fr.advise(measurement(**flat), 64, rounds=10)


def test_a_measurement_without_workers_is_refused() -> None:
    with pytest.raises(fr.SettingError, match="the measurement has no workers"):
        fr.advise(measurement(sizes=()), 64)


# ---------------------------------------------------------------------- the methods that the paper did not run


def test_every_method_has_limits() -> None:
    ours = {name for name, cls in REGISTRY.items() if cls.__module__.startswith("fewrounds.")}
    assert set(LIMITS) == ours
    advice = fr.advise(measurement(), 64, rounds=200, methods=sorted(ours - {"local-gd"}))
    assert len(advice.choices) == 12


def test_the_other_limits_by_hand() -> None:
    m = measurement()

    def found(method: fr.Method, epsilon: float = 0.5) -> dict[str, float]:
        return limits(place_of(m, method, epsilon), method.name, BARE)

    assert found(fr.SVRG(eta=1.0, b=64)) == pytest.approx(
        {"smoothness": 1 / (20 + 30 / 640), "anchor": math.sqrt(10 * 64) / (9 * 50)}
    )
    assert found(fr.PRSPIDER(eta=1.0, K=4, b=16)) == pytest.approx(found(fr.BVRLSGD(eta=1.0, K=4, b=16)))
    mime = found(fr.MIME(eta=1.0, K=4, b=16, b_tilde=100))
    assert mime["local anchor"] == pytest.approx(math.sqrt(16) / (4 * 50))
    assert mime["batch noise"] == pytest.approx(10 * 100 * 0.5 / (4 * 20 * 80))
    assert math.isinf(found(fr.MIME(eta=1.0, K=4, b=16))["batch noise"]), "all data have no noise"
    some = found(fr.MIME(eta=1.0, K=4, b=16, participants=5))
    assert some["batch noise"] == pytest.approx(5 * 0.5 / (4 * 20 * 3**2)), "but who takes part is by chance"
    lite = found(fr.MIMELite(eta=1.0, K=4, b=16))
    local = found(fr.LocalSGD(eta=1.0, K=4, b=16))
    assert {kind: lite[kind] for kind in local} == pytest.approx(local)
    ce = found(fr.CELSGD(eta=1.0, K=4, b=16, beta=0.1), 0.01)
    assert ce["recursion"] == pytest.approx(math.sqrt(10 * 16 / (4 * 10)) / 50), "1/β rounds"
    assert ce["faded noise"] == pytest.approx(10 * 16 * 0.01 / (20 * 80))
    assert math.isinf(found(fr.CELSGD(eta=1.0, K=4, b=16, beta=0.1), 0.02)["faded noise"]), "β σ²/(P K b) = 0.0125"
    assert found(fr.CELSGD(eta=1.0, K=4, b=16, beta=0.0))["recursion"] > 0
    glomo = found(fr.FedGLOMO(eta=1.0, K=4, b=16, beta=0.2, b_tilde=64))
    assert glomo["drift"] == pytest.approx(local["drift"])
    assert glomo["recursion"] == pytest.approx(math.sqrt(10 * 16 / (4 * 5)) / 50)


@pytest.mark.parametrize(
    ("solver", "kinds"),
    [("svrg", {"local anchor"}), ("sarah", {"local recursion"}), ("sgd", {"noise", "local noise"})],
)
def test_danes_limits_are_its_solvers(solver: str, kinds: set[str]) -> None:
    own = {"smoothness", "heterogeneity", "batch noise"}
    dane = fr.InexactDANE(eta=1.0, K=4, b=16, solver=solver, mu=1.5)
    found = limits(place_of(measurement(), dane, 0.5), "inexact-dane", BARE)
    assert set(found) == own | kinds
    assert found["heterogeneity"] == pytest.approx(1 / (4 * (2 - 1.5)))
    assert found["smoothness"] == pytest.approx(1 / (20 + 30 / 16 + 1.5))
    exact = limits(place_of(measurement(), fr.InexactDANE(eta=1.0, K=4, solver=solver), 0.5), "inexact-dane", BARE)
    assert set(exact) == own, "gradient descent has no noise"


@pytest.fixture(scope="module")
def on_quadratic() -> tuple[Case, fr.Measurement]:
    case = quadratic((60, 40, 50), d=8)
    return case, fr.measure(case.problem, case.workers, case.x0, tolerance=1e-3, smooth_samples=4)


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_the_step_of_theory_converges_on_a_quadratic(name: str, on_quadratic: tuple[Case, fr.Measurement]) -> None:
    """Whose curvature stays as it is: more than 2/L is too much there, and so are factors that were fitted elsewhere."""
    case, m = on_quadratic
    budget = 200 if name == "local-gd" else 32
    method = fr.advise(m, budget, rounds=100, methods=[name], factors=BARE).best
    options = {"x0": case.x0, "progress": False, "evaluate_every": 100}
    losses = list(fr.train(case.problem, case.workers, method, 100, **options).history["train_loss"])
    least = fr.train(case.problem, case.workers, fr.LocalGD(eta=0.5, K=1), 200, **options).history["train_loss"].min()
    assert losses[-1] - least < 0.3 * (losses[0] - least), losses


@pytest.fixture(scope="module")
def on_digits() -> tuple[fr.Problem, list, fr.Measurement]:
    (X, y), _ = load_digits()
    X, y = X[:400], y[:400]
    workers = [(X[part], y[part]) for part in class_skew(y, q=0.85)]
    problem = fr.Problem(fr.models.mlp([64, 8, 10]), loss=torch.nn.functional.cross_entropy, l2=5e-3)
    how = {"samples": 16, "smooth_samples": 1, "tolerance": 0.05, "all_pairs": False}
    return problem, workers, fr.measure(problem, workers, **how)


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_the_advised_step_trains_on_digits(name: str, on_digits: tuple[fr.Problem, list, fr.Measurement]) -> None:
    problem, workers, m = on_digits
    budget = 4 * int(max(m.sizes)) if name == "local-gd" else 32
    method = fr.advise(m, budget, rounds=40, methods=[name]).best
    run = fr.train(problem, workers, method, 40, progress=False, evaluate_every=40)
    assert run.outcome == "finished"
    before, after = run.history["train_loss"]
    assert after < 0.8 * before


def test_methods_with_settings_of_their_own() -> None:
    m = measurement()
    advice = fr.advise(m, 64, rounds=200, methods=["sarah", ("bvr-l-sgd", {"b": 4}), fr.SVRG(eta=1.0, b=7)])
    assert (advice.of("bvr-l-sgd").method.b, advice.of("bvr-l-sgd").method.K) == (4, 16)
    assert advice.of("svrg").method.b == 7, "as it is"
    assert advice.of("sarah").method.b == 64
