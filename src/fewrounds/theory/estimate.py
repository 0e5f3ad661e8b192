"""Measured figures, with their error bars and what they cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


class Estimate(float):
    """A number that knows its error bar and how many single-sample gradients it took (over all workers)."""

    error: float
    gradients: int

    def __new__(cls, value: float, error: float = 0.0, gradients: int = 0) -> Estimate:
        made = super().__new__(cls, value)
        made.error = float(error)
        made.gradients = int(gradients)
        return made

    def __getnewargs__(self) -> tuple[float, float, int]:  # type: ignore[override]
        return float(self), self.error, self.gradients

    def __str__(self) -> str:
        if math.isnan(self):
            return "not measured"
        return f"{float(self):.4g} ± {self.error:.1g}" if self.error else f"{float(self):.4g}"


NOT_MEASURED = Estimate(math.nan)
FIGURES = ("L", "L_ahead", "L_workers", "L_sample", "zeta", "zeta_to_mean", "zeta1", "sigma2", "gradient_norm2")
"""What may be asked for, by name."""


def greatest_of(estimates: Iterable[Estimate]) -> Estimate:
    """The greatest, with an error bar that reaches as high as that of any."""
    estimates = list(estimates)
    top = max(estimates)
    return Estimate(top, max(top.error, *(one + one.error - top for one in estimates)))


@dataclass(frozen=True)
class Measurement:
    """The constants of the theory at one point. Those that were not asked for are NaN, or ().

    The error bar of an eigenvalue is its residual: the operator has an eigenvalue within it, as a rule the one that is
    meant. That of ζ and ζ₁, where not all pairs of workers were compared, reaches up to a bound for all of them, and
    that of `zeta_to_mean` to a bound for all workers, which holds with a probability of 99 % where ζ was not asked for.
    That of σ² is its standard error, of the greatest over workers as much wider as the greatest is too great. With
    fewer samples than a worker has (n), and for streams, the figures are those of the samples: bars of eigenvalues then
    reach to what other samples say of the same direction, and those of ζ₁ and ‖∇f‖² allow for the noise that σ² gives
    the gradients.
    """

    loss: float
    """f(x)."""
    L: Estimate = NOT_MEASURED
    """‖∇²f(x)‖: the smoothness of f here."""
    L_ahead: Estimate = NOT_MEASURED
    """|vᵀ∇²f(x - ∇f(x)/L) v|: what is left of L after a first step, along the direction v that it was found in."""
    L_workers: tuple[Estimate, ...] = ()
    """‖∇²f_p(x)‖ of each worker."""
    L_sample: Estimate = NOT_MEASURED
    """A high quantile of ‖∇²ℓ(x, z)‖ over samples z: the smoothness that the theory assumes of every sample."""
    zeta: Estimate = NOT_MEASURED
    """ζ = max ‖∇²f_p(x) - ∇²f_q(x)‖ over pairs of workers: the second-order heterogeneity."""
    zeta_to_mean: Estimate = NOT_MEASURED
    """max ‖∇²f_p(x) - ∇²f(x)‖ over workers."""
    zeta1: Estimate = NOT_MEASURED
    """ζ₁ = max ‖∇f_p(x) - ∇f_q(x)‖ over pairs of workers: the first-order heterogeneity."""
    sigma2: Estimate = NOT_MEASURED
    """σ²: the greatest over workers of E‖∇ℓ(x, z) - ∇f_p(x)‖²."""
    sigma2_workers: tuple[Estimate, ...] = ()
    sigma2_mean: Estimate = NOT_MEASURED
    gradient_norm2: Estimate = NOT_MEASURED
    """‖∇f(x)‖²."""
    sizes: tuple[float, ...] = ()
    """The number of samples of each worker; infinite for a stream."""
    dim: int = 0
    n: int | None = None
    """The samples of each worker that stood for its data; None for all."""

    @property
    def P(self) -> int:
        return len(self.sizes)

    @property
    def L_worker(self) -> Estimate:
        """The greatest of `L_workers`, with a bar that reaches as high as that of any, and what all of them cost."""
        if not self.L_workers:
            return NOT_MEASURED
        top = greatest_of(self.L_workers)
        return Estimate(top, top.error, sum(one.gradients for one in self.L_workers))

    @property
    def zeta_of_L(self) -> float:
        """ζ / L, and 0 where nothing is bent."""
        return self.zeta / self.L if self.L else 0.0

    @property
    def costs(self) -> dict[str, int]:
        """The gradients that each figure took which was measured, by its name."""
        found = {name: getattr(self, "L_worker" if name == "L_workers" else name) for name in FIGURES}
        return {name: one.gradients for name, one in found.items() if not math.isnan(one)}

    @property
    def gradients(self) -> int:
        """Single-sample gradients that all of it took, over all workers. A Hessian-vector product counts two."""
        return sum(self.costs.values())

    def __str__(self) -> str:
        rows = {
            "loss": f"{self.loss:.4g}",
            "‖∇f‖²": self.gradient_norm2,
            "L": self.L,
            "L after a step": self.L_ahead,
            "L of a worker, greatest": self.L_worker,
            "L of a sample": self.L_sample,
            "ζ": self.zeta,
            "ζ to the mean": self.zeta_to_mean,
            "ζ₁": self.zeta1,
            "σ²": self.sigma2,
            "σ², mean": self.sigma2_mean,
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())

    def to_json(self) -> dict[str, Any]:
        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return [plain(one) for one in value]
            if isinstance(value, Estimate):
                return {"value": float(value), "error": value.error, "gradients": value.gradients}
            return value

        return {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Measurement:
        def back(value: Any) -> Any:
            if isinstance(value, list):
                return tuple(back(one) for one in value)
            return Estimate(**value) if isinstance(value, dict) else value

        return cls(**{name: back(value) for name, value in content.items()})
