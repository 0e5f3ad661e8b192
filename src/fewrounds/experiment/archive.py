"""A folder of results as one Parquet file, to keep, send or commit, and back again.

The table is the tidy frame of `load_results`, which any reader of Parquet opens. What a frame has no room for (the
grid, the ledgers, the measurements) is JSON in the file's metadata, so the folder that is unpacked is the one that was
packed: `fewrounds run` goes on there, and `fewrounds report` writes the same page. Nothing in it is code.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import ArrowException, Table, parquet

from fewrounds.errors import ResultsError, one_line
from fewrounds.experiment.store import FORMAT, Store, tidy, write_json

if TYPE_CHECKING:
    import pandas

KEY = b"fewrounds"
"""Of the metadata: base64 of zlib of JSON."""


def pack(folder: str | Path, file: str | Path) -> int:
    """Write the ended runs of a folder of results, and all that belongs to them, as one file. Returns their number."""
    store, file = Store(folder), Path(file)
    grid = store.grid()
    records = store.ended(grid)
    histories = {run: store.history(run) for run in records}
    frame = tidy(store.folder, grid, records, histories)
    content = {
        "results": store.check_version(),
        "grid": grid,
        # the settings of a run are in the grid
        "records": {run: {k: v for k, v in r.items() if k not in grid["runs"][run]} for run, r in records.items()},
        "measurements": {path.name: json.loads(path.read_text()) for path in _measurements(store.folder)},
        "history": list(histories[next(iter(histories))].columns),
    }
    table = Table.from_pandas(frame, preserve_index=False)
    packed = base64.b64encode(zlib.compress(json.dumps(content).encode(), 9))
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), KEY: packed})
    with one_line(f"cannot write {file}", ResultsError):
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(file.name + ".tmp")
        try:
            parquet.write_table(table, temporary, compression="zstd")
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    return len(records)


def unpack(file: str | Path, folder: str | Path) -> int:
    """Put the runs of a packed file into a folder of results, made if it is not there; what it has already stays.

    Returns how many runs were put there.
    """
    file, store = Path(file), Store(folder)
    frame, content = read(file)
    grid, added = content["grid"], 0
    with store.open(content["results"]["name"]):
        histories = dict(list(frame.groupby("run", sort=False)))
        for run, record in content["records"].items():
            if store.is_done(run):
                continue
            spec = {key: value for key, value in grid["runs"][run].items() if key != "role"}
            history = histories[run][content["history"]].reset_index(drop=True)
            store.save_run(run, {**spec, **record}, history)
            added += 1
        with one_line(f"cannot write {store.folder}", ResultsError):
            if not (store.folder / "grid.json").exists():
                write_json(store.folder / "results.json", content["results"])
                write_json(store.folder / "grid.json", grid)
            for name, measurement in content["measurements"].items():
                path = store.folder / "measurements" / name
                if not path.exists():
                    path.parent.mkdir(exist_ok=True)
                    write_json(path, measurement)
    return added


def read(file: Path) -> tuple[pandas.DataFrame, dict[str, Any]]:
    """The tidy frame of a packed file, and the rest of it; refused if it is anything else."""
    try:
        table = parquet.read_table(file)
    except FileNotFoundError:
        raise ResultsError(f"there is no file {file}") from None
    except (OSError, ArrowException) as error:
        raise ResultsError(f"{file} cannot be read: {' '.join(str(error).split())}") from None
    packed = (table.schema.metadata or {}).get(KEY)
    if packed is None:
        raise ResultsError(f"{file} was not written by `fewrounds pack`")
    try:
        content: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
        found = content["results"]["format"]
        names = [*content["records"], *content["measurements"]]
        frame: pandas.DataFrame = table.to_pandas()
        complete = set(content["records"]) <= set(content["grid"]["runs"]) & set(frame["run"])
        complete &= set(content["history"]) <= set(frame.columns)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error):
        raise ResultsError(f"{file} is damaged: pack the results again") from None
    if found != FORMAT:
        raise ResultsError(f"{file} has results of format {found}, this version reads {FORMAT}")
    # Names become paths: one that leads out of the folder is never followed.
    if not complete or not all(re.fullmatch(r"\w[\w.-]*", str(name)) for name in names):
        raise ResultsError(f"{file} is damaged: pack the results again")
    return frame, content


def _measurements(folder: Path) -> list[Path]:
    return sorted((folder / "measurements").glob("*.json"))
