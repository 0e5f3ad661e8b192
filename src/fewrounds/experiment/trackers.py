"""The same figures in TensorBoard or MLflow, for those who keep all their runs there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fewrounds.errors import SettingError
from fewrounds.experiment.config import Track
from fewrounds.experiment.store import DONE, Store

LEFT_OUT = ("round", "picked")


def check(track: Track) -> None:
    """Refuse a tracker that is not installed, before the first run."""
    for wanted, module, extra in (
        (track.tensorboard, "tensorboard", "tensorboard"),
        (track.mlflow, "mlflow", "mlflow"),
    ):
        if wanted:
            try:
                __import__(module)
            except ImportError:
                message = f"track.{extra} needs the package {module}: pip install 'fewrounds[{extra}]'"
                raise SettingError(message) from None


def log(track: Track, store: Store, name: str) -> None:
    """Log every finished run that has not been logged yet."""
    for run in store.grid()["runs"]:
        record = store.record(run)
        if record is None or record["outcome"] not in DONE:
            continue
        for wanted, marker, write in (
            (track.tensorboard, "tensorboard.logged", _tensorboard),
            (track.mlflow, "mlflow.logged", _mlflow),
        ):
            done = store.run_folder(run) / marker
            if wanted and not done.exists():
                write(track, store, run, record, name)
                done.touch()


def _tensorboard(track: Track, store: Store, run: str, record: dict[str, Any], name: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    folder = store.folder / "tensorboard" / f"{record['train']['method']}-{run}"
    with SummaryWriter(str(folder)) as writer:
        for row in store.history(run).to_dict("records"):
            for column, value in row.items():
                if column not in LEFT_OUT and value == value:
                    writer.add_scalar(str(column), value, int(row["round"]))


def _mlflow(track: Track, store: Store, run: str, record: dict[str, Any], name: str) -> None:
    import mlflow

    uri = track.mlflow or ""
    mlflow.set_tracking_uri(uri if "://" in uri or uri.startswith("sqlite:") else Path(uri).resolve().as_uri())
    mlflow.set_experiment(name)
    with mlflow.start_run(run_name=f"{record['train']['method']}-{run}"):
        flat = {
            f"{section}.{key}": value
            for section in ("data", "partition", "model", "train")
            for key, value in record[section].items()
        }
        mlflow.log_params({key: value for key, value in flat.items() if value is not None})
        for row in store.history(run).to_dict("records"):
            figures = {str(key): float(value) for key, value in row.items() if key not in LEFT_OUT and value == value}
            mlflow.log_metrics(figures, step=int(row["round"]))
