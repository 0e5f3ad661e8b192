"""The measured figures as a table on the terminal, as tables in docs/performance.md, and as charts beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fewrounds.report.marked import filled

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
IMAGES = HERE.parent / "docs" / "images"

TARGETS = {
    ("w1", "local-sgd"): ("W1 Local SGD, one core", "≤ 0.55"),
    ("w1", "bvr-l-sgd"): ("W1 BVR-L-SGD, one core, a round against the plain Local SGD round", "≤ 0.8"),
    ("grid_w1", None): ("W1 grid on two cores, per run and round", "≤ 0.30"),
    ("w2", "local-sgd"): ("W2, one core", "≤ 0.9"),
    ("w3", "all five, compiled"): ("W3 all five methods, one run, compiled", "≤ 0.1"),
    ("w3", "all five, not compiled"): ("W3 all five methods, one run, not compiled", "≤ 0.35"),
    ("grid_w3", None): ("W3 grid on two cores, per run and round", "≤ 0.06"),
}


def show(results: dict[str, Any]) -> None:
    """Print every table."""
    for name, rows in tables(results).items():
        print(f"\n{name}\n")
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        for row in rows:
            print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def tables(results: dict[str, Any]) -> dict[str, list[tuple[str, ...]]]:
    out = {"targets": _targets(results), "details": _details(results)}
    if "w1" in results:
        out["targets"].append(("limit: the bare matrix products of W1", f"{limit(results):.2f}", ""))
    if "scaling" in results:
        out["scaling"] = _scaling(results["scaling"])
    if "start" in results:
        rows = [(name, f"{found['seconds']:.2f} s") for name, found in results["start"].items()]
        out["start"] = [("command", "time"), *rows]
    if "evaluation" in results:
        rows = [
            (name, f"{100 * found['share']:.1f} %", f"{len(found['evaluated'])} in {found['evaluated'][-1]} rounds")
            for name, found in results["evaluation"].items()
        ]
        out["evaluation"] = [("W1, default cadence", "share of the time", "evaluations"), *rows]
    if "profile" in results:
        rows = [(name, f"{1e3 * seconds:.3f} ms") for name, seconds in results["profile"].items()]
        out["profile"] = [("one step of Local SGD on W1", "time"), *rows]
    if "engines" in results:
        out["engines"] = _engines(results["engines"])
    if "peers" in results:
        out["peers"] = _peers(results)
    return out


def limit(results: dict[str, Any]) -> float:
    seconds = results["w1"]["local-sgd"]["seconds"]
    return float(seconds["matrix products"] / seconds["plain"])


def _targets(results: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("work", "ratio to the plain loop", "target")]
    for (part, wanted), (label, target) in TARGETS.items():
        for name, found in results.get(part, {}).items():
            if wanted in (name, None):
                rows.append(
                    (label if wanted else f"{label}, {name.partition(', ')[2]}", f"{found['ratio']:.3f}", target)
                )
    return rows


def _details(results: dict[str, Any]) -> list[tuple[str, ...]]:
    heads = ("work", "ours", "plain", "ratio", "to torch's default SGD step", "for comparison")
    rows: list[tuple[str, ...]] = [heads]
    for part in ("w1", "w2", "w3", "grid_w1", "grid_w3"):
        for name, found in results.get(part, {}).items():
            t = found["seconds"]
            default = t.get("plain, default step")
            beside = [
                f"{name} {t[name] / t['plain']:.3f}" for name in ("matrix products", "two plain processes") if name in t
            ]
            rows.append(
                (
                    f"{'grid ' if part.startswith('grid') else part.upper() + ' '}{name}",
                    _milliseconds(t["ours"]),
                    _milliseconds(t["plain"]),
                    f"{found['ratio']:.3f}" + _range(found),
                    f"{t['ours'] / default:.3f}" if default else "",
                    ", ".join(beside),
                )
            )
    return rows


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.0f} ms" if seconds > 0.1 else f"{1e3 * seconds:.3g} ms"


def _range(found: dict[str, Any]) -> str:
    ratios = found.get("ratios")
    return f" ({ratios[0]:.3f} to {ratios[-1]:.3f})" if ratios else ""


def _scaling(points: dict[str, Any]) -> list[tuple[str, ...]]:
    by_method: dict[str, dict[int, Any]] = {}
    for name, found in points.items():
        method, _, P = name.partition(", P = ")
        by_method.setdefault(method, {})[int(P)] = found
    counts = sorted({P for found in by_method.values() for P in found})
    rows: list[tuple[str, ...]] = [("method", *(f"P = {P}" for P in counts), "memory at P = 10", "at P = 1,000")]
    for method, found in by_method.items():
        base = found[counts[0]]["seconds_per_worker"]
        times = [f"{found[P]['seconds_per_worker'] / base:.2f}" for P in counts]
        memory = [f"{found[P]['vectors']:.0f} d" for P in (counts[0], counts[-1])]
        rows.append((method, *times, *memory))
    return rows


def _engines(found: dict[str, Any]) -> list[tuple[str, ...]]:
    team, silo = found["torchrun"], found["silo"]
    times = team["milliseconds"]
    bare, computing = times["bare loop"], times["bare loop without its all-reduce"]
    return [
        ("engine", "a round", "bare loop", "of which all-reduce", "the engine", "target"),
        (
            f"torchrun, {team['ranks']} ranks",
            *(f"{value:.1f} ms" for value in (times["a round"], bare, bare - computing, times["the engine"])),
            "≤ 5 ms",
        ),
        (f"silo, {silo['sites']} sites", (a_round := f"{silo['seconds a round']:.2f} s"), "", "", a_round, "≤ 0.5 s"),
    ]


def _peers(results: dict[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("system", "work", "cores", "ratio to the plain loop")]
    for name, one in results["peers"].items():
        rows.append((one["version"], name.split()[-1], str(one["cores"]), f"{one['ratio']:.2f}"))
    return rows


# ---------------------------------------------------------------------- the page


def write(results: dict[str, Any]) -> None:
    """Put the tables between their marks in docs/performance.md, and draw its charts."""
    PAGE.write_text(filled(PAGE.read_text(), tables(results)))
    draw(results)


def draw(results: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    bars = [("plain loop", 1.0, "0.6")]
    for name, one in results.get("peers", {}).items():
        if name.endswith("W1"):
            cores = "" if one["cores"] == 1 else f", {one['cores']} cores"
            bars.append((f"{one['version']}{cores}", one["ratio"], "0.6"))
    bars.append(("fewrounds, not compiled", results["w1"]["local-sgd, not compiled"]["ratio"], "#7fb3d8"))
    bars.append(("fewrounds", results["w1"]["local-sgd"]["ratio"], "#1f6fb2"))
    for found in results.get("grid_w1", {}).values():
        bars.append(("fewrounds, grid on 2 cores", found["ratio"], "#1f6fb2"))
    bars.sort(key=lambda bar: -bar[1])
    figure, axes = plt.subplots(figsize=(7, 0.42 * len(bars) + 1.2), layout="constrained")
    axes.barh([bar[0] for bar in bars], [bar[1] for bar in bars], color=[bar[2] for bar in bars])
    for i, (_, value, _) in enumerate(bars):
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        axes.text(value + 0.012, i, f"{value:.2f}", va="center", fontsize=9, bbox=box, zorder=3)
    axes.axvline(limit(results), color="#c0392b", linestyle="--", linewidth=1.2)
    axes.text(limit(results) + 0.01, len(bars) - 0.45, "bare matrix products, one core", color="#c0392b", fontsize=8)
    axes.invert_yaxis()
    axes.set_ylim(len(bars) - 0.2, -0.6)
    axes.set_xlabel("time of a round of Local SGD on W1 (plain PyTorch loop = 1)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "performance.png", dpi=150)
    plt.close(figure)
    if "scaling" in results:
        _draw_scaling(_scaling_numbers(results["scaling"]))


def _scaling_numbers(points: dict[str, Any]) -> dict[str, list[tuple[int, float, float]]]:
    out: dict[str, list[tuple[int, float, float]]] = {}
    for name, found in points.items():
        method, _, P = name.partition(", P = ")
        out.setdefault(method, []).append((int(P), found["seconds_per_worker"], found["vectors"]))
    return out


def _draw_scaling(lines: dict[str, list[tuple[int, float, float]]]) -> None:
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for (method, points), marker in zip(lines.items(), "os^Dv", strict=False):
        P = [point[0] for point in points]
        left.plot(P, [point[1] / points[0][1] for point in points], marker=marker, label=method, markersize=5)
        right.plot(P, [max(point[2], 1) for point in points], marker=marker, label=method, markersize=5)
    left.axhline(1.2, color="0.5", linestyle="--", linewidth=1)
    left.set(xscale="log", xlabel="workers P", ylabel="time a worker and round,\nrelative to P = 10", ylim=(0, 1.5))
    right.set(xscale="log", yscale="log", xlabel="workers P", ylabel="memory beyond the data,\nin vectors of length d")
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(IMAGES / "scaling.png", dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    found = json.loads((HERE / "results.json").read_text())
    peers = HERE / "peers" / "results.json"
    if peers.exists():
        found["peers"] = json.loads(peers.read_text())["results"]
    show(found)
    write(found)
