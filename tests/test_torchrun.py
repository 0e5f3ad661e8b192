"""The same method files under torchrun: real processes, killed and continued."""

from __future__ import annotations

import math
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
import torch

from fewrounds.engine.team import Ranks, common_name
from fewrounds.errors import DataError, FewroundsError, SettingError, raised_everywhere
from fewrounds.problem import of_this_rank
from ranks import HERE, ROOT, script, torchrun, whole


@pytest.fixture(scope="module")
def alone() -> dict:
    from cluster.every_method import runs

    return runs("in-process")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_method_has_the_same_iterates(ranks: int, alone: dict, tmp_path: Path) -> None:
    done = torchrun(ranks, HERE / "cluster" / "every_method.py", tmp_path / "out.pt")
    assert done.returncode == 0, done.stderr[-2000:]
    found = torch.load(tmp_path / "out.pt")
    assert found["traces"].keys() == alone.keys()
    for name, result in alone.items():
        torch.testing.assert_close(found["traces"][name], result.trace, rtol=1e-10, atol=1e-10, msg=name)
        ledger, rows = found["rest"][name]
        assert ledger == result.ledger.to_json(), name
        for mine, theirs in zip(result.rows, rows, strict=True):
            for column in set(mine) - {"seconds"}:
                same = math.isclose(mine[column], theirs[column], rel_tol=1e-9, abs_tol=1e-12)
                assert same or (math.isnan(mine[column]) and math.isnan(theirs[column])), (name, column)


KILL = """
def kill(record):
    marker = {marker!r}
    if record.round == 5 and not os.path.exists(marker):
        open(marker, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("method", ["fr.SCAFFOLD(eta=0.05, K=3, b=2)", "fr.BVRLSGD(eta=0.05, K=3, b=2)"])
def test_a_killed_rank_is_restarted_and_goes_on(method: str, tmp_path: Path) -> None:
    """--max-restarts starts all ranks anew; the memory of the workers comes back from rank 0's checkpoint."""
    path = script(tmp_path, method, before=KILL.format(marker=str(tmp_path / "killed")), callback="kill")
    done = torchrun(2, path, options=("--max-restarts", "1"))
    assert done.returncode == 0, done.stderr[-2000:]
    assert (tmp_path / "killed").exists()
    found, expected = torch.load(tmp_path / "out.pt"), whole(method)
    torch.testing.assert_close(found["trace"], expected.trace, rtol=1e-10, atol=1e-10)
    assert found["ledger"] == expected.ledger.to_json()


def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    """And in one process: a checkpoint does not know who hosted whom."""
    import fewrounds as fr
    from problems import classifier

    method = "fr.SCAFFOLD(eta=0.05, K=3, b=2)"
    case = classifier((7, 4, 9, 3, 5))
    options = {"x0": case.x0, "seed": 1, "trace": True, "progress": False, "checkpoint": tmp_path / "saved"}
    fr.train(case.problem, case.workers, eval(method), 4, **options)
    done = torchrun(3, script(tmp_path, method))
    assert done.returncode == 0, done.stderr[-2000:]
    longer = fr.train(case.problem, case.workers, eval(method), 15, **options)
    expected = whole(method)
    torch.testing.assert_close(longer.trace[:13], expected.trace, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("case.workers[3] = (case.workers[3][0] * float('nan'), case.workers[3][1])", "worker 3, array 0, row 0: NaN or infinite value"),
        ("case.workers[4] = (case.workers[4][0][:, :5], case.workers[4][1])", "worker 4 has samples (float64[5], int64[])"),
        ("case.workers[1::2] = [(X[:, :5], y) for X, y in case.workers[1::2]]", "rank 1 has another kind of samples than rank 0"),
        ("case.workers = case.workers[:1]", "there are 2 processes, but only 1 workers: start at most 1"),
        ("import random; case.problem.l2 = 0.01 * (1 + int(os.environ['RANK']))", "rank 1 has another problem than rank 0"),
    ],
    ids=["nan", "shape", "shape of all on a rank", "too few workers", "another problem"],
)  # fmt: skip
def test_a_mistake_on_one_rank_is_one_line_and_stops_all(before: str, message: str, tmp_path: Path) -> None:
    before += """
import fewrounds.errors
def stop(kind, error, trace):
    print(f"rank {os.environ['RANK']} says {kind.__name__}: {error}", file=sys.stderr)
sys.excepthook = stop
"""
    done = torchrun(2, script(tmp_path, "fr.LocalSGD(eta=0.05, K=3, b=2)", before=before))
    assert done.returncode != 0
    said = [
        line for line in done.stderr.splitlines() if " says " in line
    ]  # torchrun may end the other before it speaks
    assert said, done.stderr[-2000:]
    assert all(message in line for line in said), said
    assert not (tmp_path / "out.pt").exists()


