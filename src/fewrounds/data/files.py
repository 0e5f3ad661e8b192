"""Data of a user's own: CSV and Parquet tables, and .npz archives."""

from __future__ import annotations

import difflib
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from fewrounds.data.home import Contents
from fewrounds.data.labels import Reading, stratified, targets
from fewrounds.data.npy import Array, Blocks, scaled
from fewrounds.data.origins import one_line
from fewrounds.errors import DataError, SettingError, nearest

TABLES = (".csv", ".parquet")
SUFFIXES = (*TABLES, ".npz")


@dataclass(frozen=True)
class Part:
    """Inputs, labels as they stand in the file, and natural ids if they were asked for."""

    x: Array
    labels: Array
    ids: Array | None
    columns: tuple[str, ...] = ()


def read(path: Path, reading: Reading) -> Contents:
    """Train and test parts of a file (or of two), as arrays."""
    second = None if reading.test is None else Path(reading.test).expanduser()
    for file in (path, second):
        if file is not None and file.suffix.lower() not in SUFFIXES:
            raise DataError(f"{file}: expected a file that ends in {', '.join(SUFFIXES)}")
        if file is not None and not file.is_file():
            raise DataError(f"{file}: there is no such file")
    train, test = read_parts(path, reading)
    if second is not None:
        if test is not None:
            raise SettingError(f"test = {reading.test!r}: {path} has a test part already")
        test = read_parts(second, reading, like=train)[0]
        mine, theirs = list(test.x.shape[1:]), list(train.x.shape[1:])
        if mine != theirs:
            raise DataError(f"{second} has samples of shape {mine}, but {path} has {theirs}: they must be the same")
    values = [train.labels] if test is None else [train.labels, test.labels]
    numbered, classes = targets(values, [str(path), str(second or path)][: len(values)])
    return divide(train, test, numbered, classes, reading, source=str(path))


def read_parts(path: Path, reading: Reading, like: Part | None = None) -> tuple[Part, Part | None]:
    """(train, test) of one file; the test part is None where the file has none."""
    if path.suffix.lower() != ".npz":
        return read_table(path, reading, like), None
    if reading.label is not None and like is None:
        raise SettingError(f"label = {reading.label!r}: an .npz has its labels under y or y_train, leave it out")
    return read_npz(path, reading.id_column if like is None else None)


def divide(
    train: Part, test: Part | None, numbered: Sequence[Array], classes: int, reading: Reading, source: str
) -> Contents:
    """The arrays of a data set; where there is no test part, one is taken out of the train part."""
    arrays: dict[str, Array | Blocks] = {"x_train": train.x, "y_train": numbered[0]}
    ids = train.ids
    if test is not None:
        arrays |= {"x_test": test.x, "y_test": numbered[1]}
    else:
        kept, out = stratified(numbered[0], classes, reading)
        arrays = {"x_train": train.x[kept], "y_train": numbered[0][kept]}
        if len(out):
            arrays |= {"x_test": train.x[out], "y_test": numbered[0][out]}
        ids = None if ids is None else ids[kept]
    if ids is not None:
        arrays["ids"] = ids
    return Contents(arrays, classes, source)


# ---------------------------------------------------------------------- tables


def read_table(path: Path, reading: Reading, like: Part | None) -> Part:
    try:
        frame = pd.read_csv(path, low_memory=False) if path.suffix.lower() == ".csv" else pd.read_parquet(path)
    except (ValueError, OSError, ImportError) as error:  # pandas' and pyarrow's errors are ValueErrors
        raise DataError(f"{path} cannot be read as {path.suffix[1:].lower()}: {one_line(error)}") from error
    return split_frame(frame, reading, str(path), like)


def split_frame(frame: pd.DataFrame, reading: Reading, whose: str, like: Part | None = None) -> Part:
    """A table as features, labels and ids; every column that is neither label nor id is a feature.

    A test table is read `like` its train table: the same features in the same order, and no ids.
    """
    frame.columns = frame.columns.map(str)
    label, id_column = reading.label, reading.id_column if like is None else None
    if label is None:
        raise DataError(f"{whose}: which column holds the labels? give label = one of {_few(list(frame.columns))}")
    for option, column in (("label", label), ("id_column", id_column)):
        if column is not None and column not in frame.columns:
            raise DataError(f"{whose}: {option} = {column!r} is no column; {nearest(column, _close(column, frame))}")
    if len(frame) == 0:
        raise DataError(f"{whose} has no rows")
    columns = like.columns if like is not None else tuple(c for c in frame.columns if c not in (label, id_column))
    if not columns:
        raise DataError(f"{whose} has no feature columns beside {label!r}")
    for column in columns:
        if column not in frame.columns:
            raise DataError(f"{whose} has no column {column!r}, which the train part has")
        _check_numeric(frame[column], column, whose)
    with np.errstate(over="ignore"):  # too large for float32 is infinite, which later checks name by row
        inputs = frame[list(columns)].to_numpy(dtype=np.float32, na_value=np.nan)
    ids = None if id_column is None else as_ids(frame[id_column], f"{whose}: {id_column!r}")
    return Part(inputs, plain_values(frame[label]), ids, columns)


