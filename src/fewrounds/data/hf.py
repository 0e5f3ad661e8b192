"""Any Hugging Face image or tabular data set, by name or path, prepared once into the cache."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fewrounds.data import home, hub
from fewrounds.data.files import as_ids, divide, plain_values, split_frame
from fewrounds.data.labels import Reading, stratified, targets
from fewrounds.data.npy import Array, Blocks, scaled
from fewrounds.data.origins import PassedOver, one_line
from fewrounds.data.reporting import Report
from fewrounds.errors import DataError, nearest

LABELS = ("label", "labels", "target", "class", "y")
TESTS = ("test", "validation", "valid", "val")
IMAGES_AT_ONCE = 512


def prepare(where: str, reading: Reading, report: Report, *, verify: bool = False) -> home.Entry:
    """The entry for this data set read in this way; another content or another reading is another entry."""
    whose = f"hf:{where}"
    with report.step(f"{whose}: opening"):
        splits = open_splits(where)
    train, test = choose_splits(splits, reading.test, whose)
    reading = replace(reading, label=label_column(train, reading.label, whose))
    check_column(train, "id_column", reading.id_column, whose)
    if test is not None:
        check_column(test, "label", reading.label, f"{whose}, its test split")

    def build(scratch: Path) -> home.Contents:
        with hub.quiet():
            return contents(train, test, reading, whose, report)

    split = [reading.test_fraction, reading.seed] if test is None else []
    key = json.dumps([_state(train), _state(test), reading.label, reading.id_column, split])
    slug = re.sub(r"[^a-z0-9]+", "-", where.lower())[-60:].strip("-")
    return home.prepare(f"hf-{slug}-{hashlib.sha256(key.encode()).hexdigest()[:16]}", build, report, verify=verify)


def open_splits(where: str) -> dict[str, Any]:
    """The splits of a folder written by save_to_disk, of a folder or file, or of NAME[:CONFIGURATION] on the hub."""
    path = Path(where).expanduser()
    if not where:
        raise DataError("hf: needs the name of a data set or the path of a folder after it")
    with hub.quiet() as datasets:
        try:
            if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
                found = datasets.load_from_disk(str(path))
            elif path.is_dir():
                found = datasets.load_dataset(str(path))
            elif path.exists() or where.startswith(("/", ".", "~")) or where.count("/") > 1:
                raise PassedOver("there is no such folder" if not path.exists() else "it is a file, expected a folder")
            else:
                name, _, configuration = where.partition(":")
                found = hub.download(name, configuration or None)
        except PassedOver as passed:
            raise DataError(f"hf:{where} could not be had: {passed}") from None
        except Exception as error:  # what the library's many loaders raise is not documented
            raise DataError(f"hf:{where} cannot be read: {one_line(error)}") from error
    return dict(found) if isinstance(found, dict) else {"train": found}


def choose_splits(splits: dict[str, Any], test: str | None, whose: str) -> tuple[Any, Any]:
    """(train, test); the test split is None where there is none."""
    if test is not None and test not in splits:
        raise DataError(f"{whose}: test = {test!r} is no split; {nearest(test, splits)}")
    others = [name for name in splits if name != test]
    name = "train" if "train" in others else others[0] if len(others) == 1 else None
    if name is None:
        raise DataError(f"{whose} has no split 'train', but {', '.join(splits) or 'none at all'}")
    held_out = test or next((known for known in TESTS if known in splits and known != name), None)
    for chosen in (name, held_out):
        if chosen is not None and len(splits[chosen]) == 0:
            raise DataError(f"{whose}: its split {chosen!r} has no rows")
    return splits[name], splits[held_out] if held_out is not None else None


def label_column(data: Any, label: str | None, whose: str) -> str:
    """The column asked for, or the only one that is a ClassLabel, or one with a usual name."""
    if label is not None:
        check_column(data, "label", label, whose)
        return label
    marked = [name for name, feature in data.features.items() if type(feature).__name__ == "ClassLabel"]
    usual = [name for name in LABELS if name in data.features]
    if len(marked) == 1 or (not marked and usual):
        return (marked or usual)[0]
    columns = ", ".join(marked or data.features)
    raise DataError(f"{whose}: which column holds the labels? give label = one of {columns}")


def check_column(data: Any, option: str, column: str | None, whose: str) -> None:
    if column is not None and column not in data.features:
        raise DataError(f"{whose}: {option} = {column!r} is no column; {nearest(column, data.features)}")


def contents(train: Any, test: Any, reading: Reading, whose: str, report: Report) -> home.Contents:
    """The arrays of the chosen splits."""
    pictures = [name for name, feature in train.features.items() if type(feature).__name__ == "Image"]
    if len(pictures) > 1:
        raise DataError(f"{whose} has several columns of images ({', '.join(pictures)}): one is expected")
    numbered, classes = class_numbers([train] if test is None else [train, test], reading, whose)
    if not pictures:
        first = split_frame(train.to_pandas(), reading, whose)
        second = (
            None if test is None else split_frame(test.to_pandas(), reading, f"{whose}, its test split", like=first)
        )
        return divide(first, second, numbered, classes, reading, source=whose)
    ids = None
    if reading.id_column is not None:
        frame = train.select_columns([reading.id_column]).to_pandas()
        ids = as_ids(frame[reading.id_column], f"{whose}: {reading.id_column!r}")
    y_train, y_test = numbered[0], numbered[-1]
    if test is None:
        kept, out = stratified(y_train, classes, reading)
        y_train, y_test = numbered[0][kept], numbered[0][out]
        ids = None if ids is None else ids[kept]
        train, test = train.select(kept), train.select(out) if len(out) else None
    shape = picture_shape(train[0][pictures[0]], whose)
    arrays: dict[str, Array | Blocks] = {"x_train": picture_blocks(train, pictures[0], shape, whose, report)}
    arrays["y_train"] = y_train
    if test is not None:
        arrays |= {"x_test": picture_blocks(test, pictures[0], shape, whose, report), "y_test": y_test}
    if ids is not None:
        arrays["ids"] = ids
    return home.Contents(arrays, classes, whose)


def class_numbers(parts: list[Any], reading: Reading, whose: str) -> tuple[list[Array], int]:
    """A ClassLabel is numbered already, and also knows classes that do not occur; other labels are numbered here."""
    label = str(reading.label)
    names = [whose, f"{whose}, its test split"]
    values = [plain_values(part.select_columns([label]).to_pandas()[label]) for part in parts]
    feature = parts[0].features[label]
    if type(feature).__name__ != "ClassLabel":
        if type(feature).__name__ != "Value":
            raise DataError(f"{whose}: label = {label!r} holds neither classes nor numbers nor text ({feature})")
        return targets(values, names[: len(parts)])
    for part, name in zip(values, names, strict=False):
        missing = np.flatnonzero([value is None or value < 0 for value in part])
        if len(missing):
            raise DataError(f"{name}: row {missing[0]} has no label (test = names another split)")
    return [part.astype(np.int64) for part in values], int(feature.num_classes)


# ---------------------------------------------------------------------- images


def picture_shape(picture: Any, whose: str) -> tuple[int, int, int]:
    """(channels, height, width) of all images, from the first one."""
    if picture is None:
        raise DataError(f"{whose}: row 0 has no image")
    if picture.mode.startswith(("I", "F")):
        raise DataError(f"{whose}: its images are of mode {picture.mode!r}, expected 8 bits a channel")
    return (1 if picture.mode in ("1", "L") else 3, picture.height, picture.width)


def picture_blocks(data: Any, column: str, shape: tuple[int, int, int], whose: str, report: Report) -> Blocks:
    """Images, decoded block by block, as float32 [n, C, H, W] in [-1, 1]."""
    mode = "L" if shape[0] == 1 else "RGB"

    def blocks() -> Iterator[Array]:
        with report.step(f"{whose}: images", total=len(data)) as tick:
            for first in range(0, len(data), IMAGES_AT_ONCE):
                try:
                    pictures = data[first : first + IMAGES_AT_ONCE][column]
                except Exception as error:  # Pillow raises what the damage happens to cause
                    last = min(first + IMAGES_AT_ONCE, len(data)) - 1
                    raise DataError(
                        f"{whose}: an image in rows {first} to {last} is damaged: {one_line(error)}"
                    ) from error
                block = np.empty((len(pictures), *shape[1:], shape[0]), dtype=np.uint8)
                for number, picture in enumerate(pictures):
                    if picture is None or (picture.height, picture.width) != shape[1:]:
                        size = "no image" if picture is None else f"an image of {picture.height}×{picture.width}"
                        raise DataError(
                            f"{whose}: row {first + number} has {size}, row 0 one of {shape[1]}×{shape[2]}: "
                            "they must be the same"
                        )
                    block[number] = np.asarray(picture.convert(mode)).reshape(block.shape[1:])
                tick(len(pictures))
                yield scaled(block.transpose(0, 3, 1, 2))

    return Blocks((len(data), *shape), np.dtype(np.float32), blocks)


def _state(data: Any) -> Any:
    """What changes when the data do: the library's own fingerprint, and the files it reads."""
    if data is None:
        return None
    files = [Path(file["filename"]) for file in data.cache_files]
    return [data._fingerprint, [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]]
