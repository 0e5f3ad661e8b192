"""What a site keeps for its worker from round to round, on its own disk.

A file is named after the round it was written in. The coordinator keeps that number with the run and says it with every
task; a round starts from the file of this number. So a round that is repeated after a crash, wherever the crash was,
finds what it found the first time, and a memory that is gone, or is of an old backup, is noticed.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from fewrounds.checkpoint import write_whole
from fewrounds.errors import SettingError


class SiteMemory:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def written_in(self, round: int) -> dict[str, Tensor]:
        """What the worker had after this round, 0 if it had nothing yet. What was written since is deleted."""
        files = dict(self._files())
        if round and round not in files:
            newest = f"what it has is of round {max(files)}" if files else "it has none"
            raise SettingError(f"its memory of round {round} is not there ({newest}): put it back, or begin a new run")
        for number, path in files.items():
            if number > round:
                path.unlink()
        return load(files[round].read_bytes()) if round else {}

    def write(self, round: int, vectors: dict[str, Tensor], oldest: int) -> None:
        """Keep this as of this round, whole or not at all. No round up to `oldest` will be repeated."""
        path = self.folder / f"round-{round:08d}.safetensors"
        write_whole(path, save({name: vector.detach().cpu().contiguous() for name, vector in vectors.items()}))
        needed = [number for number, _ in self._files() if number <= oldest]
        for number, old in self._files():
            if needed and number < needed[-1]:
                old.unlink()

    def _files(self) -> list[tuple[int, Path]]:
        return sorted((int(path.stem.removeprefix("round-")), path) for path in self.folder.glob("round-*.safetensors"))
