"""What a user can get wrong, each said in one line that names the thing and what would be right."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Iterable
from typing import Any


class FewroundsError(Exception):
    """The base of every error this package raises for a mistake in its input."""


class SettingError(FewroundsError):
    """A setting (step size, number of rounds, method name, …) has no meaning."""


class ProblemError(FewroundsError):
    """The model or the loss cannot be used as a function of one vector."""


class DataError(FewroundsError):
    """The data of a worker, or of the test set, cannot be used."""


class CheckpointError(FewroundsError):
    """A checkpoint cannot be written, read, or does not belong to this run."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`"did you mean 'sarah'? "` if a known word is close, then the list of all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(known)}"


def whole_number(name: str, value: Any, least: int = 1) -> int:
    """The value as an int, refused unless it is a whole number of at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or isinstance(value, bool):
        raise SettingError(f"{name} = {value!r}: must be a whole number, {least} or more")
    return number
