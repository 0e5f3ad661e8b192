"""Draws: uniform, independent across workers, rounds and purposes, and the same whoever asks."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fewrounds as fr
from fewrounds.data.shards import Shard
from fewrounds.draws import Draws

seeds = st.integers(min_value=-(2**63), max_value=2**63)
rounds = st.integers(min_value=1, max_value=10**6)
workers = st.integers(min_value=0, max_value=10**5)
purposes = st.sampled_from(["local", "change", "stage", "pick"])

# Hypothesis looks for bad seeds on purpose, so the bounds below are far out: five million draws of a fair
# test statistic would exceed them with probability below 1e-4.
SIX_SIGMA = 6.5


@given(seed=seeds, purpose=purposes, round=rounds, worker=workers)
def test_a_draw_depends_on_nothing_but_its_label(seed: int, purpose: str, round: int, worker: int) -> None:
    first = Draws(seed).generator(purpose, round, worker).integers(1000, size=8)
    Draws(seed).generator(purpose, round + 1, worker).integers(1000, size=100)
    again = Draws(seed).generator(purpose, round, worker).integers(1000, size=8)
    np.testing.assert_array_equal(first, again)


@given(a=st.tuples(seeds, purposes, rounds, workers), b=st.tuples(seeds, purposes, rounds, workers))
def test_different_labels_give_different_draws(a: tuple, b: tuple) -> None:
    def draw(label: tuple) -> np.ndarray:
        seed, purpose, round, worker = label
        return Draws(seed).generator(purpose, round, worker).integers(2**62, size=4)

    assert (a == b) == np.array_equal(draw(a), draw(b))


@settings(max_examples=30)
@given(seed=seeds, size=st.integers(2, 300))
def test_samples_are_uniform(seed: int, size: int) -> None:
    n = 200 * size
    counts = np.bincount(Draws(seed).generator("local", 1, 0).integers(size, size=n), minlength=size)
    chi2 = ((counts - 200) ** 2 / 200).sum()
    assert abs(chi2 - (size - 1)) < SIX_SIGMA * np.sqrt(2 * (size - 1)) + 40


@settings(max_examples=30)
@given(seed=seeds)
def test_workers_rounds_and_purposes_are_independent(seed: int) -> None:
    """The correlation of 4,000 uniform numbers with those of a neighbouring label is 0 up to 1/√n noise."""
    n = 4000
    draws = Draws(seed)
    base = draws.generator("local", 5, 3).random(n)
    for other in (("local", 5, 4), ("local", 6, 3), ("change", 5, 3)):
        r = np.corrcoef(base, draws.generator(*other).random(n))[0, 1]
        assert abs(r) < SIX_SIGMA / np.sqrt(n)
    across_rounds = np.array([draws.generator("local", r, 0).random() for r in range(1, n + 1)])
    r = np.corrcoef(across_rounds[:-1], across_rounds[1:])[0, 1]
    assert abs(r) < SIX_SIGMA / np.sqrt(n)
    assert abs(across_rounds.mean() - 0.5) < SIX_SIGMA / np.sqrt(12 * n)


@settings(max_examples=20)
@given(seed=seeds, raw=st.lists(st.integers(1, 9), min_size=1, max_size=12))
def test_the_pick_follows_the_weights(seed: int, raw: list[int]) -> None:
    weights = np.array(raw) / sum(raw)
    n = 3000
    picks = [Draws(seed).pick(r, weights) for r in range(n)]
    counts = np.bincount(picks, minlength=len(raw))
    assert len(counts) == len(raw)
    assert (abs(counts - n * weights) <= SIX_SIGMA * np.sqrt(n * weights * (1 - weights)) + 1e-9).all()


def test_the_pick_never_leaves_the_range_when_weights_round_badly() -> None:
    """Weights whose sum falls short of 1 in floating point."""
    weights = [0.1] * 10
    assert np.cumsum(weights)[-1] < 1
    assert {Draws(0).pick(r, weights) for r in range(2000)} == set(range(10))


def test_draws_are_the_same_in_another_process() -> None:
    code = (
        "from fewrounds.draws import Draws; print(Draws(7).generator('local', 2, 3).integers(10**9, size=4).tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == str(Draws(7).generator("local", 2, 3).integers(10**9, size=4).tolist())


def test_draws_of_old_releases_stay_valid() -> None:
    """A changed generator would make checkpoints and published figures irreproducible, so it must be deliberate."""
    assert Draws(0).generator("local", 1, 0).integers(1000, size=5).tolist() == [489, 127, 76, 409, 962]
    assert [Draws(0).pick(r, [0.1] * 10) for r in range(1, 6)] == [6, 2, 7, 0, 3]


@pytest.mark.parametrize(("K", "b"), [(1, 6), (2, 3), (3, 2), (6, 1)])
def test_a_shard_gives_the_same_samples_however_they_are_cut(K: int, b: int) -> None:
    shard = Shard(torch.arange(50.0))
    rng = Draws(1).generator
    whole = torch.cat(list(shard.batches(rng("local", 1, 0), 1, 6)))
    cut = torch.cat(list(shard.batches(rng("local", 1, 0), K, b)))
    assert torch.equal(whole, cut)


def test_methods_at_one_seed_see_the_same_samples() -> None:
    """Common random numbers: a sample is seen by SCAFFOLD's k-th step iff Local SGD's sees it."""
    seen: dict[str, list] = {"local-sgd": [], "scaffold": []}

    def spy(name: str):
        def loss(x, z):
            seen[name].append(z.flatten().tolist())
            return 0.5 * ((x - z) ** 2).sum(1).mean()

        return loss

    data = [np.arange(20.0).reshape(-1, 1), np.arange(100.0, 130).reshape(-1, 1)]
    for name in seen:
        problem = fr.Problem(loss=spy(name), dim=1)
        method = fr.method(name, eta=0.1, K=3, b=4)
        fr.train(problem, data, method, 2, seed=5, rows_at_once=1, progress=False)
    assert seen["local-sgd"] == seen["scaffold"]
    assert len(seen["local-sgd"]) > 12


@pytest.mark.parametrize(("n", "shape"), [(1, (3,)), (7, (64, 16)), (5000, (5, 3)), (2**31, (9,)), (2**40, (4, 2))])
def test_integers_are_what_a_new_generator_gives_first(n: int, shape: tuple[int, ...]) -> None:
    draws = Draws(5)
    for round, worker in ((1, 0), (2, 0), (1, 3)):  # whatever was drawn before
        expected = draws.generator("local", round, worker).integers(n, size=shape, dtype=np.int64)
        np.testing.assert_array_equal(draws.integers("local", round, worker, n, shape), expected)


def test_every_subset_is_as_likely() -> None:
    """Chi-squared with 9 degrees of freedom over the 10 subsets: a false alarm once in 10,000 seeds."""
    counts: dict[tuple[int, ...], int] = {}
    for round in range(4000):
        subset = tuple(Draws(1).subset(round, 5, 2))
        assert list(subset) == sorted(set(subset))
        counts[subset] = counts.get(subset, 0) + 1
    assert len(counts) == 10
    assert sum((count - 400) ** 2 / 400 for count in counts.values()) < 33.7
