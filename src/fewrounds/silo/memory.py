"""What a site keeps for its worker from round to round, on its own disk.

A file is named after the round it was written in. A round starts from the newest file of an earlier round, so a round
that is repeated after a crash, wherever the crash was, finds what it found the first time.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load, save
from torch import Tensor

from fewrounds.checkpoint import write_whole


class SiteMemory:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def before(self, round: int) -> dict[str, Tensor]:
        """What the worker has when this round begins. What later rounds have left is deleted."""
        for number, path in self._files():
            if number >= round:
                path.unlink()
        files = self._files()
        return load(files[-1][1].read_bytes()) if files else {}

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
