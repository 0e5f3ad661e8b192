"""Every method against the naive loop of its pseudocode, on the same draws, to rounding."""

from __future__ import annotations

import numpy as np
import pytest

import fewrounds as fr
import reference
from fewrounds.methods import REGISTRY
from problems import CASES

BUILT_IN = [name for name, cls in REGISTRY.items() if cls.__module__.startswith("fewrounds.")]
VARIANTS = [
    ("minibatch-sgd", {"b": 3}),
    ("local-sgd", {"K": 4, "b": 3}),
    ("local-sgd", {"K": 4, "b": 3, "participants": 1}),
    ("local-sgd", {"K": 4, "b": 3, "participants": 2}),
    ("local-gd", {"K": 3}),
    ("local-gd", {"K": 4, "k_hat": "random"}),
    ("sarah", {"b": 2}),
    ("sarah", {"b": 2, "b_tilde": 5}),
    ("sarah", {"b": 3, "T": 5}),
    ("scaffold", {"K": 4, "b": 3}),
    ("scaffold", {"K": 3, "b": 2, "option": "I", "eta_g": 0.7}),
    ("bvr-l-sgd", {"K": 3, "b": 2}),
    ("bvr-l-sgd", {"K": 2, "b": 1}),
    ("bvr-l-sgd", {"K": 1, "b": 2}),
    ("bvr-l-sgd", {"K": 3, "b": 2, "b_tilde": 5}),
    ("bvr-l-sgd", {"K": 3, "b": 2, "b_tilde": 11}),
    ("bvr-l-sgd", {"K": 3, "b": 2, "form": "theory"}),
    ("bvr-l-sgd", {"K": 3, "b": 2, "T": 4}),
    ("bvr-l-sgd", {"K": 3, "b": 2, "combine": "mean"}),
    ("scaffold", {"K": 4, "b": 3, "participants": 2}),
    ("svrg", {"b": 2}),
    ("svrg", {"b": 2, "b_tilde": 5}),
    ("svrg", {"b": 3, "T": 5}),
    ("pr-spider", {"K": 3, "b": 2}),
    ("pr-spider", {"K": 2, "b": 1, "b_tilde": 5}),
    ("pr-spider", {"K": 1, "b": 2}),
    ("pr-spider", {"K": 3, "b": 2, "T": 6}),
    ("fedglomo", {"K": 3, "b": 2}),
    ("fedglomo", {"K": 3, "b": 2, "beta": 0.6, "b_tilde": 4}),
    ("fedglomo", {"K": 2, "b": 2, "participants": 2}),
    ("fedglomo", {"K": 3, "b": 2, "beta": 1.0}),
    ("fedglomo", {"K": 2, "b": 2, "participants": 1, "b_tilde": 11}),
    ("mime", {"K": 3, "b": 2}),
    ("mime", {"K": 3, "b": 2, "beta": 0.0, "b_tilde": 4}),
    ("mime", {"K": 4, "b": 1, "beta": 0.5, "participants": 2}),
    ("mimelite", {"K": 3, "b": 2, "beta": 0.5}),
    ("mimelite", {"K": 3, "b": 2, "b_tilde": 4, "participants": 2}),
    ("ce-lsgd", {"K": 3, "b": 2}),
    ("ce-lsgd", {"K": 3, "b": 2, "beta": 1.0, "b_tilde": 4}),
    ("ce-lsgd", {"K": 2, "b": 2, "participants": 2}),
    ("ce-lsgd", {"K": 2, "b": 2, "participants": 1, "b_tilde": 3}),
    ("ce-lsgd", {"K": 2, "b": 2, "participants": 2, "beta": 1.0}),
    ("inexact-dane", {"K": 4}),
    ("inexact-dane", {"K": 3, "mu": 0.5, "eta_dane": 0.7, "b_tilde": 4}),
    ("inexact-dane", {"K": 1, "b_tilde": 4}),
    ("inexact-dane", {"K": 3, "b_tilde": 11}),
    ("inexact-dane", {"K": 3, "b": 2, "mu": 0.5, "eta_dane": 0.7}),
    ("inexact-dane", {"K": 3, "b": 2, "mu": 0.3, "b_tilde": 4}),
    ("inexact-dane", {"K": 3, "b": 2, "mu": 0.3, "b_tilde": 4, "solver": "sarah"}),
    ("inexact-dane", {"K": 3, "b": 2, "mu": 0.5, "eta_dane": 0.7, "solver": "sarah"}),
    ("inexact-dane", {"K": 3, "b": 2, "mu": 0.5, "eta_dane": 0.7, "solver": "sgd", "b_tilde": 4}),
]


def test_every_method_of_the_package_is_compared() -> None:
    assert {name for name, _ in VARIANTS} == set(BUILT_IN)


@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize("case_name", CASES)
@pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=lambda v: str(v).replace("'", ""))
def test_agrees_with_the_pseudocode(name: str, settings: dict, case_name: str, weights: str) -> None:
    case = CASES[case_name]()
    settings = {"eta": 0.05, **settings}
    rounds = 13  # several stages, none of which ends with the run
    sizes = np.array(case.sizes)
    run = reference.Run(case, seed=3, weights=sizes / sizes.sum() if weights == "size" else np.full(3, 1 / 3))
    reference.METHODS[name](run, rounds, **settings)

    result = fr.train(
        case.problem,
        case.workers,
        fr.method(name, **settings),
        rounds,
        x0=case.x0,
        seed=3,
        weights=weights,
        evaluate_every=1,
        trace=True,
        progress=False,
    )

    np.testing.assert_allclose(result.trace.numpy(), np.array(run.trace), rtol=1e-11, atol=1e-11)
    picked = result.history["picked"].tolist()
    assert picked == [-1, *(run.picked or [-1] * rounds)]
    # the reference must have moved, or the comparison says nothing
    assert np.linalg.norm(run.trace[-1] - run.trace[0]) > 0.1


@pytest.mark.parametrize("case_name", CASES)
def test_history_has_the_exact_loss_and_gradient(case_name: str) -> None:
    case = CASES[case_name]()
    result = fr.train(
        case.problem, case.workers, fr.LocalSGD(eta=0.1, K=2, b=2), 3, evaluate_every=1, trace=True, progress=False
    )
    for row, x in zip(result.history.itertuples(), result.trace.numpy(), strict=True):
        gradient = np.mean([case.full(p, x) for p in range(3)], axis=0)
        assert row.gradient_norm == pytest.approx(np.linalg.norm(gradient), rel=1e-10)
    # the loss, by integrating the gradient from the first iterate to the last
    first, last = result.trace[0].numpy(), result.trace[-1].numpy()
    nodes, weights = np.polynomial.legendre.leggauss(30)
    integral = sum(
        w / 2 * np.mean([case.full(p, first + (s + 1) / 2 * (last - first)) for p in range(3)], axis=0) @ (last - first)
        for s, w in zip(nodes, weights, strict=True)
    )
    losses = result.history["train_loss"]
    assert losses.iloc[-1] - losses.iloc[0] == pytest.approx(integral, rel=1e-8)
