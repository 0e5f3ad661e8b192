"""Tables between marks in a Markdown page, `<!-- name -->` … `<!-- end -->`: commands fill them, tests read them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

Rows = Sequence[Sequence[str]]
"""The first row is the head."""


def as_markdown(rows: Rows) -> str:
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])


def filled(page: str, tables: Mapping[str, Rows]) -> str:
    """The page with these tables between their marks; a table without marks is an error."""
    for name, rows in tables.items():
        table = as_markdown(rows)
        page, found = re.subn(
            rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end -->)",
            lambda match, table=table: match[1] + table + "\n" + match[2],  # type: ignore[misc]
            page,
            flags=re.DOTALL,
        )
        if found != 1:
            raise ValueError(f"the page has {found} places for the table {name!r}, not 1")
    return page
