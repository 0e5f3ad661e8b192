"""What a round costs beyond computing, under torchrun with 4 ranks and over 10 sites: `python benchmarks/engines.py`.

The model has the size of the paper's (d = 308,310) and a worker takes one step of one sample, so that next to nothing
is computed. Under torchrun the ranks run in turn rounds of the engine, and rounds in which each computes its own worker
alone and then takes part in one bare all-reduce of a vector: computing and transfer with nothing around them. The
difference is the engine's.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import measure
import torch
from torch.nn.functional import cross_entropy

import fewrounds as fr

HERE = Path(__file__).parent
ROUNDS, TURNS = 20, 6
RANKS, SITES = 4, 10


def problem() -> fr.Problem:
    torch.manual_seed(0)
    return fr.Problem(fr.models.mlp([3072, 100, 10]), loss=cross_entropy, l2=5e-3)


def data(p: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(p)
    return torch.randn(8, 3072, generator=generator), torch.randint(10, (8,), generator=generator)


def round_seconds(workers: int, engine: str, mine: int = 0, after: Callable[[], object] = lambda: None) -> float:
    """Median seconds of a round of Local SGD, and of what comes after it."""
    ends: list[float] = []

    def note(record: fr.RoundRecord) -> None:
        after()
        ends.append(time.perf_counter())

    asked = data if engine == "torchrun" else (lambda p: data(mine))
    fr.train(
        problem(), asked, fr.LocalSGD(eta=0.001, K=1, b=1), ROUNDS + 2, num_workers=workers, engine=engine,
        evaluate_every=10**9, compile=False, progress=False, callbacks=[note],
    )  # fmt: skip
    if not ends:  # callbacks are rank 0's
        return 0.0
    return statistics.median(after - before for before, after in itertools.pairwise(ends[1:-1]))


def rank() -> None:
    """One rank; rank 0 prints."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    round_seconds(RANKS, "torchrun")  # connected and warm
    mine, size = dist.get_rank(), dist.get_world_size()
    together, alone = [], []
    vector = torch.zeros_like(problem().start)
    for _ in range(TURNS):
        dist.barrier()
        together.append(round_seconds(RANKS, "torchrun"))
        dist.barrier()
        alone.append(round_seconds(1, "in-process", mine, lambda: dist.all_reduce(vector)))
    if mine == 0:
        found = {
            "round": together,
            "computing and one all-reduce": alone,
            "overhead": [a - b for a, b in zip(together, alone, strict=True)],
        }
        medians = {name: 1e3 * statistics.median(values) for name, values in found.items()}
        print(json.dumps({"ranks": size, "milliseconds": medians}))
    dist.destroy_process_group()


def torchrun() -> dict[str, object]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    done = subprocess.run([*command, __file__, "rank"], check=True, capture_output=True, text=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


SITE = """import sys
sys.path.insert(0, {here!r})
import engines


def problem():
    return engines.problem()


def data():
    return engines.data({number})
"""

FILE = """name = "bench"
sites = {sites}
[server]
port = {port}
[train]
method = "local-sgd"
rounds = 30
evaluate_every = 30
compile = false
[method]
eta = 0.001
K = 1
b = 1
"""


def silo() -> dict[str, object]:
    """Ten sites on this machine: a round is the exchange of one vector each way with each of them."""
    from fewrounds.silo import control, demo
    from fewrounds.silo.provision import provision
    from fewrounds.silo.settings import load_silo

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        names = [f"site-{number}" for number in range(SITES)]
        file = folder / "silo.toml"
        file.write_text(FILE.format(sites=json.dumps(names), port=demo.free_port()))
        settings = load_silo(file)
        kits = folder / "bench-kits"
        provision(settings, kits)
        for number, name in enumerate(names):
            (kits / name / "site.py").write_text(SITE.format(here=str(HERE), number=number))
        with demo.started(kits, ["server", *names]):
            outcome = control.run(
                settings, kits / "coordinator", folder / "out", lambda text: None, lambda progress: None
            )
    a_round = outcome["rows"][-1]["seconds"] / settings.train.rounds
    return {"sites": SITES, "seconds a round": a_round}


def engines() -> dict[str, object]:
    with measure.alone():
        return {"torchrun": torchrun(), "silo": silo()}


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        rank()
    else:
        print(json.dumps(engines(), indent=1))
