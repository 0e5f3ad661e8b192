"""What is tried before a run, so that it does not fail or mislead later on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from fewrounds.batch import Batch, batch_size, concatenate, leaves, map_batch
from fewrounds.data.shards import PART, Source
from fewrounds.draws import Draws
from fewrounds.errors import DataError, ProblemError
from fewrounds.layers import refuse_changing_layers
from fewrounds.problem import Problem, is_classification


def example_of(sources: Sequence[Source]) -> Batch:
    """A few samples from far apart in the data: workers are unlike each other, and data are often sorted."""
    picked = []
    for source in (sources[0], sources[len(sources) // 2], sources[-1])[: len(sources)]:
        z = next(source.everything())
        index = torch.linspace(0, batch_size(z) - 1, min(4, batch_size(z))).long()
        picked.append(map_batch(lambda part, index=index: part[index.to(part.device)], z))  # type: ignore[misc]
    return concatenate(picked)  # a copy: a model that writes to its input does not reach the data


def check_labels(problem: Problem, sources: dict[int, Source], test: Source | None, z: Batch, x: Tensor) -> None:
    """Refuse class numbers that the model has no output for."""
    if not problem.has_model:
        return
    try:
        with torch.no_grad():
            output = problem.output(x, map_batch(torch.clone, z))
    except Exception:  # whatever is wrong with the model, check_problem finds it next and says so
        return
    if not is_classification(output, leaves(z)[-1]):
        return
    classes = output.shape[1]
    named = [(f"worker {p}", source) for p, source in sources.items()]
    for whose, source in [*named, *([("the test set", test)] if test else [])]:
        for number, part in enumerate(source.everything()):
            labels = leaves(part)[-1].reshape(batch_size(part), -1)
            outside = (labels < 0) | (labels >= classes)
            if outside.any():
                row = int(outside.any(dim=1).nonzero()[0])
                if _loss_takes(problem, map_batch(lambda p, row=row: p[row : row + 1], part), x):  # type: ignore[misc]
                    return  # whole numbers, but no class numbers
                label = int(labels[row][outside[row]][0])
                where = f"{whose}, row {number * PART + row}"
                raise DataError(f"{where}: label {label}, but the model's classes are 0 to {classes - 1}")


def _loss_takes(problem: Problem, z: Batch, x: Tensor) -> bool:
    if problem.device.type != "cpu":  # a label out of range would break the device for good
        return False
    try:
        with torch.no_grad():
            return math.isfinite(problem.loss(x, map_batch(torch.clone, z)))
    except Exception:
        return False


def probe(problem: Problem, z: Batch, x: Tensor) -> list[float]:
    """The loss at x and at a point beside it, by which a checkpoint recognises the problem."""
    beside = x + 0.1 * torch.from_numpy(Draws(0).generator("probe", 0).normal(size=len(x))).to(x)
    return [_loss(problem, z, x), _loss(problem, z, beside)]


def check_problem(problem: Problem, z: Batch, x: Tensor) -> None:
    """Refuse a loss that fails, changes its input, draws random numbers, or is no mean over the samples."""
    n = batch_size(z)
    before = torch.get_rng_state()
    given = map_batch(torch.clone, z)
    try:
        with torch.enable_grad():
            value = problem.loss(x.detach().clone().requires_grad_(), given)
        if isinstance(value, Tensor) and value.ndim == 0 and value.requires_grad:
            problem.gradient(x, map_batch(torch.clone, z))
    except ProblemError:
        raise
    except Exception as error:
        types = ", ".join(f"{str(part.dtype).removeprefix('torch.')}{list(part.shape)}" for part in leaves(z))
        reason = " ".join(str(error).split())[:300]
        hint = ""
        if problem.has_model and any(not part.is_floating_point() for part in leaves(z)[:-1]):
            hint = "; the inputs are whole numbers: convert and scale them first, unless the model embeds them"
        raise ProblemError(f"the loss failed on {n} samples ({types}): {reason}{hint}") from error
    if not isinstance(value, Tensor) or value.ndim != 0:
        what = f"shape {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ProblemError(f"the loss returned {what}: expected a scalar tensor, the mean over the batch")
    if not value.requires_grad:
        raise ProblemError("the loss does not depend on x in a way torch can differentiate")
    value = value.detach()
    if value.dtype != problem.dtype:
        raise ProblemError(f"the loss returned {value.dtype}: expected the problem's {problem.dtype}")
    if any(not torch.equal(a, b) for a, b in zip(leaves(given), leaves(z), strict=True)):
        raise ProblemError("the loss or the model changes its input in place: make its first operation not inplace")
    if problem.has_model:
        refuse_changing_layers(problem.module(x), leaves(map_batch(torch.clone, z))[:-1])
    _check_repeatable(problem, z, x, float(value), before)
    _check_mean(problem, z, x, float(value))


def _loss(problem: Problem, z: Batch, x: Tensor) -> float:
    with torch.no_grad():
        return float(problem.loss(x, map_batch(torch.clone, z)))


def _check_repeatable(problem: Problem, z: Batch, x: Tensor, value: float, state: Tensor) -> None:
    again = _loss(problem, z, x)
    # Sums on a GPU may come in another order; on a CPU the same call gives the same bits.
    slack = 0.0 if x.device.type == "cpu" else 1e-5 * max(1.0, abs(value))
    if not torch.equal(state, torch.get_rng_state()) or (math.isfinite(value) and not abs(again - value) <= slack):
        torch.set_rng_state(state)
        raise ProblemError("the loss draws random numbers: it must give the same value for the same x and z")


def _check_mean(problem: Problem, z: Batch, x: Tensor, value: float) -> None:
    """Compare the loss of the batch with the mean over its parts, cut in several ways."""
    n = batch_size(z)
    for size in {1, max(1, n // 3), max(1, n // 2)} - {n}:
        cuts = [map_batch(lambda part, i=i: part[i : i + size], z) for i in range(0, n, size)]  # type: ignore[misc] # noqa: B023
        try:
            mean = sum(_loss(problem, cut, x) * batch_size(cut) for cut in cuts) / n
        except Exception:  # a loss may not take single samples; b = 1 will then say so
            continue
        if math.isfinite(mean) and abs(mean - value) > 1e-3 * max(1.0, abs(mean)):
            raise ProblemError(
                f"the loss of {n} samples is {value:.6g}, but the mean over parts of {size} is {mean:.6g}: it must be "
                "the mean over the samples, each by itself (reduction='mean', no class weights, equal shapes)"
            )


def can_vmap(problem: Problem, z: Batch, x: Tensor) -> bool:
    """Whether the gradients of several workers can be taken at once, and come out the same as one by one."""
    if problem.can_lose_gradients_under_vmap:
        return False
    half = max(1, batch_size(z) // 2)
    cuts = [map_batch(lambda part: part[:half].clone(), z), map_batch(lambda part: part[-half:].clone(), z)]
    rows = map_batch(torch.clone, concatenate([map_batch(lambda part: part.unsqueeze(0), cut) for cut in cuts]))
    points = torch.stack([x, x + 0.01])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where vmap falls back to a slow loop of its own
            shared, own = problem.gradients(x, rows), problem.gradients(points, rows)
    except Exception:
        return False
    alone = [
        torch.stack([problem.gradient(at, cut) for at, cut in zip(xs, cuts, strict=True)]) for xs in ((x, x), points)
    ]
    tolerance = 1e-9 if problem.dtype == torch.float64 else 1e-3
    return all(
        torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)
        for a, b in zip((shared, own), alone, strict=True)
    )
