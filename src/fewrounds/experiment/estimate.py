"""What an experiment will take, before it is run."""

from __future__ import annotations

import time
from dataclasses import dataclass

from fewrounds.experiment import grid
from fewrounds.experiment.config import Experiment
from fewrounds.experiment.grid import RunSpec
from fewrounds.experiment.store import Store, known_eta
from fewrounds.experiment.survey import one_thread
from fewrounds.experiment.tuning import choice
from fewrounds.experiment.work import cadence_of, data_digest, execute, method_of, parts_of, prepare, problem_of


@dataclass(frozen=True)
class Estimate:
    cells: int
    tuning_runs: int
    report_runs: int
    known: int
    """Runs whose results are there already."""
    gradients: float
    seconds: float
    """On one core."""
    bytes: int


def estimate(experiment: Experiment, store: Store) -> Estimate:
    """Counts are exact; the time is measured on two rounds of every method and scaled, so it is rough."""
    cells = grid.cells(experiment)
    rates: dict[tuple[str, ...], tuple[float, float]] = {}
    gradients = seconds = 0.0
    disk = known = tuning = report = 0
    for cell in cells:
        digest = data_digest(cell)
        tuned = grid.tuning_runs(experiment, cell)
        reported, final = _reported(experiment, store, cell, {spec.fingerprint(digest): spec for spec in tuned})
        tuning, report = tuning + len(tuned), report + len(reported)
        sure = [*tuned, *reported] if final else tuned
        there = [spec for spec in sure if store.is_done(spec.fingerprint(digest))]
        to_do = [spec for spec in (*tuned, *reported) if spec not in there]
        known += len(there)
        if not to_do:
            continue
        example = reported[0]
        kind = cell.train["method"], repr(cell.data), repr(cell.model)
        if kind not in rates:
            rates[kind] = _measure(example)
        per_gradient, per_evaluation = rates[kind]
        sizes = [len(rows) for rows in parts_of(example)]
        rounds = cell.train["rounds"]
        one_run = method_of(example).gradients_per_round(sizes) * len(sizes) * rounds
        for spec in to_do:
            evaluations = rounds // cadence_of(example) + spec.train["evaluate_last"]
            gradients += one_run
            seconds += one_run * per_gradient + evaluations * per_evaluation
            # a history row takes about 100 bytes in Parquet; a running run keeps two checkpoints of its vectors
            disk += evaluations * 100 + 12_000
    if gradients:
        disk += 2 * 2 * 4 * problem_of(grid.with_values(cells[0], 0.1, 0, "")).dim * 4
    return Estimate(len(cells), tuning, report, known, gradients, seconds, disk)


def _reported(
    experiment: Experiment, store: Store, cell: RunSpec, tuned: dict[str, RunSpec]
) -> tuple[list[RunSpec], bool]:
    """The reported runs of a cell, and whether it is known already that these are their step sizes."""
    if tuned and all(store.is_done(run) for run in tuned):
        assert experiment.tuning is not None
        eta = choice(experiment.tuning, store, tuned)["eta"]
        return [] if eta is None else grid.report_runs(experiment, cell, eta), True
    final = not experiment.chooses_eta
    return grid.report_runs(experiment, cell, known_eta(experiment, cell) if final else 0.1), final


def _measure(spec: RunSpec) -> tuple[float, float]:
    """Seconds per gradient and per evaluation, on two rounds in one thread, as runs have."""
    prepare(spec.data)
    with one_thread():
        execute(spec, rounds=1)  # warm-up
        began = time.perf_counter()
        result = execute(spec, rounds=2)
        elapsed = time.perf_counter() - began
    training = result.rows[-1]["seconds"]
    evaluations = len(result.rows)
    return training / sum(result.ledger.gradients), max(0.0, elapsed - training) / (evaluations + 1)
