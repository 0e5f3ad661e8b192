"""K and b from a budget: as the paper does it, and strictly."""

from __future__ import annotations

import math

import numpy as np
import pytest

import fewrounds as fr
from fewrounds.methods import REGISTRY

CIFAR = [np.zeros((5000, 1))] * 10
SMALL = [np.zeros((n, 2)) for n in (30, 50, 40)]
LOCAL = ["local-sgd", "scaffold", "bvr-l-sgd"]


@pytest.mark.parametrize("budget", [256, 512, 1024])
def test_the_papers_settings(budget: int) -> None:
    for name in LOCAL:
        method = fr.for_budget(name, budget, workers=CIFAR, eta=0.1)
        assert (method.K, method.b) == (budget // 16, 16)
    for name in ("minibatch-sgd", "sarah"):
        assert fr.for_budget(name, budget, workers=CIFAR, eta=0.1).b == budget


@pytest.mark.parametrize(("budget", "T"), [(256, 21), (512, 11), (1024, 6)])
def test_the_papers_stage_lengths(budget: int, T: int) -> None:
    """5,000 samples a worker and b̃ = all of them: T = 21, 11, 6 for BVR-L-SGD and SARAH alike."""
    for name in ("bvr-l-sgd", "sarah"):
        method = fr.for_budget(name, budget, workers=CIFAR, eta=0.1)
        assert method.stage_rounds([5000] * 10) == T


@pytest.mark.parametrize("name", [name for name, cls in REGISTRY.items() if cls.__module__.startswith("fewrounds")])
@pytest.mark.parametrize("budget", [100, 256, 1024])
def test_strict_spends_at_most_the_budget_and_no_less_than_it_could(name: str, budget: int) -> None:
    sizes = [len(w) for w in SMALL]
    method = fr.for_budget(name, budget, workers=SMALL, mode="strict", eta=0.1)
    assert method.gradients_per_round(sizes) <= budget
    free = "K" if "K" in method.settings() else "b"
    for larger in range(getattr(method, free) + 1, 2 * budget):
        more = fr.method(name, **{**method.settings(), free: larger})
        assert more.gradients_per_round(sizes) > budget


def test_strict_is_what_the_ledger_shows() -> None:
    """Run whole stages: the counted gradients per worker and round stay within the budget, and near it."""
    problem = fr.Problem(loss=lambda x, z: 0.5 * ((x - z) ** 2).sum(1).mean(), dim=2)
    for name in REGISTRY:
        if name == "local-gd":
            continue
        method = fr.for_budget(name, 200, workers=SMALL, mode="strict", eta=0.01, **({"b": 4} if name in LOCAL else {}))
        T = method.stage_rounds([40] * 3)
        result = fr.train(problem, SMALL, method, 4 * T, progress=False)
        assert 150 < result.ledger.gradients_per_worker / (4 * T) <= 200, method


def test_the_paper_mode_overspends_for_two_point_methods() -> None:
    """Equal only in order: the reason why there is a strict mode."""
    sizes = [5000] * 10
    cost = {
        n: fr.for_budget(n, 1024, workers=CIFAR, eta=0.1).gradients_per_round(sizes)
        for n in REGISTRY
        if n != "local-gd"
    }
    assert cost["minibatch-sgd"] == cost["local-sgd"] == cost["scaffold"] == 1024
    assert cost["sarah"] == (5000 + 5 * 2048) / 6
    assert cost["bvr-l-sgd"] == (5000 + 5 * 2048) / 6 + 2 * 63 * 16 / 10


STRICT = {
    # K, b, b̃ at a budget of 256 and 10 workers of 5,000, each the greatest that fits, by hand:
    "svrg": {"b": 87, "b_tilde": None},  # T = 59: (5000 + 58·174)/59 = 255.8; b = 88 has T = 58 and costs 259.2
    "pr-spider": {"K": 5, "b": 16, "b_tilde": None},  # T = 64: (5000 + 63·160)/64 = 235.6; K = 6: 54, 282.2
    "inexact-dane": {"K": 5, "b": 16, "b_tilde": 128},  # 128 + 2·4·16 = 256
    "mime": {"K": 5, "b": 16, "b_tilde": 128},
    "mimelite": {"K": 8, "b": 16, "b_tilde": 128},  # 128 + 8·16 = 256
    "fedglomo": {"K": 3, "b": 16, "b_tilde": 64},  # 2·64 + 4·2·16 = 256
    "ce-lsgd": {"K": 7, "b": 16, "b_tilde": 128},  # 2·7·16 + 2·6·16/10 = 243.2; K = 8: 278.4
}


@pytest.mark.parametrize("name", STRICT)
def test_the_rules_of_the_other_methods(name: str) -> None:
    """What the paper did not run: in paper mode K = 𝓑/16, b = 16 and b̃ = 𝓑 where there is one every round."""
    strict = fr.for_budget(name, 256, workers=CIFAR, mode="strict", eta=0.1).settings()
    assert {key: strict[key] for key in STRICT[name]} == STRICT[name]
    paper = fr.for_budget(name, 256, workers=CIFAR, eta=0.1).settings()
    if name == "svrg":
        assert (paper["b"], paper["b_tilde"]) == (256, None)
    else:
        assert (paper["K"], paper["b"]) == (16, 16)
        assert paper["b_tilde"] == (None if name == "pr-spider" else 256)


BETWEEN = {
    # 10 workers of 139 (digits), budget 256: all data leave a quarter of it, and half of it is less than all data
    "inexact-dane": {"K": 4, "b_tilde": None},  # 139 + 2·3·16 = 235; K = 5: 267
    "mime": {"K": 4, "b_tilde": None},
    "mimelite": {"K": 7, "b_tilde": None},  # 139 + 7·16 = 251
    "fedglomo": {"K": 3, "b_tilde": 64},  # takes two a round, 278
    "ce-lsgd": {"K": 7, "b_tilde": 128},  # takes one in the first round alone
}


@pytest.mark.parametrize("name", BETWEEN)
def test_all_data_where_they_fit(name: str) -> None:
    """Full gradients, as their publications have them, for all methods whose budget allows it; and beyond, no longer."""
    found = fr.for_budget(name, 256, workers=[np.zeros((139, 1))] * 10, mode="strict", eta=0.1)
    assert {key: found.settings()[key] for key in BETWEEN[name]} == BETWEEN[name]
    assert fr.for_budget(name, 256, workers=[np.zeros((193, 1))] * 10, mode="strict", eta=0.1).b_tilde is not None
    stream = [fr.Stream(lambda n, rng: rng.normal(size=(n, 1)))]
    assert fr.for_budget(name, 256, workers=stream, mode="strict", eta=0.1).b_tilde is not None


LARGE = [np.zeros((n, 2)) for n in (2000, 3000)]


@pytest.mark.parametrize("participants", [None, 1])
@pytest.mark.parametrize("name", ["local-sgd", "scaffold", "fedglomo", "mime", "mimelite", "ce-lsgd"])
def test_strict_holds_where_not_all_data_fit_and_not_all_take_part(name: str, participants: int | None) -> None:
    """In every single round, its first included, and with any number of rounds. (272 is where CE-LSGD once overspent.)"""
    problem = fr.Problem(loss=lambda x, z: 0.5 * ((x - z) ** 2).sum(1).mean(), dim=2)
    fixed = {} if participants is None else {"participants": participants}
    method = fr.for_budget(name, 272, workers=LARGE, mode="strict", eta=0.01, **fixed)
    history = fr.train(problem, LARGE, method, 12, evaluate_every=1, progress=False).history
    spent = history["gradients_per_worker"].diff().dropna()
    assert (spent <= 272).all(), spent.tolist()
    assert history["gradients_per_worker"].iloc[-1] > 12 * 272 * 0.7


@pytest.mark.parametrize("budget", [256, 512, 1024])
def test_methods_of_one_point_have_the_papers_settings_in_strict_mode(budget: int) -> None:
    """On CIFAR-10: so part e of results/ takes their runs from part a."""
    for name in ("minibatch-sgd", "local-sgd", "scaffold"):
        paper, strict = (fr.for_budget(name, budget, workers=CIFAR, mode=mode, eta=0.1) for mode in ("paper", "strict"))
        assert paper == strict


@pytest.mark.parametrize(("participants", "b_tilde"), [(None, 128), (5, 256), (1, 1280)])
def test_half_of_the_budget_is_for_large_batches(participants: int | None, b_tilde: int) -> None:
    """Those who take part may spend the share of the others."""
    method = fr.for_budget("mime", 256, workers=CIFAR, mode="strict", eta=0.1, participants=participants)
    assert method.b_tilde == b_tilde
    assert 0.8 * 256 < method.gradients_per_round([5000] * 10) <= 256


def test_fixed_settings_are_kept() -> None:
    method = fr.for_budget("bvr-l-sgd", 256, workers=SMALL, eta=0.1, b=4, b_tilde=20, form="theory")
    assert (method.K, method.b, method.b_tilde, method.form) == (64, 4, 20, "theory")
    assert fr.for_budget("local-sgd", 256, workers=SMALL, eta=0.1, K=8).b == 32
    assert fr.for_budget("local-gd", 130, workers=SMALL, eta=0.1).K == 3
    stream = [fr.Stream(lambda n, rng: rng.normal(size=(n, 2)))]
    assert fr.for_budget("bvr-l-sgd", 256, workers=stream, mode="strict", eta=0.1, b_tilde=1000).K >= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fr.for_budget("local-sgd", 0, workers=SMALL, eta=0.1), "budget = 0: must be a whole number"),
        (lambda: fr.for_budget("local-sgd", 64, workers=SMALL), "local-sgd needs the setting 'eta'"),
        (lambda: fr.for_budget("local-sgd", 64, workers=SMALL, eta=0.1, mode="fair"), "mode = 'fair': must be 'paper' or"),
        (lambda: fr.for_budget("local-sdg", 64, workers=SMALL, eta=0.1), "did you mean 'local-sgd'"),
        (lambda: fr.for_budget("local-sgd", 64, workers=SMALL, eta=0.1, K=1, b=1), "K and b are both fixed"),
        (lambda: fr.for_budget("local-sgd", 64, workers=SMALL, eta=0.1, b=100), "too small for local-sgd, one step costs 100"),
        (lambda: fr.for_budget("local-gd", 20, workers=SMALL, eta=0.1), "too small for local-gd, one step costs 40"),
        (lambda: fr.for_budget("sarah", 12, workers=SMALL, eta=0.1, mode="strict", b_tilde=None, T=2), "too small for sarah, which costs 21 gradients at b = 1"),
        (lambda: fr.for_budget("sarah", 64, workers=[fr.Stream(lambda n, rng: 0)], eta=0.1), "b_tilde is required with a Stream"),
        (lambda: fr.for_budget("local-sgd", 64, workers=[], eta=0.1), "there are no workers"),
        (lambda: fr.for_budget("local-sgd", 64, workers=[3], eta=0.1), "worker 0 is a int: expected an array"),
        (lambda: fr.for_budget("local-sgd", 64, workers=[np.zeros((0, 2))], eta=0.1), "worker 0 has no samples"),
        (lambda: fr.for_budget("local-sgd", 64, workers=SMALL, eta=0.1, KK=1), "local-sgd has no setting 'KK'"),
        (lambda: fr.for_budget("mime", 64, workers=SMALL, eta=0.1, mode="strict", participants="two"), "mime: participants = 'two': must be a whole number"),
        (lambda: fr.for_budget("mime", 64, workers=SMALL, eta=0.1, mode="strict", participants=1.5), "mime: participants = 1.5: must be a whole number"),
        (lambda: fr.for_budget("svrg", 64, workers=SMALL, eta=0.1, mode="strict", participants=2), "svrg has no setting 'participants'"),
    ],
)  # fmt: skip
def test_bad_budgets_are_named(call, message: str) -> None:
    with pytest.raises(fr.FewroundsError, match=message):
        call()


