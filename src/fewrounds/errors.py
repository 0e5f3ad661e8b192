"""What a user can get wrong, each said in one line that names the thing and what would be right."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Real
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


class ResultsError(FewroundsError):
    """A results folder cannot be read or written."""


def raised_everywhere(error: BaseException) -> bool:
    """Whether every process of a team has raised this error, so that they can go on together."""
    return bool(getattr(error, "everywhere", False))


def in_words(error: Exception, longest: int = 300) -> str:
    """An error as one line; what is not this package's own has its kind in front."""
    words = str(error) if isinstance(error, FewroundsError) else f"{type(error).__name__}: {error}"
    return " ".join(words.split())[:longest]


@contextmanager
def one_line(what: str, kind: type[FewroundsError]) -> Iterator[None]:
    """What the operating system refuses becomes an error of this kind: what could not be done, and why."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror or error}") from error


def nearest(word: str, known: Iterable[str]) -> str:
    """`"did you mean 'sarah'? "` if a known word is close, then the list of all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(known)}"


def whole_number(name: str, value: Any, least: int | None = 1) -> int:
    """The value as an int, refused unless it is a whole number, of at least `least` if that is given."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or (least is not None and number < least):
        bound = "" if least is None else f", {least} or more"
        raise SettingError(f"{name} = {value!r}: must be a whole number{bound}")
    return number


def finite_number(name: str, value: Any, *, positive: bool = False) -> float:
    """The value as a float, refused unless it is finite and not below 0 (not 0 either, if positive)."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 <= number < math.inf or (positive and number == 0):
        kind = "positive, finite number" if positive else "finite number, 0 or more"
        raise SettingError(f"{name} = {value!r}: must be a {kind}")
    return number


def fraction(name: str, value: Any) -> float:
    """The value as a float, refused unless it is a number from 0 to 1."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not 0 <= number <= 1:
        raise SettingError(f"{name} = {value!r}: must be a number from 0 to 1")
    return number


def kind_of(value: Any) -> str:
    """`a str`, `the class LocalSGD`: what was given instead."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
