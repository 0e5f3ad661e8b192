"""The table of speeds: every figure a ratio to a plain PyTorch loop, measured in turn with it. `make bench` runs this.

What a part measures (w1, w2, w3, grid_w1, grid_w3, scaling, start, evaluation, profile, engines) is kept in
results.json, so that parts can be measured one at a time: `python benchmarks/run.py w1 w3`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import measure
import page
import torch
from common import alone_on_a_core
from costs import evaluation, profile, start
from engines import engines
from grids import grid_w1, grid_w3
from one_core import w1, w2, w3

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"


def scaling() -> dict[str, Any]:
    """Time a worker and round, and memory beyond the data, from 10 to 1,000 workers at equal total work."""
    out = {}
    for method in ("local-sgd", "minibatch-sgd", "sarah", "bvr-l-sgd", "scaffold"):
        for P in (10, 100, 1000):
            command = [sys.executable, str(HERE / "scaling.py"), method, str(P)]
            with measure.alone():
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            out[f"{method}, P = {P}"] = json.loads(done.stdout)
    return out


PARTS = {f.__name__: f for f in (w1, w2, w3, grid_w1, grid_w3, scaling, start, evaluation, profile, engines)}


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {"cpu": cpu, "cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}", file=sys.stderr)
        sys.exit(2)
    alone_on_a_core()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in wanted:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        results[name] = PARTS[name]()
        results["machine"] = machine()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    page.show(results)


if __name__ == "__main__":
    main()
