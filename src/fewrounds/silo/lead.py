"""A run over sites, from the coordinator's side: agree with every site, then the same rounds as anywhere."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from fewrounds.checkpoint import KEEP, Checkpoints, write_whole
from fewrounds.draws import Draws
from fewrounds.methods.base import Method
from fewrounds.rounds import Ran, RoundRecord, Rounds, default_cadence
from fewrounds.silo.engine import SiloEngine, Sites
from fewrounds.silo.messages import VERSION, Message, SiteError, SiteLostError, packed, unpacked
from fewrounds.theory.estimate import Measurement
from fewrounds.theory.measure import How, measure_with

FACTS = ("problem", "kind", "size", "evaluated", "tested", "data")
"""What is remembered of a site."""
SITES = "sites.json"
PROBES = 2
"""Points at which `fewrounds.checks.probe` takes the loss."""


@dataclass(frozen=True)
class Plan:
    """What is to be run."""

    run: str
    """By which a site knows that a run is continued, and not another one."""
    method: Method
    rounds: int
    seed: int = 0
    weights: str = "uniform"
    evaluate_every: int | None = None
    compile: bool | str = "auto"
    least: int | None = None
    """With how many sites a round may go on where others are lost; None if it may not."""
    retry_seconds: float = 30.0
    """How often a lost site is asked whether it is back."""


@dataclass(frozen=True)
class Met:
    """All sites have said who they are, agree, and are ready to work."""

    engine: SiloEngine
    start: Tensor
    facts: list[Message]
    losses: list[float]
    """Of the made-up samples, the same at every site."""


def lead(
    sites: Sites,
    names: Sequence[str],
    plan: Plan,
    folder: Path,
    callbacks: Sequence[Callable[[RoundRecord], object]] = (),
    present: Sequence[int] | None = None,
    trace: bool = False,
) -> Ran:
    """Run the plan to its end, from the newest checkpoint in the folder if there is one; saved after every round.

    `present` are the workers that can be asked, all of them by default. Others must have been there before.
    """
    met = meet(sites, names, plan, folder, present)
    engine = met.engine
    plan.method.check(engine.sizes)
    every = plan.evaluate_every or default_cadence(
        plan.rounds,
        plan.method.gradients_per_round(engine.sizes),
        [fact["evaluated"] for fact in met.facts],
        sum(fact["tested"] for fact in met.facts) or None,
    )
    identity = {
        "problem": met.facts[0]["problem"],
        "start": hashlib.sha256(packed(met.start)).hexdigest(),
        "losses": met.losses,
        "method": {"name": plan.method.name, **plan.method.settings()},
        "workers": [fact["data"] for fact in met.facts],
        "test": None,
        "weights": plan.weights,
        "seed": plan.seed,
    }
    checkpoints = Checkpoints(folder / "checkpoint", identity)

    def no_way_back(record: RoundRecord) -> None:
        engine.oldest = record.round - KEEP

    rounds = Rounds(plan.method, engine, plan.rounds, every, 1, [no_way_back, *callbacks], trace, False)
    with checkpoints.locked():
        return rounds.go(met.start, checkpoints, 1, math.inf)


def survey(
    sites: Sites, names: Sequence[str], plan: Plan, folder: Path, how: How, present: Sequence[int] | None = None
) -> Measurement:
    """The constants of the theory at the start. All sites must be there; the plan's method is not run."""
    met = meet(sites, names, dataclasses.replace(plan, least=None), folder, present)
    return measure_with(met.engine, met.start, how)


def meet(sites: Sites, names: Sequence[str], plan: Plan, folder: Path, present: Sequence[int] | None = None) -> Met:
    """Ask every site that is there what may be known of it, and have it prepare for the plan."""
    here = list(range(len(names))) if present is None else list(present)
    hello = {
        "do": "hello",
        "version": VERSION,
        "run": plan.run,
        "sites": list(names),
        "rounds": plan.rounds,
        "seed": plan.seed,
        "start": names[here[0]],
    }

    lost: dict[int, str] = {}

    def heard(replies: dict[int, Message | SiteLostError]) -> dict[int, Message]:
        """Those that say something. Where a round may be done without some, those that do not are put aside."""
        out = {}
        for p, reply in replies.items():
            if isinstance(reply, SiteLostError) and plan.least is not None:
                lost[p] = str(reply)
            else:
                out[p] = _said(names[p], reply)
        return out

    def greeted(workers: Sequence[int]) -> dict[int, Message]:
        return {p: _facts(names[p], reply) for p, reply in heard(sites.ask(hello, workers)).items()}

    def tried(workers: Sequence[int]) -> dict[int, list[float]]:
        check = {"do": "check", "x": packed(start), "compile": plan.compile}
        return {p: _losses(names[p], reply) for p, reply in heard(sites.ask(check, workers)).items()}

    def welcome(p: int) -> bool:
        """Whether a site that was lost is back; it is asked all that it was asked at first."""
        if not sites.is_there(p):
            return False
        reply = greeted([p]).get(p)
        if reply is None:
            return False
        if json.dumps({key: reply[key] for key in FACTS}) != json.dumps(facts[p]):
            raise SiteError(f"site {names[p]} has come back with other data or another problem")
        own = tried([p])
        _compare(names, {**losses, **own}, tolerance)
        return p in own

    told = greeted(here)
    here = [p for p in here if p in told]
    if not here:
        raise SiteLostError(f"site {names[min(lost)]} is lost: {lost[min(lost)]}")
    facts = _agreed(names, told, folder / SITES)
    problem = facts[0]["problem"]
    sizes = [fact["size"] for fact in facts]
    tested = [fact["tested"] for fact in facts]
    start = _start(names[here[0]], told[here[0]], folder / "start.safetensors")
    tolerance = 1e-9 if start.dtype == torch.float64 else 1e-4
    losses = tried(here)
    here = [p for p in here if p in losses]
    if not here:
        raise SiteLostError(f"site {names[min(lost)]} is lost: {lost[min(lost)]}")
    _compare(names, losses, tolerance)
    engine = SiloEngine(
        sites, names, sizes, plan.weights, Draws(plan.seed), start, problem["l2"], tested,
        least=plan.least, welcome=welcome, retry_seconds=plan.retry_seconds,
    )  # fmt: skip
    for p in set(range(len(names))) - set(here):
        engine.leave_out(p, lost.get(p, "it is not connected"))
    return Met(engine, start, facts, losses[here[0]])


