"""What `fewrounds measure` and `fewrounds advise` show."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fewrounds.errors import ResultsError, SettingError, one_line
from fewrounds.experiment import survey
from fewrounds.experiment.config import Experiment
from fewrounds.experiment.grid import RunSpec
from fewrounds.experiment.store import Store, setting_columns
from fewrounds.experiment.summary import table

if TYPE_CHECKING:
    from fewrounds.theory.advise import Advice
    from fewrounds.theory.estimate import Estimate, Measurement

NAMES = {"eta": "η", "b_tilde": "b̃", "gradients": "spends", "limited by": "η limited by"}
APART = ("shards_per_worker", "classes_per_worker", "workers", "partition_seed", "l2", "weights")
"""What a title says where it is an axis."""

ROWS = {
    "gradient_norm2": "‖∇f‖²",
    "L": "L",
    "L_ahead": "L after a step",
    "L_worker": "L_p, greatest",
    "L_sample": "L of a sample",
    "zeta": "ζ",
    "zeta_to_mean": "ζ to the mean",
    "zeta1": "ζ₁",
    "sigma2": "σ², greatest",
    "sigma2_mean": "σ², mean",
}


def show_measurements(experiment: Experiment, folder: Path) -> None:
    """Measure every problem of the grid, along a training of each, and show the figures."""
    from fewrounds.report.measured import write_picture

    store = Store(folder)
    with store.open(experiment.name):
        for title, spec in _titled(survey.problems(experiment)):
            found = list(survey.along(experiment, store, spec))
            shown = table(title, ["round", *(f"{round:,}" for round, _ in found)])
            shown.add_row("loss", *(f"{m.loss:.3g}" for _, m in found))
            for name, words in ROWS.items():
                shown.add_row(words, *(_with_error(getattr(m, name)) for _, m in found))
            shown.add_row("ζ / L", *("–" if math.isnan(m.zeta_of_L) else f"{m.zeta_of_L:.2f}" for _, m in found))
            shown.add_row("gradients", *(f"{m.gradients:,}" for _, m in found))
            console = Console()
            console.print(shown)
            console.print(_costs([m for _, m in found]), highlight=False)
        picture = write_picture(folder / "figures", survey.saved(store))
    print(f"\nAll figures, each with what it cost: {folder / 'measurements'}\nPicture: {picture}")


def _costs(measurements: list[Measurement]) -> str:
    """What each figure took, at all rounds together."""
    names = {**ROWS, "L_workers": "L_p of all", "sigma2": "σ²"}
    found: dict[str, int] = {}
    for m in measurements:
        for name, cost in m.costs.items():
            found[name] = found.get(name, 0) + cost
    return "gradients by figure: " + ", ".join(f"{names[name]} {cost:,}" for name, cost in found.items()) + "\n"


def _with_error(estimate: Estimate) -> str:
    if math.isnan(estimate):
        return "–"
    return f"{estimate:.3g} ± {estimate.error:.1g}" if estimate.error else f"{estimate:.3g}"


def show_advice(
    experiment: Experiment,
    folder: Path,
    rounds: int | None,
    epsilon: float | None = None,
    mode: str | None = None,
    **budget: Any,
) -> None:
    """Measure every problem of the grid at its start, and say what to run on it. The mode is the file's by default."""
    from fewrounds.theory.advise import checked_goal

    checked_goal(epsilon)
    if rounds is not None and epsilon is not None:
        raise SettingError("give --rounds or --epsilon, not both")
    given = {key: value for key, value in budget.items() if value is not None}
    if not given and experiment.train.budget is None:
        raise SettingError("the file has no train.budget: give --budget, or the seconds")
    store = Store(folder)
    with store.open(experiment.name):
        for title, spec in _titled(survey.problems(experiment)):
            for advice in _advices(experiment, store, spec, rounds, epsilon, mode, given):
                _show(title, advice)


def show_advice_on(
    path: Path, rounds: int | None, epsilon: float | None = None, mode: str | None = None, **budget: Any
) -> None:
    """Say what to run on what was measured elsewhere, such as by `fewrounds silo measure`."""
    from fewrounds.theory.advise import advise
    from fewrounds.theory.estimate import Measurement

    with one_line(f"cannot read {path}", ResultsError):
        text = path.read_text()
    try:
        measurement = Measurement.from_json(json.loads(text)["measurement"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ResultsError(f"{path} has no measurement: give the file that `fewrounds silo measure` wrote") from None
    given = {key: value for key, value in budget.items() if value is not None}
    if not given:
        raise SettingError("give --budget, or --seconds-per-round and --seconds-per-gradient")
    _show(
        f"{measurement.P} workers", advise(measurement, rounds=rounds, epsilon=epsilon, mode=mode or "paper", **given)
    )


def _advices(
    experiment: Experiment,
    store: Store,
    spec: RunSpec,
    rounds: int | None,
    epsilon: float | None,
    mode: str | None,
    given: dict[str, Any],
) -> list[Advice]:
    """At the budget that was given, by number or by seconds; otherwise at each of the file's.

    The file's methods with the file's settings, as they would run with eta = "auto", among the usual ones.
    """
    from fewrounds.theory.advise import advise
    from fewrounds.theory.limits import LIMITS, USUAL

    measurement = survey.at_start(experiment, store, spec)
    open_ended = epsilon is not None or (given and "budget" not in given)
    asked: dict[str, dict[str, Any]] = {}
    wanted: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for cell in survey.cells_of(experiment, spec):
        goal = {"rounds": rounds if open_ended else rounds or cell.train["rounds"], "epsilon": epsilon}
        how = {**(given or {"budget": cell.train["budget"]}), "mode": mode or cell.train["budget_mode"], **goal}
        key = json.dumps(how)
        asked[key] = how
        own = wanted.setdefault(key, [])
        if cell.train["method"] in LIMITS and (cell.train["method"], cell.settings) not in own:
            own.append((cell.train["method"], cell.settings))
    found = []
    for key, how in asked.items():
        others = [(name, dict[str, Any]()) for name in USUAL if name not in [method for method, _ in wanted[key]]]
        found.append(advise(measurement, methods=[*wanted[key], *others], **how))
    return found


def _titled(specs: list[RunSpec]) -> list[tuple[str, RunSpec]]:
    """Each problem with its title: the split, and what else tells it from the others."""
    columns = [setting_columns(spec.identity()) for spec in specs]
    told = ["q", "alpha", *(key for key in APART if len({str(one[key]) for one in columns}) > 1)]
    titles = []
    for one in columns:
        chosen = [f"{key.replace('_', ' ')} = {one[key]}" for key in told if one[key] is not None]
        titles.append(", ".join([one["dataset"], one["partition"], *chosen]))
    return list(zip(titles, specs, strict=True))


def _show(what: str, advice: Advice) -> None:
    title = f"{what}, budget = {advice.budget}"
    if advice.rounds is not None:
        title += f", {advice.rounds} rounds"
    frame = advice.table
    shown = table(title, [NAMES.get(column, column) for column in frame.columns])
    shown.padding = (0, 1, 0, 0)  # what is in ten columns
    shown.columns[-1].no_wrap, shown.columns[-1].overflow = False, "fold"
    for _, row in frame.astype(object).iterrows():
        cells = {column: _cell(row[column]) for column in frame.columns}
        if cells["T"] and not cells["b_tilde"]:
            cells["b_tilde"] = "all"
        shown.add_row(*cells.values())
    console = Console()
    console.print(shown)
    console.print()
    console.print(advice.why, highlight=False)
    console.print()


def _cell(value: Any) -> str:
    import pandas

    if pandas.isna(value):
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
