"""fewrounds: train one model across many workers with as few communication rounds as possible."""

from fewrounds import models
from fewrounds.data.sources import Part, Stream
from fewrounds.errors import CheckpointError, DataError, FewroundsError, ProblemError, SettingError
from fewrounds.methods import (
    BVRLSGD,
    SARAH,
    SCAFFOLD,
    LocalGD,
    LocalSGD,
    Method,
    MinibatchSGD,
    State,
    for_budget,
    method,
    register,
)
from fewrounds.problem import Problem
from fewrounds.training import Result, RoundRecord, train

__version__ = "0.1.0"

__all__ = [
    "BVRLSGD",
    "CheckpointError",
    "DataError",
    "FewroundsError",
    "LocalGD",
    "LocalSGD",
    "Method",
    "MinibatchSGD",
    "Part",
    "Problem",
    "ProblemError",
    "Result",
    "RoundRecord",
    "SARAH",
    "SCAFFOLD",
    "SettingError",
    "State",
    "Stream",
    "for_budget",
    "method",
    "models",
    "register",
    "train",
]
