"""What `fewrounds measure` and `fewrounds advise` show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from fewrounds.errors import SettingError
from fewrounds.experiment import survey
from fewrounds.experiment.config import Experiment
from fewrounds.experiment.grid import RunSpec
from fewrounds.experiment.store import Store
from fewrounds.experiment.summary import table

if TYPE_CHECKING:
    from fewrounds.theory.advise import Advice

NAMES = {"gradient_norm2": "‖∇f‖²", "eta": "η", "b_tilde": "b̃", "limited by": "η limited by"}


def show_measurements(experiment: Experiment, folder: Path) -> None:
    """Measure every problem of the grid, along a training of each, and show the figures."""
    from fewrounds.report.measured import write_picture

    store = Store(folder)
    headings = ["round", "loss", "‖∇f‖²", "L", "L of a\nsample", "ζ", "ζ / L", "ζ₁", "σ²"]
    with store.open(experiment.name):
        for spec in survey.problems(experiment):
            shown = table(_title(spec), headings, left=0)
            for round, m in survey.along(experiment, store, spec):
                share = m.zeta / m.L if m.L else 0.0
                figures = [m.loss, m.gradient_norm2, m.L, m.L_sample, m.zeta, share, m.zeta1, m.sigma2]
                shown.add_row(str(round), *(f"{figure:.3g}" for figure in figures))
            Console().print(shown)
        picture = write_picture(folder / "figures", survey.saved(store))
    print(f"\nError bars and costs: {folder / 'measurements'}\nPicture: {picture}")


def show_advice(experiment: Experiment, folder: Path, rounds: int | None, **budget: Any) -> None:
    """Measure every problem of the grid at its start, and say what to run on it."""
    store = Store(folder)
    with store.open(experiment.name):
        for spec in survey.problems(experiment):
            for advice in _advices(experiment, store, spec, rounds, budget):
                _show(spec, advice)


def _advices(
    experiment: Experiment, store: Store, spec: RunSpec, rounds: int | None, budget: dict[str, Any]
) -> list[Advice]:
    """At the budget that was given, by number or by seconds; otherwise at each of the file's."""
    from fewrounds.theory.advise import advise

    mode = spec.train["budget_mode"]
    given = {key: value for key, value in budget.items() if value is not None}
    if not given and experiment.train.budget is None:
        raise SettingError("the file has no train.budget: give --budget, or the seconds")
    measurement = survey.at_start(experiment, store, spec)
    if given and "budget" not in given:
        return [advise(measurement, mode=mode, rounds=rounds, **given)]
    budgets = [given] if given else [{"budget": one} for one in experiment.train.budget or ()]
    return [advise(measurement, mode=mode, rounds=rounds or spec.train["rounds"], **one) for one in budgets]


def _title(spec: RunSpec) -> str:
    chosen = [f"{key} = {spec.partition[key]}" for key in ("q", "alpha") if spec.partition[key] is not None]
    return ", ".join([spec.data["source"], spec.partition["kind"], *chosen])


def _show(spec: RunSpec, advice: Advice) -> None:
    title = f"{_title(spec)}, budget = {advice.budget}"
    if advice.rounds is not None:
        title += f", {advice.rounds} rounds"
    frame = advice.table
    shown = table(title, [NAMES.get(column, column) for column in frame.columns])
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
