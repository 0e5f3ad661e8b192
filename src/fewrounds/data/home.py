"""The cache: one folder a data set, there as a whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewrounds.data import npy
from fewrounds.data.reporting import Report, warn
from fewrounds.errors import DataError

FORMAT = 1
"""Raised when what is written changes, so that entries of an older version are prepared again."""


@dataclass(frozen=True)
class Contents:
    """What goes into an entry."""

    arrays: dict[str, npy.Array | npy.Blocks]
    classes: int
    source: str


@dataclass(frozen=True)
class Entry:
    """A data set in the cache."""

    path: Path
    meta: dict[str, Any]

    def array(self, name: str) -> npy.Array:
        """Memory-mapped and read-only, so that many processes share one copy."""
        mapped: npy.Array = np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return mapped

    @property
    def bytes(self) -> int:
        return sum(described["bytes"] for described in self.meta["arrays"].values())


def home() -> Path:
    """The cache folder: `FEWROUNDS_HOME`, or else the user's cache directory."""
    chosen = os.environ.get("FEWROUNDS_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_path("fewrounds"))


def raw(name: str, variable: str) -> Path:
    """The folder where a user may put the official files of a data set."""
    chosen = os.environ.get(variable)
    return Path(chosen).expanduser().absolute() if chosen else home() / "raw" / name


def sets() -> Path:
    return home() / "sets"


def examine(key: str, *, verify: bool = False) -> Entry | str:
    """The entry if it is whole, else what is wrong with it ("" if there is none)."""
    path = sets() / key
    if not os.path.lexists(path):
        return ""
    try:
        meta = json.loads((path / "meta.json").read_text())
        return _damage(path, meta, verify) or Entry(path, meta)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "its meta.json cannot be read"


def prepare(key: str, build: Callable[[Path], Contents], report: Report, *, verify: bool = False) -> Entry:
    """The entry, built if it is not there or damaged. `build` gets an empty folder for what it downloads.

    Everything is written to a folder beside the entry, flushed, and renamed into place: a preparation that fails or
    is killed leaves no entry. A lock lets only one process build; the others wait and use the result.
    """
    found = examine(key, verify=verify)
    if isinstance(found, Entry):
        return found
    with _locked(key, report):
        found = examine(key, verify=verify)  # another process may have built it while this one waited
        if isinstance(found, Entry):
            return found
        if found:
            warn(f"{key} in the cache is damaged ({found}): preparing it again")
        _build(key, build, report)
    found = examine(key)
    if isinstance(found, str):
        raise DataError(f"{key} vanished from the cache folder {home()} while it was prepared")
    return found


def _build(key: str, build: Callable[[Path], Contents], report: Report) -> None:
    path = sets() / key
    staging, old = sets() / f".{key}.new", sets() / f".{key}.old"
    scratch = staging / "scratch"
    with _writing():
        for leftover in (staging, old):  # of a preparation that was killed: this process has the lock
            _remove(leftover)
        scratch.mkdir(parents=True)
    try:
        contents = build(scratch)
        with _writing():
            _write(staging, key, contents, report)
            _remove(scratch)
            if os.path.lexists(path):
                os.rename(path, old)
            os.rename(staging, path)
            _flush_folder(path.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def fingerprint(digests: dict[str, str], classes: int) -> str:
    """A digest of the arrays, whatever source they came from."""
    return hashlib.sha256(json.dumps([sorted(digests.items()), classes]).encode()).hexdigest()


def _write(folder: Path, key: str, contents: Contents, report: Report) -> None:
    described = {}
    with report.step(f"{key}: writing", total=len(contents.arrays)) as tick:
        for name, array in contents.arrays.items():
            described[name] = npy.write(folder / f"{name}.npy", array)
            tick(1)
    meta = {
        "format": FORMAT,
        "name": key,
        "source": contents.source,
        "classes": contents.classes,
        "fingerprint": fingerprint({name: about["sha256"] for name, about in described.items()}, contents.classes),
        "arrays": described,
    }
    with (folder / "meta.json").open("w") as file:
        json.dump(meta, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    _flush_folder(folder)


def _damage(path: Path, meta: dict[str, Any], verify: bool) -> str:
    if meta["format"] != FORMAT:
        return f"format {meta['format']}, this version writes {FORMAT}"
    if not isinstance(meta["source"], str) or not isinstance(meta["classes"], int) or not meta["arrays"]:
        return "its meta.json is not complete"
    digests = {name: about["sha256"] for name, about in meta["arrays"].items()}
    if meta["fingerprint"] != fingerprint(digests, meta["classes"]):
        return "its meta.json contradicts itself"
    for name, about in meta["arrays"].items():
        file = path / f"{name}.npy"
        if not file.is_file():
            return f"{file.name} is missing"
        size = file.stat().st_size
        if size != about["bytes"]:
            return f"{file.name} has {size} bytes, expected {about['bytes']}"
        if verify and npy.file_digest(file) != about["sha256"]:
            return f"{file.name} has another digest than when it was written"
    return ""


@contextmanager
def _locked(key: str, report: Report) -> Iterator[None]:
    import filelock

    with _writing():
        sets().mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(sets() / f".{key}.lock")
        try:
            lock.acquire(timeout=0.5)
        except filelock.Timeout:
            report.say(f"another process is preparing {key}: waiting for it")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise DataError(
            f"the cache folder {home()} cannot be written ({reason}): make room or set FEWROUNDS_HOME to another folder"
        ) from error


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _flush_folder(path: Path) -> None:
    if os.name == "nt":  # where a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
