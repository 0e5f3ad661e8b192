"""How precise `fr.measure` is: its error bars where samples stand for data, its eigensolver, cost and memory."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import fewrounds as fr
from fewrounds.theory.spectrum import largest
from problems import classifier, quadratic
from test_measure import Truth, norm

# ---------------------------------------------------------------------- noise


def test_the_noise_is_within_its_standard_error_as_often_as_it_should() -> None:
    case = quadratic((400, 300), seed=3)
    truth = Truth(case)
    off = []
    for seed in range(60):
        m = fr.measure(case.problem, case.workers, case.x0, only=["sigma2"], samples=100, seed=seed)
        pairs = zip(m.sigma2_workers, truth.sigma2_workers, strict=True)
        off += [(value - true) / value.error for value, true in pairs]
    assert abs(np.mean(off)) < 0.35, "120 draws of a standard normal: four standard errors"
    assert 0.8 < np.std(off) < 1.25


def test_the_noise_does_not_depend_on_what_stands_for_the_data() -> None:
    case = quadratic()
    for n in (2, 5, None):
        m = fr.measure(case.problem, case.workers, case.x0, only=["sigma2"], n=n)
        assert m.sigma2_workers == pytest.approx(Truth(case).sigma2_workers, rel=1e-9)
    large = quadratic((400, 300), seed=3)
    off = []
    for seed in range(40):
        m = fr.measure(large.problem, large.workers, large.x0, only=["sigma2"], n=5, samples=100, seed=seed)
        off += [(v - true) / v.error for v, true in zip(m.sigma2_workers, Truth(large).sigma2_workers, strict=True)]
    assert abs(np.mean(off)) < 0.45, "80 draws of a standard normal: four standard errors"


def test_a_maximum_has_the_highest_error_bar() -> None:
    from fewrounds.theory.estimate import greatest_of

    found = greatest_of([fr.Estimate(1.0, 0.5), fr.Estimate(1.2, 0.1), fr.Estimate(0.1, 0.3)])
    assert found == 1.2
    assert found + found.error == pytest.approx(1.5)


def mean_of_samples(dtype: torch.dtype = torch.float64, dim: int = 5) -> fr.Problem:
    """½ ‖x - z‖²: σ² is the variance of the samples."""
    return fr.Problem(loss=lambda x, z: 0.5 * (x - z).square().sum(dim=1).mean(), dim=dim, dtype=dtype)


def test_the_greatest_noise_of_equal_workers_is_covered() -> None:
    """Ten workers with the same data. A bar that covers two in three misses 41 or more of 80 once in 1,000 times."""
    data = np.random.default_rng(0).standard_t(6, size=(4000, 5))
    true = float(((data - data.mean(axis=0)) ** 2).sum(axis=1).mean())
    covered, high = 0, 0
    for seed in range(80):
        m = fr.measure(mean_of_samples(), [data] * 10, np.zeros(5), only=["sigma2"], samples=100, seed=seed)
        covered += abs(m.sigma2 - true) <= m.sigma2.error
        high += m.sigma2 > true
    assert covered >= 40
    assert high > 60, "the greatest of ten is too great, which is what the bar allows for"


def test_fewer_samples_stand_for_the_data_and_make_workers_look_less_alike() -> None:
    rng = np.random.default_rng(0)
    whole = classifier((4000,), seed=5).workers[0]
    workers = [tuple(part[rng.permutation(4000)[:1000]] for part in (whole[0],)) for _ in range(2)]
    workers = [(X[0], rng.integers(3, size=1000)) for X in workers]
    problem = classifier().problem
    full = fr.measure(problem, workers, only=["zeta", "gradient_norm2"])
    few = fr.measure(problem, workers, only=["zeta", "gradient_norm2"], n=50)
    assert few.zeta > 1.5 * full.zeta
    assert few.gradient_norm2.gradients == 2 * 50 + 2 * 2 * 256, "the gradients, and their variance for the error bar"
    assert full.gradient_norm2.gradients == 2000
    assert few.n == 50
    assert abs(few.gradient_norm2 - full.gradient_norm2) < few.gradient_norm2.error
    assert abs(few.zeta - full.zeta) < 1.5 * few.zeta.error
    assert full.gradient_norm2.error == 0


@pytest.mark.parametrize("endless", [False, True])
def test_sampled_gradients_are_within_their_error_bars(endless: bool) -> None:
    """All workers have the same distribution: ζ₁ = 0 and ‖∇f‖² = 9 · 3, whatever the samples say."""

    def draw(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(size=(n, 3)) + 3

    rng = np.random.default_rng(1)
    finite = [draw(5000, rng) for _ in range(4)]
    true = float(np.square(np.concatenate(finite).mean(axis=0)).sum())
    covered1, covered2, seeds = 0, 0, 40
    for seed in range(seeds):
        workers = [fr.Stream(draw)] * 4 if endless else finite
        m = fr.measure(
            mean_of_samples(dim=3), workers, np.zeros(3), n=50, samples=50, seed=seed, only=["zeta1", "gradient_norm2"]
        )
        covered1 += m.zeta1 <= 2 * m.zeta1.error
        covered2 += abs(m.gradient_norm2 - (27 if endless else true)) <= m.gradient_norm2.error
    assert covered1 >= 0.9 * seeds, "two bars"
    # the bar takes all noise to be along the gradient, which of three directions is √3 standard errors: 92 in 100
    assert covered2 >= 30, "less happens once in a thousand times"


def test_sampled_curvature_reaches_to_what_other_samples_say() -> None:
    """The same distribution at every worker: the ζ of samples is all chance, and its bar nearly reaches 0."""
    rng = np.random.default_rng(2)
    workers = [rng.normal(size=(5_000, 12)) for _ in range(4)]
    problem = fr.Problem(
        loss=lambda x, z: (0.5 * z.square() @ (x * x)).mean() + (z[:, :1] * z[:, 1:2] * x[0] * x[1]).mean(),
        dim=12,
        dtype=torch.float64,
    )
    wanted = ["zeta", "zeta_to_mean", "L", "L_workers"]
    few = [fr.measure(problem, workers, np.ones(12), n=50, only=wanted, seed=seed) for seed in range(8)]
    full = fr.measure(problem, workers, np.ones(12), only=wanted)
    for name in ("zeta", "zeta_to_mean"):
        found = [getattr(m, name) for m in few]
        assert min(found) > 4 * getattr(full, name), "chance"
        assert np.mean([one - one.error for one in found]) < 0.4 * np.mean(found)
        assert getattr(full, name).error < 1e-6
    assert np.mean([abs(m.L - full.L) < 2 * m.L.error for m in few]) > 0.5, "not the residual alone"
    assert min(one.error for m in few for one in m.L_workers) > 1e-6
    assert max(one.error for one in full.L_workers) < 1e-6


def test_what_samples_say_of_the_curvature_ahead_has_a_bar_as_well() -> None:
    """Of Σ z² x⁴/12, which is bent less after a step."""
    rng = np.random.default_rng(3)
    workers = [rng.normal(size=(3_000, 4)) for _ in range(3)]
    problem = fr.Problem(loss=lambda x, z: (z.square() @ x**4).mean() / 12, dim=4, dtype=torch.float64)
    x, wanted = np.array([2.0, 1.0, 0.5, 0.5]), ["L", "L_ahead"]
    full = fr.measure(problem, workers, x, only=wanted)
    few = [fr.measure(problem, workers, x, n=50, only=wanted, seed=seed) for seed in range(12)]
    assert full.L_ahead.error < 1e-6
    assert full.L_ahead < 0.5 * full.L
    for m in few:
        assert m.L_ahead.error > 1e-6, "not the residual alone"
        assert m.L_ahead.gradients == 2 * 3 * 150, "a gradient and a product, and both of other samples"
    assert np.mean([abs(m.L_ahead - full.L_ahead) < 2 * m.L_ahead.error for m in few]) > 0.5
    assert np.mean([m.L_ahead.error for m in few]) < 0.5 * full.L_ahead


# ---------------------------------------------------------------------- eigenvalues


def test_products_are_counted_one_by_one() -> None:
    from fewrounds.theory.spectrum import largest

    calls = []
    scale = torch.linspace(-3, 2, 40, dtype=torch.float64)

    def product(v: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return scale * v

    top = largest(product, torch.ones(40, dtype=torch.float64), 1e-10)
    assert top.value == pytest.approx(-3)
    assert top.products == len(calls)
    assert top.residual < 1e-8


@pytest.mark.parametrize("name", ["one direction", "three directions", "a multiple of I"])
def test_two_solvers_see_the_same_vectors(name: str) -> None:
    """Where Lanczos breaks down, SciPy draws a vector: ranks must draw the same one, or wait for each other for ever."""
    scale = torch.zeros(200, dtype=torch.float64)
    scale[: {"one direction": 1, "three directions": 3, "a multiple of I": 200}[name]] = 3.0
    start = torch.randn(200, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def seen() -> list[torch.Tensor]:
        vectors: list[torch.Tensor] = []

        def product(v: torch.Tensor) -> torch.Tensor:
            vectors.append(v.clone())
            return scale * v

        assert largest(product, start / start.norm(), 1e-8).value == pytest.approx(3)
        return vectors

    for one, other in zip(seen(), seen(), strict=True):
        assert torch.equal(one, other)


def planted(dtype: torch.dtype, count: int = 3, d: int = 200) -> tuple[fr.Problem, list[np.ndarray], list[np.ndarray]]:
    """Workers whose Hessians have many more directions than ARPACK has vectors, and little room between eigenvalues."""
    rng = np.random.default_rng(7)
    hessians = []
    for p in range(count):
        Q = np.linalg.qr(rng.normal(size=(d, d)))[0]
        ends = [-4.0 + 0.5 * p, 3.9]
        hessians.append((Q * np.array([*ends, *np.linspace(-3, 3.5, d - 2)])) @ Q.T)
    A = torch.from_numpy(np.stack(hessians)).to(dtype)
    problem = fr.Problem(loss=lambda x, z: 0.5 * x @ (A[z[:, 0].long()].mean(dim=0) @ x), dim=d, dtype=dtype)
    return problem, [np.full((2, 1), float(p)) for p in range(count)], hessians


@pytest.mark.parametrize(("dtype", "precise"), [(torch.float32, 2e-3), (torch.float64, 1e-6)])
def test_many_directions_are_measured_to_the_tolerance(dtype: torch.dtype, precise: float) -> None:
    problem, workers, H = planted(dtype)
    m = fr.measure(problem, workers, np.ones(200), only=["L", "L_workers", "zeta", "zeta_to_mean"])
    mean = sum(H) / 3
    zeta = max(norm(H[p] - H[q]) for p, q in ((0, 1), (0, 2), (1, 2)))
    assert pytest.approx(norm(mean), rel=precise) == m.L
    assert m.L_workers == pytest.approx([norm(one) for one in H], rel=precise)
    assert m.zeta == pytest.approx(zeta, rel=precise)
    assert m.zeta_to_mean == pytest.approx(max(norm(one - mean) for one in H), rel=precise)
    assert m.L.error < 10 * precise * m.L
    assert m.L.gradients % (2 * 6) == 0


def test_a_rough_tolerance_costs_less_and_says_so() -> None:
    problem, workers, H = planted(torch.float64)
    fine, rough = (
        fr.measure(problem, workers, np.ones(200), only=["L", "zeta"], tolerance=tolerance) for tolerance in (1e-8, 0.1)
    )
    assert rough.zeta.gradients < 0.7 * fine.zeta.gradients
    assert rough.zeta.error > 100 * fine.zeta.error
    assert abs(rough.zeta - fine.zeta) <= rough.zeta.error
    assert rough.L.error < 0.2 * norm(sum(H) / 3)


def test_a_figure_costs_its_products(monkeypatch) -> None:
    """Two gradients of each of n samples a product, and no more than the solver asks for."""
    found = []

    def watched(*arguments):
        found.append(largest(*arguments))
        return found[-1]

    monkeypatch.setattr("fewrounds.theory.exchange.largest", watched)
    problem, workers, _ = planted(torch.float64)
    m = fr.measure(problem, workers, np.ones(200), only=["L"])
    assert found[0].products > 20
    assert m.L.gradients == 2 * 6 * found[0].products


# ---------------------------------------------------------------------- cost and memory


@pytest.mark.parametrize("count", [5, 12])
def test_the_distance_to_the_mean_is_cheaper_than_that_of_pairs(count: int) -> None:
    case = quadratic((4,) * count, d=40, seed=2)
    truth = Truth(case)
    alone = fr.measure(case.problem, case.workers, case.x0, only=["zeta_to_mean"], tolerance=1e-4)
    pairs = fr.measure(case.problem, case.workers, case.x0, only=["zeta"], tolerance=1e-4)
    assert alone.zeta_to_mean.gradients < 0.9 * pairs.zeta.gradients
    assert np.isnan(alone.zeta), "not asked for"
    assert alone.zeta_to_mean <= truth.zeta_to_mean * (1 + 1e-6)
    assert truth.zeta_to_mean <= alone.zeta_to_mean + alone.zeta_to_mean.error
    exact = fr.measure(case.problem, case.workers, case.x0, only=["zeta_to_mean"], tolerance=1e-4, all_pairs=True)
    assert exact.zeta_to_mean == pytest.approx(truth.zeta_to_mean, rel=1e-4)
    assert exact.zeta_to_mean.error < 1e-2


def one_direction_each(seed: int, count: int = 12, d: int = 30) -> tuple[fr.Problem, list[np.ndarray], float]:
    """Workers whose Hessians are of rank one, one of them 2.5 times the others; and the true distance to the mean."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(count, d))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[rng.integers(count)] *= np.sqrt(2.5)
    hessians = [np.outer(row, row) for row in rows]
    problem = fr.Problem(loss=lambda x, z: 0.5 * (z @ x).square().mean(), dim=d, dtype=torch.float64)
    true = max(norm(one - sum(hessians) / count) for one in hessians)
    return problem, [row[None] for row in rows], true


