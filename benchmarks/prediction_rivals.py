"""What predictions are compared with, each as its authors define it.

Laws in N are of the time of a sample. They see the runs of the target's local batch, else of its
global batch; with one GPU count among them they are as the nearest setting. A rival is a law of
settings and their values; ``forecast`` gives each the same distribution.
"""

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy import optimize
from scipy.interpolate import PchipInterpolator

from wattlaw.study.setting import Setting

Floats = npt.NDArray[np.float64]
Law = Callable[[Sequence[Setting], Floats, Sequence[Setting]], Floats]
EXTRAP = Path(
    os.environ.get("WATTLAW_EXTRAP_PYTHON") or Path(__file__).parents[1] / ".venv-extrap/bin/python"
)
#: The least standard deviation of a rival's logarithm.
LEAST_SD = 0.02


def forecast(
    law: Law, seen: Sequence[Setting], values: Floats, wanted: Sequence[Setting]
) -> tuple[Floats, Floats]:
    """Return means and standard deviations of the logarithms of what a law predicts.

    The standard deviation is that of the law's errors for each seen setting from the others, at
    least 2 %, times the square root of the doublings of GPUs beyond those seen, from the second on.
    """

    def logs(kept: Sequence[int], targets: Sequence[Setting]) -> Floats:
        found = law([seen[index] for index in kept], values[list(kept)], targets)
        # A fitted law may fall below 0, or leave all bounds.
        return np.log(np.clip(np.nan_to_num(found), 1e-3 * values.min(), 1e3 * values.max()))

    every = range(len(seen))
    left = [logs([i for i in every if i != out], [seen[out]])[0] for out in every]
    sd = max(LEAST_SD, float(np.sqrt(np.mean((np.array(left) - np.log(values)) ** 2))))
    doublings = np.log2([item.gpus for item in wanted]) - np.log2(max(s.gpus for s in seen))
    return logs(every, wanted), sd * np.sqrt(np.maximum(doublings, 1.0))


def nearest(seen: Sequence[Setting], values: Floats, wanted: Sequence[Setting]) -> Floats:
    """As measured at the nearest setting, first of all in batches; times a ratio of batches."""

    def place(settings: Sequence[Setting]) -> Floats:
        rows = [(s.gpus, s.local_batch, s.micro_batch, s.power_limit_w) for s in settings]
        return np.log([[value or 1.0 for value in row] for row in rows])

    here, there = place(seen), place(wanted)
    index = (np.abs(there[:, None] - here[None]) @ [1, 2, 2, 1]).argmin(1)
    return np.asarray(values[index] * np.exp(there[:, 1] - here[index, 1]))


def interpolation(seen: Sequence[Setting], values: Floats, wanted: Sequence[Setting]) -> Floats:
    """Return a monotone curve through the logarithms of power limits and values."""
    limits, at = (np.log([s.power_limit_w or np.nan for s in each]) for each in (seen, wanted))
    return np.asarray(np.exp(PchipInterpolator(limits, np.log(values))(at)))


def power_law(n: Floats, times: Floats, at: float) -> float:
    """T = alpha N^-beta for a fixed amount of work (Frey et al. 2022)."""
    slope, level = np.polyfit(np.log(n), np.log(times), 1)
    return float(np.exp(level + slope * np.log(at)))


def amdahl(n: Floats, times: Floats, at: float) -> float:
    """T = a / N + b (Amdahl 1967)."""
    return _nonnegative(lambda x: [1 / x, x**0], n, times, at)


def ernest(n: Floats, times: Floats, at: float) -> float:
    """T = a + b / N + c log N + d N, all >= 0 (Venkataraman et al., Ernest, NSDI'16)."""
    return _nonnegative(lambda x: [x**0, 1 / x, np.log(x), x], n, times, at)


def extra_p(n: Floats, times: Floats, at: float) -> float:
    """Extra-P's own model of one parameter (Calotoiu et al., SC13).

    It is of the time of a step: most series of public data then have smaller errors than with T.
    """
    return _ask_extra_p(json.dumps([n.tolist(), (times * n).tolist(), at])) / at


