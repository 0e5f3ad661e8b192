"""Layers that do not fit: their output depends on chance, on other samples, or on what they saw before."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fewrounds.errors import ProblemError

RANDOM = "draws random numbers in forward; remove it, or freeze it with .eval(), and regularise with l2= instead"
BATCH = (
    "mixes the samples of a batch and keeps running statistics; use GroupNorm or LayerNorm instead, "
    "or freeze it with .eval()"
)
BUFFER = "changes its buffer {buffer!r} in forward, which the workers would not share; freeze it with .eval()"
HOOK = "has torch.nn.utils.{norm}, which cannot be copied; use torch.nn.utils.parametrizations.{norm}"


def refuse_unfit_layers(model: nn.Module) -> None:
    """Refuse by name the layers that are known not to fit, and parameters that have no shape yet."""
    for name, layer in model.named_modules():
        reason = _reason(layer)
        if reason:
            raise ProblemError(f"layer {_label(name, layer)} {reason}")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise ProblemError(f"parameter {name!r} has no shape yet: run one batch through the model first")


def refuse_changing_layers(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Run the model once and refuse the first layer that draws random numbers or changes a buffer.

    This finds what `refuse_unfit_layers` does not know: a custom layer that calls `torch.rand`, say.
    """
    before: dict[nn.Module, tuple[Tensor, dict[str, Tensor]]] = {}
    found: list[str] = []

    def enter(layer: nn.Module, _: object) -> None:
        before[layer] = (torch.get_rng_state(), {name: b.clone() for name, b in layer.named_buffers()})

    def leave(name: str, layer: nn.Module, *_: object) -> None:
        state, buffers = before[layer]
        # Layers leave innermost first, so the first one found is the one to name.
        if not torch.equal(state, torch.get_rng_state()):
            found.append(f"layer {_label(name, layer)} {RANDOM}")
        for buffer, value in layer.named_buffers():
            if not torch.equal(value, buffers[buffer]):
                found.append(f"layer {_label(name, layer)} {BUFFER.format(buffer=buffer)}")

    hooks = [layer.register_forward_pre_hook(enter) for layer in model.modules()]
    hooks += [layer.register_forward_hook(partial(leave, name)) for name, layer in model.named_modules()]
    saved = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
        for name, buffer in model.named_buffers():
            buffer.copy_(saved[name])
    if found:
        raise ProblemError(found[0])


def _reason(layer: nn.Module) -> str | None:
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
        return "changes its own weights in forward; use it without max_norm"
    for hook in layer._forward_pre_hooks.values():
        if isinstance(hook, (SpectralNorm, WeightNorm)):
            return HOOK.format(norm="spectral_norm" if isinstance(hook, SpectralNorm) else "weight_norm")
    if not layer.training:
        return None
    if isinstance(layer, _BatchNorm):
        return BATCH
    if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
        return BUFFER.format(buffer="running_mean")
    # Once it has converged it writes back what was there, so that running it would tell nothing.
    if isinstance(layer, _SpectralNorm) and hasattr(layer, "_u"):
        return BUFFER.format(buffer="_u")
    if isinstance(layer, nn.RReLU):
        return RANDOM
    if isinstance(layer, _DropoutNd) and layer.p > 0:
        return RANDOM
    if isinstance(layer, (nn.RNNBase, nn.MultiheadAttention)) and layer.dropout > 0:
        return RANDOM
    return None


def _label(name: str, layer: nn.Module) -> str:
    return f"{name!r} ({type(layer).__name__})" if name else f"({type(layer).__name__})"


def has_padding(model: nn.Module) -> bool:
    """Whether a layer leaves a padding row without a gradient, which torch forgets under vmap."""
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return any(isinstance(layer, kinds) and layer.padding_idx is not None for layer in model.modules())
