"""Every method's compiled steps against the steps themselves. Each is compiled anew, which takes a few minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fewrounds as fr
from contract import examples, run
from fewrounds.engine import products
from fewrounds.engine.programs import How, Policy
from problems import classifier, quadratic

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.mark.parametrize("method", examples(), ids=repr)
def test_compiled_steps_are_the_steps(method: fr.Method, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWROUNDS_HOME", str(cache))
    monkeypatch.setattr(products, "LARGE", 1)  # with one row, the gradients of layers are added in place
    more = ((classifier(), 3), (quadratic(), 3)) if method.name in ("local-sgd", "scaffold", "bvr-l-sgd") else ()
    for case, rows in ((classifier(), 1), *more):
        plain = run(case, method, compile=Policy(How.AS_IT_IS), rows_at_once=rows)
        compiled = run(case, method, compile=True, rows_at_once=rows)
        torch.testing.assert_close(compiled.trace, plain.trace, rtol=1e-11, atol=1e-11)
        assert compiled.ledger == plain.ledger


def test_single_precision_and_two_threads(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWROUNDS_HOME", str(cache))
    case = classifier()
    model = fr.models.mlp([6, 5, 3], seed=1)
    problem = fr.Problem(model, loss=torch.nn.functional.cross_entropy, l2=0.01)
    method = fr.BVRLSGD(eta=0.05, K=4, b=3)
    plain = fr.train(problem, case.workers, method, 6, compile=Policy(How.AS_IT_IS), progress=False)
    torch.set_num_threads(2)
    try:
        compiled = fr.train(problem, case.workers, method, 6, compile=True, progress=False)
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(compiled.x, plain.x, rtol=1e-4, atol=1e-5)
