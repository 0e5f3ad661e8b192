"""A model, a loss and L2 as functions of one vector; and what cannot be one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import fewrounds as fr
from problems import classifier

X, Y = np.random.default_rng(0).normal(size=(12, 6)), np.arange(12) % 3
SGD = fr.MinibatchSGD(eta=0.1, b=4)


def train(problem: fr.Problem, workers=((X, Y),), **options) -> fr.Result:
    return fr.train(problem, workers, SGD, 3, **{"progress": False, "evaluate_every": 1, **options})


def finite_difference(f, x: np.ndarray, h: float = 1e-6) -> np.ndarray:
    steps = h * np.eye(len(x))
    return np.array([(f(x + s) - f(x - s)) / (2 * h) for s in steps])


@pytest.mark.parametrize("rows", [1, 3])
def test_gradients_match_finite_differences(rows: int) -> None:
    case = classifier()
    z = tuple(torch.stack([torch.as_tensor(w[k][:4]) for w in case.workers[:rows]]) for k in (0, 1))
    x = torch.from_numpy(case.x0)
    shared = case.problem.gradients(x, z)
    own = case.problem.gradients(x.expand(rows, -1), z)
    for r in range(rows):
        batch = (z[0][r], z[1][r])
        expected = finite_difference(
            lambda v, batch=batch: float(case.problem.loss(torch.from_numpy(v), batch)), case.x0
        )
        np.testing.assert_allclose(shared[r], expected, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(own[r], shared[r])


def test_loss_has_l2_on_every_parameter_and_metrics_do_not() -> None:
    model = fr.models.mlp([6, 5, 3]).double()
    plain, regularised = (fr.Problem(model, loss=cross_entropy, l2=l2) for l2 in (0.0, 0.3))
    z = (torch.from_numpy(X), torch.from_numpy(Y))
    x = torch.linspace(-1, 1, plain.dim, dtype=torch.float64)
    difference = regularised.loss(x, z) - plain.loss(x, z)
    assert float(difference) == pytest.approx(0.15 * float(x @ x))
    assert regularised.metrics(x, z).loss == plain.loss(x, z)
    metrics, gradient = regularised.metrics_and_gradient(x, z)
    torch.testing.assert_close(gradient, regularised.gradient(x, z))
    assert metrics == regularised.metrics(x, z)


def test_a_model_and_its_vector_agree() -> None:
    model = fr.models.mlp([6, 5, 3])
    problem = fr.Problem(model, loss=cross_entropy)
    again = problem.module(problem.start)
    x = torch.from_numpy(X).float()
    assert torch.equal(model(x), again(x))
    assert torch.equal(problem.output(problem.start, (x, torch.from_numpy(Y))), model(x))


def test_accuracy_is_the_share_of_right_classes() -> None:
    result = train(fr.Problem(fr.models.mlp([6, 5, 3]), loss=cross_entropy), test=(X[:6], Y[:6]))
    outputs = result.model(torch.from_numpy(X).float()).argmax(1).numpy()
    last = result.history.iloc[-1]
    assert last.train_accuracy == pytest.approx((outputs == Y).mean())
    assert last.test_accuracy == pytest.approx((outputs[:6] == Y[:6]).mean())


def test_dtype_follows_a_double_model_and_can_be_asked_for() -> None:
    model = nn.Linear(6, 3)
    assert fr.Problem(model, loss=cross_entropy).dtype == torch.float32
    assert fr.Problem(nn.Linear(6, 3).double(), loss=cross_entropy).dtype == torch.float64
    assert fr.Problem(model, loss=cross_entropy, dtype=torch.float64).start.dtype == torch.float64
    assert model.weight.dtype == torch.float32, "the given model stays as it was"


def test_frozen_parameters_stay_out_of_the_vector() -> None:
    model = fr.models.mlp([6, 5, 3])
    model[0].weight.requires_grad_(False)
    problem = fr.Problem(model, loss=cross_entropy)
    assert problem.dim == 5 + 15 + 3
    result = train(problem)
    assert torch.equal(result.model[0].weight, model[0].weight)
    assert not torch.equal(result.model[2].weight, model[2].weight)


def test_tied_parameters_are_one() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.second = nn.Linear(6, 6)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    result = train(fr.Problem(Tied(), loss=cross_entropy))
    assert result.problem.dim == 36 + 6 + 6
    assert result.model.second.weight is result.model.first.weight


def test_convolutions_several_inputs_and_regression() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
            self.head = nn.Linear(3 * 9 + 2, 1)

        def forward(self, image, extra):
            return self.head(torch.cat([self.conv(image), extra], dim=1)).squeeze(1)

    rng = np.random.default_rng(0)
    workers = [(rng.normal(size=(5, 1, 8, 8)), rng.normal(size=(5, 2)), rng.normal(size=5)) for _ in range(2)]
    problem = fr.Problem(Net(), loss=mse_loss, dtype=torch.float64)
    side_by_side, one_by_one = (train(problem, workers, rows_at_once=rows) for rows in (2, 1))
    torch.testing.assert_close(side_by_side.x, one_by_one.x)
    assert not torch.equal(side_by_side.x, problem.start)
    assert math.isnan(side_by_side.history.train_accuracy.iloc[-1])
    net, data = one_by_one.model, [torch.from_numpy(np.concatenate(parts)) for parts in zip(*workers, strict=True)]
    assert side_by_side.history.train_loss.iloc[-1] == pytest.approx(float(mse_loss(net(*data[:2]), data[2]).detach()))


def test_what_torch_cannot_vmap_runs_row_by_row() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return self.linear(x) if x.sum() > -1e9 else x

    problem = fr.Problem(Branch(), loss=cross_entropy)
    workers = [(X, Y), (X + 1, Y)]
    assert train(problem, workers).outcome == "finished"
    with pytest.raises(fr.SettingError, match="rows_at_once = 2: torch cannot vmap this problem, use 1"):
        train(problem, workers, rows_at_once=2)


@pytest.mark.parametrize("rows_at_once", [None, 1])
def test_padding_rows_of_embeddings_get_no_gradient(rows_at_once: int | None) -> None:
    """torch forgets padding_idx under vmap, so such a model runs row by row."""

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 2, padding_idx=0)
            self.head = nn.Linear(2, 3)

        def forward(self, words):
            return self.head(self.embed(words).mean(1))

    workers = [
        (np.array([[0, 1, 2], [0, 0, 3]]), np.array([0, 1])),
        (np.array([[0, 4, 2], [1, 0, 3]]), np.array([2, 1])),
    ]
    problem = fr.Problem(Bag(), loss=cross_entropy)
    result = train(problem, workers, rows_at_once=rows_at_once)
    assert result.model.embed.weight[0].tolist() == [0, 0]
    with pytest.raises(fr.SettingError, match="torch cannot vmap this problem, use 1"):
        train(problem, workers, rows_at_once=2)


def test_whole_number_targets_need_not_be_classes() -> None:
    """A Poisson loss on counts, with two outputs: counts above 1 are no wrong labels."""

    def poisson(output, count):
        return nn.functional.poisson_nll_loss(output.sum(1), count.float())

    workers = [(0.1 * X.astype(np.float32), Y * 7)]
    assert train(fr.Problem(nn.Linear(6, 2), loss=poisson), workers).outcome == "finished"


# ---------------------------------------------------------------------- layers that do not fit


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.randn_like(x)


class NumPyNoise(nn.Module):
    def forward(self, x):
        return x + 1e-4 * np.random.default_rng().normal()


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return x


def converged() -> nn.Linear:
    """A layer whose greatest singular value stands so far out that its power iteration stays where it is."""
    layer = nn.Linear(6, 6)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([1e6, 1, 1, 1, 1, 1])))
    return layer


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(6), r"layer '1' \(BatchNorm1d\) mixes the samples .* use GroupNorm or LayerNorm"),
        (nn.BatchNorm1d(6, track_running_stats=False), r"layer '1' \(BatchNorm1d\) mixes the samples"),
        (nn.Dropout(0.5), r"layer '1' \(Dropout\) draws random numbers .*remove it, or freeze it with .eval\(\)"),
        (nn.AlphaDropout(0.1), r"layer '1' \(AlphaDropout\) draws random numbers"),
        (nn.RReLU(), r"layer '1' \(RReLU\) draws random numbers"),
        (Noise(), r"layer '1' \(Noise\) draws random numbers"),
        (Counter(), r"layer '1' \(Counter\) changes its buffer 'seen' in forward"),
        (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), r"\(_SpectralNorm\) changes its buffer '_u'"),
        (nn.utils.parametrizations.spectral_norm(converged()), r"\(_SpectralNorm\) changes its buffer '_u'"),
        (
            nn.utils.spectral_norm(converged()),
            r"layer '1' \(Linear\) .*; use torch.nn.utils.parametrizations.spectral_norm",
        ),
        (NumPyNoise(), "the loss draws random numbers"),
        (
            nn.Embedding(6, 6, max_norm=1.0),
            r"layer '1' \(Embedding\) changes its own weights in forward; use it without max_norm",
        ),
        (nn.LazyLinear(6), r"parameter '1.weight' has no shape yet: run one batch through the model first"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unfit_layers_are_refused_by_name(layer: nn.Module, message: str) -> None:
    with pytest.raises(fr.ProblemError, match=message):
        train(fr.Problem(nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 3)), loss=cross_entropy))


def test_frozen_layers_are_accepted() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 3))
    model(torch.randn(50, 6) * 3 + 1)
    statistics = model[1].running_mean.clone()
    model[1].eval()
    model[2].eval()
    result = train(fr.Problem(model, loss=cross_entropy))
    assert torch.equal(result.model[1].running_mean, statistics)
    assert not torch.equal(result.model[1].weight, model[1].weight)


@pytest.mark.parametrize("layer", [nn.Dropout(0.0), nn.GroupNorm(2, 6), nn.LayerNorm(6)])
def test_harmless_layers_are_accepted(layer: nn.Module) -> None:
    train(fr.Problem(nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 3)), loss=cross_entropy))


def test_a_weight_that_a_hook_computes_is_refused_also_when_frozen() -> None:
    with pytest.warns(FutureWarning):
        layer = nn.utils.weight_norm(nn.Linear(6, 3)).eval()
    with pytest.raises(fr.ProblemError, match=r"layer \(Linear\) .* use torch.nn.utils.parametrizations.weight_norm"):
        fr.Problem(layer, loss=cross_entropy)


@pytest.mark.parametrize("norm", ["spectral_norm", "weight_norm"])
def test_frozen_parametrizations_are_accepted(norm: str) -> None:
    layer = getattr(nn.utils.parametrizations, norm)(nn.Linear(6, 6)).eval()
    train(fr.Problem(nn.Sequential(nn.Linear(6, 6), layer, nn.Linear(6, 3)), loss=cross_entropy))


# ---------------------------------------------------------------------- losses that do not fit


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fr.Problem(nn.Linear(6, 3)), r"Problem needs loss=: loss\(output, target\)"),
        (lambda: fr.Problem(loss=lambda x, z: x.sum()), "a loss without a model needs dim="),
        (lambda: fr.Problem(loss=lambda x, z: x.sum(), dim=0), "dim = 0: must be a whole number, 1 or more"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=cross_entropy, dim=3), "leave it out when a model is given"),
        (lambda: fr.Problem("model", loss=cross_entropy), "the model is a str: expected a torch.nn.Module"),
        (lambda: fr.Problem(nn.ReLU(), loss=cross_entropy), "no trainable parameters"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=cross_entropy, l2=-1), "l2 = -1: must be a finite number, 0 or more"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=cross_entropy, dtype=torch.float16), "dtype torch.float16 is not sup"),
        (lambda: fr.Problem(nn.Linear(5, 3), loss=cross_entropy), r"failed on 4 samples \(float32\[4, 6\], int64\[4\]\): mat1"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=lambda o, y: cross_entropy(o, y, reduction="sum")), "the mean over parts of"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=lambda o, y: o.sum(1)), r"returned shape \[4\]: expected a scalar"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=lambda o, y: o.sum().item()), "failed on|returned a float"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=lambda o, y: cross_entropy(o + torch.rand(1), y)), "draws random numbers"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 9.0]))), "no class weights"),
        (lambda: fr.Problem(nn.Linear(6, 1), loss=lambda o, y: (o - y).square().mean()), "the mean over parts of"),
        (lambda: fr.Problem(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)), loss=cross_entropy), "changes its input in place"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=cross_entropy, device="gpu"), "device = 'gpu' cannot be used here"),
        (lambda: fr.Problem(loss=lambda x, z: z[0].mean(), dim=2), "does not depend on x"),
        (lambda: fr.Problem(nn.Linear(6, 3), loss=lambda o, y: cross_entropy(o, y).double()), "returned torch.float64"),
    ],
)  # fmt: skip
def test_unfit_problems_are_refused_in_one_line(make, message: str) -> None:
    before = X.copy()
    with pytest.raises((fr.ProblemError, fr.SettingError), match=message) as caught:
        train(make())
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(X, before)


def test_a_loss_that_is_no_mean_is_found_on_workers_of_one_class_each() -> None:
    """Class weights normalise by the batch: on the first worker alone, all of one class, nothing would show."""
    workers = [(X[c == Y].astype(np.float32), Y[c == Y]) for c in range(3)]
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 9.0]))
    with pytest.raises(fr.ProblemError, match="no class weights"):
        train(fr.Problem(nn.Linear(6, 3), loss=weighted), workers)


def test_images_of_whole_numbers_get_a_hint() -> None:
    with pytest.raises(fr.ProblemError, match="the inputs are whole numbers: convert and scale them first"):
        train(
            fr.Problem(nn.Linear(6, 3), loss=cross_entropy), [(np.ones((4, 6), dtype=np.uint8), np.zeros(4, dtype=int))]
        )


def test_a_failure_in_a_round_names_the_round_and_the_worker() -> None:
    calls = []

    def loss(x, z):
        calls.append(1)
        if len(calls) > 60:
            raise RuntimeError("out of\nmemory")
        return ((x - z) ** 2).sum(1).mean()

    problem = fr.Problem(loss=loss, dim=2)
    with pytest.raises(fr.ProblemError, match=r"^round \d+, worker [01]: local_sgd failed: out of memory$"):
        fr.train(
            problem,
            [np.ones((3, 2)), np.ones((4, 2))],
            fr.LocalSGD(eta=0.1, K=2, b=2),
            99,
            rows_at_once=1,
            evaluate_every=99,
            progress=False,
        )


@pytest.mark.parametrize("call", ["view", "reshape"])
def test_images_are_laid_out_for_the_cpu_where_the_model_lets_them(call: str) -> None:
    """A model that calls view on a convolution's output takes images only as they were given."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = torch.nn.Conv2d(2, 3, 3), torch.nn.Linear(48, 4)

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            return self.head(getattr(self.conv(X), call)(len(X), 48))

    z = (torch.randn(5, 2, 6, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0]))
    problem = fr.Problem(Net(), loss=torch.nn.functional.cross_entropy, dtype=torch.float64)
    before = problem.gradient(problem.start, z)
    problem.try_channels_last(problem.start, z)
    assert problem._channels_last is (call == "reshape")
    torch.testing.assert_close(problem.gradient(problem.start, z), before, rtol=1e-12, atol=1e-12)