def test_strict_finds_settings_whose_steps_cost_less_than_they_seem() -> None:
    """Local GD with random k̂ takes (K + 1)/2 steps on average: 10 samples and a budget of 100 allow K = 19."""
    ten = [np.zeros((10, 2))]
    assert fr.for_budget("local-gd", 100, workers=ten, eta=0.1, k_hat="random", mode="strict").K == 19
    # with T = 1 every round starts a stage: 10 + 2 (K - 1) b ≤ 100 allows K = 46 at b = 1
    assert fr.for_budget("bvr-l-sgd", 100, workers=ten, eta=0.1, b=1, T=1, mode="strict").K == 46


def test_who_takes_full_gradients_pays_for_no_large_batch_beside_them() -> None:
    workers = [np.zeros((144, 2))] * 2
    method = fr.for_budget("inexact-dane", 200, workers=workers, mode="strict", eta=0.1, b=None)
    assert (method.K, method.b_tilde) == (1, None)
    assert method.gradients_per_round([144, 144]) == 144


def test_a_function_that_loads_workers_will_do() -> None:
    by_list = fr.for_budget("bvr-l-sgd", 256, workers=SMALL, mode="strict", eta=0.1)
    assert fr.for_budget("bvr-l-sgd", 256, workers=SMALL.__getitem__, num_workers=3, mode="strict", eta=0.1) == by_list


def test_strict_bvr_l_sgd_by_hand() -> None:
    """10 workers of 5,000, b = 16, budget 256: K = 5 costs 8 + (5000 + 63·160)/64 + … ≤ 256, K = 6 costs more."""

    def cost(K: int) -> float:
        T = math.ceil(1 + 5000 / (16 * K))
        return (5000 + (T - 1) * 2 * 16 * K) / T + 2 * (K - 1) * 16 / 10

    method = fr.for_budget("bvr-l-sgd", 256, workers=CIFAR, mode="strict", eta=0.1)
    assert cost(method.K) <= 256 < cost(method.K + 1)
