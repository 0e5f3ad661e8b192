"""Faults of ranks under torchrun, and what they really exchange."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from fewrounds.silo.demo import free_port
from ranks import HERE, script, torchrun

pytestmark = pytest.mark.slow

SCAFFOLD, BVR = "fr.SCAFFOLD(eta=0.05, K=3, b=2)", "fr.BVRLSGD(eta=0.05, K=3, b=2)"

NOW = """
from fewrounds.engine.host import Host
from fewrounds.engine.team import Ranks
now, usual_begin = 0, Host.begin
def begin(self, round):
    global now
    now = round
    usual_begin(self, round)
Host.begin = begin
"""

KILL = """
usual = Ranks.{exchange}
def killed(self, *arguments):
    if now == 6 and {whom} and not os.path.exists({marker!r}):
        open({marker!r}, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return usual(self, *arguments)
Ranks.{exchange} = killed
"""

ENDED = """
def ended(kind, error, trace):
    with open(f"{folder}/ended-{{os.environ['RANK']}}", "w") as file:
        file.write(f"{{kind.__name__}} {{now}}")
sys.excepthook = ended
"""


def result_of(folder: Path) -> tuple[torch.Tensor, dict]:
    found = torch.load(folder / "out.pt")
    return found["trace"], found["ledger"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[torch.Tensor, dict]]:
    """By method: a run of two ranks to which nothing happens."""
    out = {}
    for method in (SCAFFOLD, BVR):
        folder = tmp_path_factory.mktemp("undisturbed")
        done = torchrun(2, script(folder, method))
        assert done.returncode == 0, done.stderr[-2000:]
        out[method] = result_of(folder)
    return out


def check_equal(found: tuple[torch.Tensor, dict], expected: tuple[torch.Tensor, dict]) -> None:
    assert torch.equal(found[0], expected[0]), "not the same bits"
    assert found[1] == expected[1]


@pytest.mark.parametrize(
    ("method", "exchange", "whom"),
    [
        (SCAFFOLD, "sum", "self.rank == 1"),
        (BVR, "sum", "self.rank == 1"),
        (BVR, "from_owner", "self.rank == self.owner(arguments[0])"),
        (BVR, "from_owner", "self.rank != self.owner(arguments[0])"),
    ],
    ids=["rank 1 before the mean, with memory", "rank 1 before the mean", "that of the picked worker", "the other"],
)
def test_a_rank_killed_in_the_midst_of_a_round_changes_nothing(
    method: str, exchange: str, whom: str, undisturbed: dict, tmp_path: Path
) -> None:
    marker = str(tmp_path / "killed")
    path = script(tmp_path, method, before=NOW + KILL.format(exchange=exchange, whom=whom, marker=marker))
    done = torchrun(2, path, options=("--max-restarts", "1"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert Path(marker).exists()
    check_equal(result_of(tmp_path), undisturbed[method])


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_of_two_machines_are_restarted_together(rank: int, undisturbed: dict, tmp_path: Path) -> None:
    """Two torchruns, each with its own count of restarts."""
    marker = str(tmp_path / "killed")
    kill = KILL.format(exchange="sum", whom=f"self.rank == {rank}", marker=marker)
    path = script(tmp_path, SCAFFOLD, before=NOW + kill)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "3",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", "two",
        "--local-addr", "127.0.0.1", str(path),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    machines = []
    for number in (0, 1):
        with (tmp_path / f"machine-{number}.log").open("w") as log:
            machines.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
    try:
        codes = [machine.wait(timeout=150) for machine in machines]
    finally:
        for machine in machines:
            if machine.poll() is None:
                machine.terminate()  # which ends its ranks
                machine.wait(timeout=60)
    assert codes == [0, 0], "\n".join(log.read_text()[-2000:] for log in tmp_path.glob("*.log"))
    assert Path(marker).exists()
    check_equal(result_of(tmp_path), undisturbed[SCAFFOLD])


def test_ctrl_c_saves_the_last_whole_round_of_all_ranks(undisturbed: dict, tmp_path: Path) -> None:
    """torchrun passes it on to its ranks, which notice at different moments and stop after the same round."""
    before = NOW + ENDED.format(folder=str(tmp_path)) + "import time\n"
    callback = f"lambda record: (time.sleep(0.3), record.round == 3 and open({str(tmp_path / 'third')!r}, 'w').close())"
    path = script(tmp_path, SCAFFOLD, before=before, callback=callback)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(path)]
    with (tmp_path / "log").open("w") as log:
        started = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    try:
        end = time.monotonic() + 90
        while not (tmp_path / "third").exists():
            assert time.monotonic() < end, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.02)
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=60) != 0
    finally:
        if started.poll() is None:
            started.terminate()
            started.wait(timeout=60)
    words = {(tmp_path / f"ended-{rank}").read_text() for rank in (0, 1)}
    assert len(words) == 1, words
    kind, done = words.pop().split()
    assert kind == "KeyboardInterrupt"
    assert 3 <= int(done) < 12
    newest = max((tmp_path / "saved").glob("round-*.json"))
    assert newest.stem == f"round-{int(done):08d}"
    again = torchrun(2, script(tmp_path, SCAFFOLD))
    assert again.returncode == 0, again.stderr[-2000:]
    check_equal(result_of(tmp_path), undisturbed[SCAFFOLD])


def test_what_the_ranks_exchange_is_what_the_ledger_counts(tmp_path: Path) -> None:
    """Message by message, as docs/cluster.md has it."""
    done = torchrun(3, HERE / "cluster" / "counted.py", tmp_path / "counted.json")
    assert done.returncode == 0, done.stderr[-2000:]
    P, itemsize = 7, 8
    for name, found in json.loads((tmp_path / "counted.json").read_text()).items():
        ledger, verbs, exchanges = found["ledger"], found["verbs"], found["exchanges"]
        d = ledger["vector_bytes"] // itemsize
        assert sum(up for _, _, up in verbs) == ledger["vectors_up"], name
        expected = []
        for verb, k, up in verbs:  # one that gives k vectors
            assert up % k == 0, name
            assert up <= k * (1 if verb == "at" else P), name
            if verb == "every":
                expected += [("broadcast", k * d), ("all_reduce", P)]
            else:
                expected.append(("all_reduce" if verb == "mean" else "broadcast", k * d + 2 * P))
        assert [(operation, size) for operation, size, _ in exchanges if size != 1] == expected, name
        told = sum(size == 1 for _, size, _ in exchanges)
        assert told <= found["tasks"], name
        # In bytes: the vectors, and no more than 2 P numbers a message.
        vectors = sum(k for _, k, _ in verbs) * ledger["vector_bytes"]
        moved = sum(size for _, _, size in exchanges)
        assert vectors <= moved <= vectors + 2 * P * itemsize * len(exchanges), name
        if name == "local-sgd":
            assert told == 0
            assert vectors == ledger["vectors_up"] * ledger["vector_bytes"] / P


def few_runs(folder: Path) -> Path:
    """An experiment of two runs."""
    from experiments import SMALL, write

    text = SMALL.replace("rounds = 12", "rounds = 3").replace("q = [0.1, 0.85]", "q = 0.85").partition("[tuning]")[0]
    return write(folder, text.replace('["local-sgd", "bvr-l-sgd"]', '"local-sgd"\neta = 0.05'))


def test_data_that_one_rank_lacks_fail_the_run_on_all(tmp_path: Path) -> None:
    """Each run is recorded, and the ranks go on to the next."""
    path = few_runs(tmp_path)
    done = torchrun(2, HERE / "cluster" / "a_bad_rank.py", "data", "run", path, "-o", tmp_path / "out")
    assert done.stderr.count("failed: local-sgd") == 2, done.stderr[-2000:]
    assert done.stderr.count("digits is not on this machine") >= 2


def test_an_error_in_a_round_of_one_rank_ends_all(tmp_path: Path) -> None:
    """The others wait for that rank in the midst of the round, so none can go on."""
    path = few_runs(tmp_path)
    done = torchrun(2, HERE / "cluster" / "a_bad_rank.py", "round 2", "run", path, "-o", tmp_path / "out")
    assert done.returncode != 0
    assert "fewrounds: rank 1: the loss cannot be computed here" in done.stderr.splitlines()
    again = torchrun(2, "-m", "fewrounds", "run", path, "-o", tmp_path / "out")
    assert again.returncode == 0, again.stderr[-2000:]
    assert "After the last round" in again.stdout
