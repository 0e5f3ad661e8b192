"""Run by torchrun: a measurement by the ranks that were started, as one file of rank 0."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

import fewrounds as fr
from problems import classifier

case = classifier()
found = fr.measure(case.problem, case.workers, case.x0, samples=4, smooth_samples=2, engine="torchrun")
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps(found.to_json()))
