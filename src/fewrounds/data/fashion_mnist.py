"""Fashion-MNIST: 70,000 grey images of 28×28 pixels in ten classes (Xiao, Rasul and Vollgraf, 2017)."""

from __future__ import annotations

import gzip
import math
import shutil
import zlib
from pathlib import Path

import numpy as np

from fewrounds.data import home, hub
from fewrounds.data.npy import Array, scaled_images
from fewrounds.data.origins import Origin, PassedOver, Pixels, first_genuine, one_line, run
from fewrounds.data.reporting import Report

WHAT = "70,000 grey images 28×28, 10 classes"
VARIABLE = "FEWROUNDS_FASHION_MNIST"
HUB = "zalando-datasets/fashion_mnist"
PACKAGE = "dataset-fashion-mnist"
INSTALLED = Path("/usr/share/datasets/fashion-mnist")
ADVICE = f"put the four official IDX files in a folder and set {VARIABLE} to it"

FILES = {
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}

DIGESTS = {
    "x_train": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
    "y_train": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
    "x_test": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
    "y_test": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
}
"""SHA-256 of what follows the headers of the official IDX files: uint8 [n, 28, 28] and [n]."""


def build(scratch: Path, report: Report) -> home.Contents:
    """The genuine images, scaled, from the first place that has them."""
    found, source = first_genuine("fashion-mnist", ORIGINS, DIGESTS, scratch, report, ADVICE)
    arrays = {
        name: scaled_images(array) if name.startswith("x") else array.astype(np.int64) for name, array in found.items()
    }
    return home.Contents(arrays, classes=10, source=source)


def from_folder(scratch: Path, report: Report) -> Pixels:
    folder = home.raw("fashion-mnist", VARIABLE)
    if not folder.is_dir():
        raise PassedOver(f"there is no {folder}")
    return read_folder(folder)


def from_hub(scratch: Path, report: Report) -> Pixels:
    with report.step("fashion-mnist: asking the Hugging Face hub"):
        return hub.known_images(HUB, image="image", label="label")


def from_debian(scratch: Path, report: Report) -> Pixels:
    """The files of the package: the installed ones, or else unpacked here, which needs no root."""
    if INSTALLED.is_dir():
        return read_folder(INSTALLED)
    if shutil.which("dpkg-deb") is None:
        raise PassedOver("this is no Debian: there is no dpkg-deb command")
    with report.step("fashion-mnist: downloading 31 MB with apt-get"):
        run(["apt-get", "download", "-o", "Acquire::Retries=0", PACKAGE], scratch, seconds=900)
        packages = list(scratch.glob("*.deb"))
        if len(packages) != 1:
            raise PassedOver("apt-get wrote no package")
        run(["dpkg-deb", "-x", packages[0].name, "unpacked"], scratch, seconds=300)
    return read_folder(scratch / "unpacked" / INSTALLED.relative_to("/"))


def read_folder(folder: Path) -> Pixels:
    """The four IDX files, gzipped or not; images get a last axis for their one channel."""
    found = {}
    for name, file in FILES.items():
        paths = [path for path in (folder / file, folder / f"{file}.gz") if path.is_file()]
        if not paths:
            raise PassedOver(f"there is no {file} or {file}.gz in {folder}")
        array = read_idx(paths[0])
        expected = 3 if name.startswith("x") else 1
        if array.ndim != expected:
            raise PassedOver(f"{paths[0].name} has {array.ndim} dimensions, expected {expected}")
        found[name] = array[..., np.newaxis] if expected == 3 else array
    return found


def read_idx(path: Path) -> Array:
    """An IDX file of bytes: two zeros, the type (8), the number of dimensions, each as big-endian uint32, the data."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise PassedOver(f"{path.name} cannot be unpacked: {one_line(error)}") from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise PassedOver(f"{path.name} is not an IDX file of bytes")
    start = 4 + 4 * data[3]
    shape = tuple(int.from_bytes(data[first : first + 4], "big") for first in range(4, start, 4))
    if len(data) - start != math.prod(shape):
        raise PassedOver(f"{path.name} holds {len(data) - start} bytes, but its header says {math.prod(shape)}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


ORIGINS = (
    Origin("a local folder", from_folder),
    Origin("the Hugging Face hub", from_hub),
    Origin(f"Debian's {PACKAGE}", from_debian),
)
