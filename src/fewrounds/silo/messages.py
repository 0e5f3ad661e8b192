"""What travels between the coordinator and a site: names, numbers and vectors as bytes. No samples, labels or code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fewrounds.errors import FewroundsError, SettingError

Message = dict[str, Any]

VERSION = 2
"""Of the messages; a site and a coordinator that differ in it do not work together."""

OURS = ("fewrounds.methods.", "fewrounds.theory.")
"""Where tasks come from that every site admits."""

Scalar = (str, int, float, type(None))


class SiteError(FewroundsError):
    """A site refuses, or its answer cannot be used. The message names the site."""


class SiteLostError(FewroundsError):
    """A site has not answered in time, or cannot be reached."""


def packed(vector: Tensor) -> bytes:
    return vector.detach().cpu().contiguous().numpy().tobytes()


def unpacked(blob: Any, dim: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """The vector in these bytes; ValueError if they are no vector of dim numbers of this type."""
    expected = dim * torch.empty((), dtype=dtype).element_size()
    if not isinstance(blob, (bytes, bytearray, memoryview)):
        raise ValueError(f"a {type(blob).__name__} where a vector is expected")
    if len(blob) != expected:
        raise ValueError(f"a vector of {len(blob)} bytes, expected {expected}")
    kind = np.float64 if dtype == torch.float64 else np.float32
    return torch.from_numpy(np.frombuffer(blob, dtype=kind).copy()).to(device, dtype)


def name_of(task: Callable[..., Any]) -> str:
    """`module:function`, by which a site finds the task in its own installation."""
    return f"{task.__module__}:{task.__qualname__}"


def task_named(name: Any, admitted: Sequence[str] = ()) -> Callable[..., Any]:
    """The task of this name, if it is one of this package, or of a module that the site admits."""
    module, _, function = str(name).partition(":")
    if not (f"{module}.".startswith(OURS) or module in admitted):
        raise SettingError(f"the task {name} is not on this site's list: its module must be in ALLOW of site.py")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError):
        raise SettingError(f"there is no task {name} here: install the coordinator's version") from None
    if not callable(found) or getattr(found, "__module__", None) != module or "." in function or "<" in function:
        raise SettingError(f"{name} is not a function of its module")
    task: Callable[..., Any] = found
    return task


def checked_settings(settings: Any) -> Mapping[str, str | int | float | None]:
    """The settings of a task: words and numbers only."""
    if not isinstance(settings, dict) or not all(
        isinstance(name, str) and isinstance(value, Scalar) for name, value in settings.items()
    ):
        raise SettingError("the settings of a task must be words and numbers")
    return settings