def pollux(seen: Sequence[Setting], values: Floats, wanted: Sequence[Setting]) -> Floats:
    """T = (s - 1) T_grad + (T_grad^g + T_sync^g)^(1/g) of s micro-batches (Qiao et al., OSDI'21).

    T_grad = a + b m; T_sync is 0 for one GPU, and linear in K - 2 on one node and on several. What
    no run shows is as Pollux assumes it: between nodes as on one.
    """
    logs = np.log(values)
    has_nodes = any((item.nodes or 1) > 1 for item in seen)

    def times(p: Floats, at: Sequence[Setting]) -> Floats:
        a, b, al, bl, an, bn = np.exp(p[:6])
        if not has_nodes:
            an, bn = al, bl
        m = np.array([item.micro_batch or 1.0 for item in at])
        s = np.array([item.gradient_accumulation for item in at])
        k = np.array([item.gpus for item in at], dtype=float)
        several = np.array([(item.nodes or 1) > 1 for item in at])
        sync = np.where(several, an + bn * (k - 2), al + bl * (k - 2)) * (k > 1)
        g = 1 + 9 / (1 + np.exp(-p[6]))
        compute = a + b * m
        return np.log(compute) + np.log(s - 1 + (1 + (sync / compute) ** g) ** (1 / g))

    start = logs.min()
    m = float(np.mean([item.local_batch or 1.0 for item in seen]))
    best = None
    for shift in (-1.0, -4.0):
        first = np.array([start - 1, start - np.log(m), *(start + shift,) * 4, 0.0])
        first[[3, 5]] -= 3
        found = optimize.least_squares(
            lambda p, first=first: np.concatenate([times(p, seen) - logs, 1e-3 * (p - first)]),
            first,
        )
        best = found if best is None or found.cost < best.cost else best
    assert best is not None
    return np.asarray(np.exp(times(best.x, wanted)))


def in_n(law: Callable[[Floats, Floats, float], float]) -> Law:
    """Return a law in N as a law of settings."""
    batches: tuple[Callable[[Setting], object], ...] = (
        lambda s: (s.local_batch, s.micro_batch),
        lambda s: (s.global_batch, s.micro_batch),
    )

    def predict(seen: Sequence[Setting], values: Floats, wanted: Sequence[Setting]) -> Floats:
        n = np.array([item.gpus for item in seen], dtype=float)
        times = values / [item.samples for item in seen]
        found = nearest(seen, values, wanted)
        for index, item in enumerate(wanted):
            for batch in batches:
                own = np.array([batch(other) == batch(item) for other in seen])
                if len(set(n[own])) > 1:
                    found[index] = law(n[own], times[own], float(item.gpus)) * item.samples
                    break
        return found

    return predict


OF_LIMITS: dict[str, Law] = {"interpolation": interpolation, "nearest": nearest}
OF_GPUS: dict[str, Law] = {
    "power law": in_n(power_law),
    "Amdahl": in_n(amdahl),
    "Ernest": in_n(ernest),
    "Pollux": pollux,
    "nearest": nearest,
}
if EXTRAP.exists():
    OF_GPUS["Extra-P"] = in_n(extra_p)


def _nonnegative(
    terms: Callable[[Floats], Sequence[Floats]], n: Floats, times: Floats, at: float
) -> float:
    """Return the time of the sum of terms with weights >= 0 and least relative squares."""
    weights = optimize.nnls(np.column_stack(terms(n)) / times[:, None], np.ones_like(times))[0]
    return float(np.column_stack(terms(np.array([at])))[0] @ weights)


@cache
def _extra_p() -> "subprocess.Popen[str]":
    """Return a process with Extra-P, which ends with this one: its standard input is closed."""
    line = [str(EXTRAP), "-W", "ignore", str(Path(__file__).with_name("prediction_extrap.py"))]
    return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@cache
def _ask_extra_p(question: str) -> float:
    process = _extra_p()
    assert process.stdin is not None
    assert process.stdout is not None
    print(question, file=process.stdin, flush=True)
    return float(process.stdout.readline())
