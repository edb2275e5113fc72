"""Calibration: the free fractions fitted to measured runs, with what is left uncertain.

The most probable parameters under a prior (Gelman et al., Bayesian Data Analysis, ch. 4): ratios
of measured to predicted time and power are log-normal, and every parameter, in logs (a share in
logits), is normal around its default. What the runs say nothing about, such as the network of runs
on one GPU, so keeps its default and all of its uncertainty. The covariance is that of the
linearised model at the optimum.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import stats
from scipy.optimize import least_squares

from wattlaw.errors import Refused
from wattlaw.simulator.cluster import Gpu
from wattlaw.simulator.job import Prediction, SimulatedJob
from wattlaw.simulator.parameters import Parameters
from wattlaw.simulator.predict import predict
from wattlaw.study.base import Model

Floats = npt.NDArray[np.float64]

#: Parameters between 0 and 1; the others are only positive.
SHARES = (
    "compute_fp32", "compute_tensor", "bandwidth", "network", "overlap", "least_voltage", "knee",
)  # fmt: skip
_POSITIVE = (
    "kernel_us", "launch_us", "step_ms", "epoch_ms", "step_spread", "gpu_spread",
    "power_busy", "power_compute", "power_memory", "power_communication", "power_awake",
)  # fmt: skip
NAMES = (*SHARES, *_POSITIVE)
#: Standard deviation of the prior: a default is right to about a factor of two (in logits, 0.45
#: is likely between 0.29 and 0.62).
PRIOR = 0.7
#: And of a workload's factor, whose data may be others than those that were counted.
FACTOR_PRIOR = 2.0
_STEP = 1e-4
#: An interval of exp(-300) to exp(300) times a prediction says that nothing is known.
_MOST_OFF = 300.0
#: A parameter with slopes below this (standard deviations per unit of its log) is not searched for.
_NO_INFLUENCE = 1e-3
_ENOUGH = 1e-5
#: No measurement is taken as better than this, in logs.
_LEAST_SIGMA = 0.005


Sigma = Annotated[float, Field(gt=0, le=10)]


@dataclass(frozen=True)
class MeasuredSetting:
    """One measured setting. ``workload`` says which runs share a factor of their work."""

    job: SimulatedJob
    workload: str
    epoch_time_s: float
    gpu_power_w: float | None = None  # mean of one GPU over the training window


class Calibration(Model):
    """Fitted parameters, their covariance as fitted (logs and logits), and the fit's residuals."""

    gpu: str  # the board that was measured
    settings: int = Field(ge=1)
    parameters: Parameters
    names: tuple[str, ...]  # of the rows of ``covariance``: parameters, then "work:<workload>"
    covariance: tuple[tuple[float, ...], ...]
    work_factors: dict[str, Annotated[float, Field(gt=0, le=10**6)]]
    time_sigma: Sigma  # standard deviation of ln(measured / predicted)
    power_sigma: Sigma | None = None
    energy_sigma: Sigma | None = None
    #: Degrees of freedom of these deviations: settings less what the parameters took of them.
    freedom: Annotated[float, Field(gt=0, le=10**9)]
    made_from: str = ""

    @property
    def digest(self) -> str:
        """Return 8 hex digits that tell this calibration from others."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]


@dataclass(frozen=True)
class Interval:
    """95 % of what a calibrated prediction may be."""

    low: float
    high: float


def calibrate(measured: Sequence[MeasuredSetting], made_from: str = "") -> Calibration:
    """Return the calibration of one kind of board to measured runs.

    Raises
    ------
    Refused
        There are fewer than three settings, or they are of several kinds of boards.
    """
    boards = {one.job.cluster.gpu.name for one in measured}
    if len(measured) < 3 or len(boards) != 1:
        told = f"{len(measured)} settings of {len(boards)} kinds of boards"
        raise Refused(f"{told}; a calibration needs three settings or more of one kind")
    fit = _Fit(measured)
    sigmas, found = (0.05, 0.05), fit.start
    for _ in range(2):  # weights follow from the residuals, residuals from the weights
        found = fit.solve(found, sigmas)
        sigmas = fit.scatter(found, sigmas).sigmas
    found = fit.solve(found, sigmas)
    scatter = fit.scatter(found, sigmas)
    if scatter.freedom < 1:
        raise Refused(
            f"{len(measured)} settings of {len(fit.workloads)} workloads leave nothing by which to "
            "tell how far predictions are off; measure more settings of each"
        )
    return Calibration(
        gpu=boards.pop(),
        settings=len(measured),
        parameters=fit.parameters(found),
        names=fit.names,
        covariance=tuple(tuple(map(float, row)) for row in scatter.covariance),
        work_factors={name: exp(found[i]) for i, name in enumerate(fit.workloads, len(NAMES))},
        time_sigma=scatter.sigmas[0],
        power_sigma=scatter.sigmas[1] if scatter.energy_sigma is not None else None,
        energy_sigma=scatter.energy_sigma,
        freedom=scatter.freedom,
        made_from=made_from,
    )


def apply_calibration(job: SimulatedJob, calibration: Calibration, workload: str) -> SimulatedJob:
    """Return a job with a calibration's parameters, and its workload's factor where it has one."""
    factor = calibration.work_factors.get(workload, 1.0)
    return replace(job, parameters=calibration.parameters, work_factor=factor)


def prediction_intervals(
    job: SimulatedJob, calibration: Calibration, workload: str
) -> Mapping[str, Interval]:
    """Return 95 % intervals of ``epoch_time_s`` and, calibrated, ``gpu_power_w``, ``gpu_energy_j``.

    By the delta method: Var(ln y) = g' C g + sigma^2, with g the gradient of ln y by the
    parameters, C their covariance and sigma the residuals', and Student's t with what the
    parameters left of the settings as degrees of freedom. Of a workload that was not measured
    the factor counts as unknown as those that were differ from 1.
    """
    at = _packed(calibration.parameters, job.cluster.gpu)
    own = f"work:{workload}"
    rows = [i for i, name in enumerate(calibration.names) if name in (*NAMES, own)]
    covariance = np.array(calibration.covariance)[np.ix_(rows, rows)]
    known = own in calibration.names
    spread = _spread_of(calibration.work_factors)
    factor = calibration.work_factors.get(workload, 1.0)
    at = np.append(at, log(factor))
    if not known:
        covariance = np.pad(covariance, (0, 1))
        covariance[-1, -1] = spread**2
    told = {}
    base = _logs(job, at)
    slopes = np.array([(_logs(job, at + step) - base) / _STEP for step in np.eye(len(at)) * _STEP])
    sigmas = {
        "epoch_time_s": calibration.time_sigma,
        "gpu_power_w": calibration.power_sigma,
        "gpu_energy_j": calibration.energy_sigma,
    }
    reach = quantile(calibration)
    for index, (name, sigma) in enumerate(sigmas.items()):
        if sigma is None:  # no power was measured: nothing says how far it is off
            continue
        gradient = slopes[:, index]
        variance = max(float(gradient @ covariance @ gradient), 0.0)
        off = min(reach * sqrt(variance + sigma**2), _MOST_OFF)
        told[name] = Interval(exp(base[index] - off), exp(base[index] + off))
    return told


def quantile(calibration: Calibration) -> float:
    """Return Student's t that a 95 % interval reaches to, with the residuals' freedom."""
    return float(stats.t.ppf(0.975, calibration.freedom))


def _spread_of(factors: Mapping[str, float]) -> float:
    """Return by how much, in logs, the factor of a workload may be off that was not measured."""
    logs = [log(factor) for factor in factors.values()]
    return sqrt((sum(one**2 for one in logs) + PRIOR**2) / (len(logs) + 1))


def _logs(job: SimulatedJob, packed: Floats) -> Floats:
    """Return ln of time, power and energy of a job with packed parameters and factor."""
    found = _predicted(job, packed[:-1], float(packed[-1])).train
    return np.log([found.duration_s, found.gpu_power_w, found.gpu_energy_j])


def _predicted(job: SimulatedJob, packed: Floats, log_factor: float) -> Prediction:
    parameters = _unpacked(packed, job.parameters)
    return predict(replace(job, parameters=parameters, work_factor=exp(log_factor)))


def _logit(share: float) -> float:
    inside = min(max(share, 1e-3), 1 - 1e-3)
    return log(inside / (1 - inside))


def _packed(parameters: Parameters, gpu: Gpu) -> Floats:
    """Return parameters as numbers without bounds, in the order of ``NAMES``."""
    given = parameters.model_dump()
    given["least_voltage"] = given["least_voltage"] or gpu.least_voltage
    given["knee"] = given["knee"] or gpu.knee_clock_mhz / gpu.max_clock_mhz
    shares = [_logit(given[name]) for name in SHARES]
    return np.array(shares + [log(max(given[name], 1e-6)) for name in _POSITIVE])


def _unpacked(packed: Floats, like: Parameters) -> Parameters:
    clipped = np.clip(packed, -20, 20)
    shares = 1 / (1 + np.exp(-clipped[: len(SHARES)]))
    values = [*map(float, shares), *map(float, np.exp(clipped[len(SHARES) :]))]
    return like.model_copy(update=dict(zip(NAMES, values, strict=True)))


@dataclass(frozen=True)
class _Scatter:
    """Standard deviations of ln(measured / predicted) of times and powers, and of parameters."""

    sigmas: tuple[float, float]
    energy_sigma: float | None
    freedom: float
    covariance: Floats


class _Fit:
    """Residuals of measured runs, and of parameters from their defaults."""

    def __init__(self, measured: Sequence[MeasuredSetting]) -> None:
        self._measured = measured
        self.workloads = tuple(dict.fromkeys(one.workload for one in measured))
        self.names = (*NAMES, *(f"work:{name}" for name in self.workloads))
        first = measured[0].job
        self.start = np.append(
            _packed(first.parameters, first.cluster.gpu), np.zeros(len(self.workloads))
        )
        widths = [PRIOR] * len(NAMES) + [FACTOR_PRIOR] * len(self.workloads)
        self._widths = np.array(widths)

    def parameters(self, packed: Floats) -> Parameters:
        """Return packed numbers as parameters."""
        return _unpacked(packed[: len(NAMES)], self._measured[0].job.parameters)

    def misfits(self, packed: Floats) -> tuple[Floats, Floats]:
        """Return ln(predicted / measured) of times, and of the powers that are known."""
        times, powers = [], []
        for one in self._measured:
            factor = float(packed[len(NAMES) + self.workloads.index(one.workload)])
            found = _predicted(one.job, packed[: len(NAMES)], factor).train
            times.append(log(found.duration_s / one.epoch_time_s))
            if one.gpu_power_w is not None:
                powers.append(log(found.gpu_power_w / one.gpu_power_w))
        return np.array(times), np.array(powers)

    def residuals(self, packed: Floats, sigmas: tuple[float, float]) -> Floats:
        """Return all residuals in units of their standard deviations."""
        times, powers = self.misfits(packed)
        off = (packed - self.start) / self._widths
        return np.concatenate([times / sigmas[0], powers / sigmas[1], off])

    def solve(self, start: Floats, sigmas: tuple[float, float]) -> Floats:
        """Return the most probable packed parameters, searched for from ``start``.

        What has no influence on these runs stays at its default, and costs no time.
        """
        told = np.abs(self.jacobian(start, sigmas)[: -len(start)]).max(axis=0) > _NO_INFLUENCE

        def residuals(free: Floats) -> Floats:
            packed = start.copy()
            packed[told] = free
            return self.residuals(packed, sigmas)

        found = least_squares(
            residuals, start[told], diff_step=_STEP, ftol=_ENOUGH, xtol=_ENOUGH, gtol=_ENOUGH
        )
        packed = start.copy()
        packed[told] = found.x
        return packed

    def scatter(self, packed: Floats, sigmas: tuple[float, float]) -> "_Scatter":
        """Return how misfits scatter around fitted parameters, and these around the truth.

        The degrees of freedom that parameters take are the trace of the hat matrix; a parameter
        that its prior holds takes less than one.
        """
        times, powers = self.misfits(packed)
        jacobian = self.jacobian(packed, sigmas)
        covariance = np.asarray(np.linalg.inv(jacobian.T @ jacobian), dtype=np.float64)
        data = jacobian[: len(times) + len(powers)]
        taken = ((data @ covariance) * data).sum(axis=1)
        freedoms = [len(times) - float(taken[: len(times)].sum())]
        if len(powers):
            freedoms.append(len(powers) - float(taken[len(times) :].sum()))

        def sigma(misfits: Floats, freedom: float) -> float:
            spread = sqrt(float((misfits**2).sum()) / max(freedom, 1.0))
            return max(_LEAST_SIGMA, spread)

        freedom = min(freedoms)
        known = [one.gpu_power_w is not None for one in self._measured]
        return _Scatter(
            sigmas=(
                sigma(times, freedoms[0]),
                sigma(powers, freedoms[1]) if len(powers) else sigmas[1],
            ),
            energy_sigma=sigma(times[known] + powers, freedom) if len(powers) else None,
            freedom=freedom,
            covariance=covariance,
        )

    def jacobian(self, packed: Floats, sigmas: tuple[float, float]) -> Floats:
        """Return the derivatives of the residuals."""
        base = self.residuals(packed, sigmas)
        steps = np.eye(len(packed)) * _STEP
        return np.array([(self.residuals(packed + s, sigmas) - base) / _STEP for s in steps]).T
