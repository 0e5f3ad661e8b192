"""The table of speeds: every figure a ratio to a plain PyTorch loop, measured in turn with it. `make bench` runs this.

What a part measures (w1, w2, w3, grid_w1, grid_w3, scaling, start, evaluation, profile) is kept in results.json, so
that parts can be measured one at a time: `python benchmarks/run.py w1 w3`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import numpy as np
import plain
import torch
import works
from plain import tensors
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fewrounds as fr
from fewrounds.engine.programs import How, Policy

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"


def matrix_products(inputs: int, *batches: tuple[int, int]) -> Callable[[], None]:
    """The products of gradients of an MLP inputs–100–10 and nothing else: what no system can be faster than.

    The batches are (samples in a batch, number of such batches).
    """
    W1, W2 = torch.randn(100, inputs), torch.randn(10, 100)
    out = torch.empty(100, inputs)
    factors = [
        (torch.randn(b, inputs), torch.randn(b, 100), torch.randn(b, 100), torch.randn(b, 10), count)
        for b, count in batches
    ]

    def run() -> None:
        for X, h, d1, d2, count in factors:
            for _ in range(count):
                torch.mm(X, W1.t())
                torch.mm(d1.t(), X, out=out)
                torch.mm(h, W2.t())
                torch.mm(d2.t(), h)
                torch.mm(d2, W2)

    return run


def local_sgd(work: works.Work, **settings: Any) -> fr.Method:
    return fr.LocalSGD(eta=work.eta, K=work.K, b=work.b, **settings)


def bvr_l_sgd(work: works.Work) -> fr.Method:
    return fr.BVRLSGD(eta=work.eta, K=work.K, b=work.b)


# ---------------------------------------------------------------------- one core


PROCESSES = 3
"""Ratios differ between processes by some percent (where memory happens to lie): the median of so many is given."""


def w1() -> dict[str, Any]:
    return {**several("w1_compiled"), **w1_not_compiled()}


def w2() -> dict[str, Any]:
    return several("w2_once")


def several(name: str) -> dict[str, Any]:
    """The measurement of this name, each time in a process of its own; of each figure the one with the median ratio."""
    command = [sys.executable, "-c", f"import json, run; run.alone_on_a_core(); print(json.dumps(run.{name}()))"]
    found = []
    for _ in range(PROCESSES):
        done = subprocess.run(command, check=True, cwd=HERE, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout))
    out = {}
    for key in found[0]:
        runs = sorted((one[key] for one in found), key=lambda one: float(one["ratio"]))
        out[key] = {**runs[len(runs) // 2], "ratios": [one["ratio"] for one in runs]}
    return out


def alone_on_a_core() -> None:
    torch.set_num_threads(1)


def w1_loops() -> tuple[fr.Problem, list[tuple[Tensor, Tensor]], dict[str, Callable[[], None]]]:
    work, data = works.W1, tensors(works.W1)
    problem = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=work.l2)
    loops = {
        "plain": plain.LocalSGDLoop(plain.w1_model(), data, work).round,
        "plain, default step": plain.LocalSGDLoop(plain.w1_model(), data, work, fused=False).round,
        "matrix products": matrix_products(3072, (work.b, work.steps)),
    }
    return problem, data, loops


def w1_compiled() -> dict[str, Any]:
    problem, data, loops = w1_loops()
    return {
        "local-sgd": ratio(measure.against(loops, problem, data, local_sgd(works.W1), 9, compile=True)),
        "bvr-l-sgd": ratio(measure.against(loops, problem, data, bvr_l_sgd(works.W1), 9, compile=True)),
    }


def w1_not_compiled() -> dict[str, Any]:
    problem, data, loops = w1_loops()
    return {
        "local-sgd, not compiled": ratio(measure.against(loops, problem, data, local_sgd(works.W1), 5, compile=TRACED)),
        "bvr-l-sgd, not compiled": ratio(measure.against(loops, problem, data, bvr_l_sgd(works.W1), 5, compile=TRACED)),
    }


def w2_once() -> dict[str, Any]:
    work, data = works.W2, tensors(works.W2)
    problem = fr.Problem(plain.w2_model(), loss=cross_entropy)
    loops = {"plain": plain.LocalSGDLoop(plain.w2_model(), data, work).round}
    method = local_sgd(work, participants=work.participants)
    return {
        "local-sgd": ratio(measure.against(loops, problem, data, method, 3, compile=True)),
        "local-sgd, not compiled": ratio(measure.against(loops, problem, data, method, 2, compile=TRACED)),
    }


def ratio(found: dict[str, float]) -> dict[str, Any]:
    seconds = {name: value for name, value in found.items() if name != "ratio"}
    return {"ratio": found.get("ratio", seconds["ours"] / seconds["plain"]), "seconds": seconds}


def w3() -> dict[str, Any]:
    """All five methods, each against its own plain loop; the total is the sum of the five."""
    work, data = works.W3, tensors(works.W3)
    problem = fr.Problem(plain.w3_model(), loss=cross_entropy, l2=work.l2)
    n = work.K * work.b
    T = 1 + -(-work.samples // n)
    small, large = (work.b, work.steps), (n, work.workers)
    methods = {
        "minibatch_sgd": (fr.MinibatchSGD(eta=work.eta, b=n), [large]),
        "sarah": (fr.SARAH(eta=work.eta, b=n), [large, large]),
        "local_sgd": (local_sgd(work), [small]),
        "scaffold": (fr.SCAFFOLD(eta=work.eta, K=work.K, b=work.b), [small]),
        "bvr_l_sgd": (bvr_l_sgd(work), [large, large, (work.b, 2 * (work.K - 1))]),
    }
    out: dict[str, Any] = {}
    for label, how in (("compiled", True), ("not compiled", TRACED)):
        sums = {"ours": 0.0, "plain": 0.0, "matrix products": 0.0}
        for name, (method, batches) in methods.items():
            loop: Callable[[], None]
            if name == "local_sgd":
                loop = plain.LocalSGDLoop(plain.w3_model(), data, work).round
            else:
                loop = getattr(plain.OtherLoops(plain.w3_model, data, work, T), name)
            others = {"plain": loop, "matrix products": matrix_products(64, *batches)}
            t = measure.against(others, problem, data, method, 40, period=T, compile=how)
            out[f"{name.replace('_', '-')}, {label}"] = ratio(t)
            sums = {key: sums[key] + t[key] for key in sums}
        out[f"all five, {label}"] = ratio(sums)
    return out


TRACED = Policy(How.TRACED)

# ---------------------------------------------------------------------- grids on two cores


GRID = """
name = "bench"
[data]
source = "{source}"
[partition]
kind = "iid"
workers = 10
[model]
hidden = [100]
l2 = 0.005
[train]
method = "local-sgd"
rounds = {rounds}
eta = {eta}
seed = {seeds}
[methods.local-sgd]
K = {K}
b = {b}
"""


def grid_w1() -> dict[str, Any]:
    return grid("w1", works.W1, plain.w1_model, [0.01], [0, 1, 2, 3], rounds=300)


def grid_w3() -> dict[str, Any]:
    return grid("w3", works.W3, plain.w3_model, [0.005, 0.01, 0.05, 0.1, 0.5, 1.0], [0, 1, 2, 3, 4], rounds=600)


def grid(
    name: str, work: works.Work, model: Callable[[], nn.Module], etas: list[float], seeds: list[int], rounds: int
) -> dict[str, Any]:
    """A whole experiment through `fewrounds run`: starting processes, loading, evaluating and saving included."""
    data = tensors(work)
    loop = plain.LocalSGDLoop(model(), data, work)
    few = 3 if name == "w1" else 20
    with tempfile.TemporaryDirectory() as folder, measure.alone():
        X, y = (np.concatenate([part[i].numpy() for part in data]) for i in (0, 1))
        fifth = len(y) // 5
        np.savez(Path(folder) / "data.npz", x_train=X, y_train=y, x_test=X[:fifth], y_test=y[:fifth])
        text = GRID.format(source=f"{folder}/data.npz", rounds=rounds, eta=etas, seeds=seeds, K=work.K, b=work.b)
        (Path(folder) / "bench.toml").write_text(text)
        command = [sys.executable, "-m", "fewrounds", "run", "bench.toml", "--compile", "-j", "2", "--output"]
        warm = [*command, "warm", "--set", "train.rounds=1", "--set", f"train.seed={seeds[:2]}"]
        quiet = {"cwd": folder, "check": True, "capture_output": True}
        subprocess.run(warm, **quiet)  # data into the cache, steps compiled
        plain_before = [measure.timed(loop.round) for _ in range(few)]
        seconds = measure.timed(lambda: subprocess.run([*command, "out"], **quiet))
        plain_times = plain_before + [measure.timed(loop.round) for _ in range(few)]
        two = two_plain_processes(name, few)
    runs = len(etas) * len(seeds)
    one = seconds / (runs * rounds)
    usual = float(np.median(plain_times))
    times = {"ours": one, "plain": usual, "two plain processes": two, "whole grid": seconds}
    found = {"ratio": one / usual, "seconds": times}
    return {f"{name}, {runs} runs of {rounds} rounds": found}


def two_plain_processes(name: str, rounds: int) -> float:
    """Seconds a round of the plain loop takes when two of them run side by side, halved: what two cores can do."""
    code = f"import run; print(run.plain_rounds({name!r}, {rounds}))"
    command = [sys.executable, "-c", code]
    both = [subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    return sum(float(process.communicate()[0]) for process in both) / 2 / 2


def plain_rounds(name: str, rounds: int) -> float:
    """Median seconds of a plain round, beside another process that does the same."""
    alone_on_a_core()
    work, model = {"w1": (works.W1, plain.w1_model), "w3": (works.W3, plain.w3_model)}[name]
    loop = plain.LocalSGDLoop(model(), tensors(work), work)
    return float(np.median([measure.timed(loop.round) for _ in range(4 * rounds)][rounds:]))


# ---------------------------------------------------------------------- growth


def scaling() -> dict[str, Any]:
    """Time a worker and round, and memory beyond the data, from 10 to 1,000 workers at equal total work."""
    out = {}
    for method in ("local-sgd", "minibatch-sgd", "sarah", "bvr-l-sgd", "scaffold"):
        for P in (10, 100, 1000):
            command = [sys.executable, str(HERE / "scaling.py"), method, str(P)]
            with measure.alone():
                done = subprocess.run(command, check=True, capture_output=True, text=True)
            out[f"{method}, P = {P}"] = json.loads(done.stdout)
    return out


# ---------------------------------------------------------------------- starting, evaluating


def start() -> dict[str, Any]:
    """Seconds until `fewrounds --help` has answered, and imports, in turn."""
    commands = {
        "fewrounds --help": ["-m", "fewrounds", "--help"],
        "import fewrounds": ["-c", "import fewrounds"],
        "import fewrounds; fewrounds.train": ["-c", "import fewrounds; fewrounds.train"],
        "import torch": ["-c", "import torch"],
        "import torch, numpy": ["-c", "import torch, numpy"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    with measure.alone():
        for _ in range(6):
            for name, arguments in commands.items():
                run = [sys.executable, *arguments]
                times[name].append(measure.timed(lambda: subprocess.run(run, check=True, capture_output=True)))  # noqa: B023
    return {
        **{name: {"seconds": float(np.median(values[1:]))} for name, values in times.items()},
        "compiling W1's step of Local SGD, once for a machine": {"seconds": _compiling()},
    }


def _compiling() -> float:
    """Seconds that it takes to compile the step of W1 where nothing has been compiled before."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "FEWROUNDS_HOME": folder, "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor"}
        command = [sys.executable, "-c", "import run; print(run.compile_once())"]
        done = subprocess.run(command, check=True, env=environment, cwd=HERE, stdout=subprocess.PIPE)
    return float(done.stdout)


