"""The paper's table: figures by hand, units, limits, and where one method overtakes another."""

from __future__ import annotations

import math

import pytest

import fewrounds as fr
from measured import measurement

ONES = {"L": 1.0, "zeta": 0.25, "zeta1": 0.5, "sigma2": 1.0, "n": 1e4, "P": 16, "budget": 64, "epsilon": 0.01, "G": 1.0}

# The table of the paper, and four rows that are not in it, with 𝓑 = 64, P = 16, ε = 0.01, n = 10⁴, ζ = 1/4, ζ₁ = 1/2:
# 1/ε = 100, 1/(𝓑Pε²) = 9.765625, √(n ∧ 1/ε)/(𝓑Pε) = 10 · 100 / 1024, 1/ε^{3/2} = 1000.
BY_HAND = {
    "minibatch-sgd": 100 + 9.765625,
    "svrg": 100 + 100 ** (2 / 3) * 100 / 1024,
    "sarah": 100 + 1000 / 1024,
    "local-sgd (Yu et al.)": 100 / 64 + 9.765625 + 1000,
    "local-sgd (Woodworth et al.)": 100 / 64 + 9.765625 + 1000 / 8 + 500,
    "scaffold": 100 + 9.765625,
    "scaffold (quadratics)": 100 / 64 + 9.765625 + 25,
    "inexact-dane (this library)": 25,
    "pr-spider": 100,
    "fedglomo": 1000,
    "mime": 100 / 64 + 1000 / 8 + 25,
    "mimelite": 100 + 250 + 25,
    "bvr-l-sgd": 100 / 8 + 1000 / 1024 + 25,
    "ce-lsgd": 100 / 8 + 1000 / 1024 + 25,
}


def test_the_table_by_hand() -> None:
    found = fr.rates(**ONES)
    assert {rate.label: rate.rounds for rate in found} == pytest.approx(BY_HAND)
    assert list(found.frame["method"]) == list(BY_HAND)


DISTINCT = {"L": 2.0, "zeta": 0.25, "zeta1": 5.0, "sigma2": 9.0, "n": 1e9, "P": 16, "budget": 64, "epsilon": 0.01, "gap": 7.0, "G": 11.0}  # fmt: skip
# No two constants are alike: L (f(x_0) - f*) / ε = 1400, ζ (f(x_0) - f*) / ε = 175, σ²/ε = 900, 1/√ε = 10.
DISTINCT_BY_HAND = {
    "minibatch-sgd": {"steps": 1400, "noise": 1400 * 900 / 1024},
    "svrg": {"steps": 1400, "noise": 1400 * 900 ** (2 / 3) / 1024},
    "sarah": {"steps": 1400, "noise": 1400 * 30 / 1024},
    "local-sgd (Yu et al.)": {"steps": 1400 / 64, "noise": 1400 * 900 / 1024, "drift": 1400 * 11 * 10},
    "local-sgd (Woodworth et al.)": {
        "steps": 1400 / 64, "noise": 1400 * 900 / 1024, "local noise": 1400 * 30 / 8, "drift": 1400 * 5 * 10,
    },
    "scaffold": {"steps": 1400, "noise": 1400 * 900 / 1024},
    "scaffold (quadratics)": {"steps": 1400 / 64, "noise": 1400 * 900 / 1024, "heterogeneity": 175},
    "inexact-dane (this library)": {"heterogeneity": 175},
    "pr-spider": {"steps": 1400},
    "fedglomo": {"drift": 1400 * 11 * 10},
    "mime": {"steps": 1400 / 64, "drift": 1400 * 11 * 10 / 8, "heterogeneity": 175},
    "mimelite": {"start": 121 / 0.01, "drift": 175 * 11 * 10, "heterogeneity": 175},
    "bvr-l-sgd": {"steps": 1400 / 8, "noise": 1400 * 30 / 1024, "heterogeneity": 175},
    "ce-lsgd": {"steps": 1400 / 8, "noise": 1400 * 30 / 1024, "heterogeneity": 175},
}  # fmt: skip


def test_each_term_has_its_own_constants() -> None:
    found = {rate.label: rate.terms for rate in fr.rates(**DISTINCT)}
    assert found.keys() == DISTINCT_BY_HAND.keys()
    for label, terms in DISTINCT_BY_HAND.items():
        assert found[label] == pytest.approx(terms), label


