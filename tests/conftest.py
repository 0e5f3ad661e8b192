from __future__ import annotations

import pandas as pd
import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("fewrounds", deadline=None)  # machines are noisy, and nothing here is about speed
settings.load_profile("fewrounds")


@pytest.fixture(autouse=True)
def _same_models_in_every_run() -> None:
    """Layers that a test makes with torch's own initialisation are the same each time."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def digits_results() -> pd.DataFrame:
    """Real runs of the paper's five methods, small, as the report gets them."""
    from results import real_frame

    return real_frame()