def compile_once() -> float:
    """Seconds that a run of W1 spends on compiling."""
    from fewrounds.engine import programs

    spent = 0.0
    build = programs._build

    def clocked(*arguments: Any) -> None:
        nonlocal spent
        spent += measure.timed(lambda: build(*arguments))

    programs._build = clocked
    alone_on_a_core()
    problem, data = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=works.W1.l2), tensors(works.W1)
    fr.train(problem, data, local_sgd(works.W1), 1, compile=True, progress=False)
    return spent


def evaluation() -> dict[str, Any]:
    """W1 with a test set of 10,000 at the default cadence: the share of the time that evaluation takes."""
    work, data = works.W1, tensors(works.W1)
    test = (torch.cat([X[:1000] for X, _ in data]), torch.cat([y[:1000] for _, y in data]))
    problem = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=work.l2)
    out = {}
    for method in (local_sgd(work), bvr_l_sgd(work)):
        fr.train(problem, data, method, 2, test=test, compile=True, progress=False)  # compiled, and in the cache
        with measure.alone():
            began = time.perf_counter()
            ends: list[float] = []
            result = fr.train(
                problem, data, method, 216, test=test, compile=True, progress=False,
                callbacks=[lambda record: ends.append(time.perf_counter())],  # noqa: B023
            )  # fmt: skip
        whole, training = ends[-1] - began, result.rows[-1]["seconds"]
        rows = [row["round"] for row in result.rows]
        out[method.name] = {"share": (whole - training) / whole, "evaluated": rows, "seconds": whole}
    return out


