"""Answers that cannot be right: the run stops in every case, and names the site."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import fewrounds as fr
from fewrounds.silo.messages import SiteError
from near_sites import NearSites, alone, run
from problems import classifier


def spoilt(how: str):
    def spoil(p: int, message: dict, reply: dict):
        if p != 1 or message["do"] != "task" or message["round"] != 3:
            return reply
        if how == "nan":
            return {**reply, "vectors": [np.full(53, np.nan).tobytes() for _ in reply["vectors"]]}
        if how == "short":
            return {**reply, "vectors": [blob[:-8] for blob in reply["vectors"]]}
        if how == "none":
            return {"gradients": 1}
        if how == "text":
            return {**reply, "vectors": ["x" * len(blob) for blob in reply["vectors"]]}
        if how == "no dict":
            return ["x"]
        if how == "words for numbers":
            return {**reply, "gradients": "many"}
        if how == "less than nothing":
            return {**reply, "gradients": -5}
        if how == "nan for a count":
            return {**reply, "gradients": math.nan}
        return reply

    return spoil


FAULTS = {
    "nan": "site site-2: its answer to .*gradient_change in round 3 has NaN or infinite values",
    "short": "site site-2: its answer to .* has a vector of 416 bytes, expected 424",
    "none": "site site-2: its answer to .* has no vectors",
    "text": "site site-2: its answer to .* has a str where a vector is expected",
    "no dict": "site site-2: it answered with a list",
    "words for numbers": "site site-2: its answer has no number gradients",
    "less than nothing": "site site-2: its answer has no number gradients",
    "nan for a count": "site site-2: its answer has no number gradients",
}


@pytest.mark.parametrize("how", FAULTS)
@pytest.mark.parametrize("least", [None, 1])
def test_a_wrong_answer_stops_the_run_and_names_the_site(tmp_path: Path, how: str, least: int | None) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    near.spoil = spoilt(how)
    method = fr.BVRLSGD(eta=0.05, K=3, b=2, T=20)
    with pytest.raises(SiteError, match=FAULTS[how]) as caught:
        run(near, case, method, least=least)
    assert "\n" not in str(caught.value)
    near.spoil = lambda p, message, reply: reply
    near.restart()
    torch.testing.assert_close(run(near, case, method).x, alone(case, method).x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("least", [None, 1])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": math.nan}, "a loss of nan"),
        ({"loss": math.inf}, "a loss of inf"),
        ({"vectors": [np.full(53, np.nan).tobytes()]}, "NaN or infinite values"),
        ({"vectors": [np.full(53, -np.inf).tobytes()]}, "NaN or infinite values"),
    ],
)
def test_one_site_that_evaluates_to_nan_is_named(
    tmp_path: Path, change: dict, said: str, least: int | None, at: int
) -> None:
    """It is no divergence where the others find a finite loss at the same point."""
    case = classifier()
    near = NearSites(case, tmp_path)
    asked = [0]

    def spoil(p: int, message: dict, reply: dict) -> dict:
        if message["do"] != "evaluate" or p != 1:
            return reply
        asked[0] += 1
        return {**reply, **change} if asked[0] > at else reply

    near.spoil = spoil
    with pytest.raises(SiteError, match=f"^site site-2: its answer to evaluate after round {at} has {said}: the step"):
        run(near, case, rounds=6, least=least, evaluate_every=1)
    near.spoil = lambda p, message, reply: {**reply, "accuracy": math.nan} if message["do"] == "evaluate" else reply
    near.restart()
    found = run(near, case, rounds=6, evaluate_every=1)  # a loss without classes has no accuracy
    assert found.outcome == "finished"
    torch.testing.assert_close(found.x, alone(case, rounds=6).x, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_where_every_site_finds_an_infinite_loss_the_run_has_diverged(tmp_path: Path, loss: float) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    rounds = [0]

    def diverge(p: int, message: dict, reply: dict) -> dict:
        rounds[0] = message.get("round", rounds[0])
        return {**reply, "loss": loss} if message["do"] == "evaluate" and rounds[0] == 3 else reply

    near.spoil = diverge
    found = run(near, case, rounds=6, evaluate_every=1)
    assert found.outcome == "diverged"
    assert found.ledger.rounds == 3


@pytest.mark.parametrize(
    ("do", "change", "said"),
    [
        ("hello", {"problem": 3}, "its first answer cannot be used"),
        ("hello", {"problem": {"l2": 0.01}}, "its first answer cannot be used"),
        ("hello", {"size": "many"}, "its first answer cannot be used"),
        ("hello", {"tested": -1}, "its first answer cannot be used"),
        ("hello", {"data": None}, "its first answer cannot be used"),
        ("check", {"losses": [1.0]}, "its answer has no losses"),
        ("check", {"losses": [math.nan, 1.0]}, "site site-2 has another problem than site-1"),
        ("check", {"losses": "low"}, "its answer has no losses"),
    ],
)
def test_an_answer_that_makes_no_sense_is_one_line(tmp_path: Path, do: str, change: dict, said: str) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    near.spoil = lambda p, message, reply: {**reply, **change} if p == 1 and message["do"] == do else reply
    with pytest.raises(SiteError, match=said) as caught:
        run(near, case)
    assert "site-2" in str(caught.value)
    assert "\n" not in str(caught.value)
