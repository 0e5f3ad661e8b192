from __future__ import annotations

import hashlib
from pathlib import Path

import datasets
import numpy as np
import pytest

from fewrounds.data import cifar10, fashion_mnist
from made_data import fashion_pixels, write_idx


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of the test's own, no network, and no way to a package manager."""
    monkeypatch.setenv("FEWROUNDS_HOME", str(tmp_path / "home"))
    for variable in (cifar10.VARIABLE, fashion_mnist.VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    monkeypatch.setattr(fashion_mnist, "INSTALLED", Path("/no/such/folder"))
    monkeypatch.setenv("PATH", str(tmp_path / "no-commands"))
    return tmp_path / "home"


@pytest.fixture
def fashion(cache, monkeypatch) -> dict[str, np.ndarray]:
    """A small Fashion-MNIST in the local folder, and its digests as the known ones."""
    pixels = fashion_pixels()
    write_idx(cache / "raw" / "fashion-mnist", pixels)
    monkeypatch.setattr(
        fashion_mnist, "DIGESTS", {k: hashlib.sha256(v.tobytes()).hexdigest() for k, v in pixels.items()}
    )
    return pixels
