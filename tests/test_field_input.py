"""What the methods of the paper's related work, and all others, refuse; and that they take streams."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

import fewrounds as fr
from contract import example_settings
from fewrounds.methods import REGISTRY


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fr.MIME(eta=0.1, K=2, b=2, beta=1.5), "mime: beta = 1.5: must be a number from 0 to 1"),
        (lambda: fr.CELSGD(eta=0.1, K=2, b=2, beta=-0.1), "ce-lsgd: beta = -0.1: must be a number from 0 to 1"),
        (lambda: fr.CELSGD(eta=0.1, K=2, b=2, beta=True), "ce-lsgd: beta = True"),
        (lambda: fr.InexactDANE(eta=0.1, K=2, mu=-1), "inexact-dane: mu = -1"),
        (lambda: fr.InexactDANE(eta=0.1, K=2, eta_dane=0), "inexact-dane: eta_dane = 0: must be a positive"),
        (lambda: fr.InexactDANE(eta=0.1, K=2, solver="newton"), "solver = 'newton': must be 'svrg' or 'sarah' or 'sgd'"),
        (lambda: run_on_stream(fr.InexactDANE(eta=0.1, K=2, b_tilde=8)), "inexact-dane: b is required with a Stream"),
    ],
)  # fmt: skip
def test_bad_settings_are_named(call, message: str) -> None:
    with pytest.raises(fr.SettingError, match=message):
        call()


def with_setting(name: str) -> list[type[fr.Method]]:
    """The methods that have a setting of this name."""
    return [cls for cls in REGISTRY.values() if name in {field.name for field in dataclasses.fields(cls)}]


WRONG = [
    ("K", 0, "must be a whole number"),
    ("b", 2.5, "must be a whole number"),
    ("b_tilde", 0, "must be a whole number"),
    ("T", 0, "must be a whole number"),
    ("beta", 1.01, "must be a number from 0 to 1"),
    ("participants", 0, "must be a whole number"),
    ("mu", math.nan, "finite"),
]


@pytest.mark.parametrize(
    ("cls", "setting", "value", "said"),
    [(cls, setting, value, said) for setting, value, said in WRONG for cls in with_setting(setting)],
)
def test_every_method_refuses_it(cls: type[fr.Method], setting: str, value: object, said: str) -> None:
    with pytest.raises(fr.SettingError, match=rf"{cls.name}: {setting} = .*{said}"):
        cls(**{**example_settings(cls), setting: value})


@pytest.mark.parametrize("cls", with_setting("b_tilde"))
def test_every_method_asks_for_b_tilde_on_a_stream(cls: type[fr.Method]) -> None:
    settings = {**example_settings(cls), "b": 2}
    with pytest.raises(fr.SettingError, match=f"{cls.name}: b_tilde is required with a Stream"):
        run_on_stream(cls(**settings))


@pytest.mark.parametrize("cls", with_setting("participants"))
def test_every_method_refuses_more_participants_than_workers(cls: type[fr.Method]) -> None:
    settings = {**example_settings(cls), "participants": 2}
    settings |= {"b_tilde": 8} if cls in with_setting("b_tilde") else {}
    with pytest.raises(fr.SettingError, match=f"{cls.name}: participants = 2, but there are 1 workers"):
        run_on_stream(cls(**settings))


@pytest.mark.parametrize("cls", [fr.MIME, fr.MIMELite])
def test_momentum_alone_is_refused(cls: type[fr.Method]) -> None:
    with pytest.raises(fr.SettingError, match=f"{cls.name}: beta = 1 would leave the gradients out"):
        run_on_stream(cls(eta=0.1, K=2, b=2, b_tilde=8, beta=1))


def run_on_stream(method: fr.Method) -> fr.Result:
    problem = fr.Problem(loss=lambda x, z: 0.5 * ((x - z) ** 2).sum(1).mean(), dim=2)
    return fr.train(problem, [fr.Stream(lambda n, rng: rng.normal(size=(n, 2)))], method, 2, progress=False)


@pytest.mark.parametrize(
    ("method", "gradients"),
    [  # of two rounds at the one worker, b = 2 and b̃ = 8
        (fr.SVRG(eta=0.1, b=2, b_tilde=8), 8 + 2 * 2),
        (fr.PRSPIDER(eta=0.1, K=2, b=2, b_tilde=8), 8 + 2 * 2 * 2),
        (fr.FedGLOMO(eta=0.1, K=2, b=2, b_tilde=8), (8 + 2 * 2) + 2 * (8 + 2 * 2)),
        (fr.MIME(eta=0.1, K=2, b=2, b_tilde=8), 2 * (8 + 2 * 2)),
        (fr.MIMELite(eta=0.1, K=2, b=2, b_tilde=8), 2 * (8 + 2 * 2)),
        (fr.CELSGD(eta=0.1, K=2, b=2, b_tilde=8), (8 + 2 * 2) + (2 * 2 * 2 + 2 * 2)),
        (fr.InexactDANE(eta=0.1, K=2, b=2, b_tilde=8), 2 * (8 + 2 * 2)),
    ],
    ids=repr,
)
def test_streams_will_do(method: fr.Method, gradients: int) -> None:
    result = run_on_stream(method)
    assert result.ledger.gradients_per_worker == gradients
    assert torch.isfinite(result.x).all()
    assert result.x.abs().max() > 0, "it has moved"
