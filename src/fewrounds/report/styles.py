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
    "local-gd": Style("#E69F00", "#F0E442", (3, 2), "P", "cross", "M20 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z"),
    "svrg": Style("#4B9B4B", "#8FD18F", (9, 3), "d", "diamond-tall", "M22 1l3.5 6l-3.5 6l-3.5-6z"),
    "inexact-dane": Style("#8B6914", "#D9B25F", (9, 2, 3, 2), "p", "pentagon", "M22 2l5 4l-2 6h-6l-2-6z"),
    "pr-spider": Style("#6A3D9A", "#B79AD9", (3, 1), "h", "hexagon", "M22 2l4.5 2.5v5l-4.5 2.5l-4.5-2.5v-5z"),
    "fedglomo": Style("#56B4E9", "#9AD4F5", (12, 3), "<", "triangle-left", "M17 7l9-5v10z"),
    "mime": Style("#B2182B", "#F4766F", (5, 1, 1, 1), ">", "triangle-right", "M27 7l-9-5v10z"),
    "mimelite": Style(
        "#D98880", "#E8B4AE", (2, 2), "X", "x", "M19 2l3 3l3-3l2 2l-3 3l3 3l-2 2l-3-3l-3 3l-2-2l3-3l-3-3z"
    ),
    "ce-lsgd": Style(
        "#666666",
        "#AAAAAA",
        (14, 2),
        "*",
        "star",
        "M22 1l1.5 4.5h4.5l-3.6 2.8l1.4 4.7l-3.8-2.8l-3.8 2.8l1.4-4.7l-3.6-2.8h4.5z",
    ),
}
OTHERS = [
    Style("#E69F00", "#F0E442", (1, 3), "8", "octagon", "M20 2h4l3 3v4l-3 3h-4l-3-3v-4z"),
    Style("#56B4E9", "#0072B2", (3, 3), "H", "hexagon2", "M17.5 7l2.2-4.5h4.6l2.2 4.5l-2.2 4.5h-4.6z"),
    Style("#8B6914", "#D55E00", (7, 1, 2, 1), "P", "cross", "M20 2h4v3h3v4h-3v3h-4v-3h-3v-4h3z"),
    Style("#999999", "#CCCCCC", (1, 1), "p", "pentagon", "M22 2l5 4l-2 6h-6l-2-6z"),
]


def styles_of(methods: list[str]) -> dict[str, Style]:
    """The style of each method: those of the package always look the same, others take what is left in turn."""
    others = [name for name in methods if name not in STYLES]
    return {name: STYLES.get(name) or OTHERS[others.index(name) % len(OTHERS)] for name in methods}
