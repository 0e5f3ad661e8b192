"""Run by torchrun: measurements by the ranks that were started, as one file of rank 0."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[1]))

import fewrounds as fr
from problems import classifier

case = classifier()
found = fr.measure(case.problem, case.workers, case.x0, samples=4, smooth_samples=2, engine="torchrun")
# Curvature in three directions of 200: Lanczos breaks down, and every rank must go on from the same random vector.
flat = fr.Problem(
    loss=lambda x, z: (0.5 * z[:, 0] * (x[:3] * x[:3]).sum()).mean() + x.sum(), dim=200, dtype=torch.float64
)
workers = [np.full((2, 1), 4.0 + 2 * p) for p in range(3)]
few = [fr.measure(flat, workers, np.ones(200), only=["L", "zeta"], seed=s, engine="torchrun") for s in range(8)]
if dist.get_rank() == 0:
    Path(sys.argv[1]).write_text(json.dumps([one.to_json() for one in (found, *few)]))
