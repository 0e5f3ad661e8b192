"""What may be a worker's data, and what each mistake in it is told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset, Subset, TensorDataset

import fewrounds as fr

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(12, 6)).astype(np.float32), np.arange(12) % 3
X2, Y2 = rng.normal(size=(5, 6)).astype(np.float32), np.arange(5) % 3
SGD = fr.LocalSGD(eta=0.1, K=2, b=4)


def problem() -> fr.Problem:
    return fr.Problem(fr.models.mlp([6, 5, 3]), loss=cross_entropy)


def train(workers, method=SGD, problem_=None, **options) -> fr.Result:
    options = {"progress": False, "evaluate_every": 1, **options}
    return fr.train(problem_ or problem(), workers, method, 4, **options)


def expected() -> torch.Tensor:
    return train([(X, Y), (X2, Y2)]).x


class Pairs(Dataset):
    def __init__(self, X, Y) -> None:
        self.X, self.Y = X, Y

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, i):
        return self.X[i], int(self.Y[i])


SAME = {
    "lists for tuples": lambda: [[X, Y], [X2, Y2]],
    "tensors": lambda: [(torch.from_numpy(X), torch.from_numpy(Y)), (torch.from_numpy(X2), torch.from_numpy(Y2))],
    "float64 inputs": lambda: [(X.astype(np.float64), Y), (X2.astype(np.float64), Y2)],
    "int32 labels": lambda: [(X, Y.astype(np.int32)), (X2, Y2.astype(np.int32))],
    "big-endian inputs": lambda: [(X.astype(">f4"), Y), (X2.astype(">f4"), Y2)],
    "plain lists in a tuple": lambda: [
        (X.astype(float).tolist(), Y.tolist()),
        (X2.astype(float).tolist(), Y2.tolist()),
    ],
    "a list of samples": lambda: [list(Pairs(X, Y)), list(Pairs(X2, Y2))],
    "labels as a list": lambda: [(X, Y.tolist()), (X2, Y2.tolist())],
    "reversed and back": lambda: [(X[::-1][::-1], Y[::-1][::-1]), (X2, Y2)],
    "columns in Fortran order": lambda: [(np.asfortranarray(X), Y), (np.asfortranarray(X2), Y2)],
    "TensorDataset": lambda: [
        TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)),
        TensorDataset(torch.from_numpy(X2), torch.from_numpy(Y2)),
    ],
    "map-style dataset": lambda: [Pairs(X, Y), Pairs(X2, Y2)],
    "Subset": lambda: [
        Subset(Pairs(np.concatenate([X, X2]), np.concatenate([Y, Y2])), range(12)),
        Subset(Pairs(np.concatenate([X, X2]), np.concatenate([Y, Y2])), range(12, 17)),
    ],
}


@pytest.mark.parametrize("form", SAME)
def test_the_form_of_the_data_does_not_matter(form: str) -> None:
    assert torch.equal(train(SAME[form]()).x, expected())


def test_read_only_memory_maps_are_used_as_they_are(tmp_path) -> None:
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert torch.equal(train([(mapped, Y), (X2, Y2)]).x, expected())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parts_of_shared_arrays_are_as_good_as_copies(tmp_path, dtype: torch.dtype) -> None:
    np.save(tmp_path / "x.npy", np.concatenate([X, X2]))
    both = np.load(tmp_path / "x.npy", mmap_mode="r"), np.concatenate([Y, Y2])
    order = np.random.default_rng(1).permutation(17)
    first, second = order[:12], order[12:]
    task = fr.Problem(fr.models.mlp([6, 5, 3]), loss=cross_entropy, dtype=dtype)
    method = fr.BVRLSGD(eta=0.1, K=2, b=4)
    shared = train([fr.Part(both, first), fr.Part(both, second)], method, task, checkpoint=tmp_path / "a")
    copied = train([(both[0][first], both[1][first]), (both[0][second], both[1][second])], method, task)
    assert torch.equal(shared.x, copied.x)
    assert shared.history["train_loss"].equals(copied.history["train_loss"])
    with pytest.raises(fr.CheckpointError, match="worker 1 has other data"):
        train([fr.Part(both, first), fr.Part(both, second[::-1])], method, task, checkpoint=tmp_path / "a")


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ([], "worker 0 has no samples"),
        ([3, 12], "worker 0 asks for row 12, but the arrays have rows 0 to 11"),
        ([-1], "worker 0 asks for row -1"),
        ([[1, 2]], r"Part needs a list of row numbers, not an array of shape \[1, 2\]"),
    ],
)
def test_bad_parts_are_named(index, message: str) -> None:
    with pytest.raises(fr.DataError, match=message):
        train([fr.Part((X, Y), index)])


def test_a_function_loads_the_workers() -> None:
    asked = []

    def worker(p: int):
        asked.append(p)
        return [(X, Y), (X2, Y2)][p]

    assert torch.equal(train(worker, num_workers=2).x, expected())
    assert asked == [0, 1]


def test_unequal_sizes_count_equally_or_by_size() -> None:
    """f is the mean of the workers' means, or the mean over all samples."""
    uniform, by_size = (train([(X, Y), (X2, Y2)], weights=w) for w in ("uniform", "size"))
    start = problem().start
    pooled = problem().loss(
        start, (torch.from_numpy(np.concatenate([X, X2])), torch.from_numpy(np.concatenate([Y, Y2])))
    )
    parts = [problem().loss(start, (torch.from_numpy(a), torch.from_numpy(b))) for a, b in ((X, Y), (X2, Y2))]
    assert by_size.history.train_loss[0] == pytest.approx(float(pooled), rel=1e-6)
    assert uniform.history.train_loss[0] == pytest.approx(float(sum(parts)) / 2, rel=1e-6)
    assert abs(float(pooled) - float(sum(parts)) / 2) > 1e-3


