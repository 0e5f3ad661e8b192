"""The command line. Heavy imports wait until a command needs them, so that --help answers at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewrounds.errors import FewroundsError, SettingError
from fewrounds.interrupt import INTERRUPTED, ends_at_once
from fewrounds.silo.cli import app as silo_app

if TYPE_CHECKING:
    from fewrounds.engine.team import Team
    from fewrounds.experiment.config import Experiment

app = typer.Typer(
    help="Train one model across many workers with as few communication rounds as possible.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(silo_app, name="silo")

File = Annotated[Path, typer.Argument(help="An experiment file (TOML).", show_default=False)]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The folder of results (runs/NAME by default).", show_default=False),
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, help="Processes (one a core by default).", show_default=False)
]
Compile = Annotated[
    bool | None,
    typer.Option(help="Compile the local steps, or not (by default if it pays).", show_default=False),
]


@app.command()
def run(
    file: File,
    output: Output = None,
    sets: Sets = None,
    jobs: Jobs = None,
    compile: Compile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the grid and what it will take, and stop.")] = False,
) -> None:
    """Run an experiment. Stopped at any time, the same command goes on; what is there already is not run again."""
    if not dry_run and _follow():
        return
    with ends_at_once(not _is_rank()):
        from fewrounds.experiment.config import load_experiment

        experiment = load_experiment(file, sets)
        folder = output or Path("runs") / experiment.name
        if dry_run:
            _show_estimate(experiment, folder, jobs)
        else:
            _run(experiment, folder, jobs, compile)
            print(f"\nResults: {folder}\nFor a page of figures: fewrounds report {folder}")


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="A folder of results.", show_default=False)]) -> None:
    """Write a page of figures, and the figures as PNG and PDF, into a folder of results."""
    _report(folder)


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(help="A folder of results.", show_default=False)],
    file: Annotated[Path, typer.Argument(help="The file to write (Parquet).", show_default=False)],
) -> None:
    """Write a folder of results as one Parquet file, to keep, send or commit; it may be unfinished."""
    from fewrounds.experiment.archive import pack

    print(f"{pack(folder, file)} runs in {file}, {file.stat().st_size / 1e6:.2g} MB")


@app.command()
def unpack(
    file: Annotated[Path, typer.Argument(help="A file that `fewrounds pack` wrote.", show_default=False)],
    folder: Annotated[Path, typer.Argument(help="The folder of results to put them in.", show_default=False)],
) -> None:
    """Put the runs of a packed file into a folder of results; `fewrounds run` then goes on from there."""
    from fewrounds.experiment.archive import unpack

    print(f"{unpack(file, folder)} runs put in {folder}")


@app.command()
def measure(file: File, output: Output = None, sets: Sets = None) -> None:
    """Measure how heterogeneous, smooth and noisy an experiment's problems are, at the start and along a training."""
    _refuse_ranks("measure")
    from fewrounds.experiment.advice import show_measurements
    from fewrounds.experiment.config import load_experiment

    experiment = load_experiment(file, sets)
    show_measurements(experiment, output or Path("runs") / experiment.name)


@app.command()
def advise(
    file: Annotated[
        Path, typer.Argument(help="An experiment file (TOML), or a measurement (JSON).", show_default=False)
    ],
    output: Output = None,
    sets: Sets = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Gradients per worker and round (the file's by default).")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds there are (the file's by default).")] = None,
    epsilon: Annotated[float | None, typer.Option(help="The ‖∇f‖² to reach, in place of rounds.")] = None,
    seconds_per_round: Annotated[
        float | None, typer.Option(help="What a round costs besides gradients; the budget then follows.")
    ] = None,
    seconds_per_gradient: Annotated[float | None, typer.Option(help="What a gradient of one sample costs.")] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="paper or strict: how K and b follow from the budget (the file's by default, or paper)."),
    ] = None,
) -> None:
    """Say which method to use on an experiment's problems, or on what was measured, with which settings, and why."""
    _refuse_ranks("advise")
    if budget is not None and not seconds_per_round == seconds_per_gradient is None:
        raise SettingError("give --budget, or --seconds-per-round and --seconds-per-gradient, not both")
    if mode not in (None, "paper", "strict"):
        raise SettingError(f"--mode {mode}: must be paper or strict")
    from fewrounds.experiment.advice import show_advice, show_advice_on
    from fewrounds.experiment.config import load_experiment

    costs = {
        "budget": budget, "seconds_per_round": seconds_per_round, "seconds_per_gradient": seconds_per_gradient,
    }  # fmt: skip
    if file.suffix == ".json":
        if output or sets:
            raise SettingError("--output and --set are for experiment files: a measurement is taken as it is")
        show_advice_on(file, rounds, epsilon, mode, **costs)
        return
    experiment = load_experiment(file, sets)
    show_advice(experiment, output or Path("runs") / experiment.name, rounds, epsilon, mode, **costs)