def test_without_torchrun_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import fewrounds as fr
    from problems import classifier

    monkeypatch.delenv("RANK", raising=False)
    case = classifier()
    with pytest.raises(fr.SettingError, match="this process was not started by torchrun"):
        fr.train(case.problem, case.workers, fr.LocalSGD(eta=0.05, K=3, b=2), 2, engine="torchrun")
    with pytest.raises(fr.SettingError, match="engine = 'mpi': must be 'in-process' or 'torchrun'"):
        fr.train(case.problem, case.workers, fr.LocalSGD(eta=0.05, K=3, b=2), 2, engine="mpi")


class Rank(Ranks):
    """Rank 1 of two, with what rank 0 has to say."""

    def __init__(self, said: object) -> None:
        self.rank, self.size, self._said = 1, 2, said

    def gather(self, value: object) -> list:
        return [self._said, value]


def test_what_one_rank_refuses_all_refuse() -> None:
    assert Rank(None).together(lambda: 3) == 3
    with pytest.raises(DataError, match="^no such row$") as found:
        Rank((DataError, "no such row")).together(lambda: 3)
    assert raised_everywhere(found.value)
    with pytest.raises(ZeroDivisionError) as found:  # its own: with the line at fault
        Rank(None).together(lambda: 1 / 0)
    assert raised_everywhere(found.value)
    assert Rank(None)._told(found.value) == (FewroundsError, "rank 1: ZeroDivisionError: division by zero")
    assert not raised_everywhere(DataError("no such row"))


def test_ranks_agree_on_a_name_that_the_dead_did_not_know() -> None:
    """The store has what earlier ranks have left, at whatever point they were killed."""
    store = torch.distributed.HashStore()
    store.set("rank 1", "a dead one's word")
    store.set("rank 2", "another's")
    store.set("for another's", "the name of the dead")
    names = []
    for _ in range(3):  # restarts
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda rank: common_name(store, rank, 3, patience=20.0), (2, 0, 1)))
        assert len(set(found)) == 1
        names.append(found[0])
    assert len({*names, "the name of the dead"}) == 4
    assert common_name(store, 0, 1) not in names
    with pytest.raises(SettingError, match="rank 3 has not come within 2 s"), ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda rank: common_name(store, rank, 4, patience=2.0), (0, 1, 2)))


def test_cuda_is_the_gpu_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert of_this_rank(torch.device("cuda")) == torch.device("cuda")
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert of_this_rank(torch.device("cuda")) == torch.device("cuda:2")
    assert of_this_rank(torch.device("cuda:1")) == torch.device("cuda:1")
    assert of_this_rank(torch.device("cpu")) == torch.device("cpu")


@pytest.mark.slow
def test_an_experiment_under_torchrun(tmp_path: Path) -> None:
    """The command itself, with every run trained by three ranks; the same frame as without."""
    from experiments import SMALL, fewrounds, tidy, write

    text = SMALL.replace("rounds = 12", "rounds = 4").replace("q = [0.1, 0.85]", "q = 0.85")
    text = text.replace("evaluate_every = 4", 'evaluate_every = 2\ndtype = "float64"')
    path = write(tmp_path, text)
    done = torchrun(3, "-m", "fewrounds", "run", path, "-o", tmp_path / "three")
    assert done.returncode == 0, done.stderr[-2000:]
    assert fewrounds("run", path, "-o", tmp_path / "one").returncode == 0
    columns = [c for c in tidy(tmp_path / "one") if c != "gradient_norm"]
    pd.testing.assert_frame_equal(tidy(tmp_path / "three")[columns], tidy(tmp_path / "one")[columns], rtol=1e-9)
    table, plain = (
        out.stdout.partition("After the last round")[2]
        for out in (done, fewrounds("run", path, "-o", tmp_path / "one"))
    )
    assert table.splitlines()[:6] == plain.splitlines()[:6], "rank 0 alone prints it"
    assert done.stdout.count("After the last round") == 1
    again = torchrun(2, "-m", "fewrounds", "run", path, "-o", tmp_path / "three")
    assert again.returncode == 0, again.stderr[-2000:]


def test_the_page_on_clusters_does_what_it_says(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    name = code.splitlines()[0].removeprefix("# ")
    (tmp_path / name).write_text(code)
    commands = [line.removeprefix("$ ") for line in page.splitlines() if line.startswith("$ ")]
    assert len(commands) == 2
    shown = [line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("$ torchrun")]
    assert shown == [f"$ {commands[0]}"]
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "torchrun"
        done = torchrun(None, *arguments, cwd=tmp_path)
        assert done.returncode == 0, f"{command}\n{done.stderr[-2000:]}"
        assert "train loss" in done.stdout