# ---------------------------------------------------------------------- streams

MEANS = [np.array([1.0, -2.0]), np.array([3.0, 0.5])]


def gaussian(p: int, **options) -> fr.Stream:
    return fr.Stream(lambda n, rng: MEANS[p] + 0.1 * rng.normal(size=(n, 2)), **options)


def mean_problem() -> fr.Problem:
    return fr.Problem(loss=lambda x, z: 0.5 * ((x - z) ** 2).sum(1).mean(), dim=2, dtype=torch.float64)


@pytest.mark.parametrize(
    "method",
    [
        fr.MinibatchSGD(eta=0.3, b=50),
        fr.LocalSGD(eta=0.1, K=3, b=20),
        fr.SCAFFOLD(eta=0.1, K=3, b=20),
        fr.SARAH(eta=0.3, b=20, b_tilde=3000),
        fr.BVRLSGD(eta=0.1, K=3, b=20, b_tilde=3000),
    ],
    ids=repr,
)
def test_methods_find_the_mean_of_infinite_data(method: fr.Method) -> None:
    result = fr.train(mean_problem(), [gaussian(0), gaussian(1)], method, 60, progress=False)
    np.testing.assert_allclose(result.x, np.mean(MEANS, axis=0), atol=0.06)


def test_b_tilde_of_a_stream_is_used() -> None:
    """The stage gradient at the start is the mean of exactly b̃ samples."""
    drawn = []

    def draw(n, rng):
        drawn.append(n)
        return rng.normal(size=(n, 2))

    result = fr.train(mean_problem(), [fr.Stream(draw)], fr.BVRLSGD(eta=0.1, K=2, b=3, b_tilde=2500), 1, progress=False)
    assert result.ledger.gradients == (2500 + 2 * 3,)
    assert drawn[2:] == [1024, 1024, 452, 3], "the evaluation samples first (twice), b̃ in parts, then one local batch"


def test_streams_and_finite_workers_mix() -> None:
    finite = MEANS[1] + 0.1 * rng.normal(size=(40, 2))
    result = fr.train(
        mean_problem(), [gaussian(0), finite], fr.BVRLSGD(eta=0.1, K=2, b=10, b_tilde=200), 80, progress=False
    )
    np.testing.assert_allclose(result.x, np.mean(MEANS, axis=0), atol=0.1)
    with pytest.raises(fr.SettingError, match="weights = 'size' needs finite data"):
        fr.train(mean_problem(), [gaussian(0), finite], SGD, 1, weights="size", progress=False)


def test_evaluation_of_a_stream_uses_samples_of_its_own() -> None:
    few = fr.train(mean_problem(), [gaussian(0, evaluation_samples=7)], SGD, 2, progress=False)
    many = fr.train(mean_problem(), [gaussian(0, evaluation_samples=5000)], SGD, 2, progress=False)
    assert torch.equal(few.x, many.x)
    assert few.history.train_loss[0] != many.history.train_loss[0]


