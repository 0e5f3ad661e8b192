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
from fewrounds.engine.host import Kept
from fewrounds.engine.team import Alone, Team
from fewrounds.errors import CheckpointError, one_line
from fewrounds.ledger import Ledger
from fewrounds.methods.base import State

FORMAT = 3
KEEP = 2
"""Checkpoints kept: the newest, and the one before it to fall back on."""
MEMORY_BYTES = 2**26
"""About how much of the workers' memory goes into one file."""


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
    """The checkpoints of one run in a folder, newest last.

    Rank 0 of a team reads and writes them. The memory of workers goes to and from the ranks that hold them a part at a
    time, so that no process holds all of it.
    """

    def __init__(self, folder: str | Path, identity: dict[str, Any], team: Team | None = None) -> None:
        self.folder = Path(folder)
        self.identity = identity
        self._team: Team = team or Alone()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes off the folder. The lock goes with the process, however it ends."""
        lock = self._team.together(self._lock)
        try:
            yield
        finally:
            if lock is not None:
                lock.release()

    def _lock(self) -> filelock.BaseFileLock | None:
        if self._team.rank != 0:
            return None
        with one_line(f"cannot use {self.folder} for checkpoints", CheckpointError):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.folder / "lock", blocking=False)
            try:
                lock.acquire()
            except filelock.Timeout:
                raise CheckpointError(f"{self.folder} is in use by another run: choose another folder") from None
        return lock

    def exist(self) -> bool:
        return bool(self._files())

    def save(self, snapshot: Snapshot) -> None:
        """Write the tensors, then the JSON that names them; each appears whole or not at all."""
        stem = self.folder / f"round-{snapshot.round:08d}"
        try:
            memory = self._save_memory(stem, snapshot)
        except CheckpointError as error:
            failed = error  # the others are told below

            def save() -> None:
                raise failed
        else:

            def save() -> None:
                self._save(stem, snapshot, memory)

        self._team.together(save if self._team.rank == 0 else lambda: None)

    def _save(self, stem: Path, snapshot: Snapshot, memory: dict[str, str]) -> None:
        tensors = {"history": _history_tensor(snapshot.history)}
        numbers: dict[str, Any] = {}
        held: dict[str, list[int]] = {}
        for name, value in _fields(snapshot.state).items():
            if isinstance(value, Tensor):
                tensors[f"state/{name}"] = value
                for vector, have in snapshot.committed.held:
                    if vector is value:
                        held[name] = sorted(have)
            else:
                numbers[name] = value
        if snapshot.trace is not None:
            tensors["trace"] = torch.stack(snapshot.trace)
        blob = _blob(tensors)
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
            "memory": memory,
        }
        document = {"content": content, "sha256": _digest(content)}
        with one_line(f"cannot write the checkpoint {stem}.json", CheckpointError):
            write_whole(stem.with_suffix(".safetensors"), blob)
            write_whole(stem.with_suffix(".json"), json.dumps(document, indent=1).encode())
            kept = {path.stem for path in [p for p in self._files() if p.stem <= stem.name][-KEEP:]}
            for path in self.folder.glob("round-*"):  # older, half-written by a kill, or damaged and passed over
                if path.suffix == ".tmp" or path.name.partition(".")[0] not in kept:
                    path.unlink()

    def _save_memory(self, stem: Path, snapshot: Snapshot) -> dict[str, str]:
        """Write the workers' memory to files of a limited size. Returns their names, with their digests."""
        team, like = self._team, snapshot.state.x
        names: dict[int, list[str]] = {}
        for keys in team.gather(list(snapshot.committed.kept)):
            for name, p in keys:
                names.setdefault(p, []).append(name)
        files: dict[str, str] = {}
        part: dict[str, Tensor] = {}
        failed: list[CheckpointError] = []

        def write() -> None:
            blob = _blob(part)
            path = stem.with_name(f"{stem.name}.memory-{len(files):04d}.safetensors")
            try:
                with one_line(f"cannot write the checkpoint {path}", CheckpointError):
                    write_whole(path, blob)
            except CheckpointError as error:
                failed.append(error)  # for the end: the other ranks go on handing over theirs
            files[path.name] = hashlib.sha256(blob).hexdigest()
            part.clear()

        for p, own in sorted(names.items()):
            held = [snapshot.committed.kept[name, p] for name in own] if team.owner(p) == team.rank else None
            for name, value in zip(own, team.to_first(p, held, len(own), like), strict=team.rank == 0):
                part[f"{name}/{p}"] = value
            if team.rank == 0 and sum(value.nbytes for value in part.values()) >= MEMORY_BYTES:
                write()
        if team.rank == 0 and part:
            write()
        if failed:
            raise failed[0]
        return files

    def load(self, template: State, *, trace: bool) -> Snapshot | None:
        """The newest checkpoint that is whole, or None if there is none; a broken one is named and passed over."""
        team = self._team
        found = team.share(team.together(lambda: self._load(template, trace) if team.rank == 0 else None))
        if found is None:
            return None
        snapshot, memory = found
        kept = self._load_memory(memory, template.x)
        return _to(snapshot, template.x.device, kept)

    def _load(self, template: State, trace: bool) -> tuple[Snapshot, list[str]] | None:
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
            return self._snapshot(path, content, tensors, template, trace), list(content["memory"])
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
        for name, digest in content["memory"].items():
            with (self.folder / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                    raise ValueError("the memory of its workers is incomplete or has been changed")
        return content, load(blob)

    def _load_memory(self, files: list[str], like: Tensor) -> Kept:
        """Hand the memory of each worker to the rank that holds it."""
        team, kept = self._team, {}
        for file in files:
            part = load((self.folder / file).read_bytes()) if team.rank == 0 else {}
            for key in team.share(list(part)):
                name, p = key.rsplit("/", 1)
                vectors = [part[key].to(like.device)] if team.rank == 0 else None
                for vector in team.from_first(int(p), vectors, 1, like):
                    kept[name, int(p)] = vector
        return kept

    def _check_identity(self, path: Path, found: dict[str, Any]) -> None:
        difference = _difference(self.identity, found)
        if difference:
            raise CheckpointError(f"{path} is of another run: {difference}; choose another folder")

    def _snapshot(
        self, path: Path, content: dict[str, Any], tensors: dict[str, Tensor], template: State, trace: bool
    ) -> Snapshot:
        fields = {
            name: tensors[f"state/{name}"] if f"state/{name}" in tensors else content["state"][name]
            for name in _fields(template)
        }
        if trace and "trace" not in tensors:
            raise CheckpointError(f"{path} was written without trace=True: choose another folder, or trace=False")
        rows = tensors["history"].tolist()
        return Snapshot(
            round=content["round"],
            state=type(template)(**fields),
            committed=Committed(
                ledger=Ledger.from_json(content["ledger"]),
                held=tuple((fields[name], frozenset(have)) for name, have in content["held"].items()),
            ),
            history=tuple(dict(zip(content["columns"], row, strict=True)) for row in rows),
            trace=tuple(tensors["trace"]) if trace else None,
            seconds=content["seconds"],
            outcome=content["outcome"],
        )


def _to(snapshot: Snapshot, device: torch.device, kept: Kept) -> Snapshot:
    """The snapshot with its tensors on a device; vectors of the state that the workers hold stay the same objects."""
    fields = _fields(snapshot.state)
    moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in fields.items()}
    held = tuple(
        (next(moved[name] for name, value in fields.items() if value is vector), have)
        for vector, have in snapshot.committed.held
    )
    return dataclasses.replace(
        snapshot,
        state=type(snapshot.state)(**moved),
        committed=Committed(snapshot.committed.ledger, kept, held),
        trace=None if snapshot.trace is None else tuple(x.to(device) for x in snapshot.trace),
    )


def _blob(tensors: dict[str, Tensor]) -> bytes:
    # Clones: safetensors refuses tensors that share storage, as x and x_prev may.
    return save({name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()})


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


def write_whole(path: Path, blob: bytes) -> None:
    """Write beside the file, flush to the disk, then put it in place: a reader sees all of it or none."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
