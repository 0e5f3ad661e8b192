"""Steps as programs: traced once, run as a list of tensor operations or as machine code that is kept on disk.

A step is traced with its gradients to one graph of tensor operations. The package that AOTInductor compiles from it is
stored under a digest of the graph, so another process, or another day, loads it in milliseconds. Numbers such as η are
inputs of the graph: other values need no other compilation.
"""

from __future__ import annotations

import enum
import hashlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fewrounds.data.home import home
from fewrounds.engine.products import take_out
from fewrounds.errors import SettingError

TRACING_PAYS = 2_000
"""Calls of a step from which on tracing pays: it takes up to 2 s, and saves about a millisecond a call."""
COMPILING_PAYS = 40_000
"""Calls of a step from which on compiling pays: it takes 3 to 20 s, and saves about half a millisecond more."""

Program = Callable[[list[Tensor]], Sequence[Tensor]]
"""Takes tensors of the shapes it was traced with, and returns what the function returns; it may empty the list.

It is to be called without recording of gradients.
"""


class How(enum.Enum):
    """The three ways to run a step, by the time they take to set up."""

    AS_IT_IS = enum.auto()
    TRACED = enum.auto()
    COMPILED = enum.auto()


@dataclass(frozen=True)
class Policy:
    """Whether to compile. The answer depends on counts alone, so that a run that is resumed gets the same one."""

    mode: bool | str | How = "auto"
    """"auto", True, False, or one way for every step."""
    runs: int = 1
    """How many runs of this kind there are: they share what is compiled."""

    def __post_init__(self) -> None:
        if self.mode != "auto" and not isinstance(self.mode, (bool, How)):
            raise SettingError(f"compile = {self.mode!r}: must be 'auto', True or False")

    def how(self, calls: int) -> How:
        """How to run a step that a run calls this often."""
        if isinstance(self.mode, How):
            return self.mode
        if self.mode is True or (self.mode == "auto" and calls * self.runs >= COMPILING_PAYS):
            return How.COMPILED
        return How.TRACED if calls >= TRACING_PAYS else How.AS_IT_IS


def build(
    function: Callable[..., Any],
    examples: Sequence[Tensor],
    how: How,
    name: str,
    say: Callable[[str], None],
    *,
    numbers: int = 0,
    may_overwrite: Callable[[], set[int]] = set,
) -> Program | None:
    """The function as a program, from disk if it was compiled before; None where it can only run as it is.

    The examples have the shapes and strides of what the program will be given; the first of them are numbers. The
    program may overwrite the inputs that `may_overwrite` names once the function has been traced.
    """
    try:
        graph = _trace(function, list(examples))
    except Exception as error:
        say(f"{name} cannot be traced ({_short(error)}): it runs as it is, which is slower")
        return None
    on_cpu = all(example.device.type == "cpu" for example in examples)
    complete = take_out(graph, numbers, may_overwrite()) if on_cpu else _as_it_is
    program = None
    if how is How.COMPILED:
        key = _digest(graph, examples)
        if key not in _loaded:
            _loaded[key] = _load_or_build(graph, examples, key, name, say)
        program = _loaded[key]
    program = complete(program or _interpreted(graph))
    if not _agree(program, function, examples):
        say(f"{name} gives other values when it is traced: it runs as it is, which is slower")
        return None
    return program


def _interpreted(graph: torch.fx.GraphModule) -> Program:
    """The graph's operations one after the other: without a compiler, and without autograd's bookkeeping."""
    from torch.fx.passes.dialect.common.cse_pass import CSEPass

    for node in graph.graph.nodes:
        if node.target is torch.ops.aten.ones_like.default:
            # where backward starts from: with the shape alone, the loss itself need not be computed
            like = node.meta["val"]
            node.target = torch.ops.aten.ones.default
            node.args, node.kwargs = (list(like.shape),), {"dtype": like.dtype, "device": like.device}
        elif _changes_nothing(node):
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()
    once = CSEPass()(graph)
    assert once is not None, "a pass returns its graph"
    graph = once.graph_module
    graph.recompile()
    forward = graph.forward
    return lambda inputs: forward(*inputs)


