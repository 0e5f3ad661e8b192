from __future__ import annotations

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fewrounds", deadline=None)  # machines are noisy, and nothing here is about speed
settings.load_profile("fewrounds")
