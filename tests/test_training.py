"""`train`: evaluation, callbacks, divergence, progress, and bad settings."""

from __future__ import annotations

import itertools
import math
import os
import pty
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

import fewrounds as fr
from problems import classifier, quadratic

COLUMNS = [
    "round",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "gradient_norm",
    "picked",
    "gradients_per_worker",
    "vectors_up",
    "vectors_down",
    "bytes_up",
    "bytes_down",
    "seconds",
]
SGD = fr.LocalSGD(eta=0.05, K=2, b=2)


def run(rounds: int = 7, method: fr.Method = SGD, case=None, **options) -> fr.Result:
    case = case or classifier()
    return fr.train(case.problem, case.workers, method, rounds, **{"progress": False, **options})


def test_history_has_the_promised_columns_and_rounds() -> None:
    history = run(evaluate_every=3).history
    assert list(history.columns) == COLUMNS
    assert history["round"].tolist() == [0, 3, 6, 7]
    assert history["picked"].dtype == np.int64
    assert run(evaluate_every=3, evaluate_last=3).history["round"].tolist() == [0, 3, 5, 6, 7]
    assert run().history["round"].tolist() == list(range(8))
    # 20 samples against 12 gradients a round: an evaluation every 20 rounds costs a twelfth of the gradients
    assert run(250).history["round"].tolist() == [*range(0, 250, 20), 250]
    assert (history["seconds"].diff()[1:] > 0).all()


def test_test_columns_are_of_the_test_set_without_l2() -> None:
    case = classifier(l2=0.5)
    X, y = case.workers[1]
    result = run(case=case, test=(X, y))
    logits = result.model(torch.from_numpy(X))
    last = result.history.iloc[-1]
    assert last.test_loss == pytest.approx(float(cross_entropy(logits, torch.from_numpy(y)).detach()))
    assert last.test_accuracy == pytest.approx(float((logits.argmax(1).numpy() == y).mean()))
    assert last.train_loss > last.test_loss + 0.25 * float(result.x @ result.x) * 0.5
    assert math.isnan(run().history.iloc[-1].test_loss)


def test_evaluating_and_tracing_change_nothing() -> None:
    plain, watched = run(evaluate_every=7), run(evaluate_every=1, trace=True, callbacks=[lambda record: None])
    assert torch.equal(plain.x, watched.x)
    assert plain.ledger == watched.ledger


def test_callbacks_get_every_round_once() -> None:
    records: list[fr.RoundRecord] = []
    result = run(
        5, fr.BVRLSGD(eta=0.05, K=2, b=2), evaluate_every=2, callbacks=[records.append, lambda r: None], trace=True
    )
    assert [r.round for r in records] == [1, 2, 3, 4, 5]
    assert {r.rounds for r in records} == {5}
    assert [r.row is not None for r in records] == [False, True, False, True, True]
    assert all(torch.equal(r.x, result.trace[r.round]) for r in records)
    assert [r.ledger.rounds for r in records] == [1, 2, 3, 4, 5]
    assert records[3].row == result.rows[2]
    assert all(0 <= r.picked < 3 for r in records)


def test_a_callback_cannot_change_the_run() -> None:
    def spoil(record: fr.RoundRecord) -> None:
        record.x.zero_()
        if record.row:
            record.row["train_loss"] = 0.0

    spoilt, plain = run(callbacks=[spoil], trace=True), run(trace=True)
    assert torch.equal(spoilt.trace, plain.trace)
    assert spoilt.history["train_loss"].equals(plain.history["train_loss"])


def test_numpy_numbers_are_numbers() -> None:
    method = fr.LocalSGD(eta=np.float32(0.5), K=np.int64(2), b=np.int32(2))
    assert run(np.int64(3), method, seed=np.int64(4)).ledger.rounds == 3
    assert fr.Problem(loss=lambda x, z: x.sum(), dim=np.int64(3), l2=np.float32(0.5)).dim == 3


