"""fewrounds: train one model across many workers with as few communication rounds as possible."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fewrounds import models
    from fewrounds.data.sources import Part, Stream
    from fewrounds.errors import CheckpointError, DataError, FewroundsError, ProblemError, ResultsError, SettingError
    from fewrounds.experiment.store import load_results
    from fewrounds.methods import (
        BVRLSGD,
        CELSGD,
        MIME,
        PRSPIDER,
        SARAH,
        SCAFFOLD,
        SVRG,
        FedGLOMO,
        InexactDANE,
        LocalGD,
        LocalSGD,
        Method,
        MIMELite,
        MinibatchSGD,
        State,
        for_budget,
        method,
        register,
    )
    from fewrounds.problem import Problem
    from fewrounds.rounds import RoundRecord
    from fewrounds.theory.advise import Advice, advise
    from fewrounds.theory.estimate import Estimate, Measurement
    from fewrounds.theory.measure import measure, measure_along
    from fewrounds.theory.rates import rates
    from fewrounds.training import Result, train

__version__ = "0.1.0"

# Where each public name lives. They are imported when they are first used, so that the command line
# can answer `--help` without waiting for torch.
_HOME = {
    "fewrounds.data.sources": ("Part", "Stream"),
    "fewrounds.errors": (
        "CheckpointError",
        "DataError",
        "FewroundsError",
        "ProblemError",
        "ResultsError",
        "SettingError",
    ),
    "fewrounds.experiment.store": ("load_results",),
    "fewrounds.methods": (
        "BVRLSGD",
        "CELSGD",
        "FedGLOMO",
        "InexactDANE",
        "LocalGD",
        "LocalSGD",
        "MIME",
        "MIMELite",
        "Method",
        "MinibatchSGD",
        "PRSPIDER",
        "SARAH",
        "SCAFFOLD",
        "SVRG",
        "State",
        "for_budget",
        "method",
        "register",
    ),
    "fewrounds.problem": ("Problem",),
    "fewrounds.rounds": ("RoundRecord",),
    "fewrounds.theory.advise": ("Advice", "advise"),
    "fewrounds.theory.estimate": ("Estimate", "Measurement"),
    "fewrounds.theory.measure": ("measure", "measure_along"),
    "fewrounds.theory.rates": ("rates",),
    "fewrounds.training": ("Result", "train"),
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Advice",
    "BVRLSGD",
    "CELSGD",
    "CheckpointError",
    "DataError",
    "Estimate",
    "FedGLOMO",
    "FewroundsError",
    "InexactDANE",
    "LocalGD",
    "LocalSGD",
    "MIME",
    "MIMELite",
    "Measurement",
    "Method",
    "MinibatchSGD",
    "PRSPIDER",
    "Part",
    "Problem",
    "ProblemError",
    "Result",
    "ResultsError",
    "RoundRecord",
    "SARAH",
    "SCAFFOLD",
    "SVRG",
    "SettingError",
    "State",
    "Stream",
    "advise",
    "for_budget",
    "load_results",
    "measure",
    "measure_along",
    "method",
    "models",
    "rates",
    "register",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    elif name in ("models", "methods", "data", "engine", "problem", "training", "draws"):
        value = importlib.import_module(f"fewrounds.{name}")
    else:
        raise AttributeError(f"module 'fewrounds' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