def profile() -> dict[str, Any]:
    """Where the time of a step of W1 goes: the parts of the engine under a clock, and the bare products beside them."""
    from fewrounds.data import shards
    from fewrounds.engine import host, loop, products, programs

    spent: dict[str, float] = {}

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            out = function(*arguments, **options)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
            return out

        return run

    def gather(*arguments: Any) -> Any:
        batches = shards.gather(*arguments)
        while (z := clocked("gather", next)(batches, None)) is not None:
            yield z

    load = programs._load
    changed = [
        (host, "gather", gather),
        (loop.Loop, "step", clocked("step", loop.Loop.step)),
        (products.Sum, "__call__", clocked("product", products.Sum.__call__)),
        (programs, "_load", lambda package: clocked("program", load(package))),
        (programs, "_loaded", {}),
    ]
    work, data, rounds = works.W1, tensors(works.W1), 12
    problem = fr.Problem(plain.w1_model(), loss=cross_entropy, l2=work.l2)
    products_alone = matrix_products(3072, (work.b, work.steps))
    whole: list[float] = []
    bare: list[float] = []

    def after_round(record: fr.RoundRecord) -> None:
        nonlocal began
        if record.round == 2:
            spent.clear()  # tracing and loading
        elif record.round > 2:
            whole.append(time.perf_counter() - began)
        bare.append(measure.timed(products_alone))
        began = time.perf_counter()

    began = 0.0
    usual = [(where, name, getattr(where, name)) for where, name, _ in changed]
    try:
        for where, name, new in changed:
            setattr(where, name, new)
        with measure.without_evaluation():
            fr.train(
                problem, data, local_sgd(work), rounds + 2, compile=True, progress=False, evaluate_every=10**9,
                callbacks=[after_round],
            )  # fmt: skip
    finally:
        for where, name, old in usual:
            setattr(where, name, old)
    steps = rounds * work.steps
    a_step = {name: value / steps for name, value in spent.items()}
    a_round = sum(whole) / steps
    return {
        "the whole step": a_round,
        "gathering its batch": a_step["gather"],
        "the compiled program: forward product, activations, loss, small layers": a_step["program"],
        "the product that adds the gradient to the weights": a_step["product"],
        "handing tensors over, in Python": a_step["step"] - a_step["program"] - a_step["product"],
        "the rest: drawing, averaging, the ledger": a_round - a_step["gather"] - a_step["step"],
        "for comparison: its bare matrix products": sum(bare) / len(bare) / work.steps,
    }


PARTS = {f.__name__: f for f in (w1, w2, w3, grid_w1, grid_w3, scaling, start, evaluation, profile)}


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {"cpu": cpu, "cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}


def main() -> None:
    wanted = sys.argv[1:] or list(PARTS)
    unknown = [name for name in wanted if name not in PARTS]
    if unknown:
        print(f"there is no part {unknown[0]!r}; the parts are {', '.join(PARTS)}", file=sys.stderr)
        sys.exit(2)
    torch.set_num_threads(1)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in wanted:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        results[name] = PARTS[name]()
        results["machine"] = machine()
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    import page

    page.show(results)


if __name__ == "__main__":
    assert isinstance(plain.w1_model(), nn.Module)
    main()
