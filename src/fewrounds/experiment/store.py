"""A folder of results: one Parquet file and one JSON file a run, and a list of the runs that belong together."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
from pyarrow import ArrowException, parquet

from fewrounds.errors import ResultsError, SettingError, one_line
from fewrounds.experiment.config import Experiment
from fewrounds.experiment.grid import RunSpec

if TYPE_CHECKING:
    import pandas

FORMAT = 1
DONE = ("finished", "diverged")


class Store:
    """The results of an experiment on disk. A run is there when its JSON is; the JSON is written last."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    @contextmanager
    def open(self, name: str) -> Iterator[None]:
        """Create or take over the folder, and keep other processes off it."""
        with one_line(f"cannot use {self.folder} for results", ResultsError):
            existing = self.folder / "results.json"
            if self.folder.exists() and not self.folder.is_dir():
                raise ResultsError(f"{self.folder} is a file: choose a folder for the results")
            if self.folder.is_dir() and not existing.exists() and self._has_something():
                raise ResultsError(f"{self.folder} is not empty and holds no results: choose another folder")
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder / "lock", blocking=False)
            try:
                lock.acquire()
            except filelock.Timeout:
                raise ResultsError(f"{self.folder} is in use by another run: choose another folder") from None
            if existing.exists():
                found = self.check_version()["name"]
                if found != name:
                    raise ResultsError(
                        f"{self.folder} has the results of {found!r}, not {name!r}: choose another folder"
                    )
            else:
                write_json(existing, {"format": FORMAT, "name": name, "created": now()})
        try:
            yield
        finally:
            lock.release()

    def _has_something(self) -> bool:
        """Anything but what a start that was killed leaves behind."""
        known = ("lock", "runs", "results.json.tmp")
        return any(path.name not in known or any(path.glob("*")) for path in self.folder.iterdir())

    def check_version(self) -> dict[str, Any]:
        path = self.folder / "results.json"
        if not path.exists():
            raise ResultsError(f"{self.folder} is no folder of results: run `fewrounds run FILE` first")
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path} cannot be read: {error}") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT or not {"name", "created"} <= set(content):
            found = content.get("format") if isinstance(content, dict) else None
            raise ResultsError(f"{self.folder} has results of format {found}, this version reads {FORMAT}")
        return content

    # ------------------------------------------------------------------ runs

    def run_folder(self, run: str) -> Path:
        return self.folder / "runs" / run

    def record(self, run: str) -> dict[str, Any] | None:
        """What is known of a run, or None if it has not ended."""
        try:
            content: dict[str, Any] = json.loads((self.run_folder(run) / "run.json").read_text())
        except (OSError, ValueError):
            return None
        return content

    def is_done(self, run: str) -> bool:
        record = self.record(run)
        if record is None or record["outcome"] not in DONE:
            return False
        try:
            parquet.read_metadata(self.run_folder(run) / "history.parquet")
        except (OSError, ArrowException):
            return False  # missing or damaged: the run is done again
        return True

    def history(self, run: str) -> pandas.DataFrame:
        import pandas

        path = self.run_folder(run) / "history.parquet"
        try:
            return pandas.read_parquet(path)
        except (OSError, ArrowException):
            raise ResultsError(f"{path} is missing or damaged: run the experiment again, and it is made anew") from None

    def save_run(self, run: str, record: dict[str, Any], history: pandas.DataFrame | None) -> None:
        folder = self.run_folder(run)
        with one_line(f"cannot write {folder}", ResultsError):
            folder.mkdir(parents=True, exist_ok=True)
            if history is not None:
                temporary = folder / "history.parquet.tmp"
                history.to_parquet(temporary, index=False)
                temporary.replace(folder / "history.parquet")
            write_json(folder / "run.json", record)
            shutil.rmtree(folder / "checkpoint", ignore_errors=True)

    # ------------------------------------------------------------------ the experiment

    def save_grid(self, runs: dict[str, RunSpec], experiment: dict[str, Any], chosen: list[dict[str, Any]]) -> None:
        """Which runs belong to the experiment as it was last run, and the step sizes that were chosen."""
        content = {
            "experiment": experiment,
            "runs": {run: {"role": spec.role, **spec.identity()} for run, spec in runs.items()},
            "chosen": chosen,
            "environment": environment(),
            "updated": now(),
        }
        with one_line(f"cannot write {self.folder}", ResultsError):
            write_json(self.folder / "grid.json", content)

    def grid(self) -> dict[str, Any]:
        self.check_version()
        path = self.folder / "grid.json"
        if not path.exists() and (self.folder / "measurements").exists():
            raise ResultsError(
                f"{self.folder} has measurements, but no runs: `fewrounds run FILE --output {self.folder}` first"
            )
        try:
            content: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ResultsError(f"{path} cannot be read: {error}") from None
        return content

    def ended(self, grid: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The records of the grid's runs that have finished or diverged."""
        found = {run: self.record(run) for run in grid["runs"]}
        return {run: record for run, record in found.items() if record is not None and record["outcome"] in DONE}


def load_results(folder: str | Path) -> pandas.DataFrame:
    """One tidy frame over all runs of an experiment: a row per evaluated round, the settings in columns.

    `folder` is a folder of results, or a file that `fewrounds pack` made of one.
    """
    if Path(folder).is_file():
        from fewrounds.experiment.archive import read

        return read(Path(folder))[0]
    store = Store(folder)
    grid = store.grid()
    records = store.ended(grid)
    return tidy(store.folder, grid, records, {run: store.history(run) for run in records})


def tidy(
    where: Path, grid: dict[str, Any], records: dict[str, dict[str, Any]], histories: dict[str, pandas.DataFrame]
) -> pandas.DataFrame:
    """The histories of ended runs under each other, with what is known of each run in columns."""
    import pandas

    frames = []
    for run, record in records.items():
        spec = grid["runs"][run]
        columns = {
            "run": run,
            "role": spec["role"],
            **setting_columns(spec),
            **{key: spec["train"][key] for key in ("eta", "seed")},
            **{key: record[key] for key in ("K", "b", "workers", "outcome")},
            "aggregations": _aggregations(spec["train"]["method"], record.get("method_settings")),
        }
        frames.append(histories[run].assign(**columns))
    if not frames:
        raise ResultsError(f"{where} has no finished run yet")
    frame = pandas.concat(frames, ignore_index=True)
    floats = dict.fromkeys(("q", "alpha", "eta", "l2"), "float64")
    whole = dict.fromkeys(("K", "b", "budget", "shards_per_worker", "classes_per_worker"), "Int64")
    return frame.astype({**floats, **whole})


def _aggregations(name: str, settings: dict[str, Any] | None) -> int:
    """How often a round waited for all workers; once where the method is not known, such as one of a user's own."""
    from fewrounds.methods.base import method

    try:
        return method(name, **(settings or {})).aggregations
    except SettingError:
        return 1


def setting_columns(spec: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run as columns of a frame, but for eta and seed; those of its method by their own names."""
    partition = spec["partition"]
    return {
        "dataset": spec["data"]["source"],
        "partition": partition["kind"],
        **{key: partition[key] for key in ("q", "alpha", "shards_per_worker", "classes_per_worker", "workers")},
        "partition_seed": partition["seed"],
        "l2": spec["model"]["l2"],
        **{key: spec["train"][key] for key in ("method", "budget", "budget_mode", "rounds", "weights")},
        **spec["settings"],
    }


def known_eta(experiment: Experiment, cell: RunSpec) -> float | None:
    """The step size of a cell that is not tuned: another experiment's choice, or None to run every one of the file."""
    folder = experiment.train.eta_from
    return None if folder is None else _chosen_eta(folder, cell)


def _chosen_eta(folder: str, cell: RunSpec) -> float:
    """The step size that an experiment has chosen for the same method and split: at the same budget if it has it."""
    wanted = setting_columns(cell.identity())
    alike = [
        choice
        for choice in Store(folder).grid()["chosen"]
        if all(choice.get(key) == value for key, value in wanted.items() if key not in ("budget", "rounds"))
    ]
    same_budget = [choice for choice in alike if choice["budget"] == wanted["budget"]]
    etas = {choice["eta"] for choice in same_budget or alike}
    where = cell.label(eta=False)
    if not etas:
        raise SettingError(f"train.eta_from = {folder!r}: no step size was chosen there for {where}")
    if len(etas) > 1:
        raise SettingError(f"train.eta_from = {folder!r}: several step sizes were chosen there for {where}: {etas}")
    (eta,) = etas
    if eta is None:
        raise SettingError(f"train.eta_from = {folder!r}: every step size diverged there for {where}")
    return float(eta)


def environment() -> dict[str, Any]:
    """What the results were made with."""
    packages = ("fewrounds", "torch", "numpy", "flwr-datasets", "scikit-learn")
    return {
        "commit": commit(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def commit() -> str | None:
    """The commit of the code, if it runs from a checkout."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        inside = done.returncode == 0 and "site-packages" not in __file__
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if inside else None


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_json(path: Path, content: Any) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
    temporary.replace(path)
