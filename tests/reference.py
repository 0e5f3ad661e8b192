"""Naive loops straight from the pseudocode, in NumPy, one worker and one sample batch at a time.

They are slow and plain on purpose. They get the same draws as the library (by asking `Draws` for the same
purpose, round and worker), so the iterates must agree exactly and not only "up to convergence".
Every worker of the staged methods keeps its own ṽ^(p) here, as the paper writes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from fewrounds.draws import Draws
from problems import Case, Vector


@dataclass
class Run:
    case: Case
    seed: int
    weights: Vector
    trace: list[Vector] = field(default_factory=list)
    picked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = Draws(self.seed)
        self.P = len(self.case.sizes)
        self.trace.append(self.case.x0)

    def index(self, purpose: str, round: int, p: int, shape: tuple[int, ...]) -> Vector:
        return self.draws.generator(purpose, round, p).integers(self.case.sizes[p], size=shape)

    def mean(self, vectors: list[Vector]) -> Vector:
        return sum(w * v for w, v in zip(self.weights, vectors, strict=True))

    def mean_of(self, vectors: dict[int, Vector]) -> Vector:
        """The mean over those who took part."""
        share = sum(self.weights[p] for p in vectors)
        return sum(self.weights[p] / share * v for p, v in vectors.items())

    def taking_part(self, t: int, participants: int | None) -> list[int]:
        return list(range(self.P)) if participants is None else self.draws.subset(t, self.P, participants)

    def large(self, t: int, p: int, x: Vector, b_tilde: int | None) -> Vector:
        """∇̃^(p): over all data, or over b̃ samples if that is less."""
        if b_tilde is None or b_tilde >= sum(self.case.sizes) / self.P:
            return self.case.full(p, x)
        return self.case.gradient(p, x, self.index("stage", t, p, (b_tilde,)))

    def stage_rounds(self, b_tilde: int | None, T: int | None, batch: int) -> int:
        return T or math.ceil(1 + (sum(self.case.sizes) / self.P if b_tilde is None else b_tilde) / batch)


def minibatch_sgd(run: Run, rounds: int, *, eta: float, b: int) -> None:
    g = run.case.gradient
    for t in range(1, rounds + 1):
        x = run.trace[-1]
        run.trace.append(x - eta * run.mean([g(p, x, run.index("local", t, p, (b,))) for p in range(run.P)]))


def local_sgd(run: Run, rounds: int, *, eta: float, K: int, b: int, participants: int | None = None) -> None:
    for t in range(1, rounds + 1):
        ends = {}
        for p in run.taking_part(t, participants):
            x = run.trace[-1]
            for index in run.index("local", t, p, (K, b)):
                x = x - eta * run.case.gradient(p, x, index)
            ends[p] = x
        run.trace.append(run.mean_of(ends))


def local_gd(run: Run, rounds: int, *, eta: float, K: int, k_hat: str = "last") -> None:
    for t in range(1, rounds + 1):
        k = K if k_hat == "last" else 1 + run.draws.integer("k_hat", t, K)
        paths = []
        for p in range(run.P):
            path = [run.trace[-1]]
            for _ in range(K):
                path.append(path[-1] - eta * run.case.full(p, path[-1]))
            paths.append(path[k])
        run.trace.append(run.mean(paths))


def scaffold(
    run: Run,
    rounds: int,
    *,
    eta: float,
    K: int,
    b: int,
    option: str = "II",
    eta_g: float = 1.0,
    participants: int | None = None,
) -> None:
    """c is not carried along here, but is what it stands for: the mean of all c_p."""
    cs = [np.zeros_like(run.case.x0) for _ in range(run.P)]
    for t in range(1, rounds + 1):
        x, c = run.trace[-1], run.mean(cs)
        dy = {}
        for p in run.taking_part(t, participants):
            y = x
            for index in run.index("local", t, p, (K, b)):
                y = y - eta * (run.case.gradient(p, y, index) - cs[p] + c)
            cs[p] = run.case.full(p, x) if option == "I" else cs[p] - c + (x - y) / (K * eta)
            dy[p] = y - x
        run.trace.append(x + eta_g * run.mean_of(dy))


def sarah(run: Run, rounds: int, *, eta: float, b: int, b_tilde: int | None = None, T: int | None = None) -> None:
    bvr_l_sgd(run, rounds, eta=eta, K=1, b=b, b_tilde=b_tilde, T=T)
    run.picked.clear()


def bvr_l_sgd(
    run: Run,
    rounds: int,
    *,
    eta: float,
    K: int,
    b: int,
    b_tilde: int | None = None,
    form: str = "practical",
    T: int | None = None,
    combine: str = "pick",
) -> None:
    """Algorithm 2, every line: the differences that are 0 at t = 1 and k = 1 are simply computed here.

    Samples at t = 1 and k = 1 do not matter, so any will do; from t = 2 and k = 2 on they are the library's.
    """
    g, P = run.case.gradient, run.P
    mean_size = sum(run.case.sizes) / P
    stage_batch = mean_size if b_tilde is None else b_tilde
    T = T or math.ceil(1 + stage_batch / (K * b))
    r = 0
    while True:
        x_tilde = run.trace[-1]
        if stage_batch >= mean_size:
            v_tilde = [run.case.full(p, x_tilde) for p in range(P)]
        else:
            v_tilde = [g(p, x_tilde, run.index("stage", r + 1, p, (b_tilde,))) for p in range(P)]
        v_mean = run.mean(v_tilde)
        v_tilde = [v_mean for _ in range(P)]
        x, x_before = x_tilde, x_tilde  # x_{t-1}, x_{t-2}
        for _ in range(T):
            r += 1
            for p in range(P):
                index = run.index("change", r, p, (K * b,))
                v_tilde[p] = g(p, x, index) - g(p, x_before, index) + v_tilde[p]
            v = run.mean(v_tilde)
            p_hat = run.draws.pick(r, run.weights)
            ends = []
            for p in [p_hat] if combine == "pick" else range(P):
                y, y_before, w = x, x, v
                batches = run.index("local", r, p, (K - 1, b))
                for k in range(1, K + 1):
                    index = batches[k - 2] if k >= 2 else np.zeros(b, dtype=int)
                    w = g(p, y, index) - g(p, y_before, index) + w
                    y, y_before = y - eta * w, y
                ends.append(y)
            x, x_before = ends[0] if combine == "pick" else run.mean(ends), x
            run.trace.append(x)
            if combine == "pick":
                run.picked.append(p_hat)
            if r == rounds:
                return


def svrg(run: Run, rounds: int, *, eta: float, b: int, b_tilde: int | None = None, T: int | None = None) -> None:
    g, T = run.case.gradient, run.stage_rounds(b_tilde, T, b)
    for t in range(1, rounds + 1):
        x = run.trace[-1]
        if (t - 1) % T == 0:
            anchor, mu = x, run.mean([run.large(t, p, x, b_tilde) for p in range(run.P)])
        v = []
        for p in range(run.P):
            index = run.index("change", t, p, (b,))
            v.append(g(p, x, index) - g(p, anchor, index) + mu)
        run.trace.append(x - eta * run.mean(v))


def pr_spider(
    run: Run, rounds: int, *, eta: float, K: int, b: int, b_tilde: int | None = None, T: int | None = None
) -> None:
    """As published: every worker carries its own x and v through a stage, and both are averaged after K steps."""
    g, P, T = run.case.gradient, run.P, run.stage_rounds(b_tilde, T, K * b)
    xs: list[Vector] = []
    vs: list[Vector] = []
    for t in range(1, rounds + 1):
        if (t - 1) % T == 0:
            x = run.trace[-1]
            xs = [x] * P
            vs = [run.mean([run.large(t, p, x, b_tilde) for p in range(P)])] * P
        else:
            for p in range(P):
                for index in run.index("change", t, p, (K, b)):
                    before, xs[p] = xs[p], xs[p] - eta * vs[p]
                    vs[p] = g(p, xs[p], index) - g(p, before, index) + vs[p]
            xs, vs = [run.mean(xs)] * P, [run.mean(vs)] * P
        run.trace.append(run.mean([x - eta * v for x, v in zip(xs, vs, strict=True)]))


def fedglomo(
    run: Run,
    rounds: int,
    *,
    eta: float,
    K: int,
    b: int,
    beta: float = 0.2,
    b_tilde: int | None = None,
    participants: int | None = None,
) -> None:
    g = run.case.gradient

    def moved(t: int, p: int, start: Vector) -> Vector:
        batches = run.index("local", t, p, (K - 1, b))
        v = run.large(t, p, start, b_tilde)
        w_before, w = start, start - eta * v
        for index in batches:
            v = g(p, w, index) + (v - g(p, w_before, index))
            w_before, w = w, w - eta * v
        return start - w

    u = np.zeros_like(run.case.x0)
    for t in range(1, rounds + 1):
        x, x_prev = run.trace[-1], run.trace[max(0, t - 2)]
        here = {p: moved(t, p, x) for p in run.taking_part(t, participants)}
        change = {p: d - moved(t, p, x_prev) for p, d in here.items()}
        if t == 1:
            u = run.mean_of(here)
        else:
            u = beta * run.mean_of(here) + (1 - beta) * u + (1 - beta) * run.mean_of(change)
        run.trace.append(x - u)


def mime(
    run: Run,
    rounds: int,
    *,
    eta: float,
    K: int,
    b: int,
    beta: float = 0.9,
    b_tilde: int | None = None,
    participants: int | None = None,
    lite: bool = False,
) -> None:
    """As published: the workers are sent x, m and c. The difference that is 0 at k = 1 is computed, on any samples."""
    g = run.case.gradient
    m = np.zeros_like(run.case.x0)
    for t in range(1, rounds + 1):
        x = run.trace[-1]
        among = run.taking_part(t, participants)
        c = run.mean_of({p: run.large(t, p, x, b_tilde) for p in among})
        ends = {}
        for p in among:
            batches = list(run.index("local", t, p, (K if lite else K - 1, b)))
            y = x
            for index in batches if lite else [np.zeros(b, dtype=int), *batches]:
                gradient = g(p, y, index) if lite else g(p, y, index) - g(p, x, index) + c
                y = y - eta * ((1 - beta) * gradient + beta * m)
            ends[p] = y
        run.trace.append(run.mean_of(ends))
        m = (1 - beta) * c + beta * m


def mimelite(run: Run, rounds: int, **settings) -> None:
    mime(run, rounds, **settings, lite=True)


def ce_lsgd(
    run: Run,
    rounds: int,
    *,
    eta: float,
    K: int,
    b: int,
    beta: float = 0.1,
    b_tilde: int | None = None,
    participants: int | None = None,
) -> None:
    g = run.case.gradient
    for t in range(1, rounds + 1):
        x, x_prev = run.trace[-1], run.trace[max(0, t - 2)]
        among = run.taking_part(t, participants)
        if t == 1:
            v = run.mean_of({p: run.large(t, p, x, b_tilde) for p in among})
        else:
            batch = {p: run.index("change", t, p, (K * b,)) for p in among}
            new = run.mean_of({p: g(p, x, index) for p, index in batch.items()})
            old = run.mean_of({p: g(p, x_prev, index) for p, index in batch.items()})
            v = new + (1 - beta) * (v - old)
        share = sum(run.weights[p] for p in among)
        p_hat = among[run.draws.pick(t, [run.weights[p] / share for p in among])]
        run.picked.append(p_hat)
        y, w = [x, x - eta * v], v
        for index in run.index("local", t, p_hat, (K - 1, b)):
            w = w + g(p_hat, y[-1], index) - g(p_hat, y[-2], index)
            y.append(y[-1] - eta * w)
        run.trace.append(y[-1])


def solved(
    case: Case, p: int, x: Vector, tilt: Vector, own: Vector, batches: list, *, eta: float, mu: float, solver: str
) -> Vector:
    """Steps on F^(p)(y) = f_p(y) - ⟨tilt, y⟩ + (μ/2) ‖y - x‖², a batch a step (None: all data); own is ∇̃^(p)(x)."""

    def at(y: Vector, index: Vector | None) -> Vector:
        return case.full(p, y) if index is None else case.gradient(p, y, index)

    y, y_before, v = x, x, own - tilt
    for index in batches:
        if index is None:
            step = at(y, None) - tilt + mu * (y - x)
        elif solver == "sgd":
            step = at(y, index) - tilt + mu * (y - x)
        elif solver == "svrg":
            step = at(y, index) - at(x, index) + own - tilt + mu * (y - x)
        else:
            step = v = v + at(y, index) - at(y_before, index) + mu * (y - y_before)
        y, y_before = y - eta * step, y
    return y


def inexact_dane(
    run: Run,
    rounds: int,
    *,
    eta: float,
    K: int,
    b: int | None = None,
    mu: float = 0.0,
    eta_dane: float = 1.0,
    solver: str = "svrg",
    b_tilde: int | None = None,
) -> None:
    """The gradient of the subproblem is written out as it is defined, and estimated as the solver does."""
    for t in range(1, rounds + 1):
        x = run.trace[-1]
        own = [run.large(t, p, x, b_tilde) for p in range(run.P)]
        h = run.mean(own)
        ends = []
        for p in range(run.P):
            if b is None:
                batches: list = [None] * K
            elif solver == "sgd":
                batches = list(run.index("local", t, p, (K, b)))
            else:  # at k = 1 both points are x: any samples will do
                batches = [np.zeros(b, dtype=int), *run.index("local", t, p, (K - 1, b))]
            tilt = own[p] - eta_dane * h
            ends.append(solved(run.case, p, x, tilt, own[p], batches, eta=eta, mu=mu, solver=solver))
        run.trace.append(run.mean(ends))


METHODS = {
    "svrg": svrg,
    "pr-spider": pr_spider,
    "fedglomo": fedglomo,
    "mime": mime,
    "mimelite": mimelite,
    "ce-lsgd": ce_lsgd,
    "inexact-dane": inexact_dane,
    "minibatch-sgd": minibatch_sgd,
    "local-sgd": local_sgd,
    "local-gd": local_gd,
    "scaffold": scaffold,
    "sarah": sarah,
    "bvr-l-sgd": bvr_l_sgd,
}
