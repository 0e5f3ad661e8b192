"""The paper's split, and the sizes it promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewrounds.data.digits import load_digits
from fewrounds.data.partition import class_skew, equalise_classes
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
