"""`fewrounds silo …`."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fewrounds.errors import SettingError

app = typer.Typer(
    help="Train across organisations whose data may not move (NVIDIA FLARE).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

ROWS = 20
"""About so many rows of the history are printed; all are in the results."""

File = Annotated[Path, typer.Argument(help="The coordinator's file (TOML).", show_default=False)]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the file.")]
Kits = Annotated[Path | None, typer.Option(help="The folder of kits (NAME-kits beside the file by default).")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The folder of results (runs/NAME by default).")]


def _needs_flare() -> None:
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise SettingError("this needs NVIDIA FLARE: pip install 'fewrounds[silo]'") from None
    logging.disable(logging.CRITICAL)  # FLARE's own, here: what matters is said in lines of ours


def _say(text: str) -> None:
    print(f"fewrounds: {text}", file=sys.stderr, flush=True)


def _show(progress: dict[str, Any]) -> None:
    row = progress["row"]
    figures = "" if row is None else f"  loss {row['train_loss']:.4g} (round {row['round']:.0f})"
    without = f"  without {', '.join(progress['without'])}" if progress["without"] else ""
    _say(f"round {progress['round']} of {progress['rounds']}{figures}{without}")


def _print_table(outcome: dict[str, Any]) -> None:
    print(f"{'round':>6} {'loss':>10} {'accuracy':>9} {'gradients a site':>17} {'MB moved':>9}")
    rows = outcome["rows"]
    step = -(-len(rows) // ROWS)
    for row in rows[(len(rows) - 1) % step :: step]:  # the last one always
        moved = (row["bytes_up"] + row["bytes_down"]) / 1e6
        cells = f"{row['round']:6.0f} {row['train_loss']:10.5g} {row['train_accuracy']:9.3f}"
        print(f"{cells} {row['gradients_per_worker']:17.0f} {moved:9.2f}")
    if outcome["outcome"] != "finished":
        print(outcome["outcome"])


@app.command()
def provision(file: File, kits: Kits = None, sets: Sets = None) -> None:
    """Make the startup kits of the server, the coordinator and every site."""
    from fewrounds.silo.settings import load_silo

    silo = load_silo(file, sets)
    _needs_flare()
    from fewrounds.silo.provision import provision as make

    folder = kits or _kits(file, silo.name)
    for kit in make(silo, folder):
        print(kit)
    print(
        f"\nGive each site its folder, over a channel you trust: it holds the site's private key.\n"
        f"Start the server:  fewrounds silo start {folder / 'server'}\n"
        f"At each site:      write site.py in its folder, then  fewrounds silo start FOLDER\n"
        f"Then run:          fewrounds silo run {file}"
    )


@app.command()
def start(kit: Annotated[Path, typer.Argument(help="A kit's folder.", show_default=False)]) -> None:
    """Run the server, or a site, until it is stopped."""
    _needs_flare()
    from fewrounds.silo.start import start as run_kit

    raise typer.Exit(run_kit(kit, _say))


@app.command()
def run(file: File, output: Output = None, kits: Kits = None, sets: Sets = None) -> None:
    """Run the training over the sites, and fetch the result. Stopped at any time, the same command goes on."""
    from fewrounds.silo.settings import load_silo

    silo = load_silo(file, sets)
    _needs_flare()
    from fewrounds.silo import control

    folder = output or Path("runs") / silo.name
    try:
        outcome = control.run(silo, (kits or _kits(file, silo.name)) / "coordinator", folder, _say, _show)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    _print_table(outcome)
    print(f"\nThe model is in {folder / 'model.safetensors'}; for the page: fewrounds report {folder}")


@app.command()
def measure(file: File, output: Output = None, kits: Kits = None, sets: Sets = None) -> None:
    """Measure how heterogeneous the sites are, before any training: L, ζ, ζ₁ and σ² at the start."""
    from fewrounds.silo.settings import load_silo

    silo = load_silo(file, sets)
    _needs_flare()
    from fewrounds.silo import control

    kit = (kits or _kits(file, silo.name)) / "coordinator"
    path = (output or Path("runs") / f"{silo.name}-measurement") / "measurement.json"
    try:
        found = control.measure(silo, kit, path, _say, lambda progress: None)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    print(found)
    print(f"\nWith error bars and costs: {path}\nWhich method to use: fewrounds advise {path} --budget 256")


@app.command()
def status(file: File, kits: Kits = None, sets: Sets = None) -> None:
    """Show which sites are connected, and what runs."""
    from fewrounds.silo.settings import load_silo

    silo = load_silo(file, sets)
    _needs_flare()
    from fewrounds.silo.federation import Federation

    federation = Federation((kits or _kits(file, silo.name)) / "coordinator")
    with contextlib.closing(federation):
        found = federation.connected()
        for name in silo.sites:
            print(f"{name:20} {'connected' if name in found.sites else 'not connected'}")
        for job in found.jobs:
            progress = federation.progress(job)
            where = f"round {progress['round']} of {progress['rounds']}" if progress else "starting"
            print(f"job {job[:8]}: {where}")


@app.command()
def demo(
    folder: Annotated[Path, typer.Argument(help="Where to put everything; must not exist.")] = Path("silo-demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 20,
) -> None:
    """Provision, start a server and three sites on this machine, train on digits, and fetch the result."""
    _needs_flare()
    from fewrounds.silo import demo as show_all

    if folder.exists():
        raise SettingError(f"{folder} is there already: delete it, or choose another folder")
    outcome = show_all.run(folder, rounds, _say, _show)
    _print_table(outcome)


def _kits(file: Path, name: str) -> Path:
    return file.parent / f"{name}-kits"
