"""Where a known data set can come from: places tried in order until one gives the genuine data."""

from __future__ import annotations

import errno
import hashlib
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewrounds.data.npy import Array
from fewrounds.data.reporting import Report
from fewrounds.errors import DataError

Pixels = dict[str, Array]
"""x_train, y_train, x_test, y_test as uint8: images [n, H, W, C] and labels [n]."""


class PassedOver(Exception):  # noqa: N818 - not an error: the next place is tried
    """This place does not have the data; the message says why."""


@dataclass(frozen=True)
class Origin:
    """A place: `read(scratch, report)` gives the data, using an empty folder for what it downloads."""

    name: str
    read: Callable[[Path, Report], Pixels]


def first_genuine(
    whose: str, origins: tuple[Origin, ...], digests: Mapping[str, str], scratch: Path, report: Report, advice: str
) -> tuple[Pixels, str]:
    """The data of the first place that has them, and its name."""
    reasons = []
    for number, origin in enumerate(origins):
        folder = scratch / str(number)
        try:
            folder.mkdir()
            found = origin.read(folder, report)
            check_genuine(found, digests)
        except PassedOver as passed:
            reasons.append(f"{origin.name} ({passed})")
            report.say(f"{whose}: {origin.name} passed over: {passed}")
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG):
                raise DataError(f"{whose}: cannot be unpacked in {scratch} ({error.strerror}): make room") from error
            reasons.append(f"{origin.name} ({one_line(error)})")
            report.say(f"{whose}: {origin.name} passed over: {one_line(error)}")
        else:
            report.say(f"{whose}: read from {origin.name}, digests as known")
            return found, origin.name
    raise DataError(f"{whose} could not be had; tried {', '.join(reasons)}; {advice}")


def check_genuine(found: Pixels, digests: Mapping[str, str]) -> None:
    """Refuse data that are not bit for bit the known ones."""
    for name, known in digests.items():
        if hashlib.sha256(np.ascontiguousarray(found[name]).data).hexdigest() != known:
            raise PassedOver(f"its {name} is not the genuine one (another SHA-256)")


def run(command: list[str], folder: Path, seconds: float) -> str:
    """The output of a command that has to succeed; its last line says why it did not."""
    if shutil.which(command[0]) is None:
        raise PassedOver(f"there is no {command[0]} command")
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise PassedOver(f"{command[0]} was not done after {seconds:.0f} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("E:", "npm error", "npm ERR!"))] or lines or ["no reason"]
        raise PassedOver(f"{command[0]} failed: {errors[0].strip()[:200]}")
    return done.stdout


def one_line(error: BaseException, most: int = 200) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[:most] + "…"