def facts_of(folder: Path) -> list[Message]:
    """What is remembered of the sites of the run in this folder."""
    known: dict[str, Message] = json.loads((folder / SITES).read_text())
    return list(known.values())


def _said(name: str, reply: Any) -> Message:
    """The reply, unless it says that something is wrong."""
    if isinstance(reply, SiteLostError):
        raise SiteLostError(f"site {name} is lost: {reply}")
    if not isinstance(reply, dict) or "error" in reply:
        said = reply["error"] if isinstance(reply, dict) else f"it answered with a {type(reply).__name__}"
        raise SiteError(f"site {name}: {' '.join(str(said).split())[:300]}")
    return reply


def _losses(name: str, reply: Message) -> list[float]:
    losses = reply.get("losses")
    if not isinstance(losses, list) or len(losses) != PROBES or not all(isinstance(loss, float) for loss in losses):
        raise SiteError(f"site {name}: its answer has no losses of the made-up samples")
    return losses


def _facts(name: str, reply: Message) -> Message:
    """The reply to hello, if all that is to be known of the site is there and can be."""
    numbers = [reply.get(key) for key in ("size", "evaluated", "tested")]
    problem = reply.get("problem")
    if (
        not all(isinstance(n, (int, float)) and not isinstance(n, bool) and n >= 0 for n in numbers)
        or not all(isinstance(reply.get(key), str) for key in ("kind", "data"))
        or not isinstance(problem, dict)
        or not {"dtype", "l2"} <= set(problem)
        or not isinstance(problem["l2"], (int, float))
    ):
        raise SiteError(f"site {name}: its first answer cannot be used")
    return reply


def _agreed(names: Sequence[str], told: dict[int, Message], path: Path) -> list[Message]:
    """What is known of every site, those that are not there from an earlier start; refused if they do not agree."""
    known: dict[str, Message] = json.loads(path.read_text()) if path.exists() else {}
    for p, reply in told.items():
        if names[p] in known and known[names[p]]["data"] != reply["data"]:
            raise SiteError(f"site {names[p]} has other data than when the run began")
        known[names[p]] = {key: reply[key] for key in FACTS}
    missing = [name for name in names if name not in known]
    if missing:
        raise SiteError(f"site {missing[0]} has never been there: a run begins with all sites")
    facts = [known[name] for name in names]
    first = {**facts[0]["problem"], "kind of samples": facts[0]["kind"]}
    for name, fact in zip(names, facts, strict=True):
        own = {**fact["problem"], "kind of samples": fact["kind"]}
        for key in {**first, **own}:
            if own.get(key) != first.get(key):
                values = f"{_short(own.get(key))}, not {_short(first.get(key))}"
                raise SiteError(f"site {name} has another problem than {names[0]}: {key} {values}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(known, indent=1).encode())
    return facts


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 80 else f"{text[:77]}…"


def _start(name: str, reply: Message, path: Path) -> Tensor:
    """The start: the model of the site that was first when the run began."""
    if path.exists():
        return load_file(path)["x"]
    dtype = torch.float64 if reply["problem"]["dtype"] == "torch.float64" else torch.float32
    try:
        (blob,) = reply["vectors"]
        start = unpacked(blob, int(reply["dim"]), dtype)
    except (ValueError, KeyError, TypeError) as error:
        raise SiteError(f"site {name}: its start is no vector of its problem: {error}") from None
    write_whole(path, save({"x": start}))
    return start


def _compare(names: Sequence[str], losses: dict[int, list[float]], tolerance: float) -> None:
    """On the same made-up samples at the same points, the same problem has the same loss."""
    first = min(losses)
    for p, own in losses.items():
        for a, b in zip(own, losses[first], strict=True):
            same = abs(a - b) <= tolerance * max(1.0, abs(b)) if math.isfinite(b) else not math.isfinite(a)
            if not same:
                raise SiteError(
                    f"site {names[p]} has another problem than {names[first]}: "
                    f"on the same made-up samples its loss is {a:.9g}, not {b:.9g}"
                )
