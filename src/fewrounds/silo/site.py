"""A site: one worker with its data, which answers what the coordinator asks, however the messages travel."""

from __future__ import annotations

import hashlib
import hmac
import importlib.util
import math
import secrets
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewrounds.batch import Batch, batch_size, map_batch
from fewrounds.checks import check_labels, check_problem, example_of, probe
from fewrounds.data.shards import Shard, Source, signature
from fewrounds.data.sources import Cast, check_alike, load_workers, read_batch
from fewrounds.draws import Draws
from fewrounds.engine.host import Host, mean_metrics
from fewrounds.engine.loop import Programs
from fewrounds.engine.programs import Policy
from fewrounds.errors import FewroundsError, ProblemError, SettingError
from fewrounds.problem import Problem
from fewrounds.silo.memory import SiteMemory
from fewrounds.silo.messages import VERSION, Message, checked_settings, packed, task_named, unpacked

SYNTHETIC = 4
"""Samples of made-up data by which the coordinator sees that all sites have the same problem."""


@dataclass(frozen=True)
class Definition:
    """What a site's own file says."""

    problem: Problem
    data: Any
    test: Any = None
    allow: tuple[str, ...] = ()
    """Modules beside fewrounds whose functions may run here as tasks."""


def load_definition(path: Path) -> Definition:
    """Run the site's file: `problem()` and `data()`, and if there are any, `test()` and `ALLOW`."""
    if not path.is_file():
        raise SettingError(f"{path} is missing: write problem() and data() there")
    spec = importlib.util.spec_from_file_location("fewrounds_site", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fewrounds_site"] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise SettingError(f"{path}: {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error
    for name in ("problem", "data"):
        if not callable(getattr(module, name, None)):
            raise SettingError(f"{path} has no function {name}()")
    problem = _called(module.problem, path)
    if not isinstance(problem, Problem):
        raise SettingError(f"{path}: problem() returned a {type(problem).__name__}, expected a fewrounds.Problem")
    test: Callable[[], Any] | None = getattr(module, "test", None)
    allow = getattr(module, "ALLOW", ())
    if isinstance(allow, str) or not all(isinstance(name, str) for name in allow):
        raise SettingError(f"{path}: ALLOW must be a list of names of modules")
    data = _called(module.data, path)
    return Definition(problem, data, _called(test, path) if test is not None else None, tuple(allow))


def _called(function: Callable[[], Any], path: Path) -> Any:
    try:
        return function()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())[:300]
        raise SettingError(f"{path}: {function.__name__}() failed: {reason}") from error


class Site:
    """Answers messages. Each `do` is one of the methods below."""

    def __init__(self, name: str, definition: Definition, folder: Path) -> None:
        self.name = name
        self.definition = definition
        self.problem = definition.problem
        self.folder = folder
        self._vectors: dict[int, tuple[Tensor, int]] = {}
        """The vectors held, by the number the coordinator gave them, with the round they were last used in."""
        self._round: tuple[str, int] | None = None
        """The attempt and the round under way."""
        self._written = 0
        """The round in which the worker's memory was last written."""

    def answer(self, message: Message) -> Message:
        """The reply, or {"error": …}. Of an error that may speak of data, only that there was one leaves the site."""
        actions: dict[str, Callable[[Message], Message]] = {
            "hello": self._hello,
            "check": self._check,
            "task": self._task,
            "evaluate": self._evaluate,
        }
        action = actions.get(str(message.get("do")))
        if action is None:
            return {"error": f"there is no answer to {message.get('do')!r}"}
        try:
            return action(message)
        except SettingError as error:
            return {"error": str(error)}
        except Exception as error:
            if isinstance(error, FewroundsError):
                print(f"fewrounds: {error}", file=sys.stderr, flush=True)
            else:
                traceback.print_exc()
            kind = "its problem" if isinstance(error, ProblemError) else "its data or its problem"
            return {"error": f"{message['do']} failed because of {kind}: the reason is in the site's own log"}

    # ------------------------------------------------------------------ before the rounds

    def _hello(self, message: Message) -> Message:
        """Load the data for a run, and say what may be known of them."""
        if message.get("version") != VERSION:
            raise SettingError(f"this site speaks version {VERSION} of the messages, not {message.get('version')}")
        names = list(message["sites"])
        if self.name not in names:
            raise SettingError(f"the sites of this run are {', '.join(names)}: {self.name} is not one of them")
        self._p = p = names.index(self.name)
        self._draws = Draws(int(message["seed"]))
        cast = Cast(self.problem.dtype, self.problem.device, self.problem.has_model)
        self._sources, _ = load_workers(
            lambda q: self.definition.data,
            cast,
            num_workers=len(names),
            evaluation_rng=lambda q: self._draws.generator("evaluation", 0, q),
            hosted=lambda q: q == p,
        )
        source = self._sources[p]
        self._example = example_of([source])
        self._test = test_source(self.definition, cast, self._example)
        run = hashlib.sha256(str(message["run"]).encode()).hexdigest()[:16]
        self._memory = SiteMemory(self.folder / "memory" / run)
        self._round = None
        self._vectors = {}
        self._rounds = int(message["rounds"])
        return {
            "problem": self.problem.description(),
            "dim": self.problem.dim,
            "kind": signature(self._example),
            "size": source.size,
            "evaluated": source.size if math.isfinite(source.size) else source.evaluation_samples,  # type: ignore[attr-defined]
            "tested": self._test.size if self._test else 0,
            "data": self._seal(source),
            "vectors": [packed(self.problem.start)] if message.get("start") == self.name else [],
        }

    def _check(self, message: Message) -> Message:
        """Try the problem at the common start, and prepare to work."""
        x = self._unpack(message["x"])
        check_labels(self.problem, self._sources, self._test, self._example, x)
        check_problem(self.problem, self._example, x)
        self.problem.try_channels_last(x, self._example)
        programs = Programs(self.problem, Policy(message.get("compile", "auto")), self._rounds, _tell)
        self._host = Host(self.problem, self._sources, self._draws, 1, programs)
        return {"losses": probe(self.problem, _made_up(self._example), x)}

    # ------------------------------------------------------------------ rounds

    def _task(self, message: Message) -> Message:
        round = int(message["round"])
        task = task_named(message["task"], self.definition.allow)
        settings = dict(checked_settings(message["settings"]))
        if self._round != (attempt := (str(message["attempt"]), round)):
            self._host.begin(round)
            self._written = int(message["memory"][self._p])
            self._host.kept = {(name, self._p): v for name, v in self._memory.written_in(self._written).items()}
            self._round = attempt
        vectors = self._held(message, round)
        counted = self._host.gradients.get(self._p, 0)
        _, parts = next(self._host.run([self._p], task, vectors, settings))
        if self._host.staged:
            after = {**self._host.kept, **self._host.staged}
            kept = {name: vector for (name, _), vector in after.items()}
            self._memory.write(round, kept, int(message["oldest"]))
            self._written = round
        return {
            "vectors": [packed(part[0]) for part in parts],
            "gradients": self._host.gradients.get(self._p, 0) - counted,
            "memory": self._written,
        }

    def _evaluate(self, message: Message) -> Message:
        x = self._unpack(message["x"])
        metrics, gradient = self._host.evaluate([self._p], x, bool(message["gradient"]))
        reply: Message = {
            "loss": float(metrics.loss),
            "accuracy": float(metrics.accuracy),
            "vectors": [] if gradient is None else [packed(gradient)],
        }
        if self._test is not None:
            reply["test_loss"], reply["test_accuracy"] = mean_metrics(self.problem, self._test, x)
        return reply

    def _held(self, message: Message, round: int) -> tuple[Tensor, ...]:
        """The vectors of a task: those that come with it, and those held from this round or the one before."""
        for number, blob in message["new"].items():
            self._vectors[int(number)] = self._unpack(blob), round
        self._vectors = {n: (v, used) for n, (v, used) in self._vectors.items() if used >= round - 1}
        out = []
        for number in message["vectors"]:
            if number not in self._vectors:
                raise SettingError(f"vector {number} is not held here")
            vector, _ = self._vectors[number]
            self._vectors[number] = vector, round
            out.append(vector)
        return tuple(out)

    def _unpack(self, blob: Any) -> Tensor:
        try:
            return unpacked(blob, self.problem.dim, self.problem.dtype, self.problem.device)
        except ValueError as error:
            raise SettingError(f"the coordinator sent {error}") from None

    def _seal(self, source: Source) -> str:
        """By which the coordinator notices that the data have changed, and nothing else: the key stays here."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "key"
        if not path.exists():
            path.touch(mode=0o600)
            path.write_text(secrets.token_hex(32))
        return hmac.new(path.read_bytes(), source.fingerprint().encode(), hashlib.sha256).hexdigest()


def test_source(definition: Definition, cast: Cast, example: Batch) -> Source | None:
    if definition.test is None:
        return None
    z = cast(read_batch(definition.test, "the test set", has_target=cast.has_target), "the test set")
    check_alike(z, example, "the test set", "the data")
    return Shard(z)


def _made_up(example: Batch) -> Batch:
    """Samples of the same kind that are the same at every site."""

    def like(part: Tensor) -> Tensor:
        shape = (SYNTHETIC, *part.shape[1:])
        if not part.is_floating_point():
            return torch.zeros(shape, dtype=part.dtype, device=part.device)
        count = math.prod(shape)
        return torch.linspace(-1, 1, count, dtype=torch.float64).reshape(shape).to(part)

    assert batch_size(example) > 0
    return map_batch(like, example)


def _tell(text: str) -> None:
    print(f"fewrounds: {text}", file=sys.stderr, flush=True)