def as_ids(column: pd.Series, whose: str) -> Array:
    """Natural ids: whole numbers or text."""
    if column.isna().any():
        raise DataError(f"{whose}: row {int(np.argmax(column.isna().to_numpy()))} has no id")
    values = plain_values(column)
    return values if values.dtype.kind in "iu" else values.astype(str)


def plain_values(column: pd.Series) -> Array:
    """Whole numbers as int64, other numbers as float64, anything else as objects with missing ones as None or NaN."""
    if pd.api.types.is_bool_dtype(column) or pd.api.types.is_integer_dtype(column):
        return column.to_numpy(dtype=np.int64) if not column.isna().any() else column.to_numpy(dtype=object)
    if pd.api.types.is_float_dtype(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    return column.to_numpy(dtype=object)


def _check_numeric(column: pd.Series, name: str, whose: str) -> None:
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_complex_dtype(column):
        return
    numbers = pd.to_numeric(column.astype(str), errors="coerce")
    wrong = int(np.argmax((numbers.isna() & column.notna()).to_numpy()))
    example = one_line(ValueError(repr(column.iloc[wrong])), most=40)
    raise DataError(
        f"{whose}: column {name!r} does not hold numbers (row {wrong}: {example}): leave it out or encode it as numbers"
    )


def _close(word: str, frame: pd.DataFrame, most: int = 20) -> list[str]:
    """All columns, or of a wide table those nearest to the word: the message stays readable."""
    columns = list(frame.columns)
    return columns if len(columns) <= most else difflib.get_close_matches(word, columns, n=most, cutoff=0.0)


def _few(columns: Sequence[str], most: int = 20) -> str:
    listed = ", ".join(columns[:most])
    return listed if len(columns) <= most else f"{listed}, … ({len(columns)} in all)"


# ---------------------------------------------------------------------- archives


def read_npz(path: Path, id_key: str | None) -> tuple[Part, Part | None]:
    """(train, test) of an archive with x_train, y_train[, x_test, y_test], or x, y."""
    try:
        with path.open("rb") as file:  # opened here, as np.load leaves a broken archive open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{path} cannot be read as npz: {one_line(error)}") from error
    return _npz_part(arrays, ("x_train", "y_train"), id_key, path), (
        _npz_part(arrays, ("x_test", "y_test"), None, path) if "x_test" in arrays else None
    )


def _npz_part(arrays: dict[str, Array], keys: tuple[str, str], id_key: str | None, path: Path) -> Part:
    if keys[0] == "x_train" and "x_train" not in arrays:
        keys = ("x", "y")
    has = ", ".join(sorted(arrays)) or "nothing"
    for key in (*keys, *([id_key] if id_key is not None else [])):
        if key not in arrays:
            raise DataError(f"{path} has no {key!r}: expected x_train and y_train, or x and y; it has {has}")
    x, y = arrays[keys[0]], arrays[keys[1]]
    ids = None if id_key is None else arrays[id_key]
    if x.dtype.kind not in "fiub":
        raise DataError(f"{path}: {keys[0]} does not hold numbers (dtype {x.dtype})")
    if x.ndim < 2 or len(x) == 0:
        raise DataError(f"{path}: {keys[0]} has shape {list(x.shape)}, expected one row a sample")
    y = y.reshape(len(y)) if y.ndim == 2 and y.shape[1] == 1 else y
    for key, part in ((keys[1], y), (str(id_key), ids)):
        if part is not None and part.shape != (len(x),):
            raise DataError(f"{path}: {key} has shape {list(part.shape)}, expected [{len(x)}], one for each sample")
    return Part(_inputs(x), y, ids)


def _inputs(x: Array) -> Array:
    """Bytes with three or four axes are images and are scaled; anything else is only made float32."""
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        with np.errstate(over="ignore"):
            return x.astype(np.float32)
    if x.ndim == 3:
        return scaled(x[:, np.newaxis])
    channels_last = x.shape[3] in (1, 3, 4) and x.shape[1] not in (1, 3, 4)
    return np.ascontiguousarray(scaled(x.transpose(0, 3, 1, 2) if channels_last else x))