def _changes_nothing(node: torch.fx.Node) -> bool:
    """Whether an operation that tracing leaves behind gives what it is given: a view of the same shape, times 1."""
    aten = torch.ops.aten
    is_times_one = node.target is aten.mul.Scalar and node.args[1] == 1
    views = (aten.detach.default, aten.view.default, aten._unsafe_view.default, aten.expand.default)
    if not is_times_one and node.target not in views:
        return False
    given: Any = node.args[0]
    before, after = given.meta["val"], node.meta["val"]
    return bool(before.shape == after.shape and before.dtype == after.dtype)  # times 1 may change the type


def _agree(program: Program, function: Callable[..., Any], examples: Sequence[Tensor]) -> bool:
    """Whether a program returns what the function does."""
    with torch.no_grad():
        mine, theirs = program([example.clone() for example in examples]), function(*examples)
    tolerance = 1e-8 if examples[0].dtype == torch.float64 else 1e-3
    return all(
        torch.allclose(a, b, rtol=tolerance, atol=tolerance * 1e-2, equal_nan=True)
        for a, b in zip(mine, theirs, strict=True)
    )


def _as_it_is(program: Program) -> Program:
    return program


_loaded: dict[str, Program | None] = {}


def _trace(function: Callable[..., Any], examples: list[Tensor]) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph: torch.fx.GraphModule = make_fx(function)(*examples)
    return graph


def _digest(graph: torch.fx.GraphModule, examples: Sequence[Tensor]) -> str:
    """What decides the machine code: the graph, its constants, the inputs' layout, torch, threads and the processor."""
    digest = hashlib.sha256(graph.code.encode())
    for name, value in sorted(vars(graph).get("_buffers", {}).items()) + sorted(_constants(graph)):
        digest.update(f"{name}{value.dtype}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    for example in examples:
        digest.update(f"{example.dtype}{tuple(example.shape)}{example.stride()}{example.device}".encode())
    digest.update(f"{torch.__version__} {torch.get_num_threads()} {_machine()} {FORMAT}".encode())
    return digest.hexdigest()[:32]


FORMAT = 2


def _constants(graph: torch.fx.GraphModule) -> list[tuple[str, Tensor]]:
    return [(name, value) for name, value in vars(graph).items() if isinstance(value, Tensor)]


@cache
def _machine() -> str:
    """The processor's instruction sets: a folder may be shared by different machines."""
    import platform

    words = [platform.machine(), torch.backends.cpu.get_cpu_capability()]
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        words += [line for line in lines if line.startswith(("flags", "Features"))][:1]
    except OSError:
        words.append(platform.processor())
    return " ".join(words)


def _load_or_build(
    graph: torch.fx.GraphModule, examples: Sequence[Tensor], key: str, name: str, say: Callable[[str], None]
) -> Program | None:
    from filelock import FileLock

    folder = home() / "compiled"
    package = folder / f"{key}.pt2"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{key}.lock"):  # of several processes, one compiles
            if package.exists():
                try:
                    return _load(package)
                except Exception:  # cut short or damaged: compiled anew
                    package.unlink()
            if examples[0].device.type == "cpu" and not has_compiler():
                say("there is no C++ compiler (g++ or clang++), so steps run uncompiled, which is slower")
                return None
            say(f"compiling {name}, once for this machine")
            _build(graph, examples, package)
            return _load(package)
    except Exception as error:
        say(f"{name} could not be compiled ({_short(error)}): it runs uncompiled")
        return None


def _build(graph: torch.fx.GraphModule, examples: Sequence[Tensor], package: Path) -> None:
    from torch._inductor import aoti_compile_and_package

    with tempfile.TemporaryDirectory(dir=package.parent) as scratch, warnings.catch_warnings(), _Quiet():
        warnings.simplefilter("ignore")
        exported = torch.export.export(graph, tuple(examples))
        built = aoti_compile_and_package(exported, package_path=str(Path(scratch) / "step.pt2"))
        os.replace(built, package)


def _load(package: Path) -> Program:
    from torch._inductor import aoti_load_package

    with warnings.catch_warnings(), _Quiet():
        warnings.simplefilter("ignore")
        program: Program = aoti_load_package(str(package)).loader.boxed_run
    return program


@cache
def has_compiler() -> bool:
    """Whether a C++ compiler can be found, the way torch looks for one."""
    return any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "g++", "clang++"))


class _Quiet:
    """Torch's own log lines about compiling say nothing to a user of a training tool."""

    def __enter__(self) -> None:
        import logging

        self._before = logging.root.manager.disable
        logging.disable(logging.WARNING)

    def __exit__(self, *_: object) -> None:
        import logging

        logging.disable(self._before)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
