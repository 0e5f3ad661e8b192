"""Sites and their coordinator, without the wire: the same iterates, nothing private sent, faults named."""

from __future__ import annotations

import itertools
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import fewrounds as fr
from cluster.every_method import ROUNDS, SIZES, methods
from fewrounds.silo.messages import VERSION, SiteError, task_named
from near_sites import BVR, NearSites, alone, run
from problems import classifier, quadratic

SCAFFOLD = fr.SCAFFOLD(eta=0.05, K=2, b=2)


@pytest.mark.parametrize("name", methods())
def test_every_method_has_the_same_iterates(name: str, tmp_path: Path) -> None:
    method = methods()[name]
    for number, (case, weights) in enumerate(
        itertools.product((classifier(SIZES), quadratic(SIZES)), ("uniform", "size"))
    ):
        (tmp_path / str(number)).mkdir()
        near = NearSites(case, tmp_path / str(number))
        found = run(near, case, method, ROUNDS, weights=weights, evaluate_every=7)
        expected = alone(case, method, ROUNDS, weights=weights, evaluate_every=7)
        torch.testing.assert_close(found.trace, expected.trace, rtol=1e-10, atol=1e-10)
        assert found.ledger == expected.ledger
        assert near.bytes == found.ledger.bytes_up + found.ledger.bytes_down, "the ledger counts what is sent"
        for mine, theirs in zip(found.rows, expected.rows, strict=True):
            for column in set(mine) - {"seconds"}:
                same = math.isclose(mine[column], theirs[column], rel_tol=1e-9, abs_tol=1e-12)
                assert same or (math.isnan(mine[column]) and math.isnan(theirs[column])), column


# ---------------------------------------------------------------------- starting again


class CrashError(Exception):
    pass


@pytest.mark.parametrize("method", [SCAFFOLD, BVR], ids=lambda m: m.name)
@pytest.mark.parametrize("moment", range(1, 24, 2))
def test_a_crash_at_any_message_changes_nothing(tmp_path: Path, method: fr.Method, moment: int) -> None:
    """The site has worked and written, but nobody hears of it; everything starts again."""
    case = classifier()
    near = NearSites(case, tmp_path)
    tasks = itertools.count(1)

    def crash(p: int, message: dict, reply: dict) -> dict:
        if message["do"] == "task" and next(tasks) == moment:
            raise CrashError
        return reply

    near.spoil = crash
    with pytest.raises(CrashError):
        run(near, case, method)
    near.restart()
    found, expected = run(near, case, method), alone(case, method)
    assert torch.equal(found.x, expected.x) or torch.allclose(found.x, expected.x, rtol=1e-12)
    assert found.ledger == expected.ledger
    torch.testing.assert_close(found.trace, expected.trace, rtol=1e-10, atol=1e-10)


def test_the_memory_of_a_site_does_not_pile_up(tmp_path: Path) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    run(near, case, SCAFFOLD, 30)
    for name in near.names:
        assert len(list((tmp_path / name / "memory").rglob("*.safetensors"))) <= 4


@pytest.mark.parametrize("what", ["gone", "an old backup"])
@pytest.mark.parametrize("participants", [None, 2])
def test_a_memory_that_is_not_that_of_the_last_round_is_noticed(
    tmp_path: Path, what: str, participants: int | None
) -> None:
    """A site that went on with c_p = 0, or an old one, would lead to a wrong point, and nobody would know."""
    case = classifier()
    method = fr.SCAFFOLD(eta=0.05, K=2, b=2, participants=participants)
    near = NearSites(case, tmp_path)
    memory, backup = tmp_path / "site-2" / "memory", tmp_path / "backup"
    run(near, case, method, 3)
    shutil.copytree(memory, backup)
    run(near, case, method, 7)
    memory.rename(tmp_path / "of round 7")
    if what == "an old backup":
        backup.rename(memory)
    near.restart()
    with pytest.raises(SiteError, match=r"^site site-2: its memory of round \d is not there \((what it|it has none)"):
        run(near, case, method, 12)
    shutil.rmtree(memory)
    (tmp_path / "of round 7").rename(memory)
    near.restart()
    assert torch.equal(run(near, case, method, 12).x, run(NearSites(case, _new(tmp_path)), case, method, 12).x)


def _new(folder: Path) -> Path:
    (folder / "new").mkdir()
    return folder / "new"


def test_another_run_starts_with_an_empty_memory(tmp_path: Path) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    run(near, case, SCAFFOLD, 3)
    hello = {
        "do": "hello", "version": VERSION, "run": "another", "sites": near.names, "rounds": 3, "seed": 0, "start": "",
    }  # fmt: skip
    near.ask(hello, [0])
    assert not list(near.sites[0]._memory.folder.iterdir())


# ---------------------------------------------------------------------- what a site lets in and out


@pytest.mark.parametrize(
    "name",
    ["os:system", "builtins:eval", "fewrounds.methods.base:importlib", "fewrounds.silo.site:load_definition",
     "fewrounds.methods.tasks:Tensor", "fewrounds.methods.nothing:x", "subprocess:run", "", "fewrounds.methods.tasks:"],
)  # fmt: skip
def test_only_tasks_of_methods_are_run(name: str) -> None:
    with pytest.raises(fr.SettingError):
        task_named(name)


def test_a_site_may_admit_more() -> None:
    assert task_named("problems:classifier", ["problems"]) is classifier
    with pytest.raises(fr.SettingError, match="not on this site's list"):
        task_named("problems:classifier", ["other"])


def test_nothing_of_the_data_is_in_what_a_site_says(tmp_path: Path) -> None:
    """No sample and no label travels, in errors neither; and the seal of the data is no plain digest."""
    case = classifier()
    near = NearSites(case, tmp_path)
    said: list[dict] = []
    near.spoil = lambda p, message, reply: said.append(reply) or reply
    run(near, case, rounds=3)
    raw = [row.tobytes() for X, _ in case.workers for row in np.asarray(X)]
    kinds = (np.int64, np.int32, np.uint8, np.float64, np.float32)
    raw += [np.asarray(y).astype(kind).tobytes() for _, y in case.workers for kind in kinds]
    for reply in said:
        for name, value in reply.items():  # numbers, words, vectors of the model's length: nothing by sample
            if name == "vectors":
                assert all(type(blob) is bytes and len(blob) == 8 * case.problem.dim for blob in value)
                assert all(np.isfinite(np.frombuffer(blob)).all() for blob in value)
            elif name == "losses":
                assert [type(loss) for loss in value] == [float, float]
            else:
                assert isinstance(value, (str, int, float, dict)), name
        for blob in reply.get("vectors", ()):
            assert not any(row in blob for row in raw)
        assert set(reply) <= {
            "problem", "dim", "kind", "size", "evaluated", "tested", "data", "vectors", "losses", "gradients", "loss",
            "accuracy", "test_loss", "test_accuracy", "memory",
        }  # fmt: skip
    seals = {reply["data"] for reply in said if "data" in reply}
    fingerprints = {source.fingerprint() for site in near.sites for source in site._sources.values()}
    assert not seals & fingerprints
