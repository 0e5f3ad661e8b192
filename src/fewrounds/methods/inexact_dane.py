"""Inexact DANE (Reddi et al. 2016, in the AIDE paper; DANE: Shamir et al. 2014).

    h = mean_p ∇̃^(p)(x_{t-1})   (∇̃: all data, or b̃ samples)
    F^(p)(y) = f_p(y) - ⟨∇̃^(p)(x_{t-1}) - η_D h, y⟩ + (μ/2) ‖y - x_{t-1}‖²
    y^(p) ≈ argmin F^(p): K steps η of a local solver from x_{t-1}
    x_t = mean_p y^(p)

η_D (eta_dane) and μ (mu) are the AIDE paper's η and μ; η is the solver's step size. Two aggregations a round.
With b = None a step is one of gradient descent on F^(p). Else it has b samples, and the solver is

    "svrg":   y ← y - η [g(y) - g(x_{t-1}) + η_D h + μ (y - x_{t-1})]
    "sarah":  v ← v + g(y) - g(y_prev) + μ (y - y_prev),  y ← y - η v,  v = η_D h at first
    "sgd":    y ← y - η [g(y) - ∇̃^(p)(x_{t-1}) + η_D h + μ (y - x_{t-1})]

"svrg" and "sarah" have no use for ∇̃^(p): theirs is F^(p) with ∇f_p(x_{t-1}) in its place, which is the same unless b̃
is less than the data. Their first step is x_{t-1} - η η_D h, since the difference is 0; so is that of gradient descent
if ∇̃^(p) is ∇f_p(x_{t-1}).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fewrounds.interfaces import Engine, Gradient, Rows
from fewrounds.methods.base import Method, State, mean_size, register
from fewrounds.methods.stages import check_b_tilde, every_round, is_full, large_batch, stage_gradient


@register("inexact-dane")
@dataclass(frozen=True)
class InexactDANE(Method):
    """Settings: step size eta of the solver, its K steps of batch b (all data if None), mu, eta_dane, solver = "svrg",
    "sarah" or "sgd", b_tilde samples for h (all data if None)."""

    local: ClassVar[bool] = True
    choices: ClassVar[dict[str, tuple[str, ...]]] = {"solver": ("svrg", "sarah", "sgd")}
    K: int
    b: int | None = None
    mu: float = 0.0
    eta_dane: float = 1.0
    solver: str = "svrg"
    b_tilde: int | None = None

    def init(self, x0: Tensor) -> State:
        return State(x=x0)

    def round(self, s: State, engine: Engine) -> State:
        own = "gradient" if self.b is None or self.solver == "sgd" else None
        h = self.eta_dane * stage_gradient(engine, s.x, self.b_tilde, stash=own)
        how: dict[str, Any] = {"eta": self.eta, "mu": self.mu, "K": self.K}
        if self.b is None:
            known = is_full(self.b_tilde, engine.sizes)
            return State(x=engine.mean(by_gradient_descent, s.x, h, known=known, **how))
        return State(x=engine.mean(SOLVERS[self.solver], s.x, h, b=self.b, **how))

    @property
    def aggregations(self) -> int:
        return 2

    def check(self, sizes: Sequence[float]) -> None:
        check_b_tilde(self.name, self.b_tilde, sizes)
        check_b_tilde(self.name, self.b, sizes, "b")

    def gradients_per_round(self, sizes: Sequence[float]) -> float:
        if self.b is None:
            solving = (self.K - is_full(self.b_tilde, sizes)) * mean_size(sizes)
        else:
            solving = self.K * self.b if self.solver == "sgd" else 2 * (self.K - 1) * self.b
        return large_batch(self.b_tilde, sizes) + solving

    @classmethod
    def also_for_budget(cls, budget: int, strict: bool, sizes: Sequence[float]) -> dict[str, Any]:
        return {"b_tilde": every_round(budget, strict, sizes)}


def by_gradient_descent(rows: Rows, x: Tensor, h: Tensor, *, eta: float, mu: float, K: int, known: bool) -> Tensor:
    """`known`: ∇f_p(x) is what was stashed."""
    y, tilt = x - eta * h if known else x, h - rows.memory.stashed("gradient")
    for _ in range(K - known):
        y = y - eta * (rows.full_gradient(y) + tilt + mu * (y - x))
    return y


def by_svrg(rows: Rows, x: Tensor, h: Tensor, *, eta: float, mu: float, K: int, b: int) -> Tensor:
    return rows.iterate(anchored_step, (x - eta * h,), "local", K - 1, b, x=x, h=h, eta=eta, mu=mu)[0]


def anchored_step(g: Gradient, y: Tensor, *, x: Tensor, h: Tensor, eta: float, mu: float) -> Tensor:
    return y - eta * (g(y) - g(x) + h + mu * (y - x))


def by_sarah(rows: Rows, x: Tensor, h: Tensor, *, eta: float, mu: float, K: int, b: int) -> Tensor:
    return rows.iterate(pulled_recursive_step, (x - eta * h, x, h), "local", K - 1, b, eta=eta, mu=mu)[0]


def pulled_recursive_step(
    g: Gradient, y: Tensor, y_prev: Tensor, v: Tensor, *, eta: float, mu: float
) -> tuple[Tensor, Tensor, Tensor]:
    v = v + g(y) - g(y_prev) + mu * (y - y_prev)
    return y - eta * v, y, v


def by_sgd(rows: Rows, x: Tensor, h: Tensor, *, eta: float, mu: float, K: int, b: int) -> Tensor:
    tilt = h - rows.memory.stashed("gradient")
    return rows.iterate(tilted_step, (x,), "local", K, b, x=x, tilt=tilt, eta=eta, mu=mu)[0]


def tilted_step(g: Gradient, y: Tensor, *, x: Tensor, tilt: Tensor, eta: float, mu: float) -> Tensor:
    return y - eta * (g(y) + tilt + mu * (y - x))


SOLVERS = {"svrg": by_svrg, "sarah": by_sarah, "sgd": by_sgd}
