"""Traced and compiled steps: the same results as the steps themselves, and a way on where neither can be."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fewrounds as fr
from fewrounds.engine import programs
from fewrounds.engine.programs import COMPILING_PAYS, TRACING_PAYS, How, Policy
from fewrounds.rounds import default_cadence
from problems import classifier

SETTINGS = {"eta": 0.05, "K": 4, "b": 3}


@pytest.fixture(autouse=True)
def _nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_loaded", {})
    monkeypatch.setattr("fewrounds.opening._said", set())


def run(method: fr.Method, compile: object, case=None, **options) -> fr.Result:
    case = case or classifier()
    options = {"rounds": 6, "x0": case.x0, "trace": True, "evaluate_every": 2, "progress": False, **options}
    return fr.train(case.problem, case.workers, method, compile=compile, **options)


def image_case(dtype: torch.dtype = torch.float64) -> tuple[fr.Problem, list]:
    """A convolutional model with a frozen buffer, which is a constant of the traced graph."""
    torch.manual_seed(3)
    norm = nn.BatchNorm2d(4).eval()
    norm.running_mean.uniform_(-1, 1)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
    rng = np.random.default_rng(0)
    workers = [(rng.normal(size=(n, 1, 8, 8)), rng.integers(3, size=n)) for n in (7, 5)]
    return fr.Problem(model, loss=nn.functional.cross_entropy, l2=0.01, dtype=dtype), workers


# ---------------------------------------------------------------------- compiled


def test_compiled_steps_are_the_steps_and_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """BVR-L-SGD has every kind of step: a recursion that hands x_{k-1} on as x_{k-2}, a mean, a difference."""
    monkeypatch.setenv("FEWROUNDS_HOME", str(tmp_path))
    method = fr.BVRLSGD(**SETTINGS)
    plain = run(method, Policy(How.AS_IT_IS))
    compiled = run(method, True, progress=True)
    torch.testing.assert_close(compiled.trace, plain.trace, rtol=1e-11, atol=1e-11)
    assert compiled.ledger == plain.ledger
    assert "compiling recursive_step" in capfd.readouterr().err
    kept = sorted((tmp_path / "compiled").glob("*.pt2"))
    assert kept

    def never(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(programs, "_loaded", {})
    monkeypatch.setattr(programs, "_build", never)
    # another step size is another input of the same program
    other = fr.BVRLSGD(**{**SETTINGS, "eta": 0.02})
    again = run(other, True, progress=True)
    assert "compiling" not in capfd.readouterr().err
    torch.testing.assert_close(again.trace, run(other, Policy(How.AS_IT_IS)).trace, rtol=1e-11, atol=1e-11)


@pytest.mark.slow
def test_a_damaged_package_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWROUNDS_HOME", str(tmp_path))
    built: list[Path] = []
    build = programs._build

    def counting(graph, examples, package: Path) -> None:
        built.append(package)
        build(graph, examples, package)

    monkeypatch.setattr(programs, "_build", counting)
    method = fr.LocalSGD(**SETTINGS)
    first = run(method, True)
    for package in (tmp_path / "compiled").glob("*.pt2"):
        package.write_bytes(package.read_bytes()[: package.stat().st_size // 2])
    monkeypatch.setattr(programs, "_loaded", {})
    again = run(method, True)
    assert len(built) == 2 * len(set(built))
    assert torch.equal(first.trace, again.trace)


# ---------------------------------------------------------------------- where there is no way


def test_without_a_compiler_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEWROUNDS_HOME", str(tmp_path))
    monkeypatch.setattr(programs.shutil, "which", lambda name: None)
    programs.has_compiler.cache_clear()
    method = fr.SCAFFOLD(**SETTINGS)
    result = run(method, True, progress=True)
    programs.has_compiler.cache_clear()
    torch.testing.assert_close(result.trace, run(method, False).trace, rtol=1e-11, atol=1e-11)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("fewrounds:")]
    assert lines == [
        "fewrounds: there is no C++ compiler (g++ or clang++), so steps run uncompiled, which is slower",
    ]


def test_a_model_that_looks_at_its_numbers_runs_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """Tracing would fix the way the model went the first time."""

    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            out = self.layer(X)
            return out if self.layer.weight.sum() > 0 else 2 * out

    case = classifier()
    torch.manual_seed(0)
    case.problem = fr.Problem(Branching(), loss=nn.functional.cross_entropy, dtype=torch.float64)
    case.x0 = None
    method = fr.LocalSGD(**SETTINGS)
    traced = run(method, Policy(How.TRACED), case, rows_at_once=1, progress=True)
    assert torch.equal(traced.trace, run(method, Policy(How.AS_IT_IS), case, rows_at_once=1).trace)
    assert "sgd_step cannot be traced" in capfd.readouterr().err


def test_a_model_that_changes_its_mind_runs_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    """Caught by comparing the program with the step on the first batch."""

    class Counting(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            Counting.calls += 1
            return self.layer(X) * (2 if Counting.calls % 2 else 1)

    step = fr.Problem(Counting(), loss=nn.functional.cross_entropy, dtype=torch.float64)

    def function(x: torch.Tensor, X: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [step.gradients(x, (X, y))]

    said: list[str] = []
    examples = [torch.randn(1, 21).double(), torch.randn(1, 4, 6).double(), torch.tensor([[0, 1, 2, 0]])]
    assert programs.build(function, examples, How.TRACED, "a step", said.append) is None
    assert said == ["a step gives other values when it is traced: it runs as it is, which is slower"]


# ---------------------------------------------------------------------- traced


@pytest.mark.parametrize("rows", [1, 2])
def test_a_convolution_with_a_constant(rows: int) -> None:
    problem, workers = image_case()
    plain, traced = (
        fr.train(problem, workers, fr.SCAFFOLD(**SETTINGS), 5, compile=Policy(how), progress=False, rows_at_once=rows)
        for how in (How.AS_IT_IS, How.TRACED)
    )
    torch.testing.assert_close(traced.x, plain.x, rtol=1e-11, atol=1e-11)


def test_the_digest_tells_constants_apart() -> None:
    """Two models with the same graph but another frozen buffer are not one program."""
    digests = set()
    for constant in (torch.zeros(3), torch.ones(3)):
        graph = programs._trace(lambda x: [x + constant], [torch.ones(3)])  # noqa: B023
        digests.add(programs._digest(graph, [torch.ones(3)]))
    assert len(digests) == 2


def test_wide_vectors_are_kept_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    flat = [run(method, Policy(How.AS_IT_IS)).trace for method in (fr.BVRLSGD(**SETTINGS), fr.SCAFFOLD(**SETTINGS))]
    monkeypatch.setattr("fewrounds.engine.loop.WIDE", 1)
    cut = [run(method, Policy(How.AS_IT_IS)).trace for method in (fr.BVRLSGD(**SETTINGS), fr.SCAFFOLD(**SETTINGS))]
    for a, b in zip(flat, cut, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


def test_a_parameter_without_use_stays() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.idle = nn.Linear(6, 3), nn.Parameter(torch.ones(2))

        def forward(self, X: torch.Tensor) -> torch.Tensor:
            return self.layer(X)

    case = classifier()
    problem = fr.Problem(Idle(), loss=nn.functional.cross_entropy, dtype=torch.float64)
    for how in (How.AS_IT_IS, How.TRACED):
        result = fr.train(
            problem, case.workers, fr.LocalSGD(**SETTINGS), 3, compile=Policy(how), progress=False, rows_at_once=2
        )
        assert result.model.idle.tolist() == [1, 1]


# ---------------------------------------------------------------------- when


@pytest.mark.parametrize(
    ("mode", "runs", "calls", "how"),
    [
        ("auto", 1, TRACING_PAYS - 1, How.AS_IT_IS),
        ("auto", 1, TRACING_PAYS, How.TRACED),
        ("auto", 1, COMPILING_PAYS - 1, How.TRACED),
        ("auto", 1, COMPILING_PAYS, How.COMPILED),
        ("auto", 20, COMPILING_PAYS // 20, How.COMPILED),
        (False, 1, 100 * COMPILING_PAYS, How.TRACED),
        (False, 1, 10, How.AS_IT_IS),
        (True, 1, 1, How.COMPILED),
    ],
)
def test_compiling_depends_on_counts_alone(mode: bool | str, runs: int, calls: int, how: How) -> None:
    assert Policy(mode, runs).how(calls) is how


@pytest.mark.parametrize("wrong", ["yes", 1, None, 0.5])
def test_a_wrong_setting_is_named(wrong: object) -> None:
    with pytest.raises(fr.SettingError, match="^compile = .*: must be 'auto', True or False$"):
        run(fr.LocalSGD(**SETTINGS), wrong)


def test_auto_compiles_in_a_long_run_only(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[How] = []

    def watched(function, examples, how: How, name: str, say, **options: object) -> None:
        asked.append(how)

    monkeypatch.setattr("fewrounds.engine.loop.build", watched)
    monkeypatch.setattr(programs, "TRACING_PAYS", 24)
    monkeypatch.setattr(programs, "COMPILING_PAYS", 72)
    method = fr.LocalSGD(**SETTINGS)
    for rounds, rows in ((5, 3), (6, 3), (6, 1)):  # 4 steps a round for each block of rows
        run(method, "auto", rounds=rounds, rows_at_once=rows)
    assert asked == [How.TRACED, How.COMPILED]


def test_evaluation_is_a_twelfth_of_the_gradients() -> None:
    worker, test = range(5000), range(10_000)
    # The paper's model: 10 workers × 5,000 samples; a round of Local SGD takes 10,240 gradients, an evaluation 55,000.
    assert default_cadence(3000, 1024, [worker] * 10, test) == math.ceil(12 * 55_000 / 10_240) == 65
    assert default_cadence(200, 1024, [worker] * 10, test) == 40, "five at least"
    assert default_cadence(20_000, 1024, [worker] * 10, test) == 200, "a hundred at most"
    assert default_cadence(3, 1024, [worker] * 10, test) == 1


def test_rows_that_only_the_tuning_rule_needs_have_no_gradient() -> None:
    rows = run(fr.LocalSGD(**SETTINGS), False, rounds=10, evaluate_every=4, evaluate_last=3).history
    assert rows["round"].tolist() == [0, 4, 8, 9, 10]
    assert rows["gradient_norm"].isna().tolist() == [False, False, False, True, False]
    assert rows["train_loss"].notna().all()
    assert rows["train_accuracy"].notna().all()
