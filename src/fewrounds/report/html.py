"""Small pieces of HTML and wording that the page is put together from."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import pandas as pd

from fewrounds.report.frames import plain, settings_of, values_of

LABELS = {"q": "q", "budget": "budget", "budget_mode": "budget mode", "eta": "η"}
NUMBER_WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


class Html(str):
    """Text that is HTML already."""


def text_of(value: Any) -> str:
    """A value as a reader wants it: no trailing zeros, a dash for what is missing."""
    value = plain(value)
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def name_of(column: str) -> str:
    return LABELS.get(column, column.replace("_", " "))


def table(
    head: Sequence[str], rows: Sequence[Sequence[Any]], label: str, words: Sequence[int] = (0,), kind: str = "scroll"
) -> str:
    """A table in a box of its own that scrolls; the columns in `words` are text, the others numbers.

    Of the kind "scroll stack" its cells stand below each other on a phone, for tables that are mostly sentences.
    """
    kinds = ["" if i in words else ' class="number"' for i in range(len(head))]
    top = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for name, kind in zip(head, kinds, strict=True))
    body = []
    for row in rows:
        cells = [value if isinstance(value, Html) else escape(text_of(value)) for value in row]
        first, *others = zip(cells, kinds, strict=True)
        line = "".join(f"<td{kind}>{cell}</td>" for cell, kind in others)
        body.append(f'<tr><th scope="row"{first[1]}>{first[0]}</th>{line}</tr>')
    # A box that scrolls must be reached by the keyboard, hence the tabindex, the role and the name.
    return (
        f'<div class="{kind}" role="region" tabindex="0" aria-label="{escape(label)}"><table><thead><tr>{top}</tr>'
        f"</thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def varying(frame: pd.DataFrame) -> list[str]:
    """The settings with more than one value; the others need no column and no selector."""
    return [column for column in settings_of(frame) if len(values_of(frame, column)) > 1]


def plus_minus(sd: Any) -> str:
    return "" if plain(sd) is None else f" ± {sd:.2g}"


def plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"


def number_word(count: int) -> str:
    return NUMBER_WORDS[count] if count < len(NUMBER_WORDS) else str(count)


def listed(words: Sequence[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
