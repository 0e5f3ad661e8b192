"""Ranks that torchrun starts, for the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fewrounds as fr
from problems import classifier

HERE = Path(__file__).parent
ROOT = HERE.parent


def torchrun(
    ranks: int | None, *arguments: str | Path, options: tuple[str, ...] = (), **more
) -> subprocess.CompletedProcess[str]:
    """As a person starts it, on a port of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *options]
    command += [] if ranks is None else ["--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, env=environment, **more
    )


SCRIPT = """
import os, signal, sys
import torch
import torch.distributed as dist
sys.path.insert(0, {tests!r})
import fewrounds as fr
from problems import classifier

case = classifier((7, 4, 9, 3, 5))
torch.set_num_threads(1)
{before}
result = fr.train(
    case.problem, case.workers, {method}, 12, x0=case.x0, seed=1, trace=True, engine="torchrun", progress=False,
    checkpoint={folder!r}, checkpoint_every=1, callbacks=[{callback}],
)
if dist.get_rank() == 0:
    torch.save({{"trace": result.trace, "ledger": result.ledger.to_json()}}, {out!r})
dist.destroy_process_group()
"""


def script(folder: Path, method: str, *, before: str = "", callback: str = "lambda record: None") -> Path:
    path = folder / "script.py"
    text = SCRIPT.format(
        tests=str(HERE), before=before, method=method, callback=callback, folder=str(folder / "saved"),
        out=str(folder / "out.pt"),
    )  # fmt: skip
    path.write_text(text)
    return path


def whole(method: str) -> fr.Result:
    case = classifier((7, 4, 9, 3, 5))
    chosen = eval(method, {"fr": fr})
    return fr.train(case.problem, case.workers, chosen, 12, x0=case.x0, seed=1, trace=True, progress=False)
