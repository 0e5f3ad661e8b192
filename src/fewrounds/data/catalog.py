"""Every data set by its name or path: loading it, fetching it into the cache, listing what is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewrounds.data import cifar10, fashion_mnist, files, hf, home, npy
from fewrounds.data.digits import load_digits
from fewrounds.data.labels import Reading
from fewrounds.data.npy import Array
from fewrounds.data.reporting import Report
from fewrounds.errors import DataError, SettingError, kind_of, nearest

FETCHED = {"cifar10": cifar10, "fashion-mnist": fashion_mnist}
NAMES = ("digits", *FETCHED)
KINDS = "a name, hf:NAME, hf:PATH, or a .csv, .parquet or .npz file"


@dataclass(frozen=True)
class DataSet:
    """Labelled data: float32 inputs and int64 class numbers, or float32 targets where `classes` is 0."""

    name: str
    train: tuple[Array, Array]
    test: tuple[Array, Array] | None
    classes: int
    ids: Array | None
    """The natural id of each train sample (a writer, a hospital), for a split by it."""
    fingerprint: str


@dataclass(frozen=True)
class Listed:
    """A line of `fewrounds data --list`."""

    name: str
    what: str
    cached: bool
    bytes: int
    source: str
    """Where it came from; of a set that is not there, where it would be looked for."""


def load(
    spec: str,
    *,
    label: str | None = None,
    test: str | None = None,
    test_fraction: float = 0.2,
    seed: int = 0,
    id_column: str | None = None,
    progress: bool = True,
) -> DataSet:
    """A data set by name (`digits`, `cifar10`, `fashion-mnist`), `hf:NAME`, `hf:PATH`, or .csv, .parquet, .npz file.

    A file needs its `label` column, and may have an `id_column`. `test` names a second file, or a split of a Hugging
    Face set. Where there is no test part, `test_fraction` of every class is taken out by `seed` (0: none).
    What is fetched or decoded comes from the cache as read-only memory maps, which processes share.
    """
    if not isinstance(spec, str):
        raise SettingError(f"a data set is {KINDS}, not {kind_of(spec)}")
    reading = Reading(label, test, test_fraction, seed, id_column)
    report = Report(progress)
    if spec in NAMES:
        for option, value in (("label", label), ("test", test), ("id_column", id_column)):
            if value is not None:
                raise SettingError(f"{option} = {value!r}: {spec} has its own labels and test part, leave it out")
        if spec == "digits":
            return _in_memory(spec, _digits(reading))
        return _from_entry(spec, _prepare(spec, report, verify=False))
    if spec.startswith("hf:"):
        return _from_entry(spec, hf.prepare(spec.removeprefix("hf:"), reading, report))
    path = Path(spec).expanduser()
    if spec and (path.suffix.lower() in files.SUFFIXES or len(path.parts) > 1 or path.exists()):
        return _in_memory(spec, files.read(path, reading))
    raise DataError(
        f"{spec!r} is no known data set; {nearest(spec, NAMES)}; or hf:NAME, hf:PATH, a .csv, .parquet, .npz"
    )


def fetch(name: str, progress: bool = True, *, verify: bool = True) -> Path:
    """Download and prepare a data set into the cache; what is there already is checked against its digests."""
    if name.startswith("hf:"):
        return hf.prepare(name.removeprefix("hf:"), Reading(), Report(progress), verify=verify).path
    if name == "digits":
        raise DataError("digits comes with scikit-learn: there is nothing to fetch")
    if name not in FETCHED:
        raise DataError(f"{name!r} cannot be fetched; {nearest(name, FETCHED)}; or hf:NAME, hf:PATH")
    return _prepare(name, Report(progress), verify=verify).path


def listing() -> list[Listed]:
    """The known data sets, and whatever else is in the cache."""
    lines = [Listed("digits", "1,797 grey images 8×8 as 64 features, 10 classes", True, 0, "scikit-learn")]
    for name, module in FETCHED.items():
        entry = home.examine(name)
        if isinstance(entry, home.Entry):
            lines.append(Listed(name, module.WHAT, True, entry.bytes, entry.meta["source"]))
        else:
            lines.append(Listed(name, module.WHAT, False, 0, ", ".join(origin.name for origin in module.ORIGINS)))
    for path in sorted(home.sets().glob("[!.]*")) if home.sets().is_dir() else []:
        entry = home.examine(path.name)
        if path.name not in FETCHED and isinstance(entry, home.Entry):
            rows = " × ".join(str(size) for size in entry.meta["arrays"]["x_train"]["shape"])
            what = f"{rows}, {entry.meta['classes']} classes"
            lines.append(Listed(path.name, what, True, entry.bytes, entry.meta["source"]))
    return lines


def as_memory_maps(data: DataSet) -> DataSet:
    """The same data set from the cache, where it is put if need be: for a file that many processes are to share."""
    if isinstance(data.train[0], np.memmap):
        return data
    arrays = {"x_train": data.train[0], "y_train": data.train[1]}
    if data.test is not None:
        arrays |= {"x_test": data.test[0], "y_test": data.test[1]}
    if data.ids is not None:
        arrays["ids"] = data.ids
    contents = home.Contents(dict(arrays), data.classes, data.name)
    slug = re.sub(r"[^a-z0-9]+", "-", Path(data.name).name.lower())[-60:].strip("-")
    key = f"copy-{slug}-{data.fingerprint[:16]}"
    return _from_entry(data.name, home.prepare(key, lambda scratch: contents, Report(False)))


def _prepare(name: str, report: Report, *, verify: bool) -> home.Entry:
    return home.prepare(name, lambda scratch: FETCHED[name].build(scratch, report), report, verify=verify)


def _digits(reading: Reading) -> home.Contents:
    train, test = load_digits(reading.test_fraction, reading.seed)
    if not len(train[1]):
        raise SettingError(f"test_fraction = {reading.test_fraction!r}: leaves no digits to train on")
    arrays: dict[str, Array | npy.Blocks] = {"x_train": train[0], "y_train": train[1]}
    if len(test[1]):
        arrays |= {"x_test": test[0], "y_test": test[1]}
    return home.Contents(arrays, 10, "scikit-learn")


def _in_memory(name: str, contents: home.Contents) -> DataSet:
    arrays = {key: array for key, array in contents.arrays.items() if not isinstance(array, npy.Blocks)}
    digests = {key: npy.digest(array) for key, array in arrays.items()}
    return _data_set(name, arrays, contents.classes, home.fingerprint(digests, contents.classes))


def _from_entry(name: str, entry: home.Entry) -> DataSet:
    arrays = {key: entry.array(key) for key in entry.meta["arrays"]}
    return _data_set(name, arrays, entry.meta["classes"], entry.meta["fingerprint"])


def _data_set(name: str, arrays: dict[str, Array], classes: int, fingerprint: str) -> DataSet:
    test = (arrays["x_test"], arrays["y_test"]) if "x_test" in arrays else None
    return DataSet(name, (arrays["x_train"], arrays["y_train"]), test, classes, arrays.get("ids"), fingerprint)
