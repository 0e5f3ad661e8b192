"""Small files in the true formats of CIFAR-10, Fashion-MNIST and Hugging Face, as the readers' test data."""

from __future__ import annotations

import gzip
import io
import json
import struct
from pathlib import Path

import datasets
import numpy as np
from PIL import Image

rng = np.random.default_rng(5)

CIFAR_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
IDX_FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}


def cifar_pixels(n: int = 4) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Per batch: images [n, 32, 32, 3] and labels."""
    return {
        name: (rng.integers(0, 256, size=(n, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, size=n, dtype=np.uint8))
        for name in CIFAR_BATCHES
    }


def python2_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """The pickle Python 2 and numpy 1 wrote for the official archive, opcode by opcode (at most 255 images)."""
    data = images.transpose(0, 3, 1, 2).tobytes()
    return b"".join(
        [
            b"\x80\x02}(U\x04data",
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR",
            b"(K\x01K" + bytes([len(images)]) + b"M" + struct.pack("<H", 3072) + b"\x86",
            b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + struct.pack("<i", len(data)) + data + b"tb",
            b"U\x06labels](" + b"".join(b"K" + bytes([label]) for label in labels) + b"eu.",
        ]
    )


def write_sheets(folder: Path, batches: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """The files of the npm package: one row of 1024 pixels an image."""
    folder.mkdir()
    for name, (images, _) in batches.items():
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(folder / f"{name}.png")
    train = np.concatenate([batches[name][1] for name in CIFAR_BATCHES[:-1]])
    (folder / "train_lables.json").write_text(json.dumps(train.tolist()))
    (folder / "test_lables.json").write_text(json.dumps(batches["test_batch"][1].tolist()))


def fashion_pixels(n: int = 20) -> dict[str, np.ndarray]:
    return {
        "x_train": rng.integers(0, 256, size=(n, 28, 28), dtype=np.uint8),
        "y_train": np.arange(n, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, size=(10, 28, 28), dtype=np.uint8),
        "y_test": np.arange(10, dtype=np.uint8),
    }


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, arrays: dict[str, np.ndarray], *, zipped: bool = True) -> None:
    folder.mkdir(parents=True)
    for name, file in IDX_FILES.items():
        data = idx_bytes(arrays[name])
        (folder / f"{file}.gz" if zipped else folder / file).write_bytes(gzip.compress(data) if zipped else data)


def scaled(pixels: np.ndarray) -> np.ndarray:
    return (pixels.astype(np.float64) / 255 - 0.5) / 0.5


def entries(cache: Path) -> list[str]:
    """All that is in the cache but locks."""
    folder = cache / "sets"
    return sorted(p.name for p in folder.iterdir() if p.suffix != ".lock") if folder.is_dir() else []


def png(pixels: np.ndarray) -> dict:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="png")
    return {"bytes": buffer.getvalue(), "path": None}


def save_hf_images(
    path: Path, images: np.ndarray, labels: list[int], *, image: str = "image", **columns
) -> datasets.Dataset:
    features = {image: datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c", "d"])}
    features |= {name: datasets.Value("string") for name in columns}
    made = datasets.Dataset.from_dict(
        {image: [png(i) for i in images], "label": labels, **columns}, features=datasets.Features(features)
    )
    made.save_to_disk(path)
    return made
