"""What a round costs beyond computing, under torchrun with 4 ranks and over 10 sites: `python benchmarks/engines.py`.

The model has the size of the paper's (d = 308,310) and a worker takes one step of one sample, so that next to nothing
is computed. Under torchrun the ranks take turns with three things: rounds of the engine; a bare loop, which is the
plain PyTorch loop of plain.py on the rank's own worker and one all-reduce of the parameters as one vector; and that
loop without the all-reduce. The engine's is what a round takes beyond the bare loop. Over sites nothing is taken off:
a round is all that happens between the checkpoints of two rounds, which are on disk when the next one starts.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import measure
import torch
from plain import LocalSGDLoop, w1_model
from torch.nn.functional import cross_entropy
from works import Work

import fewrounds as fr

HERE = Path(__file__).parent
ROUNDS, TURNS = 20, 6
RANKS, SITES = 4, 10
WORK = Work(workers=1, samples=8, shape=(3072,), participants=1, K=1, b=1, eta=0.001, l2=5e-3)
"""Of one rank or site."""


def problem() -> fr.Problem:
    torch.manual_seed(0)
    return fr.Problem(fr.models.mlp([3072, 100, 10]), loss=cross_entropy, l2=5e-3)


def data(p: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(p)
    n = WORK.samples
    return torch.randn(n, *WORK.shape, generator=generator), torch.randint(10, (n,), generator=generator)


def round_seconds() -> float:
    """Median seconds of a round of Local SGD by all ranks."""
    ends: list[float] = []
    fr.train(
        problem(), data, fr.LocalSGD(eta=WORK.eta, K=WORK.K, b=WORK.b), ROUNDS + 2, num_workers=RANKS,
        engine="torchrun", evaluate_every=10**9, compile=False, progress=False,
        callbacks=[lambda record: ends.append(time.perf_counter())],
    )  # fmt: skip
    return between(ends[1:-1])  # the last round is evaluated


def between(ends: list[float]) -> float:
    """The median of the times from one to the next; 0 on a rank that has none (callbacks are rank 0's)."""
    return statistics.median(after - before for before, after in itertools.pairwise(ends)) if ends else 0.0


def bare_seconds(mine: int, exchange: Callable[[torch.Tensor], object]) -> float:
    """Median seconds of a round of the bare loop."""
    loop = LocalSGDLoop(w1_model(), [data(mine)], WORK)
    ends: list[float] = []
    for _ in range(ROUNDS + 1):
        loop.round()
        flat = torch.nn.utils.parameters_to_vector(loop.server)
        exchange(flat)
        flat /= RANKS
        torch.nn.utils.vector_to_parameters(flat, loop.server)
        ends.append(time.perf_counter())
    return between(ends)


def rank() -> None:
    """One rank; rank 0 prints."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    round_seconds()  # connected and warm
    mine, size = dist.get_rank(), dist.get_world_size()
    turns = {
        "a round": round_seconds,
        "bare loop": lambda: bare_seconds(mine, dist.all_reduce),
        "bare loop without its all-reduce": lambda: bare_seconds(mine, lambda flat: None),
    }
    found: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(TURNS):
        for name, turn in turns.items():
            dist.barrier()
            found[name].append(turn())
    found["the engine"] = [a - b for a, b in zip(found["a round"], found["bare loop"], strict=True)]
    if mine == 0:
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
        with demo.started(kits, ["server", *names]), checkpoint_times(kits / "server") as times:
            control.run(settings, kits / "coordinator", folder / "out", lambda text: None, lambda progress: None)
    ends = [times[name] for name in sorted(times)]
    if len(ends) < settings.train.rounds:
        raise RuntimeError(f"of {settings.train.rounds} checkpoints only {len(ends)} were seen")
    return {"sites": SITES, "seconds a round": between(ends[1:-1])}


@contextlib.contextmanager
def checkpoint_times(folder: Path) -> Iterator[dict[str, float]]:
    """When each checkpoint under the folder was written; a run keeps two of them, so they are watched for."""
    times: dict[str, float] = {}
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.05):
            for path in folder.rglob("round-*.json"):
                with contextlib.suppress(FileNotFoundError):
                    times[path.name] = path.stat().st_mtime

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield times
    finally:
        stop.set()
        thread.join()


def engines() -> dict[str, object]:
    with measure.alone():
        return {"torchrun": torchrun(), "silo": silo()}


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        rank()
    else:
        print(json.dumps(engines(), indent=1))
