"""The tables of docs/choosing.md, from results/choosing.json."""

from __future__ import annotations

import math
from typing import Any

from scipy.stats import kendalltau, rankdata

NOTABLE = 0.01
"""An error bar is shown if it is at least this part of its figure, and methods that differ by less are tied."""
OBSERVED = {
    "tuned_loss": "train loss, η tuned",
    "advised_loss": "train loss, η advised",
    "tuned_gradient_norm2": "‖∇f‖², η tuned",
}
CONSTANTS = ("L", "L of a sample", "ζ", "ζ / L", "ζ₁", "σ², mean")


def tables(results: dict[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    """By the name of their place in the page."""
    named = [(one["dataset"], f"{one['q']:g}", *_constants(one)) for one in results["measured"]]
    out = {"measured": [("data", "q", *CONSTANTS), *named]}
    if "fit" in results:
        out["factors"], out["fit"] = _factor_table(results), _fit_table(results)
    if "along" in results:
        rows = [(f"{one['q']:g}", str(one["round"]), *_constants(one)) for one in results["along"]]
        out["along"] = [("q", "round", *CONSTANTS), *rows]
    out["first"] = _first_table(results["cells"])
    for dataset in dict.fromkeys(cell["dataset"] for cell in results["cells"]):
        own = [cell for cell in results["cells"] if cell["dataset"] == dataset]
        out[f"steps {dataset}"] = _step_table(own)
        out[f"order {dataset}"] = _order_table(own)
        out[f"agreement {dataset}"] = _agreement_table(own)
    return out


def _constants(one: dict[str, Any]) -> tuple[str, ...]:
    """A measurement, with the error bars that are notable."""
    errors, share = one["errors"], one["zeta"] / one["L"]
    of_share = share * (errors["zeta"] / one["zeta"] + errors["L"] / one["L"])
    found = {name: with_error(f"{one[name]:.3g}", one[name], error) for name, error in errors.items()}
    found["share"] = with_error(f"{share:.2f}", share, of_share)
    return tuple(found[name] for name in ("L", "L_sample", "zeta", "share", "zeta1", "sigma2_mean"))


def with_error(text: str, value: float, error: float) -> str:
    return f"{text} ± {float(f'{error:.1g}'):g}" if error >= NOTABLE * abs(value) else text


def _factor_table(results: dict[str, Any]) -> list[tuple[str, ...]]:
    fit = results["fit"]
    rows = [(kind, f"{factor:g}", str(fit["decides"][kind])) for kind, factor in results["factors"].items()]
    return [("limit", "factor", f"decides, of {fit['cells']} cells"), *rows]


def middle(cell: dict[str, Any]) -> float:
    """Of the step sizes that are about as good as the best."""
    low, high = cell["good"]
    return math.sqrt(low * high)


def rounded(value: float) -> float:
    """To six digits: the same on every machine."""
    return float(f"{value:.6g}")


def off_by(logarithms: list[float]) -> dict[str, float]:
    return {
        "rms": rounded(math.exp(math.sqrt(sum(one**2 for one in logarithms) / len(logarithms)))),
        "worst": rounded(math.exp(max(map(abs, logarithms)))),
    }


def _fit_table(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """How far advised step sizes are off, where the factors were fitted and where they were not."""
    rows = [("factors", "on", "off by a factor of (root mean square)", "at worst")]
    cells = [cell for cell in results["cells"] if cell["dataset"] == "cifar10"]
    for name, key in (("bare theory", "bare_eta"), ("fitted", "advised")):
        here = results["fit"][name]
        there = off_by([math.log(cell[key] / middle(cell)) for cell in cells]) if cells else None
        for place, one in (("digits, calibration", here), ("CIFAR-10", there)):
            if one is not None:
                rows.append((name, place, *(f"{float(f'{one[which]:.2g}'):g}" for which in ("rms", "worst"))))
    return rows


def _step_table(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    counts = {cell[f"{which}_seeds"] for cell in cells for which in ("tuned", "advised")} - {0}
    n = f"n = {max(counts)}"
    assert len(counts) == 1, "one number of seeds"
    what = f"mean ± sd, {n}" if counts != {1} else n
    steps = ("η tuned", "as good", "η advised", "limited by", "η of bare theory")
    head = ("method", "q", *steps, f"loss, tuned ({what})", f"loss, advised ({what})")
    return [head, *(_step_row(cell) for cell in cells)]


def _step_row(cell: dict[str, Any]) -> tuple[str, ...]:
    low, high = cell["good"]
    return (
        cell["method"],
        f"{cell['q']:g}",
        f"{cell['eta']:g}",
        f"{low:g}" if low == high else f"{low:g} to {high:g}",
        f"{cell['advised']:.2g}",
        cell["limit"],
        f"{cell['bare_eta']:.2g}",
        _loss(cell, "tuned_loss"),
        _loss(cell, "advised_loss"),
    )


def _loss(cell: dict[str, Any], key: str) -> str:
    if not math.isfinite(cell[key]):
        return "diverged"
    spread = cell[f"{key}_sd"]
    return f"{cell[key]:.3f}" + (f" ± {float(f'{spread:.1g}'):g}" if spread is not None else "")


def _order_table(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The order of the methods at every q, as advised and as observed."""
    rows = [("q", "advised", *(f"by {words}" for words in OBSERVED.values()))]
    for q, own in _by_q(cells):
        rows.append((f"{q:g}", ", ".join(cell["method"] for cell in own), *(_ordered(own, key) for key in OBSERVED)))
    return rows


def _ordered(cells: list[dict[str, Any]], key: str) -> str:
    """Best first; tied ones joined by =."""
    return ", ".join(" = ".join(cell["method"] for cell in tied) for tied in told_apart(cells, key))


def told_apart(cells: list[dict[str, Any]], key: str) -> list[list[dict[str, Any]]]:
    """Best first, tied ones together."""
    found = sorted(cells, key=lambda cell: cell[key] if math.isfinite(cell[key]) else math.inf)
    out = list[list[dict[str, Any]]]()
    for cell in found:
        if out and all(_tied(one, cell, key) for one in out[-1]):
            out[-1].append(cell)
        else:
            out.append([cell])
    return out


def _tied(better: dict[str, Any], worse: dict[str, Any], key: str) -> bool:
    """Whether they differ by less than their pooled standard deviation, or by less than one part in a hundred."""
    spreads = [one.get(f"{key}_sd") or 0.0 for one in (better, worse)]
    pooled = math.sqrt(sum(spread**2 for spread in spreads) / 2)
    return bool(worse[key] - better[key] < max(pooled, NOTABLE * better[key]))


def places(cells: list[dict[str, Any]], key: str) -> list[float]:
    """The places from 1 on, in the order of the cells: what is equal, or tied where it was observed, shares the mean of
    its places, and what diverged comes last."""
    if key not in OBSERVED:
        return list(rankdata([cell[key] for cell in cells]))
    of = {cell["method"]: number for number, tied in enumerate(told_apart(cells, key)) for cell in tied}
    return list(rankdata([of[cell["method"]] for cell in cells]))


def _agreement_table(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Kendall's τ between the order that is advised, or that of bare theory, and what was observed."""
    rows = [("q", *(f"{which}: {words}" for which in ("advised", "bare theory") for words in OBSERVED.values()))]
    for q, own in _by_q(cells):
        agree = [
            kendalltau(places(own, predicted), places(own, key)).statistic
            for predicted in ("rank", "bare")
            for key in OBSERVED
        ]
        rows.append((f"{q:g}", *(f"{value:.2f}" for value in agree)))
    return rows


def _first_table(cells: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """At how many splits the method that is predicted to be first is the best, alone or tied."""
    rows = [("data", "first by", *(f"best by {words}" for words in OBSERVED.values()))]
    for dataset in dict.fromkeys(cell["dataset"] for cell in cells):
        splits = [own for _, own in _by_q([cell for cell in cells if cell["dataset"] == dataset])]
        for predicted, words in (("rank", "advice"), ("bare", "bare theory")):
            rows.append((dataset, words, *(_how_often(splits, predicted, key) for key in OBSERVED)))
    return rows


def _how_often(splits: list[list[dict[str, Any]]], predicted: str, key: str) -> str:
    tied = []
    for own in splits:
        first, best = min(own, key=lambda cell: cell[predicted]), told_apart(own, key)[0]
        if first in best:
            tied.append(len(best) > 1)
    return f"{len(tied)} of {len(splits)}" + (f" ({sum(tied)} tied)" if any(tied) else "")


def _by_q(cells: list[dict[str, Any]]) -> list[tuple[float, list[dict[str, Any]]]]:
    found = sorted({cell["q"] for cell in cells})
    return [(q, sorted((c for c in cells if c["q"] == q), key=lambda c: c["rank"])) for q in found]