def test_divergence_ends_the_run_and_is_its_outcome() -> None:
    calls: list[fr.RoundRecord] = []
    case = quadratic()
    result = run(
        400, fr.MinibatchSGD(eta=50.0, b=2), case, x0=case.x0, evaluate_every=10, callbacks=[calls.append], trace=True
    )
    assert result.outcome == "diverged"
    last = result.history.iloc[-1]
    assert not math.isfinite(last.train_loss)
    assert last["round"] < 400
    assert len(calls) == last["round"] == len(result.trace) - 1
    assert run().outcome == "finished"


def test_a_start_with_infinite_loss_is_a_divergence_too() -> None:
    problem = fr.Problem(loss=lambda x, z: (torch.log(x) * z).mean(), dim=1)
    result = fr.train(problem, [np.ones((3, 1))], SGD, 5, x0=[-1.0], progress=False)
    assert result.outcome == "diverged"
    assert result.history["round"].tolist() == [0]


def test_the_start_is_the_models_zero_or_as_given() -> None:
    case = classifier()
    start = run(1, case=case, trace=True).trace[0]
    assert torch.equal(start, case.problem.start)
    assert torch.equal(run(1, case=quadratic(), trace=True).trace[0], torch.zeros(5, dtype=torch.float64))
    given_start = np.linspace(0, 1, 5)
    assert run(1, case=quadratic(), x0=given_start, trace=True).trace[0].tolist() == given_start.tolist()


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["minibatch-sgd", "local-sgd", "local-gd", "sarah", "scaffold", "bvr-l-sgd"]),
    K=st.integers(1, 4),
    b=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    rounds=st.integers(1, 6),
    seed=st.integers(0, 1000),
)
def test_ledger_sums(name: str, K: int, b: int, sizes: list[int], rounds: int, seed: int) -> None:
    """Costs only grow, sum up over rounds, and the mean over workers is what the column says."""
    case = quadratic(tuple(sizes), d=2)
    settings_ = {"eta": 0.01, "K": K, "b": b}
    fields = fr.methods.REGISTRY[name].__dataclass_fields__
    method = fr.method(name, **{key: value for key, value in settings_.items() if key in fields})
    ledgers = []
    result = run(rounds, method, case, seed=seed, callbacks=[lambda r: ledgers.append(r.ledger)])
    totals = [np.array(ledger.gradients) for ledger in ledgers]
    assert all((later >= sooner).all() for sooner, later in itertools.pairwise(totals))
    assert (totals[0] > 0).sum() >= 1
    for row, total, ledger in zip(result.rows[1:], totals, ledgers, strict=True):
        assert row["gradients_per_worker"] == pytest.approx(total.mean())
        assert row["bytes_up"] == 16 * row["vectors_up"] == 16 * ledger.vectors_up
        assert row["bytes_down"] == 16 * row["vectors_down"]
    # one worker costs what the same worker costs among others, but for the pick
    if name not in ("bvr-l-sgd",) and "sarah" not in name:
        alone = run(rounds, method, quadratic((sizes[0],), d=2), seed=seed)
        assert alone.ledger.gradients[0] == totals[-1][0]