def test_the_table_prints_whole() -> None:
    found = fr.rates(**ONES)
    head, *lines = str(found).splitlines()
    assert head.split() == ["method", "rounds", "limit", "assumes"]
    for rate, line in zip(found, lines, strict=True):
        assert line.startswith(rate.label)
        assert f" {rate.rounds:.3g} " in line
        assert line.endswith(rate.assumes or rate.limit)
    assert "..." not in str(found)


def test_finite_data_bound_the_noise_of_recursive_methods() -> None:
    few = fr.rates(**{**ONES, "n": 25})
    assert few.of("sarah").terms["noise"] == pytest.approx(500 / 1024)
    assert few.of("ce-lsgd").terms["noise"] == pytest.approx(1000 / 1024), "it never sees all data"
    assert few.of("minibatch-sgd").rounds == pytest.approx(BY_HAND["minibatch-sgd"])
    endless = fr.rates(**{**ONES, "n": math.inf})
    assert endless.of("bvr-l-sgd").rounds == pytest.approx(BY_HAND["bvr-l-sgd"])


@pytest.mark.parametrize("rate", list(fr.rates(**ONES)), ids=lambda rate: rate.label)
def test_units_do_not_matter(rate) -> None:
    """x in other units (× s) and f in others (× r): gradients × r/s, Hessians × r/s², gap × r."""
    r, s = 7.0, 3.0
    scaled = fr.rates(
        L=1 * r / s**2, zeta=0.25 * r / s**2, zeta1=0.5 * r / s, sigma2=(r / s) ** 2, n=1e4, P=16, budget=64,
        epsilon=0.01 * (r / s) ** 2, gap=r, G=r / s,
    )  # fmt: skip
    assert scaled.of(rate.label).rounds == pytest.approx(rate.rounds)


def test_where_heterogeneity_ends_the_lead() -> None:
    found = fr.rates(**ONES)
    where = found.crossings("zeta", (1e-3, 2.0))
    # 100/8 + 1000/1024 + 100 ζ = 100 + 9.765625
    assert where["minibatch-sgd"] == pytest.approx((100 + 9.765625 - 12.5 - 1000 / 1024) / 100, rel=1e-6)
    assert "local-sgd (Yu et al.)" not in where, "ahead of it whatever ζ is"
    assert "bvr-l-sgd" not in where
    at = fr.rates(**{**ONES, "zeta": where["sarah"]})
    assert at.of("bvr-l-sgd").rounds == pytest.approx(at.of("sarah").rounds)


def test_without_noise_workers_still_differ() -> None:
    """1/ε^{3/2} of FedGLOMO and the MIMEs is of noise and of differences between workers: no method needs no rounds."""
    found = fr.rates(**{**ONES, "sigma2": 0.0, "zeta1": 2.0, "G": None})
    for name in ("fedglomo", "mime", "mimelite"):
        assert found.of(name).terms["drift"] > 0, name
    assert found.of("fedglomo").rounds > found.of("minibatch-sgd").rounds
    assert (found.frame["rounds"] > 0).all()


def test_where_the_budget_ends_the_lead() -> None:
    """A large budget helps the quadratic rate of SCAFFOLD more: 1/𝓑 against 1/√𝓑."""
    found = fr.rates(**{**ONES, "sigma2": 1e-4, "epsilon": 1e-2, "P": 1000})
    assert found.of("bvr-l-sgd").rounds > found.of("scaffold (quadratics)").rounds
    back = found.crossings("budget", (1, 1e6), ahead="minibatch-sgd")
    assert set(back) >= {"bvr-l-sgd", "scaffold (quadratics)"}, "non-local methods are ahead while the budget is small"
    for label, budget in back.items():
        at = fr.rates(**{**ONES, "sigma2": 1e-4, "P": 1000, "budget": budget})
        assert at.of("minibatch-sgd").rounds == pytest.approx(at.of(label).rounds), label


def test_where_bvrs_own_lead_ends_with_the_budget() -> None:
    """L/(√𝓑 ε) + √n L/(𝓑Pε) + ζ/ε against L/(𝓑ε) + Lσ²/(𝓑Pε²) + ζ/ε: 1/√𝓑 + 1/(16𝓑)·10 = 1/𝓑 + 100/(16𝓑), √𝓑 = 6.625."""
    found = fr.rates(**ONES)
    where = found.crossings("budget", (1, 1e5))
    assert where["scaffold (quadratics)"] == pytest.approx(6.625**2, rel=1e-6)
    small, large = (fr.rates(**{**ONES, "budget": size}) for size in (30, 60))
    assert small.of("bvr-l-sgd").rounds < small.of("scaffold (quadratics)").rounds
    assert large.of("bvr-l-sgd").rounds > large.of("scaffold (quadratics)").rounds
    assert "minibatch-sgd" not in where, "whose rounds do not fall as fast"


