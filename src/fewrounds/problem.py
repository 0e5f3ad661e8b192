"""A model, a loss and L2 as functions of one flat vector x."""

from __future__ import annotations

import copy
import functools
import math
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from fewrounds.batch import Batch, leaves, map_batch
from fewrounds.errors import ProblemError, finite_number, kind_of, whole_number
from fewrounds.layers import has_padding, refuse_unfit_layers


class Metrics(NamedTuple):
    """Mean loss (without L2) and accuracy of a batch; the accuracy is NaN where there are no classes."""

    loss: Tensor
    accuracy: Tensor


class Problem:
    """What is minimised: the mean over samples of a loss, plus (l2 / 2)‖x‖².

    `Problem(model, loss=cross_entropy, l2=5e-3)` takes any `torch.nn.Module`. A sample is (input, …, target),
    the loss is `loss(output, target)`, and x is all trainable parameters, flattened in the order of
    `model.named_parameters()`. The module is copied; yours is never changed.

    `Problem(loss=f, dim=d, dtype=torch.float64)` takes any `f(x, z)` that returns the mean over a batch z,
    which has the structure of a worker's data: a tensor or a tuple of tensors, samples first.

    The loss of a batch must be the mean over its samples, each by itself. Layers that break this, or that
    draw random numbers (batch normalisation, dropout), are refused by name; `layer.eval()` freezes them.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        loss: Callable[..., Tensor] | None = None,
        *,
        l2: float = 0.0,
        dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        if not callable(loss):
            raise ProblemError("Problem needs loss=: loss(output, target) for a model, loss(x, z) without one")
        if dtype not in (None, torch.float32, torch.float64):
            raise ProblemError(f"dtype {dtype} is not supported: use torch.float32 or torch.float64")
        self.l2 = finite_number("l2", l2)
        self.device = _device(device)
        self._loss = loss
        if model is None:
            if dim is None:
                raise ProblemError("a loss without a model needs dim=, the length of x")
            self.dim = whole_number("dim", dim)
            self.dtype = dtype or torch.float32
            self._model = None
            self._start = torch.zeros(self.dim, dtype=self.dtype, device=self.device)
        else:
            if not isinstance(model, nn.Module):
                raise ProblemError(f"the model is {kind_of(model)}: expected a torch.nn.Module")
            if dim is not None:
                raise ProblemError("dim is the model's number of parameters: leave it out when a model is given")
            refuse_unfit_layers(model)
            first = next(iter(model.parameters()), None)
            self.dtype = dtype or (
                torch.float64 if first is not None and first.dtype == torch.float64 else torch.float32
            )
            self._model = copy.deepcopy(model).to(dtype=self.dtype, device=self.device)
            trainable = [(name, p) for name, p in self._model.named_parameters() if p.requires_grad]
            if not trainable:
                raise ProblemError("the model has no trainable parameters")
            self._names = [name for name, _ in trainable]
            self._shapes = [p.shape for _, p in trainable]
            self._sizes = [p.numel() for _, p in trainable]
            self.dim = sum(self._sizes)
            self._start = torch.cat([p.detach().reshape(-1) for _, p in trainable])
            for parameter in self._model.parameters():
                parameter.requires_grad_(False)
        if model is None:
            self._sizes = [self.dim]
        self._channels_last = False
        self._row_losses = vmap(self._data_loss)

    @property
    def start(self) -> Tensor:
        """The default x_0: the model's parameters as they were given, or 0 without a model."""
        return self._start.clone()

    @property
    def has_model(self) -> bool:
        return self._model is not None

    @property
    def can_lose_gradients_under_vmap(self) -> bool:
        return self._model is not None and has_padding(self._model)

    def __repr__(self) -> str:
        what = type(self._model).__name__ if self._model is not None else name_of(self._loss)
        return f"Problem({what}, dim={self.dim}, dtype={self.dtype}, l2={self.l2})"

    # ------------------------------------------------------------------ functions of x

    def loss(self, x: Tensor, z: Batch) -> Tensor:
        """The mean loss of the batch plus (l2 / 2)‖x‖²: what is optimised."""
        value = self._forward(x, z)[0]
        return value + (0.5 * self.l2) * x.dot(x) if self.l2 else value

    def gradient(self, x: Tensor, z: Batch) -> Tensor:
        """∇loss(x, z) for x: [d]."""
        return self.gradients(x.unsqueeze(0), map_batch(lambda part: part.unsqueeze(0), z))[0]

    def gradients(self, x: Tensor, z: Batch) -> Tensor:
        """One gradient a row: z has a leading row dimension, x is [rows, d], or [d] if the rows share it."""
        x = x.expand(len(leaves(z)[0]), -1)
        return torch.cat(self.gradients_of(self.split(x), z), dim=1)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Views of x: [..., d], one a parameter, each [..., size]."""
        return torch.split(x, self._sizes, dim=-1)

    def gradients_of(self, parts: Sequence[Tensor], z: Batch) -> list[Tensor]:
        """`gradients` for vectors that are split, [rows, size] each."""
        with torch.enable_grad():
            if parts[0].shape[0] == 1:
                points = [part[0].detach().requires_grad_() for part in parts]
                loss = self._data_loss(points, self._laid_out(map_batch(lambda part: part[0], z)))
            else:
                points = [part.detach().requires_grad_() for part in parts]
                # The rows do not touch each other, so the gradient of the sum holds the gradient of each.
                loss = self._row_losses(points, z).sum()
            found = torch.autograd.grad(loss, points, allow_unused=True, materialize_grads=True)
        gradients = [g.reshape(part.shape) for g, part in zip(found, parts, strict=True)]
        if self.l2:
            gradients = [torch.add(g, part, alpha=self.l2) for g, part in zip(gradients, parts, strict=True)]
        return gradients

    def hessian_product(self, x: Tensor, z: Batch, v: Tensor) -> Tensor:
        """∇²loss(x, z) v for v: [d], by differentiating the gradient once more; no matrix is formed."""
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):  # torch's other attentions have no second derivative
            x = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self._forward(x, z)[0], x, create_graph=True)
            if gradient.requires_grad:
                (product,) = torch.autograd.grad(gradient, x, v, allow_unused=True, materialize_grads=True)
            else:  # a loss that is linear in x
                product = torch.zeros_like(v)
        return torch.add(product, v, alpha=self.l2) if self.l2 else product

    def metrics(self, x: Tensor, z: Batch) -> Metrics:
        """Loss without L2, and accuracy, of a batch."""
        with torch.no_grad():
            value, output = self._forward(x, z)
            return Metrics(value, self._accuracy(output, z))

    def metrics_and_gradient(self, x: Tensor, z: Batch) -> tuple[Metrics, Tensor]:
        """`metrics` and `gradient` (which has the L2 term) in one pass."""
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            value, output = self._forward(x, z)
            gradient = torch.autograd.grad(value, x)[0]
        with torch.no_grad():
            metrics = Metrics(value.detach(), self._accuracy(output, z))
            return metrics, gradient + self.l2 * x if self.l2 else gradient

    def try_channels_last(self, x: Tensor, z: Batch) -> None:
        """Hand images to the model with their channels last from now on, if it takes them and its loss is the same.

        A CPU's convolutions and pooling are faster on them; a model that calls `view` on what they return fails.
        """
        has_images = any(part.ndim == 4 and part.is_floating_point() for part in leaves(z)[:-1])
        if self._model is None or self.device.type != "cpu" or not has_images:
            return
        if self._channels_last or not any(isinstance(module, nn.Conv2d) for module in self._model.modules()):
            return
        usual = self.gradient(x, z)
        self._channels_last = True
        try:
            same = torch.allclose(self.gradient(x, z), usual, rtol=1e-3, atol=1e-5, equal_nan=True)
        except RuntimeError:
            same = False
        self._channels_last = same

    # ------------------------------------------------------------------ the model

    def module(self, x: Tensor) -> nn.Module:
        """A copy of the model with x as its parameters."""
        if self._model is None:
            raise ProblemError("this problem is a plain loss(x, z): it has no model")
        model = copy.deepcopy(self._model)
        with torch.no_grad():
            parameters = dict(model.named_parameters())
            for name, value in self._unflatten(x).items():
                parameters[name].copy_(value)
                parameters[name].requires_grad_()
        return model

    def output(self, x: Tensor, z: Batch) -> Tensor:
        """The model's output for the inputs of z."""
        if self._model is None:
            raise ProblemError("this problem is a plain loss(x, z): it has no model")
        output = functional_call(self._model, self._unflatten(x), leaves(self._laid_out(z))[:-1])
        if not isinstance(output, Tensor):
            raise ProblemError(f"the model returned a {type(output).__name__}: expected one tensor")
        return output

    def description(self) -> dict[str, Any]:
        """What identifies the problem in a checkpoint."""
        shapes = [list(shape) for shape in self._shapes] if self._model is not None else [[self.dim]]
        return {
            "model": without_addresses(repr(self._model)),
            "loss": name_of(self._loss),
            "shapes": shapes,
            "dtype": str(self.dtype),
            "l2": self.l2,
        }

    def _unflatten(self, x: Tensor) -> dict[str, Tensor]:
        parts = torch.split(x, self._sizes)
        return {name: part.view(shape) for name, shape, part in zip(self._names, self._shapes, parts, strict=True)}

    def _laid_out(self, z: Batch) -> Batch:
        if not self._channels_last or isinstance(z, Tensor):
            return z
        images = (
            part.contiguous(memory_format=torch.channels_last) if part.ndim == 4 and part.is_floating_point() else part
            for part in z[:-1]
        )
        return (*images, z[-1])

    def _data_loss(self, parts: Sequence[Tensor], z: Batch) -> Tensor:
        """The mean loss of the batch, without L2, for x that is split."""
        if self._model is None:
            return self._loss(parts[0], z)
        parameters = {
            name: part.view(shape) for name, part, shape in zip(self._names, parts, self._shapes, strict=True)
        }
        output = functional_call(self._model, parameters, leaves(z)[:-1])
        return self._loss(output, leaves(z)[-1])

    def _forward(self, x: Tensor, z: Batch) -> tuple[Tensor, Tensor | None]:
        if self._model is None:
            return self._loss(x, z), None
        output = self.output(x, z)
        return self._loss(output, leaves(z)[-1]), output

    def _accuracy(self, output: Tensor | None, z: Batch) -> Tensor:
        if output is None or not is_classification(output, leaves(z)[-1]):
            return torch.full((), math.nan, dtype=self.dtype, device=self.device)
        return (output.argmax(dim=1) == leaves(z)[-1]).to(self.dtype).mean()


def is_classification(output: Tensor, target: Tensor) -> bool:
    """Whether the target holds class numbers for the output's dimension 1."""
    return (
        not target.is_floating_point()
        and output.ndim == target.ndim + 1
        and output.shape[1] >= 2
        and target.shape == output.shape[:1] + output.shape[2:]
    )


def of_this_rank(device: torch.device) -> torch.device:
    """Under torchrun "cuda" means the GPU of the process: each on a machine has its own."""
    if str(device) == "cuda" and "LOCAL_RANK" in os.environ:
        return torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    return device


def _device(device: torch.device | str) -> torch.device:
    try:
        found = of_this_rank(torch.device(device))
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ProblemError(f"device = {device!r} cannot be used here: {reason}") from error
    return found


def name_of(function: Any) -> str:
    """A name that is the same in every process: no memory addresses."""
    if isinstance(function, functools.partial):
        settings = [repr(value) for value in function.args]
        settings += [f"{key}={value!r}" for key, value in sorted(function.keywords.items())]
        return without_addresses(f"partial({name_of(function.func)}, {', '.join(settings)})")
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else without_addresses(repr(function))


def without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