def test_large_batches_of_a_stream_are_the_same_however_they_are_asked_for() -> None:
    """A draw whose output depends on n (column by column) still gives Local SGD with K = 1 and minibatch SGD the same."""
    stream = fr.Stream(lambda n, rng: np.stack([rng.normal(size=n), rng.normal(size=n)], axis=1))
    runs = [
        fr.train(mean_problem(), [stream], method, 2, progress=False)
        for method in (fr.LocalSGD(eta=0.1, K=1, b=2500), fr.MinibatchSGD(eta=0.1, b=2500))
    ]
    torch.testing.assert_close(runs[0].x, runs[1].x, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------- mistakes


def with_value(value: float, row: int) -> np.ndarray:
    bad = X2.copy()
    bad[row, 3] = value
    return bad


WRONG = {
    "no workers": (list, "there are no workers: give the data of at least one"),
    "an empty worker": (lambda: [(X, Y), (X[:0], Y[:0])], "worker 1 has no samples"),
    "an empty dataset": (lambda: [Pairs(X[:0], Y[:0])], "worker 0 has no samples"),
    "lengths": (lambda: [(X, Y), (X2, Y2[:4])], "worker 1: its arrays have different lengths, 5 and 4"),
    "shapes": (
        lambda: [(X, Y), (X2[:, :5], Y2)],
        r"worker 1 has samples \(float32\[5\], int64\[\]\), but worker 0 has \(float32\[6\], int64\[\]\)",
    ),
    "types": (lambda: [(X, Y), (X2.astype(np.float64), Y2)], r"worker 1 has samples \(float64\[6\], .* worker 0 has \(float32"),
    "structure": (lambda: [(X, Y), (X2, X2, Y2)], "worker 1 has samples"),
    "no target": (lambda: [X], r"worker 0 has no target: a model needs \(input, target\)"),
    "NaN": (lambda: [(X, Y), (with_value(np.nan, 2), Y2)], "worker 1, array 0, row 2: NaN or infinite value"),
    "infinity": (lambda: [(X, Y), (with_value(-np.inf, 4), Y2)], "worker 1, array 0, row 4: NaN or infinite value"),
    "labels too large": (lambda: [(X, Y), (X2, Y2 + 1)], "worker 1, row 2: label 3, but the model's classes are 0 to 2"),
    "labels negative": (lambda: [(X, Y - 1)], "worker 0, row 0: label -1, but the model's classes are 0 to 2"),
    "text": (lambda: [(X, np.array(["a"] * 12))], "worker 0: not an array of numbers"),
    "complex": (lambda: [(X + 1j, Y)], "worker 0: complex numbers and sparse tensors are not supported"),
    "a number": (lambda: [3], "worker 0 is a int: expected an array, a tuple of arrays, a map-style dataset or a Stream"),
    "dicts": (lambda: [[{"x": 1, "y": 0}]], "worker 0: its samples are dicts"),
    "a dict": (lambda: [{"x": X, "y": Y}], "worker 0 is a dict: expected an array"),
    "a sparse tensor": (lambda: [(torch.from_numpy(X).to_sparse(), Y)], "complex numbers and sparse tensors"),
    "lists without a tuple": (lambda: [[[1.0, 2.0], [3.0, 4.0]]], "worker 0 is a list: expected an array"),
    "too large for float32": (lambda: [(X.astype(np.float64) * 1e39, Y)], r"worker 0, array 0, row 0: NaN or infinite value \(as float32\)"),
    "None": (lambda: None, "workers is a NoneType: expected a list with the data of each worker"),
    "a bare stream": (lambda: gaussian(0), "workers is a Stream: expected a list"),
    "an impure stream": (
        lambda: [fr.Stream(lambda n, _: (rng.normal(size=(n, 6)), np.zeros(n, dtype=int)))],
        r"worker 0: draw\(n, rng\) gave other samples for the same rng",
    ),
    "no number of workers": (lambda: (lambda p: (X, Y)), r"a callable worker\(p\) needs num_workers="),
    "not a stream": (lambda: [fr.Stream(X)], r"Stream needs a function draw\(n, rng\), not a ndarray"),
    "a stream that cheats": (lambda: [fr.Stream(lambda n, rng: (X, Y))], r"worker 0: draw\(1024, rng\) returned 12 samples"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_named_in_one_line(mistake: str) -> None:
    make, message = WRONG[mistake]
    with pytest.raises(fr.DataError, match=message) as caught:
        train(make())
    assert "\n" not in str(caught.value)


def test_augmented_datasets_are_sent_to_streams() -> None:
    class Augmented(Pairs):
        def __getitem__(self, i):
            return self.X[i] + rng.normal(size=6).astype(np.float32), int(self.Y[i])

    with pytest.raises(fr.DataError, match=r"differs between two reads; data that change .* belong in a Stream"):
        train([Augmented(X, Y)])


@pytest.mark.parametrize(
    ("test", "message"),
    [
        (
            (X[:, :4], Y),
            r"the test set has samples \(float32\[4\], int64\[\]\), but worker 0 has \(float32\[6\], int64",
        ),
        ((X, Y.astype(float)), r"the test set has samples \(float32\[6\], float32\[\]\), but worker 0 has"),
        (([], []), "the test set has no samples"),
        (fr.Stream(lambda n, rng: (X[:n], Y[:n])), "the test set is a Stream: expected arrays"),
        ((X, Y + 5), "the test set, row 0: label 5"),
        ((with_value(np.nan, 0), Y2), "the test set, array 0, row 0: NaN"),
    ],
)
def test_mistakes_in_the_test_set(test, message: str) -> None:
    with pytest.raises(fr.DataError, match=message):
        train([(X, Y)], test=test)


@pytest.mark.parametrize("method", [fr.SARAH(eta=0.1, b=2), fr.BVRLSGD(eta=0.1, K=2, b=2)], ids=repr)
def test_a_stream_needs_b_tilde(method: fr.Method) -> None:
    with pytest.raises(fr.SettingError, match=f"{method.name}: b_tilde is required with a Stream"):
        fr.train(mean_problem(), [gaussian(0)], method, 1, progress=False)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (fr.LocalGD(eta=0.1, K=2), "local-gd: a Stream has no full gradient, use local-sgd"),
        (fr.SCAFFOLD(eta=0.1, K=2, b=2, option="I"), "scaffold: option 'I' needs full gradients"),
    ],
)
def test_methods_on_full_gradients_refuse_streams(method: fr.Method, message: str) -> None:
    with pytest.raises(fr.SettingError, match=message):
        fr.train(mean_problem(), [gaussian(0)], method, 1, progress=False)