def test_where_bvrs_lead_begins_with_the_budget() -> None:
    """Down from a large budget: L/(√𝓑 ε) + √(σ²/ε) L/(𝓑Pε) + ζ/ε against L/ε + √(σ²/ε) L/(𝓑Pε), so 1/√𝓑 = 1 - ζ/L."""
    found = fr.rates(**ONES)
    assert "sarah" not in found.crossings("budget", (1, 1e5)), "once ahead of it, it stays so"
    where = found.crossings("budget", (1e5, 1))
    assert where["sarah"] == pytest.approx((4 / 3) ** 2, rel=1e-6)
    small, large = (fr.rates(**{**ONES, "budget": size}) for size in (1.7, 1.9))
    assert small.of("bvr-l-sgd").rounds > small.of("sarah").rounds
    assert large.of("bvr-l-sgd").rounds < large.of("sarah").rounds
    assert "scaffold (quadratics)" not in where, "behind it at 10⁵, and from 6.625² down ahead to the end"


def test_rates_of_a_measurement() -> None:
    m = measurement()
    constants = {"L": 50.0, "zeta": 2.0, "zeta1": 3.0, "sigma2": 90.0, "n": 5000.0, "P": 10, "gap": 3.0}
    assert fr.rates(m, budget=64, epsilon=0.1) == fr.rates(**constants, budget=64, epsilon=0.1)
    assert (
        fr.rates(m, budget=64, epsilon=0.1, gap=1.0, L=40.0).constants
        == fr.rates(**{**constants, "gap": 1.0, "L": 40.0}, budget=64, epsilon=0.1).constants
    )
    wide = fr.rates(measurement(zeta=120.0), budget=64, epsilon=0.1).constants
    assert wide.L == 60.0, "a quantile over samples may fall short of what ζ ≤ 2L asks for"
    with pytest.raises(fr.SettingError, match="rates need L, zeta: give them, or measure without `only`"):
        fr.rates(measurement(zeta=math.nan, L_sample=math.nan), budget=64, epsilon=0.1)
    with pytest.raises(fr.SettingError, match="rates need n, P: give them, or a measurement"):
        fr.rates(L=1.0, zeta=1.0, zeta1=1.0, sigma2=1.0, budget=64, epsilon=0.1)
    with pytest.raises(fr.SettingError, match="rates are of what fr.measure returns, .* not of a float"):
        fr.rates(3.0, budget=64, epsilon=0.1)


def test_whose_analysis_and_what_it_assumes() -> None:
    found = fr.rates(**ONES)
    assert found.of("fedglomo").assumes == "bounded gradient heterogeneity", "its term has G"
    assert found.of("inexact-dane").row.source == "this library"
    assert found.of("inexact-dane").label == "inexact-dane (this library)"


def test_what_limits_a_method() -> None:
    found = fr.rates(**ONES)
    assert found.of("bvr-l-sgd").limit == "heterogeneity"
    assert found.of("local-sgd").limit == "drift"
    assert found.of("local-sgd").assumes == "bounded gradients"
    assert found.of("sarah").limit == "steps"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"L": -1.0}, "L"),
        ({"zeta": math.nan}, "zeta"),
        ({"n": 0}, "n = 0: must be a number of samples, or infinite"),
        ({"budget": 0}, "budget"),
        ({"n": "many"}, "n = 'many'"),
        ({"G": -1.0}, "G = -1.0"),
        ({"sigma2": math.inf}, "sigma2 = inf"),
        ({"zeta": 2.1}, "zeta = 2.1 is more than 2 L = 2: L is that of single samples"),
    ],
)
def test_impossible_constants_are_refused(change: dict, said: str) -> None:
    with pytest.raises(fr.SettingError, match=said):
        fr.rates(**{**ONES, **change})


def test_unknown_names_are_refused() -> None:
    found = fr.rates(**ONES)
    with pytest.raises(fr.SettingError, match="the table has no 'bvr'; known: bvr-l-sgd"):
        found.of("bvr")
    with pytest.raises(fr.SettingError, match="there is no 'eta' to change"):
        found.crossings("eta", (1, 2))
    for between in ((2, 2), (0.1,), 5, ("a", "b"), (0.1, math.inf), (1, 2, 3), (-1, 2)):
        with pytest.raises(fr.SettingError, match="must be two different positive numbers"):
            found.crossings("zeta", between)
