"""Checkpoints: exact after kill -9 at any moment, safe against damage, mistakes and other runs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import fewrounds as fr
from problems import classifier, quadratic

SCAFFOLD = fr.SCAFFOLD(eta=0.05, K=2, b=2)
BVR = fr.BVRLSGD(eta=0.05, K=2, b=2)
KINDS = ("json", "memory-0000.safetensors", "safetensors")
"""The files of one checkpoint, sorted: SCAFFOLD's workers have memory."""


def run(folder: Path | None, rounds: int = 12, method: fr.Method = SCAFFOLD, case=None, **options) -> fr.Result:
    case = case or classifier()
    options = {"progress": False, "checkpoint_every": 2, "evaluate_every": 1, **options}
    return fr.train(case.problem, case.workers, method, rounds, checkpoint=folder, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def test_two_checkpoints_are_kept_and_nothing_else(tmp_path: Path) -> None:
    run(tmp_path, 11)
    stems = ("round-00000010", "round-00000011")
    assert names(tmp_path) == [f"{stem}.{kind}" for stem in stems for kind in KINDS]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    first = run(tmp_path)
    rounds: list[object] = []
    again = run(tmp_path, callbacks=[rounds.append])
    assert rounds == []
    assert torch.equal(first.x, again.x)
    assert first.history.equals(again.history), "seconds too"


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    run(tmp_path, 5)
    assert torch.equal(run(tmp_path, 12).x, run(None, 12).x)
    with pytest.raises(fr.SettingError, match="rounds = 5, but the checkpoint is at round 12 already"):
        run(tmp_path, 5)


def test_a_diverged_run_stays_diverged(tmp_path: Path) -> None:
    case = quadratic()
    method = fr.MinibatchSGD(eta=1e6, b=2)
    first = run(tmp_path, 300, method, case)
    again = run(tmp_path, 300, method, case)
    assert first.outcome == again.outcome == "diverged"
    assert len(first.history) == len(again.history)


def test_checkpoints_by_time(tmp_path: Path) -> None:
    run(tmp_path, 4, checkpoint_every=None, checkpoint_seconds=0.0)
    assert names(tmp_path)[0] == "round-00000003.json", "every round was saved, the last two are kept"


def test_a_checkpoint_holds_no_code(tmp_path: Path) -> None:
    """Only safetensors and JSON: nothing that a reader could execute."""
    run(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
        assert {entry["dtype"] for entry in header.values()} <= {"F64", "F32"}
    for path in tmp_path.glob("*.json"):
        json.loads(path.read_text())


# ---------------------------------------------------------------------- damage


def damage(path: Path, how: str) -> None:
    blob = bytearray(path.read_bytes())
    if how == "truncated":
        blob = blob[: len(blob) // 2]
    elif how == "empty":
        blob = bytearray()
    elif how == "one bit":
        blob[len(blob) * 2 // 3] ^= 1
    elif how == "deleted":
        path.unlink()
        return
    path.write_bytes(blob)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["truncated", "empty", "one bit", "deleted"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, capfd, kind: str, how: str) -> None:
    run(tmp_path, 8)
    newest = tmp_path / f"round-00000008.{kind}"
    damage(newest, how)
    executed: list[int] = []
    resumed = run(tmp_path, 12, callbacks=[lambda record: executed.append(record.round)])
    assert executed == list(range(7, 13)), "from round 6, the checkpoint before"
    whole = run(None, 12)
    assert torch.equal(resumed.x, whole.x)
    assert resumed.ledger == whole.ledger
    said = capfd.readouterr().err
    if (kind, how) == ("json", "deleted"):
        assert said == "", "without its JSON a checkpoint was never finished"
    else:
        assert said.count("\n") == 1
        assert f"checkpoint {tmp_path / 'round-00000008.json'} is damaged" in said


def test_when_all_are_damaged_nothing_is_overwritten(tmp_path: Path) -> None:
    run(tmp_path, 8)
    for path in tmp_path.glob("*.safetensors"):
        damage(path, "truncated")
    before = names(tmp_path)
    with pytest.raises(fr.CheckpointError, match="every checkpoint in .* is damaged: delete the folder to start over"):
        run(tmp_path, 12)
    assert names(tmp_path) == before


# ---------------------------------------------------------------------- checkpoints of something else


def other_labels():
    case = classifier()
    case.workers[2][1][0] = (case.workers[2][1][0] + 1) % 3
    return case


def fewer_workers():
    case = classifier()
    del case.workers[1]
    return case


OTHERS = {
    "method": ({"method": BVR}, "its method has name scaffold, this one bvr-l-sgd"),
    "settings": ({"method": fr.SCAFFOLD(eta=0.06, K=2, b=2)}, "its method has eta 0.05, this one 0.06"),
    "data": ({"case": other_labels()}, "worker 2 has other data"),
    "workers": ({"case": fewer_workers()}, "it has 3 workers, this one 2"),
    "problem": ({"case": classifier(l2=0.02)}, "its problem has l2 0.01, this one 0.02"),
    "seed": ({"seed": 9}, "its seed is 0, this one's 9"),
    "weights": ({"weights": "size"}, "its weights is 'uniform', this one's 'size'"),
    "start": ({"x0": np.zeros(53)}, "it started at another x0"),
    "test": ({"test": classifier().workers[0]}, "the test set has other data"),
    "trace": ({"trace": True}, "was written without trace=True"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, what: str) -> None:
    run(tmp_path, 4)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    options, message = OTHERS[what]
    with pytest.raises(fr.CheckpointError, match=message) as caught:
        run(tmp_path, 12, **options)
    assert "\n" not in str(caught.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_changed_loss_of_the_same_name_is_noticed(tmp_path: Path) -> None:
    case = quadratic()
    run(tmp_path, 4, BVR, case)
    inner = case.problem._loss

    def loss(x, z):  # the same value and gradient at the start, 0, but not elsewhere
        return inner(x, z) + 0.1 * (x**4).sum()

    loss.__qualname__, loss.__module__ = inner.__qualname__, inner.__module__
    case.problem = fr.Problem(loss=loss, dim=5, dtype=torch.float64)
    with pytest.raises(fr.CheckpointError, match="its loss gave .* where this one gives"):
        run(tmp_path, 8, BVR, case)


def test_a_run_whose_loss_is_infinite_at_the_start_can_be_opened_again(tmp_path: Path) -> None:
    problem = fr.Problem(loss=lambda x, z: (torch.log(x) * z).mean(), dim=1)
    for _ in range(2):
        assert fr.train(problem, [np.ones((3, 1))], BVR, 5, progress=False, checkpoint=tmp_path).outcome == "diverged"


def test_losses_without_a_name_of_their_own_resume_in_another_process(tmp_path: Path) -> None:
    script = f"""
import functools, numpy as np, torch, fewrounds as fr
class Loss:
    def __call__(self, output, target): return torch.nn.functional.cross_entropy(output, target)
for name, loss in [
    ("partial", functools.partial(torch.nn.functional.cross_entropy, label_smoothing=0.1)),
    ("object", Loss()), ("module", torch.nn.CrossEntropyLoss(label_smoothing=0.2)), ("lambda", lambda o, y: Loss()(o, y)),
]:
    problem = fr.Problem(fr.models.mlp([2, 3, 2]), loss=loss)
    workers = [(np.eye(2, dtype="float32"), [0, 1])]
    fr.train(problem, workers, fr.LocalSGD(eta=0.1, K=1, b=1), ROUNDS, checkpoint={str(tmp_path)!r} + "/" + name)
"""
    for rounds in (2, 4):
        command = [sys.executable, "-c", script.replace("ROUNDS", str(rounds))]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_damaged_checkpoint_does_not_push_out_a_good_one(tmp_path: Path) -> None:
    run(tmp_path, 8)
    damage(tmp_path / "round-00000008.json", "one bit")
    run(tmp_path, 7, checkpoint_every=None)
    assert names(tmp_path) == [f"round-0000000{r}.{kind}" for r in (6, 7) for kind in KINDS]


def test_resume_false_refuses_what_is_there(tmp_path: Path) -> None:
    run(tmp_path, 4, resume=False)
    with pytest.raises(fr.SettingError, match="has checkpoints already: choose another folder, or resume=True"):
        run(tmp_path, 8, resume=False)


def test_unusable_folders_are_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(fr.CheckpointError, match=f"cannot use {file} for checkpoints: "):
        run(file)


def test_a_full_disk_is_one_line_and_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch) -> None:
    run(tmp_path, 4)
    before = names(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(fr.CheckpointError, match="cannot write the checkpoint .*: No space left on device"):
        run(tmp_path, 8)
    monkeypatch.undo()
    assert [name for name in names(tmp_path) if not name.endswith(".tmp")] == before
    assert torch.equal(run(tmp_path, 8).x, run(None, 8).x)
    assert len(names(tmp_path)) == 2 * len(KINDS), "what was half-written is gone"


# ---------------------------------------------------------------------- real processes

SCRIPT = """
import sys, torch
sys.path.insert(0, {tests!r})
torch.set_num_threads(1)
import fewrounds as fr
from problems import classifier
case = classifier()
result = fr.train(
    case.problem, case.workers, fr.{method!r}, {rounds}, seed=5, evaluate_every=7,
    checkpoint={folder!r}, checkpoint_every=3, trace=True, callbacks=[lambda r: print(r.round, flush=True)],
)
torch.save((result.x, result.trace, result.ledger.gradients), {out!r})
"""


def start(folder: Path, method: fr.Method, rounds: int, out: Path) -> subprocess.Popen[str]:
    script = SCRIPT.format(
        tests=str(Path(__file__).parent), method=method, rounds=rounds, folder=str(folder), out=str(out)
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_ctrl_c,
    )


def hear_ctrl_c() -> None:
    """Tests that run in the background of a shell inherit its deafness to SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("method", [SCAFFOLD, BVR], ids=lambda m: m.name)
def test_kill_minus_nine_at_random_moments(tmp_path: Path, method: fr.Method) -> None:
    rounds, out = 800, tmp_path / "out.pt"  # more than a fast machine has done by the fourth kill
    chance = random.Random(int.from_bytes(os.urandom(4), "little"))  # a new moment in every run of the tests
    reached = []
    for _ in range(4):
        process = start(tmp_path / "run", method, rounds, out)
        first = process.stdout.readline()
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        _, errors = process.communicate()
        assert first, errors or "it had ended before it could be killed"
        reached.append(int(first))
    process = start(tmp_path / "run", method, rounds, out)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert reached == sorted(reached), "each process went on where the one before was killed"

    case = classifier()
    whole = fr.train(case.problem, case.workers, method, rounds, seed=5, trace=True, progress=False)
    x, trace, gradients = torch.load(out)
    assert torch.equal(x, whole.x)
    assert torch.equal(trace, whole.trace)
    assert gradients == whole.ledger.gradients


def test_ctrl_c_saves_the_last_whole_round(tmp_path: Path) -> None:
    out = tmp_path / "out.pt"
    process = start(tmp_path / "run", SCAFFOLD, 100_000, out)
    for _ in range(20):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    last = int(rest.split()[-1]) if rest.split() else last
    assert process.returncode != 0
    assert f"interrupted after round {last}; saved in {tmp_path / 'run'}" in errors
    newest = max((tmp_path / "run").glob("*.json"))
    assert newest.name == f"round-{last:08d}.json"


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    process = start(tmp_path / "run", SCAFFOLD, 100_000, tmp_path / "out.pt")
    try:
        process.stdout.readline()
        with pytest.raises(fr.CheckpointError, match="is in use by another run: choose another folder"):
            run(tmp_path / "run")
    finally:
        process.kill()
        process.communicate()
