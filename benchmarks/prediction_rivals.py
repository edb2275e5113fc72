"""The laws that the prediction benchmark compares with, each as its authors define it.

Laws in N are fitted to the series of one local batch, Pollux's form and the Gaussian process to all
settings of a job. A fit minimizes squares of logarithms, and its 90 % interval is that of least
squares: Student's t with the residual degrees of freedom, and the leverage of the target. Without a
degree of freedom there is no interval, which counts as a miss.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from wattlaw.analysis.predict import Observation
from wattlaw.study.setting import Setting

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Forecast:
    """The distribution of ln(step time) of targets: a t distribution for each."""

    center: Floats
    scale: Floats | None
    freedom: float

    def interval(self, level: float = 0.9) -> tuple[Floats, Floats] | None:
        """Return low and high step times, or None without an interval."""
        if self.scale is None:
            return None
        half = stats.t.ppf((1 + level) / 2, self.freedom) * self.scale
        return np.exp(self.center - half), np.exp(self.center + half)

    def log_score(self, times: Floats) -> Floats | None:
        """Return the log density of ln(step time) at what was measured."""
        if self.scale is None:
            return None
        return stats.t.logpdf(np.log(times), self.freedom, self.center, self.scale)


Rival = Callable[[Sequence[Observation], Sequence[Setting]], Forecast]


def power_law(train: Sequence[Observation], targets: Sequence[Setting]) -> Forecast:
    """T = alpha N^-beta for a fixed amount of work (Frey et al. 2022)."""
    return _linear(train, targets, lambda n: np.column_stack([np.ones_like(n), np.log(n)]), True)


def amdahl(train: Sequence[Observation], targets: Sequence[Setting]) -> Forecast:
    """T = a / N + b (Amdahl 1967); of a step that grows with N: a + b N."""
    return _linear(train, targets, lambda n: np.column_stack([np.ones_like(n), n]))


def usl(train: Sequence[Observation], targets: Sequence[Setting]) -> Forecast:
    """T = t1 (1 + sigma (N - 1) + kappa N (N - 1)) / N (Gunther 2007); times N."""
    return _linear(train, targets, lambda n: np.column_stack([np.ones_like(n), n - 1, n * (n - 1)]))


def ernest(train: Sequence[Observation], targets: Sequence[Setting]) -> Forecast:
    """T = a + b / N + c log N + d N, all >= 0 (Venkataraman et al., Ernest, NSDI'16); times N."""
    return _linear(
        train, targets,
        lambda n: np.column_stack([n, np.ones_like(n), n * np.log(n), n**2]),
    )  # fmt: skip


def extra_p(train: Sequence[Observation], targets: Sequence[Setting]) -> Forecast:
    """T = c0 + c1 N^i log2(N)^j with the lowest cross-validation error (Calotoiu et al., SC13)."""
    n, logs = _series(train)
    exponents = [
        -1,
        -3 / 4,
        -2 / 3,
        -1 / 2,
        -1 / 3,
        -1 / 4,
        0,
        1 / 4,
        1 / 3,
        1 / 2,
        2 / 3,
        3 / 4,
        1,
    ]
    best, least = None, np.inf
    for i, j in product(exponents, (0, 1, 2)):
        if i == j == 0:
            continue

        def terms(x: Floats, i: float = i, j: int = j) -> Floats:
            return np.column_stack([np.ones_like(x), x**i * np.log2(x) ** j]) * x[:, None]

        error = 0.0
        for left in range(n.size):
            kept = np.arange(n.size) != left
            weights = _weights(terms(n[kept]), logs[kept])
            guess = float((terms(n[[left]]) @ weights)[0])
            true = float(np.exp(logs[left]))
            error += abs(guess - true) / (abs(guess) + true)
        if error < least:
            best, least = terms, error
    assert best is not None
    return _linear(train, targets, best, free=True)


def pollux(train: Sequence[Observation], targets: Sequence[Setting]) -> Forecast:
    """T = (T_grad^g + T_sync^g)^(1/g), Pollux's iteration time (Qiao et al., OSDI'21, 3.2).

    T_grad = a + b m; T_sync is 0 for one GPU, and linear in K - 2 on one node and on several. What
    no run shows is as Pollux assumes it: between nodes as on one.
    """
    logs = np.log([item.step_time_s for item in train])
    settings = [item.setting for item in train]
    has_nodes = any((item.nodes or 1) > 1 for item in settings)

    def times(p: Floats, at: Sequence[Setting]) -> Floats:
        a, b, al, bl, an, bn = np.exp(p[:6])
        if not has_nodes:
            an, bn = al, bl
        m = np.array([item.local_batch or 1.0 for item in at])
        k = np.array([item.gpus for item in at], dtype=float)
        several = np.array([(item.nodes or 1) > 1 for item in at])
        sync = np.where(several, an + bn * (k - 2), al + bl * (k - 2)) * (k > 1)
        g = 1 + 9 / (1 + np.exp(-p[6]))
        compute = a + b * m
        return np.log(compute * (1 + (sync / compute) ** g) ** (1 / g))

    start = logs.min()
    m = float(np.mean([item.local_batch or 1.0 for item in settings]))
    best = None
    for shift in (-1.0, -4.0):
        first = np.array([start - 1, start - np.log(m), *(start + shift,) * 4, 0.0])
        first[[3, 5]] -= 3
        found = optimize.least_squares(
            lambda p, first=first: np.concatenate([times(p, settings) - logs, 1e-3 * (p - first)]),
            first,
        )
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    used = 5 if not has_nodes else 7
    return _forecast(best.x, lambda p: times(p, settings), lambda p: times(p, targets), logs, used)


def gaussian_process(train: Sequence[Observation], targets: Sequence[Setting]) -> Forecast:
    """Ln t as a Gaussian process over ln N, ln nodes and ln batch, by maximum likelihood.

    Linear mean and squared-exponential covariance (Rasmussen and Williams 2006, chapters 2 and 5).
    """

    def features(at: Sequence[Setting]) -> Floats:
        return np.log([[s.gpus, s.nodes or 1, s.local_batch or 1.0] for s in at])

    x, y = features([item.setting for item in train]), np.log([item.step_time_s for item in train])
    scale = np.maximum(x.std(0), 1e-9)
    varies = x.std(0) > 1e-9
    z, q = ((v - x.mean(0)) / scale for v in (x, features(targets)))
    z, q = z[:, varies], q[:, varies]
    level = y.mean()

    def kernel(a: Floats, b: Floats, p: Floats) -> Floats:
        squares = ((a[:, None] - b[None]) ** 2 / np.exp(2 * p[3:])).sum(2)
        return np.exp(2 * p[0] - squares / 2) + np.exp(2 * p[1]) * (1 + a @ b.T)

    def cost(p: Floats) -> float:
        c = kernel(z, z, p) + np.exp(2 * p[2]) * np.eye(y.size)
        root = np.linalg.cholesky(c + 1e-10 * np.eye(y.size))
        solved = np.linalg.solve(root, y - level)
        return float(0.5 * solved @ solved + np.log(np.diag(root)).sum())

    bounds = [(-4, 2), (-3, 3), (-6, 0), *[(-1, 3)] * z.shape[1]]
    first = np.array([-1.0, 0.0, -3.0, *np.zeros(z.shape[1])])
    p = optimize.minimize(cost, first, bounds=bounds, method="L-BFGS-B").x
    inverse = np.linalg.inv(kernel(z, z, p) + (np.exp(2 * p[2]) + 1e-10) * np.eye(y.size))
    cross = kernel(q, z, p)
    center = level + cross @ inverse @ (y - level)
    variance = np.diag(kernel(q, q, p)) - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    return Forecast(center, np.sqrt(np.maximum(variance, 0) + np.exp(2 * p[2])), 1e6)


RIVALS: dict[str, Rival] = {
    "power law": power_law, "amdahl": amdahl, "usl": usl, "ernest": ernest, "extra-p": extra_p,
    "pollux": pollux, "gaussian process": gaussian_process,
}  # fmt: skip
#: Rivals that see only the runs with the target's local batch.
IN_N = ("power law", "amdahl", "usl", "ernest", "extra-p")


def _series(train: Sequence[Observation]) -> tuple[Floats, Floats]:
    n = np.array([item.setting.gpus for item in train], dtype=float)
    return n, np.log([item.step_time_s for item in train])


def _linear(
    train: Sequence[Observation],
    targets: Sequence[Setting],
    terms: Callable[[Floats], Floats],
    in_logs: bool = False,
    free: bool = False,
) -> Forecast:
    """Return the forecast of a weighted sum of terms, which is ln t or t (weights >= 0)."""
    n, logs = _series(train)
    at = np.array([item.gpus for item in targets], dtype=float)
    design = terms(n)
    if in_logs:
        weights = np.linalg.lstsq(design, logs, rcond=None)[0]
        return _forecast(weights, lambda w: design @ w, lambda w: terms(at) @ w, logs, 2)
    weights = _weights(design, logs) if free else _nonnegative(design, logs)
    used = 2 if free else max(1, int((weights > 0).sum()))

    def log(values: Floats) -> Floats:
        return np.log(np.maximum(values, 1e-12))

    return _forecast(weights, lambda w: log(design @ w), lambda w: log(terms(at) @ w), logs, used)


def _weights(design: Floats, logs: Floats) -> Floats:
    """Return least squares of relative errors."""
    times = np.exp(logs)
    return np.linalg.lstsq(design / times[:, None], np.ones_like(times), rcond=None)[0]


def _nonnegative(design: Floats, logs: Floats) -> Floats:
    times = np.exp(logs)
    return optimize.nnls(design / times[:, None], np.ones_like(times))[0]


def _forecast(
    fitted: Floats,
    seen: Callable[[Floats], Floats],
    wanted: Callable[[Floats], Floats],
    logs: Floats,
    used: int,
) -> Forecast:
    """Return a least-squares forecast by the delta method."""
    center, freedom = wanted(fitted), logs.size - used
    if freedom < 1:
        return Forecast(center, None, 0)
    variance = ((seen(fitted) - logs) ** 2).sum() / freedom
    here, there = (_jacobian(f, fitted) for f in (seen, wanted))
    leverage = np.einsum("ij,jk,ik->i", there, np.linalg.pinv(here.T @ here), there)
    return Forecast(center, np.sqrt(np.maximum(variance, 1e-12) * (1 + leverage)), freedom)


def _jacobian(function: Callable[[Floats], Floats], at: Floats) -> Floats:
    steps = np.maximum(np.abs(at), 1e-8) * 1e-5
    return np.column_stack(
        [
            (function(at + step * unit) - function(at - step * unit)) / (2 * step)
            for step, unit in zip(steps, np.eye(at.size), strict=True)
        ]
    )
