"""The Hugging Face hub, asked quietly and given up on quickly where it cannot be reached."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fewrounds.data.origins import PassedOver, Pixels, one_line

SECONDS = 4
"""How long the hub may take to answer at all. Its own client tries for half a minute."""


def download(name: str, configuration: str | None = None) -> Any:
    """The splits of a data set of the hub; where it cannot be reached, what its own cache has of them."""
    with quiet() as datasets:
        problem = _unreachable()
        before = datasets.config.HF_HUB_OFFLINE
        datasets.config.HF_HUB_OFFLINE = before or bool(problem)
        try:
            return datasets.load_dataset(name, configuration)
        except OSError as error:
            raise PassedOver(f"not reachable: {problem}" if problem else one_line(error)) from error
        except Exception as error:  # what the hub's many loaders raise is not documented
            raise PassedOver(one_line(error)) from error
        finally:
            datasets.config.HF_HUB_OFFLINE = before


def known_images(name: str, *, image: str, label: str) -> Pixels:
    """The train and test images of a set that is on the hub, as uint8 [n, H, W, C], and their labels."""
    splits = download(name)
    found = {}
    try:
        for part in ("train", "test"):
            pixels = np.stack([np.asarray(picture) for picture in splits[part][image]])
            found[f"x_{part}"] = pixels if pixels.ndim == 4 else pixels[..., np.newaxis]
            found[f"y_{part}"] = np.asarray(splits[part][label]).astype(np.uint8)
    except (KeyError, ValueError, TypeError, OSError) as error:
        raise PassedOver(f"{name} is not laid out as expected: {one_line(error)}") from error
    return found


@contextmanager
def quiet() -> Iterator[Any]:
    """The `datasets` library without its bars, log lines and warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets
        import huggingface_hub

        logs = datasets.logging, huggingface_hub.logging
        before = [log.get_verbosity() for log in logs]
        bars = datasets.are_progress_bars_disabled()
        for log in logs:
            log.set_verbosity_error()
        datasets.disable_progress_bars()
        try:
            yield datasets
        finally:
            for log, verbosity in zip(logs, before, strict=True):
                log.set_verbosity(verbosity)
            if not bars:
                datasets.enable_progress_bars()


def _unreachable() -> str:
    """Why the hub cannot be reached, "" if it can; through a proxy if one is set."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or os.environ.get("HF_DATASETS_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return "offline mode is set"
    try:
        request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
        with urllib.request.urlopen(request, timeout=SECONDS):
            return ""
    except urllib.error.HTTPError as answer:
        # Any answer of the hub will do; these are the answers of what stands in between.
        return f"answer {answer.code}" if answer.code in (403, 407, 502, 503, 504) else ""
    except (OSError, ValueError) as error:
        return one_line(getattr(error, "reason", None) or error)  # a URLError wraps the reason
