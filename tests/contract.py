"""What every method must keep to, whatever it computes. `test_contract.py` runs this over the registry."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import fewrounds as fr
from fewrounds.engine.programs import How, Policy
from fewrounds.methods.base import REGISTRY
from problems import Case, classifier, quadratic

ROUNDS = 9


@dataclass(frozen=True)
class Cost:
    """What a run costs, derived by hand from the method's description."""

    gradients: list[int]
    """By worker."""
    up: int
    down: int


NOTHING_IS_DRAWN = (
    fr.LocalGD(eta=0.05, K=3),
    fr.InexactDANE(eta=0.05, K=3),
    fr.InexactDANE(eta=0.05, K=3, b_tilde=11),
)
"""Methods that use all data at every step."""

Formula = Callable[[fr.Method, tuple[int, ...], list[int]], Cost]
"""formula(method, sizes, picked): the cost of len(picked) rounds."""


def example_settings(cls: type[fr.Method]) -> dict[str, float]:
    """Small settings for any method: a value for every setting that has no default."""
    values = {"eta": 0.05, "K": 3, "b": 2}
    return {f.name: values[f.name] for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING}


def examples() -> list[fr.Method]:
    """Every method in the registry, and every local step there is."""
    solvers = [fr.InexactDANE(eta=0.05, K=3, b=2, mu=0.1, solver=solver) for solver in ("svrg", "sarah", "sgd")]
    return [cls(**example_settings(cls)) for _, cls in sorted(REGISTRY.items())] + solvers


def run(case: Case, method: fr.Method, rounds: int = ROUNDS, **options) -> fr.Result:
    options = {"x0": case.x0, "seed": 1, "trace": True, "evaluate_every": 1, "progress": False, **options}
    return fr.train(case.problem, case.workers, method, rounds, **options)


def check_deterministic_by_seed(method: fr.Method) -> None:
    case = classifier()
    first, again, other = run(case, method), run(case, method), run(case, method, seed=2)
    assert torch.equal(first.trace, again.trace)
    assert torch.equal(first.x, again.x)
    if method not in NOTHING_IS_DRAWN:
        assert not torch.equal(first.trace, other.trace)


def check_tracing_is_irrelevant(method: fr.Method) -> None:
    for case in (classifier(), quadratic()):
        plain = run(case, method, compile=Policy(How.AS_IT_IS))
        # three workers in rows of two: a block of several and a block of one, which are traced each for itself
        traced = run(case, method, compile=Policy(How.TRACED), rows_at_once=2)
        torch.testing.assert_close(traced.trace, plain.trace, rtol=1e-11, atol=1e-11)
        assert traced.ledger == plain.ledger


def check_block_size_is_irrelevant(method: fr.Method) -> None:
    for case in (classifier(), quadratic()):
        whole, by_two, single = (run(case, method, rows_at_once=rows) for rows in (3, 2, 1))
        torch.testing.assert_close(by_two.trace, whole.trace, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(single.trace, whole.trace, rtol=1e-11, atol=1e-11)
        assert single.ledger == by_two.ledger == whole.ledger


def check_resumes_exactly_from_every_round(method: fr.Method) -> None:
    case = classifier()
    whole = run(case, method)
    for stop in range(1, ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            run(case, method, stop, checkpoint=folder)
            resumed = run(case, method, checkpoint=folder)
        assert torch.equal(resumed.x, whole.x), f"after round {stop}"
        assert torch.equal(resumed.trace, whole.trace), f"after round {stop}"
        assert resumed.ledger == whole.ledger, f"after round {stop}"
        same = [column for column in whole.history if column != "seconds"]
        assert resumed.history[same].equals(whole.history[same]), f"after round {stop}"


def check_counts_exactly(method: fr.Method, formula: Formula) -> None:
    case = classifier()
    result = run(case, method)
    picked = result.history["picked"].tolist()[1:]
    for rounds in range(ROUNDS + 1):
        cost = formula(method, case.sizes, picked[:rounds])
        row = result.history.iloc[rounds]
        vector_bytes = 8 * case.problem.dim
        assert row["gradients_per_worker"] == sum(cost.gradients) / len(cost.gradients), f"round {rounds}"
        assert (row["vectors_up"], row["vectors_down"]) == (cost.up, cost.down), f"round {rounds}"
        assert (row["bytes_up"], row["bytes_down"]) == (cost.up * vector_bytes, cost.down * vector_bytes)
    assert list(result.ledger.gradients) == cost.gradients
    assert result.ledger.rounds == ROUNDS


def check_expected_cost(method: fr.Method, rounds: int) -> None:
    """`gradients_per_round` is what the ledger shows on average over whole stages (and draws).

    Some methods have a first round unlike the others, so the average is over the second half of twice as many.
    """
    case = quadratic(sizes=(6, 6, 6), d=2)
    spent = run(case, method, 2 * rounds, evaluate_every=rounds, trace=False).history["gradients_per_worker"].tolist()
    np.testing.assert_allclose((spent[2] - spent[1]) / rounds, method.gradients_per_round(case.sizes), rtol=1e-12)


def check_leaves_inputs_alone(method: fr.Method) -> None:
    case = classifier()
    before = [[np.array(part) for part in worker] for worker in case.workers]
    model = fr.models.mlp([6, 5, 3], seed=0)
    parameters = [p.clone() for p in model.parameters()]
    problem = fr.Problem(model, loss=torch.nn.functional.cross_entropy)
    x0 = torch.linspace(-1, 1, problem.dim)
    x0_before = x0.clone()
    fr.train(problem, case.workers, method, 3, x0=x0, progress=False)
    for worker, copies in zip(case.workers, before, strict=True):
        for part, copy in zip(worker, copies, strict=True):
            np.testing.assert_array_equal(part, copy)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), parameters, strict=True))
    assert torch.equal(x0, x0_before)


def check_both_precisions(method: fr.Method) -> None:
    case = classifier()
    model = case.problem.module(torch.from_numpy(case.x0))
    single = fr.Problem(model, loss=torch.nn.functional.cross_entropy, l2=0.01, dtype=torch.float32)
    low = fr.train(single, case.workers, method, ROUNDS, seed=1, progress=False, trace=True)
    high = run(case, method)
    assert low.x.dtype == torch.float32
    assert high.x.dtype == torch.float64
    torch.testing.assert_close(low.trace.double(), high.trace, rtol=1e-4, atol=1e-4)
    assert low.ledger.bytes_up * 2 == high.ledger.bytes_up


def check_trace_and_output(method: fr.Method) -> None:
    case = classifier()
    result = run(case, method)
    assert result.trace.shape == (ROUNDS + 1, case.problem.dim)
    np.testing.assert_array_equal(result.trace[0], case.x0)
    assert any(torch.equal(result.x, x) for x in result.trace[1:]) or getattr(method, "form", "") == "theory"
    parameters = torch.cat([p.reshape(-1) for p in result.model.parameters()])
    assert torch.equal(parameters, result.x)


def check_says_whether_workers_remember(method: fr.Method) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(classifier(), method, rounds=3, checkpoint=folder)
        newest = max(Path(folder).glob("round-*.json"))
        assert bool(json.loads(newest.read_text())["content"]["memory"]) == method.remembers


ALL = [
    check_says_whether_workers_remember,
    check_deterministic_by_seed,
    check_block_size_is_irrelevant,
    check_tracing_is_irrelevant,
    check_resumes_exactly_from_every_round,
    check_leaves_inputs_alone,
    check_both_precisions,
    check_trace_and_output,
]