BAD_SETTINGS = [
    (lambda: fr.LocalSGD(eta=0, K=1, b=1), "local-sgd: eta = 0: must be a positive, finite number"),
    (lambda: fr.LocalSGD(eta=-0.1, K=1, b=1), "local-sgd: eta = -0.1"),
    (lambda: fr.LocalSGD(eta=math.nan, K=1, b=1), "local-sgd: eta = nan"),
    (lambda: fr.LocalSGD(eta="0.1", K=1, b=1), "local-sgd: eta = '0.1'"),
    (lambda: fr.LocalSGD(eta=0.1, K=0, b=1), "local-sgd: K = 0: must be a whole number, 1 or more"),
    (lambda: fr.LocalSGD(eta=0.1, K=1.5, b=1), "local-sgd: K = 1.5: must be a whole number"),
    (lambda: fr.LocalSGD(eta=0.1, K=1, b=0), "local-sgd: b = 0"),
    (lambda: fr.LocalSGD(eta=0.1, K=True, b=1), "local-sgd: K = True"),
    (lambda: fr.BVRLSGD(eta=0.1, K=1, b=1, b_tilde=0), "bvr-l-sgd: b_tilde = 0"),
    (lambda: fr.BVRLSGD(eta=0.1, K=1, b=1, form="best"), "bvr-l-sgd: form = 'best': must be 'practical' or 'theory'"),
    (lambda: fr.SARAH(eta=0.1, b=1, b_tilde=-3), "sarah: b_tilde = -3"),
    (lambda: fr.SCAFFOLD(eta=0.1, K=1, b=1, option="III"), "scaffold: option = 'III': must be 'I' or 'II'"),
    (lambda: fr.LocalGD(eta=0.1, K=1, k_hat="first"), "local-gd: k_hat = 'first': must be 'last' or 'random'"),
    (
        lambda: fr.method("bvr-lsgd", eta=0.1),
        "there is no method 'bvr-lsgd'; did you mean 'bvr-l-sgd'\\? known: bvr-l-sgd",
    ),
    (lambda: fr.method("LOCAL-SGD", eta=0.1, K=1, b=1), "did you mean 'local-sgd'"),
    (lambda: fr.method("local-sgd", eta=0.1, K=1, bb=1), "local-sgd has no setting 'bb'; did you mean 'b'"),
    (lambda: fr.method("local-sgd", eta=0.1, K=1), "local-sgd needs the setting 'b'"),
    (lambda: run(0), "rounds = 0: must be a whole number, 1 or more"),
    (lambda: run(2.5), "rounds = 2.5"),
    (lambda: run(evaluate_every=0), "evaluate_every = 0"),
    (lambda: run(checkpoint_every=0), "checkpoint_every = 0"),
    (lambda: run(rows_at_once=0), "rows_at_once = 0"),
    (lambda: run(seed="a"), "seed = 'a': must be a whole number"),
    (lambda: run(weights="big"), "weights = 'big': must be 'uniform' or 'size'"),
    (lambda: run(x0=[1.0, 2.0]), r"x0 has shape \[2\], but the problem needs \[53\]"),
    (lambda: run(x0="start"), "x0 is not a vector of numbers"),
    (lambda: run(x0=np.full(53, np.nan)), "x0 has a NaN or infinite value"),
    (lambda: run(method="local-sgd"), "the method is a str: expected one such as LocalSGD"),
    (lambda: run(method=fr.LocalSGD), "the method is the class LocalSGD: expected one such as"),
    (lambda: run(callbacks=print), "callbacks must be a list of functions"),
    (lambda: run(callbacks=[3]), "callbacks must be a list of functions"),
    (lambda: run(checkpoint_seconds="a"), "checkpoint_seconds = 'a': must be a finite number, 0 or more"),
    (lambda: run(checkpoint=""), "checkpoint = '': must be the path of a folder"),
    (lambda: run(checkpoint=3), "checkpoint = 3: must be the path of a folder"),
    (lambda: fr.train(None, [], SGD, 1), "the problem is a NoneType: expected a fewrounds.Problem"),
]


@pytest.mark.parametrize(("make", "message"), BAD_SETTINGS, ids=[message[:40] for _, message in BAD_SETTINGS])
def test_bad_settings_are_named_in_one_line(make, message: str) -> None:
    with pytest.raises(fr.SettingError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


SCRIPT = """
import numpy as np, torch, fewrounds as fr
problem = fr.Problem(loss=lambda x, z: 0.5 * ((x - z) ** 2).sum(1).mean(), dim=2)
fr.train(problem, [np.ones((4, 2)), np.zeros((3, 2))], fr.LocalSGD(eta=0.1, K=2, b=2), 40)
"""


def test_progress_without_a_terminal_is_plain_lines() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("local-sgd  round 4/40  loss ")
    assert lines[-1].startswith("local-sgd  round 40/40  loss ")


def test_progress_on_a_terminal_is_a_bar() -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=follower, env=environment)
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    assert process.wait() == 0
    os.close(leader)
    assert "━" in shown.decode()
    assert "40/40" in shown.decode()
