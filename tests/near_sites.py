"""Sites in this process: real ones, with everything but the wire; what goes over it is looked at."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import fewrounds as fr
from fewrounds.rounds import Ran
from fewrounds.silo.lead import Plan, lead, survey
from fewrounds.silo.messages import SiteLostError
from fewrounds.silo.site import Definition, Site
from fewrounds.theory.measure import How
from problems import Case

BVR = fr.BVRLSGD(eta=0.05, K=3, b=2)


class NearSites:
    def __init__(self, case: Case, folder: Path) -> None:
        self.folder = folder
        self.definitions = [Definition(case.problem, data) for data in case.workers]
        self.sites: list[Site] = []
        self.lost: set[int] = set()
        self.spoil: Callable[[int, dict, dict], Any] = lambda p, message, reply: reply
        """What becomes of a reply on its way."""
        self.bytes = 0
        """Of vectors, both ways, in tasks."""
        self.vectors_up = 0
        self.restart()

    @property
    def names(self) -> list[str]:
        return [f"site-{p + 1}" for p in range(len(self.definitions))]

    def restart(self, workers: Sequence[int] | None = None) -> None:
        """New processes: all that a site still knows is on its disk."""
        new = [
            Site(name, definition, self.folder / name)
            for name, definition in zip(self.names, self.definitions, strict=True)
        ]
        kept = [p for p in range(len(self.sites)) if workers is not None and p not in workers]
        self.sites = [self.sites[p] if p in kept else site for p, site in enumerate(new)]

    def ask(self, message: dict, workers: Sequence[int]) -> dict[int, Any]:
        return {p: SiteLostError("no answer in 1 s") if p in self.lost else self._ask(message, p) for p in workers}

    def measure(self, case: Case, **settings: Any) -> fr.Measurement:
        """`fr.measure` over the sites."""
        folder = start_at(case, self.folder)
        plan = Plan(run="a survey", method=BVR, rounds=1)
        return survey(self, self.names, plan, folder, How(**settings))

    def is_there(self, p: int) -> bool:
        return p not in self.lost

    def _ask(self, message: dict, p: int) -> Any:
        only_plain(message)
        reply = self.sites[p].answer(copy.deepcopy(message))
        only_plain(reply)
        if message["do"] == "task":
            self.vectors_up += len(reply.get("vectors", ()))
            self.bytes += sum(map(len, message["new"].values())) + sum(map(len, reply.get("vectors", ())))
        return self.spoil(p, message, copy.deepcopy(reply))


def only_plain(value: Any) -> None:
    """Words, numbers and bytes: nothing that a reader would have to run."""
    if isinstance(value, dict):
        assert all(type(key) is str for key in value), value
        for part in value.values():
            only_plain(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            only_plain(part)
    else:
        assert type(value) in (str, int, float, bool, bytes, type(None)), type(value)


def start_at(case: Case, where: Path) -> Path:
    """The coordinator's folder, with the case's start."""
    folder = where / "coordinator"
    folder.mkdir(exist_ok=True)
    save_file({"x": torch.tensor(case.x0, dtype=case.problem.dtype)}, folder / "start.safetensors")
    return folder


def run(sites: NearSites, case: Case, method: fr.Method = BVR, rounds: int = 8, **options) -> Ran:
    folder = start_at(case, sites.folder)
    here = {key: options.pop(key) for key in ("callbacks", "present") if key in options}
    plan = Plan(run="a run", method=method, rounds=rounds, **{"seed": 1, **options})
    return lead(sites, sites.names, plan, folder, trace=True, **here)


def alone(case: Case, method: fr.Method = BVR, rounds: int = 8, **options) -> fr.Result:
    options = {"seed": 1, "x0": case.x0, **options}
    return fr.train(case.problem, case.workers, method, rounds, trace=True, progress=False, **options)
