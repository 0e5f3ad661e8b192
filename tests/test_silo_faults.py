"""Lost sites and sites that do not agree: the run stops and names them, or goes on as it may."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fewrounds as fr
from fewrounds.ledger import Ledger
from fewrounds.silo.messages import SiteError, SiteLostError
from fewrounds.silo.site import Definition
from near_sites import NearSites, alone, run
from problems import classifier


def test_a_lost_site_stops_the_run_unless_fewer_may_go_on(tmp_path: Path) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)

    def lose(p: int, message: dict, reply: dict) -> dict:
        if message.get("round") == 3:
            near.lost.add(1)
        return reply

    near.spoil = lose
    with pytest.raises(SiteLostError, match="site site-2 is lost: no answer in 1 s"):
        run(near, case)
    near.lost.clear()
    near.restart()
    with pytest.raises(SiteLostError, match="site site-2 is lost"):
        run(near, case, least=3)
    near.lost.clear()
    near.restart()
    near.spoil = lambda p, message, reply: reply
    torch.testing.assert_close(run(near, case).x, alone(case).x, rtol=1e-10, atol=1e-10)


def test_the_mean_over_those_who_answer(tmp_path: Path) -> None:
    """From round 4 on site-2 is gone: as if the other two were all there is, with their share of the weights."""
    case = classifier()
    near = NearSites(case, tmp_path)
    method = fr.MinibatchSGD(eta=0.05, b=3)

    def lose(p: int, message: dict, reply: dict) -> dict:
        if message.get("round") == 3 and p == 2:
            near.lost.add(1)
        return reply

    near.spoil = lose
    found = run(near, case, method, 6, least=2, weights="size")
    draws = fr.draws.Draws(1)
    x = torch.tensor(case.x0)
    sizes = case.sizes
    for round in range(1, 7):
        here = [0, 1, 2] if round <= 3 else [0, 2]
        total = sum(sizes[p] for p in here)
        step = np.zeros_like(case.x0)
        for p in here:
            index = draws.integers("local", round, p, sizes[p], (1, 3))[0]
            step += sizes[p] / total * case.gradient(p, x.numpy(), index)
        x = x - 0.05 * torch.tensor(step)
    torch.testing.assert_close(found.x, x, rtol=1e-9, atol=1e-9)
    assert found.ledger.missed == (0, 3, 0)
    assert found.ledger.gradients == (18, 9, 18)
    assert found.ledger.vectors_up == 3 * 3 + 3 * 2
    assert near.bytes == found.ledger.bytes_up + found.ledger.bytes_down
    assert Ledger.from_json(found.ledger.to_json()) == found.ledger


def test_a_lost_site_takes_part_again_when_it_is_back(tmp_path: Path) -> None:
    """Its process may be another one by then; what it kept is on its disk."""
    case = classifier()
    near = NearSites(case, tmp_path)
    asked: list[tuple[int, int]] = []

    def fate(p: int, message: dict, reply: dict) -> dict:
        if message["do"] == "task":
            asked.append((message["round"], p))
            if message["round"] == 2 and p == 2:
                near.lost.add(1)
            if message["round"] == 5 and p == 2:
                near.restart([1])
                near.lost.clear()
        return reply

    near.spoil = fate
    absent: list[tuple[int, ...]] = []
    note = lambda record: absent.append(record.absent)  # noqa: E731
    method = fr.LocalSGD(eta=0.05, K=2, b=2)
    found = run(near, case, method, 8, least=2, retry_seconds=0, callbacks=[note])
    assert absent == [(), (), (1,), (1,), (1,), (), (), ()]
    assert found.ledger.missed == (0, 3, 0)
    assert {round for round, p in asked if p == 1} == {1, 2, 6, 7, 8}
    assert torch.isfinite(found.x).all()
    X, y = case.workers[1]
    near.definitions[1] = Definition(case.problem, (X + 0.1, y))
    near.restart([1])
    (tmp_path / "coordinator" / "checkpoint").rename(tmp_path / "coordinator" / "old")
    with pytest.raises(SiteError, match="site site-2 has come back with other data"):
        run(near, case, method, 8, least=2, retry_seconds=0, present=[0, 2])


def test_a_run_begins_with_all_sites(tmp_path: Path) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    with pytest.raises(SiteError, match="site site-2 has never been there: a run begins with all sites"):
        run(near, case, least=1, present=[0, 2])


@pytest.mark.parametrize("when", ["hello", "check"])
def test_a_site_that_is_lost_before_the_first_round(tmp_path: Path, when: str) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    run(near, case, rounds=2)

    class Losing(NearSites):
        def ask(self, message: dict, workers) -> dict:
            self.lost = {1} if message["do"] == when else self.lost
            return super().ask(message, workers)

    losing = Losing(case, tmp_path)
    with pytest.raises(SiteLostError, match="site site-2 is lost"):
        run(losing, case, rounds=4)
    losing.restart()
    losing.lost.clear()
    assert run(losing, case, rounds=4, least=2).ledger.missed == (0, 2, 0)


def test_participants_are_drawn_among_those_who_are_there(tmp_path: Path) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    run(near, case, rounds=1)
    (tmp_path / "coordinator" / "checkpoint").rename(tmp_path / "coordinator" / "old")
    near.lost.add(1)
    asked: list[int] = []
    near.spoil = lambda p, message, reply: (message["do"] == "task" and asked.append(p)) or reply
    method = fr.LocalSGD(eta=0.05, K=2, b=2, participants=1)
    found = run(near, case, method, 20, least=1, present=[0, 2])
    assert set(asked) == {0, 2}
    assert found.ledger.missed == (0, 20, 0)
    assert len(asked) == 20


def test_a_new_worker_is_drawn_when_the_picked_one_is_lost(tmp_path: Path) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    picked = alone(case).history["picked"].tolist()

    def lose(p: int, message: dict, reply: dict) -> dict:
        if message.get("round") == 2 and "gradient_change" in str(message.get("task")):
            near.lost.add(picked[2])  # between aggregation and Local-Routine
        return reply

    near.spoil = lose
    seen: list[int] = []
    found = run(
        near, case, fr.BVRLSGD(eta=0.05, K=3, b=2, T=20), 5, least=1, callbacks=[lambda r: seen.append(r.picked)]
    )
    assert seen[0] == picked[1]
    assert picked[2] not in seen[1:]
    assert torch.isfinite(found.x).all()


@pytest.mark.parametrize(
    "method",
    [
        fr.SARAH(eta=0.05, b=2, T=20),
        fr.SVRG(eta=0.05, b=2, T=20),
        fr.FedGLOMO(eta=0.05, K=2, b=2),
        fr.CELSGD(eta=0.05, K=2, b=2),
    ],
    ids=lambda m: m.name,
)
def test_a_site_that_is_back_has_nothing_and_is_sent_all(tmp_path: Path, method: fr.Method) -> None:
    """These methods use a vector again in the next round, which a site that was away does not have."""
    case = classifier()

    class Flaky(NearSites):
        def ask(self, message: dict, workers) -> dict:
            self.asked = [*getattr(self, "asked", []), message["do"]]
            # not while a task is sent, so that nothing is on its way that does not arrive; and not at the start
            gone = message["do"] == "evaluate" and self.asked.count("evaluate") > 1
            self.lost = {1} if gone else set()
            if gone:
                self.restart([1])
            replies = super().ask(message, workers)
            self.lost = set()
            return replies

    near = Flaky(case, tmp_path)
    found = run(near, case, method, 9, least=2, retry_seconds=0, evaluate_every=1)
    assert not any(found.ledger.missed), "it was away between rounds only"
    assert near.bytes == found.ledger.bytes_up + found.ledger.bytes_down


@pytest.mark.parametrize(
    "method",
    [fr.MIME(eta=0.05, K=2, b=2, participants=1), fr.LocalSGD(eta=0.05, K=2, b=2, participants=1)],
    ids=lambda m: m.name,
)
def test_others_take_part_where_all_who_were_drawn_are_lost(tmp_path: Path, method: fr.Method) -> None:
    case = classifier()

    class Losing(NearSites):
        def ask(self, message: dict, workers) -> dict:
            if message["do"] == "task" and message["round"] == 3 and not self.lost:
                self.lost = set(workers)
            return super().ask(message, workers)

    losing = Losing(case, tmp_path)
    found = run(losing, case, method, 6, least=1)
    assert found.ledger.vectors_up == losing.vectors_up > 0
    assert sum(n > 0 for n in found.ledger.missed) == 1
    assert torch.isfinite(found.x).all()
    assert found.ledger.rounds == 6


def test_in_place_of_a_lost_one_another_of_those_who_take_part_is_picked(tmp_path: Path) -> None:
    case = classifier()
    method = fr.CELSGD(eta=0.05, K=2, b=2, participants=2)
    near = NearSites(case, tmp_path)
    picked = alone(case, method).history["picked"].tolist()
    took: dict[str, list[int]] = {"change": [], "routine": []}

    def watch(p: int, message: dict, reply: dict) -> dict:
        if message.get("round") == 4:
            task = str(message.get("task"))
            took["change" if "fading_change" in task else "routine"].append(p)
            if "fading_change" in task and len(took["change"]) == 2:
                near.lost.add(picked[4])
        return reply

    near.spoil = watch
    run(near, case, method, 4, least=1, evaluate_every=4)
    (other,) = set(took["change"]) - {picked[4]}
    assert took["routine"] == [other]


def test_sites_that_do_not_agree_are_named(tmp_path: Path) -> None:
    case = classifier()
    for what, definition, message in (
        ("l2", Definition(classifier(l2=0.02).problem, case.workers[1]), "site-2 has another problem than site-1: l2 0.02, not 0.01"),
        ("data", Definition(case.problem, (np.zeros((3, 9)), [0, 1, 2])), "site-2 has another problem than site-1: kind of samples"),
        ("labels", Definition(case.problem, (case.workers[1][0], case.workers[1][1] + 5)), "site site-2: check failed because of its data"),
        ("nan", Definition(case.problem, (case.workers[1][0] * np.nan, case.workers[1][1])), "site site-2: hello failed because of its data"),
    ):  # fmt: skip
        (tmp_path / what).mkdir()
        near = NearSites(case, tmp_path / what)
        near.definitions[1] = definition
        near.restart()
        with pytest.raises(SiteError, match=message) as caught:
            run(near, case)
        assert "\n" not in str(caught.value)


def test_another_model_is_named_in_one_line(tmp_path: Path) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    deep = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(9)), torch.nn.Linear(6, 3)).double()
    other = fr.Problem(deep, loss=torch.nn.functional.cross_entropy, l2=0.01, dtype=torch.float64)
    near.definitions[1] = Definition(other, case.workers[1])
    near.restart()
    with pytest.raises(SiteError, match="site site-2 has another problem than site-1: model Sequential") as caught:
        run(near, case)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_changed_data_are_noticed_when_a_run_goes_on(tmp_path: Path) -> None:
    case = classifier()
    near = NearSites(case, tmp_path)
    run(near, case, rounds=3)
    X, y = case.workers[1]
    near.definitions[1] = Definition(case.problem, (X + 0.1, y))
    near.restart()
    with pytest.raises(SiteError, match="site site-2 has other data than when the run began"):
        run(near, case)
