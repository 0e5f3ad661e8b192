"""`fr.measure` against Hessians that are known, finite differences, other engines and its own error bars."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fewrounds as fr
from near_sites import NearSites
from problems import Case, classifier, quadratic

MANY = (5, 3, 4, 6, 3, 5, 4, 3, 6, 5, 4, 3, 5)


def norm(A: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvalsh(A)).max())


class Truth:
    """What is to be measured on a quadratic, from its matrices alone."""

    def __init__(self, case: Case, weights: str = "uniform") -> None:
        x = case.x0
        own = [A.mean(axis=0) for A, _ in case.workers]
        w = np.array(case.sizes) / sum(case.sizes) if weights == "size" else np.full(len(own), 1 / len(own))
        mean = sum(wp * H for wp, H in zip(w, own, strict=True))
        gradients = [case.full(p, x) for p in range(len(own))]
        pairs = list(itertools.combinations(range(len(own)), 2))
        self.L = norm(mean)
        self.L_workers = [norm(H) for H in own]
        self.zeta = max(norm(own[p] - own[q]) for p, q in pairs)
        self.zeta_to_mean = max(norm(H - mean) for H in own)
        self.zeta1 = max(float(np.linalg.norm(gradients[p] - gradients[q])) for p, q in pairs)
        self.gradient_norm2 = float(np.sum(sum(wp * g for wp, g in zip(w, gradients, strict=True)) ** 2))
        self.sigma2_workers = [
            float(np.mean([np.sum((A @ (x - m) - g) ** 2) for A, m in zip(*worker, strict=True)]))
            for worker, g in zip(case.workers, gradients, strict=True)
        ]
        self.sigma2_mean = float(w @ self.sigma2_workers)
        self.L_samples = [norm(A) for worker in case.workers for A in worker[0]]


@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_quadratics_are_measured_exactly(weights: str) -> None:
    case = quadratic()
    truth = Truth(case, weights)
    m = fr.measure(case.problem, case.workers, case.x0, weights=weights)
    for name in ("L", "zeta", "zeta_to_mean", "zeta1", "gradient_norm2", "sigma2_mean"):
        assert getattr(m, name) == pytest.approx(getattr(truth, name), rel=1e-6), name
    assert m.L_ahead == pytest.approx(truth.L, rel=1e-6), "the curvature is the same everywhere"
    assert m.L_workers == pytest.approx(truth.L_workers, rel=1e-6)
    assert m.sigma2_workers == pytest.approx(truth.sigma2_workers, rel=1e-9)
    assert m.sigma2 == max(m.sigma2_workers)
    assert m.sigma2.error == 0, "all samples were looked at"
    assert m.sizes == case.sizes
    assert m.dim == 5


def test_the_smoothness_of_samples_is_a_quantile() -> None:
    case = quadratic()
    norms = Truth(case).L_samples
    m = fr.measure(case.problem, case.workers, case.x0, only=["L_sample"], smooth_samples=20, quantile=0.75)
    assert m.L_sample == pytest.approx(np.quantile(norms, 0.75), rel=1e-3)
    assert 0 < m.L_sample.error < max(norms) - min(norms)
    assert np.isnan(m.L)


@pytest.mark.parametrize("only", [["L", "L_ahead"], ["L_ahead"]])
def test_the_curvature_that_a_first_step_leaves(only: list[str]) -> None:
    """Of Σ x⁴/12 it is x², and a step 1/L along the gradient goes from x to x - x³/(3 L)."""
    problem = fr.Problem(loss=lambda x, z: (z[:, :1] * x**4 / 12).sum(dim=1).mean(), dim=3, dtype=torch.float64)
    workers = [np.ones((2, 1)), 3 * np.ones((5, 1))]  # their mean is Σ x⁴/6
    m = fr.measure(problem, workers, np.array([1.0, -2.0, 0.5]), only=only)
    assert m.L_ahead == pytest.approx(2 * (2 * (1 - 1 / 3)) ** 2, rel=1e-6)
    assert np.isnan(m.L) if "L" not in only else pytest.approx(8, rel=1e-6) == m.L
    if "L" in only:
        assert m.L_ahead.gradients == 3 * 7, "a gradient and one product"


@pytest.mark.parametrize("seed", range(4))
def test_a_search_over_many_workers_stays_within_its_error_bar(seed: int) -> None:
    case = quadratic(MANY, seed=seed)
    truth = Truth(case)
    found = fr.measure(case.problem, case.workers, case.x0, only=["zeta", "zeta_to_mean", "zeta1"], tolerance=1e-4)
    for name in ("zeta", "zeta_to_mean", "zeta1"):
        value, true = getattr(found, name), getattr(truth, name)
        assert value <= true * (1 + 1e-6), name
        assert true <= value + value.error * (1 + 1e-6), name
        assert value >= 0.85 * true, f"{name}: the search has found a pair that is nearly the farthest"
    every = fr.measure(case.problem, case.workers, case.x0, only=["zeta", "zeta1"], all_pairs=True, tolerance=1e-4)
    assert every.zeta == pytest.approx(truth.zeta, rel=1e-6)
    assert every.zeta1 == pytest.approx(truth.zeta1, rel=1e-9)


@pytest.mark.parametrize("count", [3, 13])
def test_identical_workers_are_not_heterogeneous(count: int) -> None:
    case = classifier()
    m = fr.measure(case.problem, case.workers[:1] * count, case.x0)
    assert (m.zeta, m.zeta_to_mean, m.zeta1) == (0, 0, 0)
    assert m.zeta.error == 0
    assert m.zeta1.error < 1e-12, "the rounding of a mean"
    assert pytest.approx(m.L_workers[0], rel=1e-6) == m.L
    assert m.sigma2 > 0


def test_one_worker_alone() -> None:
    case = quadratic((6,))
    m = fr.measure(case.problem, case.workers, case.x0)
    assert (m.zeta, m.zeta_to_mean, m.zeta1) == (0, 0, 0)
    assert pytest.approx(norm(case.workers[0][0].mean(axis=0)), rel=1e-6) == m.L


# ---------------------------------------------------------------------- Hessian-vector products


def small_cnn() -> fr.Problem:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Softplus(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(27, 4)).double()
    return fr.Problem(model, loss=nn.functional.cross_entropy, l2=0.02)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(4, 2, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x, x, x, need_weights=False)[0].mean(dim=1))


def attention() -> fr.Problem:
    return fr.Problem(Attention().double(), loss=nn.functional.cross_entropy)


def inputs(shape: tuple[int, ...], classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(9, *shape, dtype=torch.float64, generator=rng), torch.randint(classes, (9,), generator=rng)


@pytest.mark.parametrize(
    ("make", "z"),
    [
        (lambda: classifier().problem, inputs((6,), 3)),
        (small_cnn, inputs((1, 8, 8), 4)),
        (attention, inputs((5, 4), 3)),
    ],
    ids=["mlp", "cnn", "attention"],
)
def test_hessian_products_are_the_change_of_the_gradient(make: Callable[[], fr.Problem], z: tuple) -> None:
    problem = make()
    x = problem.start
    v = torch.randn(problem.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    h = 1e-5
    change = (problem.gradient(x + h * v, z) - problem.gradient(x - h * v, z)) / (2 * h)
    found = problem.hessian_product(x, z, v)
    torch.testing.assert_close(found, change, rtol=1e-6, atol=1e-7)
    w = torch.randn_like(v)
    assert float(w @ found) == pytest.approx(float(v @ problem.hessian_product(x, z, w)), rel=1e-10), "symmetric"


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_problems_of_few_dimensions(dim: int) -> None:
    scales = [np.array([[1.0], [2.0]]), np.array([[-5.0], [1.0]])]
    problem = fr.Problem(loss=lambda x, z: (0.5 * z[:, 0] * (x * x).sum()).mean(), dim=dim, dtype=torch.float64)
    m = fr.measure(problem, scales, np.ones(dim))
    assert pytest.approx(0.25) == m.L
    assert m.L_workers == pytest.approx([1.5, 2.0])
    assert m.zeta == pytest.approx(3.5)
    assert m.zeta_to_mean == pytest.approx(1.75)


def test_a_loss_without_curvature() -> None:
    problem = fr.Problem(loss=lambda x, z: (z @ x).mean(), dim=4, dtype=torch.float64)
    m = fr.measure(problem, [np.eye(4), 2 * np.eye(4)])
    assert (m.L, m.L_ahead, m.L_sample, m.zeta) == (0, 0, 0, 0)
    assert m.zeta1 == pytest.approx(0.5)


# ---------------------------------------------------------------------- engines, cost, form


def as_numbers(m: fr.Measurement) -> list[float]:
    def flat(value):
        if isinstance(value, dict):
            return [number for key in sorted(value) for number in flat(value[key])]
        if isinstance(value, (list, tuple)):
            return [number for one in value for number in flat(one)]
        return [] if value is None else [float(value)]

    return flat(m.to_json())


@pytest.mark.parametrize("sizes", [(7, 4, 9), (3,) * 11], ids=["all pairs", "search"])
def test_sites_measure_the_same(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    case = classifier(sizes)
    settings = {"samples": 4, "tolerance": 1e-2}  # and eight samples' smoothness, of which some workers have fewer
    alone = fr.measure(case.problem, case.workers, case.x0, **settings)
    sites = NearSites(case, tmp_path)
    assert as_numbers(sites.measure(case, **settings)) == pytest.approx(as_numbers(alone), rel=1e-7)


@pytest.mark.parametrize("ranks", [3])
def test_ranks_measure_the_same(tmp_path: Path, ranks: int) -> None:
    script = Path(__file__).parent / "cluster" / "measured.py"
    out = tmp_path / "measured.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run([*command, str(script), str(out)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found, *few = (fr.Measurement.from_json(one) for one in json.loads(out.read_text()))
    case = classifier()
    alone = fr.measure(case.problem, case.workers, case.x0, samples=4, smooth_samples=2)
    assert as_numbers(found) == pytest.approx(as_numbers(alone), rel=1e-7)
    assert [(one.L, one.zeta) for one in few] == [pytest.approx((6, 4))] * 8, "of low rank"


def test_every_figure_says_what_it_cost() -> None:
    case = quadratic()
    n = sum(case.sizes)
    m = fr.measure(case.problem, case.workers, case.x0)
    assert m.gradient_norm2.gradients == n
    assert m.zeta1.gradients == n, "one gradient of every worker"
    assert m.sigma2.gradients == 2 * n, "the mean, and each sample by itself"
    for one, size in zip(m.L_workers, case.sizes, strict=True):
        assert one.gradients % (2 * size) == 0
        assert one.gradients > 2 * size
    assert m.L.gradients % (2 * n) == 0
    assert m.gradients == sum(one.gradients for one in (
        m.L, m.L_ahead, *m.L_workers, m.L_sample, m.zeta, m.zeta_to_mean, m.zeta1, m.sigma2, m.gradient_norm2
    ))  # fmt: skip
    rough = fr.measure(case.problem, case.workers, case.x0, only=["zeta"], tolerance=0.3)
    assert rough.zeta.gradients <= m.zeta.gradients
    assert rough.zeta.error >= m.zeta.error


def test_the_cost_grows_with_the_pairs_of_few_workers_and_with_the_workers_of_many() -> None:
    def cost(count: int, **settings) -> tuple[int, int]:
        case = quadratic((4,) * count, d=8, seed=1)
        m = fr.measure(case.problem, case.workers, case.x0, tolerance=0.1, **settings)
        return m.zeta.gradients, m.gradients

    (five, _), (ten, _) = cost(5), cost(10)
    assert ten == pytest.approx(five * 45 / 10, rel=0.1), "a pair costs what a pair costs"
    many = [cost(count) for count in (11, 22, 44)]
    assert many[0][0] < 0.7 * ten, "a search is cheaper"
    for (zeta, every), (twice, every_twice) in itertools.pairwise(many):
        assert twice < 2.1 * zeta
        assert every_twice < 2.1 * every
    fewer = [cost(count, all_pairs=False)[0] for count in (5, 10)]
    assert fewer[1] < 2.1 * fewer[0], "few are searched as well, if that is asked for"


def test_measuring_leaves_nothing_behind_in_the_engine() -> None:
    from fewrounds.opening import open_engine
    from fewrounds.theory.measure import How, measure_with

    case = quadratic()
    ready = open_engine(case.problem, case.workers, x0=case.x0)
    before = ready.engine.committed
    measure_with(ready.engine, ready.x, How())
    assert ready.engine.committed is before


def test_along_a_trajectory() -> None:
    case = classifier()
    run = fr.train(
        case.problem,
        case.workers,
        fr.MinibatchSGD(eta=0.1, b=4),
        10,
        x0=case.x0,
        trace=True,
        evaluate_every=1,
        progress=False,
    )
    along = fr.measure_along(case.problem, case.workers, run.trace[::5], only=["gradient_norm2"])
    norms = run.history["gradient_norm"].iloc[::5] ** 2
    assert [m.gradient_norm2 for m in along] == pytest.approx(list(norms), rel=1e-9)
    assert [m.loss for m in along] == pytest.approx(list(run.history["train_loss"].iloc[::5]), rel=1e-9)
    with pytest.raises(fr.SettingError, match="points must be a list of points, such as result.trace.*not a NoneType"):
        fr.measure_along(case.problem, case.workers, None)


def test_a_stream_is_measured_on_its_evaluation_samples() -> None:
    def draw(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.normal(size=(n, 3)) + 1

    problem = fr.Problem(loss=lambda x, z: 0.5 * (x - z).square().sum(dim=1).mean(), dim=3, dtype=torch.float64)
    m = fr.measure(problem, [fr.Stream(draw), fr.Stream(draw)], samples=2000)
    assert pytest.approx(1) == m.L
    assert m.zeta == pytest.approx(0, abs=1e-9)
    assert abs(m.sigma2_mean - 3) < 5 * m.sigma2_mean.error
    assert m.sigma2.error > 0
    assert m.sizes == (np.inf, np.inf)


def test_estimates_are_numbers_that_survive_a_journey() -> None:
    case = quadratic()
    m = fr.measure(case.problem, case.workers, case.x0)
    for back in (
        pickle.loads(pickle.dumps(m)),
        copy.deepcopy(m),
        fr.Measurement.from_json(json.loads(json.dumps(m.to_json()))),
    ):
        assert back == m
        assert back.zeta.error == m.zeta.error
        assert back.L_workers[1].gradients == m.L_workers[1].gradients
    assert isinstance(m.zeta, float)
    assert "ζ₁" in str(m)
    assert f"{m.zeta:.4g}" in str(m)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"only": []}, "only is empty: name at least one of L, L_ahead"),
        ({"only": ["zetta"]}, "only: there is no figure 'zetta'; did you mean 'zeta'"),
        ({"only": "zeta"}, "only = 'zeta': must be a list of figures, such as ['L', 'zeta'], not a str"),
        ({"only": 3}, "only = 3: must be a list of figures, such as ['L', 'zeta'], not a int"),
        ({"n": 0}, "n = 0"),
        ({"all_pairs": "no"}, "all_pairs = 'no': must be true or false"),
        ({"samples": 1}, "samples = 1"),
        ({"quantile": 1.0}, "quantile = 1.0: must be between 0 and 1"),
        ({"tolerance": -1.0}, "tolerance = -1.0"),
        ({"x": np.ones(4)}, "x0 has shape [4], but the problem needs [5]"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, said: str) -> None:
    case = quadratic()
    with pytest.raises(fr.SettingError) as refused:
        fr.measure(case.problem, case.workers, **settings)
    assert str(refused.value).startswith(said)


def test_a_point_without_a_hessian_is_refused() -> None:
    problem = fr.Problem(loss=lambda x, z: (z[:, 0] * x.abs().pow(1.5).sum()).mean(), dim=2, dtype=torch.float64)
    with pytest.raises(fr.ProblemError, match="the Hessian at this point has NaN or infinite values"):
        fr.measure(problem, [np.ones((2, 1)), np.ones((3, 1))], np.zeros(2), only=["L"])