def test_the_distance_to_the_mean_is_within_its_bar_where_random_directions_say_little() -> None:
    """A worker may be far from the mean along one direction alone. A bar that holds in 99 of 100 cases misses two or
    more of 20 once in 60 times."""
    missed, bars = 0, []
    for seed in range(20):
        problem, workers, true = one_direction_each(seed)
        m = fr.measure(problem, workers, np.ones(30), only=["zeta_to_mean"], tolerance=1e-2, seed=seed)
        missed += m.zeta_to_mean + m.zeta_to_mean.error < true * (1 - 1e-6)
        bars.append(m.zeta_to_mean.error / true)
    assert missed <= 1
    assert np.mean(bars) < 1.5, "and it says something"


def test_what_is_not_asked_for_is_not_given() -> None:
    case = quadratic()
    m = fr.measure(case.problem, case.workers, case.x0, only=["zeta1"])
    assert np.isnan(m.gradient_norm2)
    assert m.zeta1.gradients == 2 * sum(case.sizes), "the mean, and each worker's own"
    assert m.gradients == m.zeta1.gradients


def test_samples_that_stand_for_the_data_are_taken_in_parts() -> None:
    """As all of the data are, so that the memory of second derivatives does not grow with their number."""
    sizes: list[int] = []

    def loss(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        sizes.append(len(z))
        return 0.5 * (z.square() @ (x * x)).mean()

    data = np.random.default_rng(4).normal(size=(5_000, 3))
    problem = fr.Problem(loss=loss, dim=3, dtype=torch.float64)
    m = fr.measure(problem, [data], np.ones(3), n=4_999, samples=4_999, only=["L", "gradient_norm2"])
    assert 512 < max(sizes) <= 1024
    assert pytest.approx(norm(np.diag((data**2).mean(axis=0))), rel=1e-2) == m.L
    assert m.gradient_norm2 == pytest.approx(np.sum((data**2).mean(axis=0) ** 2), rel=1e-2)


MEMORY = """
import resource, sys
import numpy as np, torch
import fewrounds as fr
count, d = int(sys.argv[1]), int(sys.argv[2])
scales = [np.full((2, 1), 1.0 + p / count, dtype=np.float32) for p in range(count)]
ramp = torch.linspace(0, 1, d) ** 64
problem = fr.Problem(loss=lambda x, z: 0.5 * z.mean() * (ramp * (x - 1).square()).sum(), dim=d)
m = fr.measure(problem, scales, tolerance=0.5, smooth_samples=1, samples=2, only=["zeta", "zeta1", "sigma2"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""

MEMORY_OF_SAMPLES = """
import resource, sys
import numpy as np, torch
import fewrounds as fr
count = int(sys.argv[1])
rng = np.random.default_rng(0)
data = rng.normal(size=(20_001, 8)).astype(np.float32), rng.integers(3, size=20_001)
problem = fr.Problem(fr.models.mlp([8, 400, 3]), loss=torch.nn.functional.cross_entropy)
fr.measure(problem, [data], tolerance=0.5, n=count or None, only=["L", "gradient_norm2"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def peak(*arguments: int, script: str = MEMORY) -> int:
    """Bytes."""
    exact = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "262144", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # (what is freed is given back at once, and threads do not wait for each other)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return int(subprocess.run(command, capture_output=True, env=exact, check=True).stdout)


@pytest.mark.slow
def test_memory_is_that_of_some_vectors() -> None:
    """36 workers more, and hardly any vectors more; d numbers more, and no more than ARPACK's twenty in float64 (40 of
    ours) with a few to work with."""
    short, few, many = peak(12, 100_000), peak(12, 200_000), peak(48, 200_000)
    assert many - few < 12 * 4 * 200_000, (few, many)
    assert few - short < 80 * 4 * 100_000, (short, few)


@pytest.mark.slow
def test_memory_is_that_of_a_part_of_the_samples() -> None:
    """20,000 samples that are drawn take no more room than all 20,001. Values of the 400 hidden units for all of them
    at once would take 32 megabytes, and second derivatives need about ten of these."""
    whole, many = (peak(count, script=MEMORY_OF_SAMPLES) for count in (0, 20_000))
    assert many - whole < 60_000_000, (whole, many)
