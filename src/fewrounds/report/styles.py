"""How a method looks, in print and on the page: colour, line style and marker, so that no reader needs the colour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Style:
    colour: str
    """Okabe and Ito's colours: told apart by all readers; of these, the ones that stand out on white."""
    dark: str
    """The same on a dark page."""
    dash: tuple[float, ...]
    """Lengths of strokes and gaps; empty for a solid line."""
    marker: str
    """The marker's name in matplotlib."""
    symbol: str
    """The marker's name in plotly."""
    path: str
    """The marker as an SVG path around (22, 7), for the page's legend."""


STYLES = {
    "minibatch-sgd": Style("#0072B2", "#56B4E9", (6, 2), "s", "square", "M18 3h8v8h-8z"),
    "local-sgd": Style("#D55E00", "#E69F00", (6, 2, 1, 2), "^", "triangle-up", "M22 2l5 9h-10z"),
    "sarah": Style("#009E73", "#00B887", (1.5, 1.5), "D", "diamond", "M22 2l5 5l-5 5l-5-5z"),
    "scaffold": Style("#CC79A7", "#CC79A7", (6, 2, 1, 2, 1, 2), "v", "triangle-down", "M22 12l5-9h-10z"),
    "bvr-l-sgd": Style("#000000", "#FFFFFF", (), "o", "circle", "M18 7a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
}
OTHERS = [
    Style("#E69F00", "#F0E442", (3, 2), "P", "cross", "M20 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z"),
    Style("#56B4E9", "#0072B2", (9, 3), "X", "x", "M19 2l3 3l3-3l2 2l-3 3l3 3l-2 2l-3-3l-3 3l-2-2l3-3l-3-3z"),
    Style(
        "#666666",
        "#AAAAAA",
        (1, 3),
        "*",
        "star",
        "M22 1l1.5 4.5h4.5l-3.6 2.8l1.4 4.7l-3.8-2.8l-3.8 2.8l1.4-4.7l-3.6-2.8h4.5z",
    ),
    Style("#8B6914", "#D55E00", (9, 2, 3, 2), "p", "pentagon", "M22 2l5 4l-2 6h-6l-2-6z"),
]


def styles_of(methods: list[str]) -> dict[str, Style]:
    """The style of each method: the paper's five always look the same, others take what is left in turn."""
    others = [name for name in methods if name not in STYLES]
    return {name: STYLES.get(name) or OTHERS[others.index(name) % len(OTHERS)] for name in methods}