@app.command()
def reproduce(
    preset: Annotated[str, typer.Option(help="paper, paper-small or paper-tiny.")] = "paper",
    output: Output = None,
    sets: Sets = None,
    jobs: Jobs = None,
    compile: Compile = None,
) -> None:
    """Run the paper's experiments on CIFAR-10 (days on a small machine; resumable) and write their page."""
    if _follow():
        return
    with ends_at_once(not _is_rank()):
        from fewrounds.experiment.config import load_experiment

        experiment = load_experiment(_preset(preset), sets)
        folder = output or Path("runs") / experiment.name
        _run(experiment, folder, jobs, compile)
        _report(folder)


@app.command()
def partition(
    file: File,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to put the picture (beside nothing else).", show_default=False),
    ] = None,
    sets: Sets = None,
) -> None:
    """Print, and draw, how many samples of each class every worker gets."""
    from fewrounds.experiment.config import load_experiment
    from fewrounds.experiment.summary import show_partitions

    experiment = load_experiment(file, sets)
    show_partitions(experiment, output or Path(f"{experiment.name}-partition.png"))


@app.command()
def data(
    name: Annotated[str | None, typer.Argument(help="A data set to fetch.", show_default=False)] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show the data sets that are known.")] = False,
) -> None:
    """Fetch a data set into the cache, or list what is there."""
    from fewrounds.experiment.summary import fetch_data, list_data

    if list_ == (name is not None):
        raise SettingError("give the name of a data set, or --list")
    if name is None:
        list_data()
    else:
        fetch_data(name)


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"fewrounds {installed('fewrounds')}")
        raise typer.Exit


def _run(experiment: Experiment, folder: Path, jobs: int | None, compile: bool | None) -> None:
    from fewrounds.experiment import trackers
    from fewrounds.experiment.runner import run_experiment
    from fewrounds.experiment.store import Store
    from fewrounds.experiment.summary import show_results

    trackers.check(experiment.track)
    try:
        runner = run_experiment(experiment, folder, jobs, "auto" if compile is None else compile, _team())
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        raise typer.Exit(130) from None
    for run, reason in runner.failures.items():
        print(f"failed: {runner.specs[run].label()}: {reason}", file=sys.stderr)
    trackers.log(experiment.track, Store(folder), experiment.name)
    show_results(folder)


def _is_rank() -> bool:
    """Whether torchrun has started this."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def _team() -> Team | None:
    if not _is_rank():
        return None
    import torch

    from fewrounds.engine.team import Ranks

    torch.set_num_threads(1)
    return Ranks(torch.device("cpu"))


def _refuse_ranks(command: str) -> None:
    if _is_rank():
        raise SettingError(f"fewrounds {command} runs in one process; under torchrun: fr.measure(engine='torchrun')")


def _follow() -> bool:
    """Take part in what rank 0 runs, if this is another rank."""
    if int(os.environ.get("RANK", "0")) == 0 or (team := _team()) is None:
        return False
    from fewrounds.experiment.runner import follow

    follow(team)
    return True


def _report(folder: Path) -> None:
    from fewrounds.experiment.summary import write_page

    page = write_page(folder)
    picture = folder / "figures" / "train-loss-against-rounds.png"
    if picture.exists():
        print(f"Picture: {picture}")
    print(f"Page:    {page}")


def _show_estimate(experiment: Experiment, folder: Path, jobs: int | None) -> None:
    from fewrounds.experiment.summary import show_estimate

    show_estimate(experiment, folder, jobs)


def _preset(name: str) -> Path:
    """The file of a preset: beside the package when it is installed, in experiments/ of a checkout."""
    package = Path(__file__).parent
    folders = [package / "presets", package.parent.parent / "experiments"]
    folder = next((folder for folder in folders if folder.is_dir()), folders[0])
    known = sorted(path.stem for path in folder.glob("paper*.toml"))
    if name not in known:
        from fewrounds.errors import nearest

        raise SettingError(f"there is no preset {name!r}; {nearest(name, known)}")
    return folder / f"{name}.toml"


def main() -> None:
    """Run the command; a mistake is one line and exit code 2."""
    try:
        app()
    except FewroundsError as error:
        print(f"fewrounds: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
