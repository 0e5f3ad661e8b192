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


def minibatch_sgd(run: Run, rounds: int, *, eta: float, b: int) -> None:
    g = run.case.gradient
    for t in range(1, rounds + 1):
        x = run.trace[-1]
        run.trace.append(x - eta * run.mean([g(p, x, run.index("local", t, p, (b,))) for p in range(run.P)]))


def local_sgd(run: Run, rounds: int, *, eta: float, K: int, b: int, participants: int | None = None) -> None:
    for t in range(1, rounds + 1):
        ends = {}
        for p in range(run.P) if participants is None else run.draws.subset(t, run.P, participants):
            x = run.trace[-1]
            for index in run.index("local", t, p, (K, b)):
                x = x - eta * run.case.gradient(p, x, index)
            ends[p] = x
        share = sum(run.weights[p] for p in ends)
        run.trace.append(sum(run.weights[p] / share * x for p, x in ends.items()))


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


def scaffold(run: Run, rounds: int, *, eta: float, K: int, b: int, option: str = "II", eta_g: float = 1.0) -> None:
    c = np.zeros_like(run.case.x0)
    cs = [np.zeros_like(c) for _ in range(run.P)]
    for t in range(1, rounds + 1):
        x = run.trace[-1]
        dy, dc = [], []
        for p in range(run.P):
            y = x
            for index in run.index("local", t, p, (K, b)):
                y = y - eta * (run.case.gradient(p, y, index) - cs[p] + c)
            new = run.case.full(p, x) if option == "I" else cs[p] - c + (x - y) / (K * eta)
            dy.append(y - x)
            dc.append(new - cs[p])
            cs[p] = new
        run.trace.append(x + eta_g * run.mean(dy))
        c = c + run.mean(dc)


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


METHODS = {
    "minibatch-sgd": minibatch_sgd,
    "local-sgd": local_sgd,
    "local-gd": local_gd,
    "scaffold": scaffold,
    "sarah": sarah,
    "bvr-l-sgd": bvr_l_sgd,
}
