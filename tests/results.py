"""Frames of results for the tests of the report: real runs on digits, and made-up ones for the claims."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

import fewrounds as fr
from fewrounds.data.digits import load_digits
from fewrounds.data.partition import class_skew

METHODS = ["minibatch-sgd", "local-sgd", "sarah", "scaffold", "bvr-l-sgd"]
META: dict[str, Any] = {
    "name": "digits, small",
    "description": "The paper's five methods on digits, for the tests.",
    "commit": "0123abc",
    "versions": {"fewrounds": fr.__version__, "torch": torch.__version__},
    "machine": "a test machine, 1 core",
    "started": "2026-01-01 10:00",
    "finished": "2026-01-01 10:01",
    "tuning_rule": "the greatest minimum train accuracy over the last 100 iterates",
    "tuning_seeds": [0],
    "report_seeds": [1, 2],
    "etas": [0.05, 0.1, 0.5],
    "config": '[data]\nname = "digits"\n\n[grid]\nq = [0.1, 0.85]  # </script> & <b>\n',
    "failures": [
        {"run": "local-sgd-7", "method": "local-sgd", "eta": 0.5, "seed": 7, "reason": "no space left on device"}
    ],
}


def real_run(
    name: str, eta: float, seed: int, q: float, budget: int, rounds: int = 12, role: str = "report", every: int = 2
) -> pd.DataFrame:
    """A run on a quarter of digits, as the rows the runner would give."""
    train, test = load_digits()
    train, test = (train[0][::4], train[1][::4]), (test[0][::4], test[1][::4])
    workers = [(train[0][part], train[1][part]) for part in class_skew(train[1], q)]
    problem = fr.Problem(fr.models.mlp([64, 20, 10], seed=seed), loss=torch.nn.functional.cross_entropy, l2=5e-3)
    method = fr.for_budget(name, budget, workers=workers, eta=eta)
    result = fr.train(problem, workers, method, rounds, test=test, seed=seed, evaluate_every=every, progress=False)
    settings = method.settings()
    columns = {
        "run": f"{role}-{name}-{q}-{budget}-{eta}-{seed}",
        "role": role,
        "method": name,
        "eta": eta,
        "seed": seed,
        "outcome": result.outcome,
        "dataset": "digits",
        "partition": "class-skew",
        "q": q,
        "budget": budget,
        "budget_mode": "paper",
        "K": settings.get("K"),
        "b": settings.get("b"),
        "rounds": rounds,
        "workers": len(workers),
    }
    return result.history.assign(**columns).astype({"K": "Int64", "b": "Int64"})


def real_frame() -> pd.DataFrame:
    """Five methods, two q, two budgets, two reported seeds; one tuning seed at two step sizes for one setting."""
    runs = [
        real_run(name, 0.5 if name in ("minibatch-sgd", "sarah") else 0.1, seed, q, budget)
        for name in METHODS
        for q in (0.1, 0.85)
        for budget in (32, 64)
        for seed in (1, 2)
    ]
    runs += [real_run(name, eta, 0, 0.1, 32, role="tuning") for name in METHODS for eta in (0.1, 0.5)]
    return pd.concat(runs, ignore_index=True)


def chosen_of(frame: pd.DataFrame) -> pd.DataFrame:
    """The table of chosen learning rates that goes with the real frame."""
    keys = ["method", "q", "budget", "budget_mode", "dataset", "eta"]
    table = frame.loc[frame["role"] == "report", keys].drop_duplicates().reset_index(drop=True)
    return table.assign(score=0.9, at_edge=table["eta"] == 0.5)


def made_frame(
    losses: dict[tuple[str, float, int], float], seeds: int = 3, spread: float = 0.01, rounds: int = 20, **columns: Any
) -> pd.DataFrame:
    """Runs whose train loss falls from 2 to the given final value, by (method, q, budget), a little apart by seed."""
    runs = []
    for (method, q, budget), final in losses.items():
        for seed in range(1, seeds + 1):
            steps = np.arange(0, rounds + 1, 2)
            shift = spread * (seed - (seeds + 1) / 2)
            loss = 2 + (final + shift - 2) * (1 - np.exp(-steps / 4)) / (1 - np.exp(-rounds / 4))
            runs.append(
                pd.DataFrame(
                    {
                        "run": f"{method}-{q}-{budget}-{seed}",
                        "role": "report",
                        "method": method,
                        "eta": 0.1,
                        "seed": seed,
                        "outcome": "finished",
                        "dataset": "made",
                        "partition": "class-skew",
                        "q": q,
                        "budget": budget,
                        "budget_mode": "paper",
                        "K": pd.array([4] * len(steps), dtype="Int64"),
                        "b": pd.array([16] * len(steps), dtype="Int64"),
                        "rounds": rounds,
                        "workers": 10,
                        "round": steps,
                        "train_loss": loss,
                        "train_accuracy": 1 - loss / 4,
                        "test_loss": loss * 1.1,
                        "test_accuracy": 1 - loss / 3,
                        "gradient_norm": loss / 2,
                        "picked": -1,
                        "gradients_per_worker": steps * float(budget),
                        "vectors_up": steps * 10,
                        "vectors_down": steps * 10,
                        "bytes_up": steps * 4000,
                        "bytes_down": steps * 4000,
                        "seconds": steps * 0.01,
                        **columns,
                    }
                )
            )
    return pd.concat(runs, ignore_index=True)


def diverge(frame: pd.DataFrame, run: str, after: int) -> pd.DataFrame:
    """The same frame with one run ending in an infinite loss after a round."""
    own = frame["run"] == run
    assert own.any()
    frame = frame[~own | (frame["round"] <= after)].copy()
    own = frame["run"] == run
    frame.loc[own, "outcome"] = "diverged"
    last = own & (frame["round"] == frame.loc[own, "round"].max())
    frame.loc[last, ["train_loss", "gradient_norm"]] = np.inf
    frame.loc[last, ["test_loss", "test_accuracy"]] = np.nan
    return frame
