"""The paper's five methods on scikit-learn's digits, split with class skew over ten workers, at one budget.

The step size of each method is chosen by the paper's rule (the greatest minimum train accuracy over the last 100
iterates) on a tuning seed; the figures shown come from three other seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pandas as pd
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import fewrounds as fr
from fewrounds.data.digits import load_digits
from fewrounds.data.partition import class_skew

METHODS = ["minibatch-sgd", "local-sgd", "sarah", "scaffold", "bvr-l-sgd"]
LABELS = ["minibatch SGD", "Local SGD", "SARAH", "SCAFFOLD", "BVR-L-SGD"]
STEP_SIZES = [0.005, 0.01, 0.05, 0.1, 0.5, 1.0]
TUNING_SEED, SEEDS = 0, [1, 2, 3]
LAST = 100

Settings = tuple[str, float, int, argparse.Namespace]


def run(settings: Settings) -> pd.DataFrame:
    """One training run: the history of a method at a step size and a seed."""
    name, eta, seed, options = settings
    torch.set_num_threads(1)  # runs go side by side, a core each
    train, test = load_digits()
    workers = [(train[0][part], train[1][part]) for part in class_skew(train[1], options.q)]
    problem = fr.Problem(fr.models.mlp([64, 100, 10], seed=seed), loss=torch.nn.functional.cross_entropy, l2=5e-3)
    method = fr.for_budget(name, options.budget, workers=workers, mode=options.mode, eta=eta)
    result = fr.train(
        problem,
        workers,
        method,
        options.rounds,
        test=test,
        seed=seed,
        evaluate_every=5,
        evaluate_last=min(LAST, options.rounds),
        progress=False,
    )
    return result.history.assign(method=name, eta=eta, seed=seed, outcome=result.outcome)


def stability(history: pd.DataFrame) -> float:
    """The paper's rule: the minimum train accuracy over the last iterates; a diverged run comes last."""
    if history["outcome"].iloc[0] == "diverged":
        return -1.0
    return float(history["train_accuracy"].tail(LAST).min())


def run_all(jobs: list[Settings], title: str, console: Console) -> list[pd.DataFrame]:
    """Run the jobs in as many processes as there are cores."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    context = multiprocessing.get_context("spawn")
    with (
        ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=leave_ctrl_c_to_the_parent) as pool,
        Progress(*columns, console=console) as progress,
    ):
        try:
            return list(progress.track(pool.map(run, jobs), total=len(jobs), description=title))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def show_table(reported: pd.DataFrame, chosen: dict[str, float], console: Console) -> None:
    title = f"After the last round (mean ± standard deviation of {len(SEEDS)} seeds)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("method", "η", "train loss", "test\naccuracy %", "rounds", "gradients\nper worker", "MB\nmoved"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for name, label in zip(METHODS, LABELS, strict=True):
        last = reported[reported["method"] == name].groupby("seed").last()
        megabytes = (last["bytes_up"] + last["bytes_down"]) / 1e6
        table.add_row(
            label,
            f"{chosen[name]:g}",
            f"{last['train_loss'].mean():.3f} ± {last['train_loss'].std():.3f}",
            f"{100 * last['test_accuracy'].mean():.1f} ± {100 * last['test_accuracy'].std():.1f}",
            f"{last['round'].max()}",
            f"{last['gradients_per_worker'].mean():,.0f}",
            f"{megabytes.mean():.0f}",
        )
    console.print(table)


def draw(reported: pd.DataFrame, chosen: dict[str, float], options: argparse.Namespace, path: Path) -> None:
    """Train loss against rounds: mean over the seeds, band from the lowest to the highest."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = ["#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#000000"]  # Okabe and Ito: told apart by all readers
    styles = ["--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), "-"]
    figure, axes = plt.subplots(figsize=(7.2, 4.4), constrained_layout=True)
    for name, label, colour, style in zip(METHODS, LABELS, colours, styles, strict=True):
        curves = reported[reported["method"] == name].pivot(index="round", columns="seed", values="train_loss")
        axes.plot(
            curves.index, curves.mean(axis=1), color=colour, linestyle=style, label=f"{label} (η = {chosen[name]:g})"
        )
        axes.fill_between(curves.index, curves.min(axis=1), curves.max(axis=1), color=colour, alpha=0.15, linewidth=0)
    axes.set(
        xlabel="communication rounds",
        ylabel="train loss",
        yscale="log",
        title=f"digits, 10 workers, class skew q = {options.q:g}, {options.mode} budget of {options.budget} a round",
    )
    axes.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%.2g"))
    axes.yaxis.set_minor_formatter(matplotlib.ticker.FormatStrFormatter("%.2g"))
    axes.grid(alpha=0.3, which="both")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--budget", type=int, default=64, help="gradients per worker and round")
    parser.add_argument("--mode", choices=["paper", "strict"], default="paper", help="how the budget sets K and b")
    parser.add_argument("--q", type=float, default=0.85, help="fraction of each class that goes to its own worker")
    parser.add_argument("--output", type=Path, default=Path("demo-output"))
    options = parser.parse_args()
    console = Console()

    tuning = run_all(
        [(name, eta, TUNING_SEED, options) for name in METHODS for eta in STEP_SIZES], "choosing step sizes", console
    )
    chosen = {name: max(tuning[i * 6 : i * 6 + 6], key=stability)["eta"].iloc[0] for i, name in enumerate(METHODS)}
    histories = run_all([(name, chosen[name], s, options) for name in METHODS for s in SEEDS], "final runs", console)
    reported = pd.concat(histories)

    options.output.mkdir(parents=True, exist_ok=True)
    picture = options.output / "loss-against-rounds.png"
    draw(reported, chosen, options, picture)
    show_table(reported, chosen, console)
    console.print(f"\nPicture: {picture}")


if __name__ == "__main__":
    try:
        main()
    except fr.FewroundsError as error:
        print(f"digits_demo: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit("digits_demo: interrupted")
