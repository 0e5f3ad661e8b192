"""Arrays as .npy files, written block by block, with the digest of what was written."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BLOCK = 4096
"""Samples that are converted at once."""


@dataclass(frozen=True)
class Blocks:
    """An array that is made block by block, so that all of it is never in memory."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    blocks: Callable[[], Iterator[Array]]


def scaled(pixels: Array) -> Array:
    """Pixels 0 to 255 as float32 in [-1, 1]."""
    result: Array = (pixels.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
    return result


def scaled_images(pixels: Array) -> Blocks:
    """uint8 [n, H, W, C] as float32 [n, C, H, W] in [-1, 1]."""
    n, height, width, channels = pixels.shape

    def blocks() -> Iterator[Array]:
        for first in range(0, n, BLOCK):
            yield scaled(pixels[first : first + BLOCK].transpose(0, 3, 1, 2))

    return Blocks((n, channels, height, width), np.dtype(np.float32), blocks)


def digest(array: Array | Blocks) -> str:
    """The SHA-256 of the .npy file this array would be."""
    sha = hashlib.sha256()
    for part in _parts(array):
        sha.update(part)
    return sha.hexdigest()


def write(path: Path, array: Array | Blocks) -> dict[str, Any]:
    """Write, flush to the disk, and describe: shape, dtype, bytes, sha256.

    With plain writes, not through a memory map: a full disk is then an error and not a killed process.
    """
    sha = hashlib.sha256()
    size = 0
    with path.open("wb") as file:
        for part in _parts(array):
            file.write(part)
            sha.update(part)
            size += part.nbytes
        file.flush()
        os.fsync(file.fileno())
    return {"shape": list(array.shape), "dtype": array.dtype.str, "bytes": size, "sha256": sha.hexdigest()}


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parts(array: Array | Blocks) -> Iterator[memoryview]:
    header = io.BytesIO()
    layout = {"descr": array.dtype.str, "fortran_order": False, "shape": tuple(array.shape)}
    np.lib.format.write_array_header_1_0(header, layout)
    yield memoryview(header.getvalue())
    blocks = array.blocks() if isinstance(array, Blocks) else (array,)
    count = 0
    for block in blocks:
        whole = np.ascontiguousarray(block, dtype=array.dtype)
        count += len(whole)
        yield whole.reshape(-1).view(np.uint8).data
    assert count == array.shape[0], "the blocks make up the shape that was announced"
