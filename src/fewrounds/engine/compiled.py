"""Steps as machine code: traced once, compiled ahead of time by AOTInductor, and kept on disk.

A step is traced with its gradients to one graph of tensor operations, which changes the vectors in place. The package
that torch compiles from it is stored under a digest of the graph, so another process, or another day, loads it in
milliseconds. Numbers such as η are inputs of the graph: other values need no other compilation.
"""

from __future__ import annotations

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
from fewrounds.errors import SettingError

PAYS = 40_000
"""Calls of a step from which on compiling pays: it takes 10 to 20 s, and saves about half a millisecond a call."""

Program = Callable[[list[Tensor]], object]
"""Takes the tensors it was traced with, or others of the same shapes, and changes them in place."""


@dataclass(frozen=True)
class Policy:
    """Whether to compile. The answer depends on counts alone, so that a run that is resumed gets the same one."""

    mode: bool | str = "auto"
    runs: int = 1
    """How many runs of this kind there are: they share what is compiled."""

    def __post_init__(self) -> None:
        if self.mode not in (True, False, "auto") or not isinstance(self.mode, (bool, str)):
            raise SettingError(f"compile = {self.mode!r}: must be 'auto', True or False")

    def wants(self, calls: int) -> bool:
        """Whether a step that a run calls this often is worth compiling."""
        return calls * self.runs >= PAYS if self.mode == "auto" else bool(self.mode)


def compile_program(
    function: Callable[..., Any], examples: Sequence[Tensor], name: str, say: Callable[[str], None]
) -> Program | None:
    """The compiled function, from disk if it was compiled before; None, with one line, where that cannot be.

    The examples are changed: pass copies with the strides of what the program will be given.
    """
    try:
        graph = _trace(function, list(examples))
    except Exception as error:
        say(f"{name} cannot be traced ({_short(error)}): it runs uncompiled")
        return None
    key = _digest(graph, examples)
    if key not in _loaded:
        _loaded[key] = _load_or_build(graph, examples, key, name, say)
    return _loaded[key]


_loaded: dict[str, Program | None] = {}


def _trace(function: Callable[..., Any], examples: list[Tensor]) -> torch.fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    def traced(*inputs: Tensor) -> tuple[Tensor]:
        function(*inputs)
        return (inputs[0].new_zeros(()),)

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph: torch.fx.GraphModule = make_fx(traced)(*examples)
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


FORMAT = 1


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
