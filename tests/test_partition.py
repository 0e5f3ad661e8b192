"""The paper's split, and the sizes it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewrounds.data.digits import load_digits
from fewrounds.data.partition import class_skew, equalise_classes, fingerprint, split
from fewrounds.errors import DataError, SettingError


def counts(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """[worker, class]"""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@given(P=st.integers(2, 12), n=st.integers(1, 200), q=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_every_sample_once_and_all_workers_of_one_size(P: int, n: int, q: float, seed: int) -> None:
    labels = np.repeat(np.arange(P), n)
    parts = class_skew(labels, q, seed)
    assert len(parts) == P
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(P * n))
    assert {len(part) for part in parts} == {n}
    table = counts(labels, parts)
    np.testing.assert_array_equal(np.diag(table), round(q * n))
    others = table[~np.eye(P, dtype=bool)]
    assert others.max() - others.min() <= 1


@pytest.mark.parametrize(
    ("q", "own", "others"), [(0.1, 500, 500), (0.35, 1750, 361), (0.6, 3000, 222), (0.85, 4250, 83)]
)
def test_the_papers_fractions_at_the_papers_size(q: float, own: int, others: int) -> None:
    """CIFAR-10: 5,000 of each class over 10 workers."""
    labels = np.repeat(np.arange(10), 5000)
    table = counts(labels, class_skew(labels, q))
    assert (np.diag(table) == own).all()
    rest = table[~np.eye(10, dtype=bool)]
    assert set(rest) <= {others, others + 1}
    assert (table.sum(axis=1) == 5000).all()


def test_the_split_depends_on_the_seed_only() -> None:
    labels = np.tile(np.arange(5), 30)
    first, again, other = (class_skew(labels, 0.5, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_bad_input_is_named() -> None:
    with pytest.raises(SettingError, match=r"q = 1.5: must lie between 0 and 1"):
        class_skew([0, 1], 1.5)
    with pytest.raises(DataError, match="at least two classes, found 1"):
        class_skew([3, 3, 3], 0.5)


def test_equalise_keeps_the_smallest_class_whole() -> None:
    labels = np.array([0] * 5 + [1] * 9 + [2] * 7)
    kept = equalise_classes(labels)
    assert np.bincount(labels[kept]).tolist() == [5, 5, 5]
    assert len(set(kept)) == 15


def test_digits_are_the_real_ones() -> None:
    (X, y), (X_test, y_test) = load_digits()
    assert X.shape == (1390, 64)
    assert X_test.shape == (350, 64)
    assert X.min() == -1
    assert X.max() == 1
    assert np.bincount(y).tolist() == [139] * 10
    assert np.bincount(y_test).tolist() == [35] * 10
    assert len(np.unique(np.concatenate([X, X_test]), axis=0)) == 1740, "no image is in both"


@given(P=st.integers(1, 30), C=st.integers(2, 8), n=st.integers(15, 60), q=st.floats(0, 1))
def test_other_numbers_of_workers(P: int, C: int, n: int, q: float) -> None:
    """Every sample once; class c keeps a fraction q at its homes, p = c modulo C (or c modulo P with fewer workers)."""
    labels = np.repeat(np.arange(C), n)
    parts = class_skew(labels, q, num_workers=P)
    assert len(parts) == P
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(C * n))
    table = counts(labels, parts)
    for c in range(C):
        homes = [p for p in range(P) if p % C == c] or [c % P]
        own = table[homes, c]
        others = np.delete(table[:, c], homes)
        assert own.sum() == (round(q * n) if len(others) else n)
        assert own.max() - own.min() <= 1
        assert len(others) == 0 or others.max() - others.min() <= 1


SPLITS = [
    {"kind": "class-skew", "q": 0.6},
    {"kind": "class-skew", "q": 0.6, "workers": 4},
    {"kind": "iid", "workers": 7},
    {"kind": "dirichlet", "workers": 6, "alpha": 0.5},
    {"kind": "shards", "workers": 6, "shards_per_worker": 2},
    {"kind": "pathological", "workers": 10, "classes_per_worker": 2},
]


@pytest.mark.parametrize("how", SPLITS, ids=lambda how: how["kind"])
def test_every_kind_of_split_is_decided_by_its_seed(how: dict) -> None:
    labels = np.tile(np.arange(5), 40)
    first, again, other = (split(labels, **how, seed=seed) for seed in (0, 0, 1))
    assert fingerprint(first) == fingerprint(again) != fingerprint(other)
    together = np.concatenate(first)
    assert len(np.unique(together)) == len(together), "no sample twice"
    assert len(together) >= 0.95 * len(labels)  # shards drop an incomplete one
    assert len(first) == how.get("workers", 5)


def test_each_kind_does_what_its_name_says() -> None:
    labels = np.repeat(np.arange(5), 40)
    iid = counts(labels, split(labels, "iid", workers=4))
    assert (iid > 0).all(), "not cut as the labels stand"
    pathological = counts(labels, split(labels, "pathological", workers=5, classes_per_worker=2))
    assert ((pathological > 0).sum(axis=1) <= 2).all()
    skewed, even = (counts(labels, split(labels, "dirichlet", workers=4, alpha=a)).std() for a in (0.05, 100.0))
    assert skewed > 3 * even
    natural = split(labels, "natural", ids=np.tile(["a", "b", "c", "d"], 50))
    assert [len(part) for part in natural] == [50] * 4
    assert len({tuple(part % 4) for part in natural}) == 4


def test_class_skew_is_a_partitioner_like_flwrs() -> None:
    import datasets
    from flwr_datasets.partitioner import Partitioner

    from fewrounds.data.partitioners import ClassSkewPartitioner

    labels = np.repeat(np.arange(3), 30)
    partitioner = ClassSkewPartitioner(num_partitions=3, partition_by="label", q=0.5, seed=4)
    assert isinstance(partitioner, Partitioner)
    partitioner.dataset = datasets.Dataset.from_dict({"label": labels, "row": np.arange(90)})
    rows = [partitioner.load_partition(p)["row"] for p in range(partitioner.num_partitions)]
    assert [list(part) for part in rows] == [part.tolist() for part in class_skew(labels, 0.5, 4)]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"kind": "class-skw", "q": 0.5}, "partition kind 'class-skw' is not known; did you mean 'class-skew'"),
        ({"kind": "class-skew"}, "the class-skew split needs q"),
        ({"kind": "dirichlet", "workers": 3}, "the dirichlet split needs alpha"),
        ({"kind": "iid"}, "the iid split needs workers"),
        ({"kind": "natural"}, "the natural split needs ids"),
        ({"kind": "iid", "workers": 61}, "there are 61 workers, but only 60 samples"),
        ({"kind": "pathological", "workers": 4, "classes_per_worker": 9}, "cannot split these data"),
    ],
)
def test_bad_splits_are_named_in_one_line(how: dict, message: str) -> None:
    with pytest.raises((SettingError, DataError), match=message) as caught:
        split(np.repeat(np.arange(3), 20), **how)
    assert "\n" not in str(caught.value)
