"""A run on disk: tensors in safetensors, the rest in JSON, written so that a kill never leaves half of either."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fewrounds.engine.base import Committed
from fewrounds.errors import CheckpointError, one_line
from fewrounds.ledger import Ledger
from fewrounds.methods.base import State

FORMAT = 1
KEEP = 2
"""Checkpoints kept: the newest, and the one before it to fall back on."""


@dataclass(frozen=True)
class Snapshot:
    """A run after a whole number of rounds."""

    round: int
    state: State
    committed: Committed
    history: tuple[dict[str, float], ...]
    trace: tuple[Tensor, ...] | None
    seconds: float
    outcome: str


class Checkpoints:
    """The checkpoints of one run in a folder, newest last."""

    def __init__(self, folder: str | Path, identity: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self.identity = identity

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes off the folder. The lock goes with the process, however it ends."""
        with one_line(f"cannot use {self.folder} for checkpoints", CheckpointError):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder / "lock", blocking=False)
            try:
                lock.acquire()
            except filelock.Timeout:
                raise CheckpointError(f"{self.folder} is in use by another run: choose another folder") from None
        try:
            yield
        finally:
            lock.release()

    def exist(self) -> bool:
        return bool(self._files())

    def save(self, snapshot: Snapshot) -> None:
        """Write the tensors, then the JSON that names them; each appears whole or not at all."""
        tensors = {"history": _history_tensor(snapshot.history)}
        numbers: dict[str, Any] = {}
        held: list[str] = []
        for name, value in _fields(snapshot.state).items():
            if isinstance(value, Tensor):
                tensors[f"state/{name}"] = value
                if any(value is vector for vector in snapshot.committed.held):
                    held.append(name)
            else:
                numbers[name] = value
        for (name, p), value in snapshot.committed.kept.items():
            tensors[f"memory/{name}/{p}"] = value
        if snapshot.trace is not None:
            tensors["trace"] = torch.stack(snapshot.trace)
        # Clones: safetensors refuses tensors that share storage, as x and x_prev may.
        blob = save({name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()})
        content = {
            "format": FORMAT,
            "round": snapshot.round,
            "outcome": snapshot.outcome,
            "seconds": snapshot.seconds,
            "identity": self.identity,
            "ledger": snapshot.committed.ledger.to_json(),
            "state": numbers,
            "held": held,
            "columns": list(snapshot.history[0]),
            "sha256": hashlib.sha256(blob).hexdigest(),
        }
        document = {"content": content, "sha256": _digest(content)}
        stem = self.folder / f"round-{snapshot.round:08d}"
        with one_line(f"cannot write the checkpoint {stem}.json", CheckpointError):
            _write_whole(stem.with_suffix(".safetensors"), blob)
            _write_whole(stem.with_suffix(".json"), json.dumps(document, indent=1).encode())
            kept = {path.stem for path in [p for p in self._files() if p.stem <= stem.name][-KEEP:]}
            for path in self.folder.glob("round-*"):  # older, half-written by a kill, or damaged and passed over
                if path.suffix == ".tmp" or path.stem not in kept:
                    path.unlink()

    def load(self, template: State, *, trace: bool) -> Snapshot | None:
        """The newest checkpoint that is whole, or None if there is none; a broken one is named and passed over."""
        files = self._files()
        for path in reversed(files):
            try:
                content, tensors = self._read(path)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                reason = " ".join(str(error).split())[:120]
                print(
                    f"fewrounds: checkpoint {path} is damaged ({reason}), trying the one before",
                    file=sys.stderr,
                )
                continue
            self._check_identity(path, content["identity"])
            return self._snapshot(path, content, tensors, template, trace)
        if files:
            raise CheckpointError(f"every checkpoint in {self.folder} is damaged: delete the folder to start over")
        return None

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("round-*.json"))

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        document = json.loads(path.read_bytes())
        content: dict[str, Any] = document["content"]
        if document["sha256"] != _digest(content):
            raise ValueError("its JSON has been changed")
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {content['format']}, this version reads {FORMAT}")
        blob = path.with_suffix(".safetensors").read_bytes()
        if hashlib.sha256(blob).hexdigest() != content["sha256"]:
            raise ValueError("its tensors are incomplete or have been changed")
        return content, load(blob)

    def _check_identity(self, path: Path, found: dict[str, Any]) -> None:
        difference = _difference(self.identity, found)
        if difference:
            raise CheckpointError(f"{path} is of another run: {difference}; choose another folder")

    def _snapshot(
        self, path: Path, content: dict[str, Any], tensors: dict[str, Tensor], template: State, trace: bool
    ) -> Snapshot:
        device = template.x.device
        fields = {
            name: tensors[f"state/{name}"].to(device) if f"state/{name}" in tensors else content["state"][name]
            for name in _fields(template)
        }
        kept = {}
        for key, value in tensors.items():
            if key.startswith("memory/"):
                name, p = key.removeprefix("memory/").rsplit("/", 1)
                kept[name, int(p)] = value.to(device)
        if trace and "trace" not in tensors:
            raise CheckpointError(f"{path} was written without trace=True: choose another folder, or trace=False")
        rows = tensors["history"].tolist()
        return Snapshot(
            round=content["round"],
            state=type(template)(**fields),
            committed=Committed(
                ledger=Ledger.from_json(content["ledger"]),
                kept=kept,
                held=tuple(fields[name] for name in content["held"]),
            ),
            history=tuple(dict(zip(content["columns"], row, strict=True)) for row in rows),
            trace=tuple(tensors["trace"].to(device)) if trace else None,
            seconds=content["seconds"],
            outcome=content["outcome"],
        )


def _fields(state: State) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def _history_tensor(history: tuple[dict[str, float], ...]) -> Tensor:
    return torch.tensor([list(row.values()) for row in history], dtype=torch.float64)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _difference(mine: dict[str, Any], theirs: dict[str, Any]) -> str | None:
    """What this run and that of the checkpoint differ in, in words."""
    for key in ("problem", "method"):
        for setting in {**mine[key], **theirs[key]}:
            a, b = mine[key].get(setting), theirs[key].get(setting)
            if a != b:
                return f"its {key} has {setting} {_short(b)}, this one {_short(a)}"
    for key in ("weights", "seed"):
        if mine[key] != theirs[key]:
            return f"its {key} is {theirs[key]!r}, this one's {mine[key]!r}"
    if len(mine["workers"]) != len(theirs["workers"]):
        return f"it has {len(theirs['workers'])} workers, this one {len(mine['workers'])}"
    for p, (a, b) in enumerate(zip(mine["workers"], theirs["workers"], strict=True)):
        if a != b:
            return f"worker {p} has other data"
    if mine["test"] != theirs["test"]:
        return "the test set has other data"
    if mine["start"] != theirs["start"]:
        return "it started at another x0"
    tolerance = 1e-9 if "float64" in mine["problem"]["dtype"] else 1e-4
    for a, b in zip(mine["losses"], theirs["losses"], strict=True):
        same = abs(a - b) <= tolerance * max(1.0, abs(a)) if math.isfinite(a) else not math.isfinite(b)
        if not same:
            return f"its loss gave {b:.9g} where this one gives {a:.9g}"
    return None


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 120 else text[:117] + "…"


def _write_whole(path: Path, blob: bytes) -> None:
    """Write beside the file, flush to the disk, then put it in place: a reader sees all of it or none."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
