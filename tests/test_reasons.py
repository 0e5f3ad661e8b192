"""Advice in words: they say what the table says, and why."""

from __future__ import annotations

import pytest

import fewrounds as fr
from fewrounds.theory.limits import BARE
from fewrounds.theory.reasons import HELD
from measured import measurement


def test_a_goal_in_epsilon_is_ranked_by_theory() -> None:
    m = measurement()
    advice = fr.advise(m, 64, epsilon=0.01)
    bare = fr.advise(m, 64, epsilon=0.01, factors=BARE)
    assert [c.method.name for c in advice.choices] == [c.method.name for c in bare.choices]
    assert [c.rounds for c in advice.choices] == sorted(c.rounds for c in advice.choices)
    assert [c.rounds for c in advice.choices] == pytest.approx([c.rounds for c in bare.choices])
    assert advice.best.eta > bare.best.eta, "but the steps have fitted factors"
    assert "those of theory by itself" in advice.why
    assert "not that of ‖∇f‖²" in fr.advise(m, 64, rounds=100).why


def test_the_winner_wins_because_it_goes_farthest() -> None:
    m = measurement(zeta=0.1)
    advice = fr.advise(m, 64, epsilon=0.01)
    first, second = advice.choices[:2]
    assert f"comes first: theory predicts the fewest rounds for it, {first.rounds:.3g}, its step limited" in advice.why
    assert (
        f"Next, with about {second.rounds / first.rounds:.2g} times the rounds, is {second.method.name}" in advice.why
    )
    clear = fr.advise(measurement(zeta1=1e6), 64, rounds=100, methods=["scaffold", "minibatch-sgd"])
    best = clear.choices[0].method
    assert f"scaffold comes first: it goes farthest in a round, 4 steps of {best.eta:.2g}." in clear.why
    share = clear.choices[0].epsilon / clear.choices[1].epsilon
    assert f"with about {share:.0%} of its progress, is minibatch-sgd, 1 step of" in clear.why
    assert clear.table["progress"].iloc[1] == pytest.approx(share)


def test_seconds_are_compared_in_seconds() -> None:
    m = measurement(L_sample=20.0, sizes=(50.0,) * 10)
    advice = fr.advise(m, seconds_per_round=1.0, seconds_per_gradient=1e-2, methods=["minibatch-sgd", "sarah"])
    first, second = advice.choices
    assert first.seconds < second.seconds
    assert f"needs the fewest seconds, {first.rounds:.3g} rounds of" in advice.why
    ratio = second.seconds / first.seconds
    assert (f"about {ratio:.2g} times the seconds" in advice.why) == (ratio >= 1.3)
    assert "times the rounds" not in advice.why


def test_what_cannot_be_reached_is_said() -> None:
    m = measurement()
    out = fr.advise(m, 64, epsilon=1e-6, b_tilde=1, methods=["bvr-l-sgd", "sarah"])
    assert (
        "no method is predicted to reach ‖∇f‖² = 1e-06: of bvr-l-sgd the noise of b̃ = 1 samples is greater" in out.why
    )
    one = fr.advise(m, 64, epsilon=1e-6, methods=["minibatch-sgd", ("sarah", {"b_tilde": 1})])
    assert "No other is predicted to reach ‖∇f‖² = 1e-06: of sarah the noise of b̃ = 1" in one.why
    for text in (out.why, one.why):
        assert "nan" not in text
        assert "inf" not in text


def test_what_a_worker_spends_is_said() -> None:
    """K = 16 and b = 16 of BVR-L-SGD: a stage of 21 rounds takes 5,000 + 20 · 512 and 21 · 2 · 15 · 16/10 gradients."""
    m = measurement(sizes=(5000.0,) * 10)
    advice = fr.advise(m, 256, rounds=210)
    assert advice.of("bvr-l-sgd").gradients == pytest.approx((5000 + 20 * 512) / 21 + 48)
    spent = advice.table.set_index("method")["gradients"]
    assert (spent["bvr-l-sgd"], spent["sarah"], spent["local-sgd"], spent["minibatch-sgd"]) == (774, 726, 256, 256)
    assert "774" in str(advice).splitlines()[1 + list(spent.index).index("bvr-l-sgd")]
    assert "to 774 gradients (bvr-l-sgd) a round: as the paper sets K and b" in advice.why
    begun = fr.advise(m, 256, rounds=1).of("bvr-l-sgd")
    assert begun.gradients == pytest.approx(5000 + 48), "a run begins with a stage"
    strict = fr.advise(m, 256, rounds=10**6, mode="strict")
    assert max(choice.gradients for choice in strict.choices) <= 257
    assert "as the paper sets K and b" not in strict.why
    alike = fr.advise(m, 256, rounds=210, methods=["local-sgd", "minibatch-sgd"])
    assert "A worker spends" not in alike.why


def test_the_paragraph_names_the_limits_of_the_table() -> None:
    """And what limits the rounds of theory, where that is something else. (It gave theory's alone, and theory's η.)"""
    m = measurement(zeta=12.0)
    advice = fr.advise(m, 64, epsilon=0.01, methods=["bvr-l-sgd"])
    choice = advice.choices[0]
    assert choice.limit == advice.table["limited by"].iloc[0] == "recursion"
    assert min(choice.by_theory, key=choice.by_theory.get) == "heterogeneity"
    assert f"its step limited by {HELD['recursion']}, its rounds in theory by {HELD['heterogeneity']}." in advice.why
    given = fr.advise(m, 64, rounds=100)
    second = given.choices[1]
    assert f"of {second.method.eta:.2g}, its step limited by {HELD[second.limit]}." in given.why


def test_rows_out_of_the_order_of_their_figures_are_explained() -> None:
    explained = "are not told apart by it, and stand in the order of theory by itself."
    m = measurement(L_sample=20.0, zeta=0.01, zeta1=0.01, sigma2=0.1, sigma2_mean=0.1, sizes=(50.0,) * 10)
    for methods in (["minibatch-sgd", "local-sgd"], ["local-sgd", "scaffold"]):
        ordered = fr.advise(m, 64, rounds=100, methods=methods)
        assert list(ordered.table["progress"]) == sorted(ordered.table["progress"], reverse=True)
        assert explained not in ordered.why
    found = fr.advise(measurement(zeta=10.0), 64, rounds=200)
    assert list(found.table["progress"]) != sorted(found.table["progress"], reverse=True)
    assert explained in found.why


def test_a_goal_that_is_met_is_one_line() -> None:
    advice = fr.advise(measurement(), 64, epsilon=7.0)
    assert advice.why == "‖∇f‖² = 7 here is at most 7 already: no rounds are needed."
    assert set(advice.table["rounds"]) == {0}
    timed = fr.advise(measurement(), seconds_per_round=1.0, seconds_per_gradient=1.0, epsilon=8.0)
    assert set(timed.table["seconds"]) == {0}
    assert "already" in timed.why
    assert "already" not in fr.advise(measurement(), 64, epsilon=6.9).why


def test_workers_that_differ_by_more_than_the_curvature() -> None:
    found = {share: fr.advise(measurement(zeta=20.0 * share), 64).why for share in (0.05, 0.3, 1.0, 1.2)}
    assert "about as much as the problem has" in found[1.0]
    assert "differ in curvature more than the problem itself has (ζ = 24, 120% of L = 20)" in found[1.2]
