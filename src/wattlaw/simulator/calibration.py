"""Calibration: the simulator's parameters fitted to measured runs, with their covariance.

The fit maximises the posterior (Gelman et al., Bayesian Data Analysis, ch. 4). Ratios of measured
to predicted time and power are log-normal. Each parameter, in logs (a share in logits), is normal
around its default. A parameter that the runs do not depend on, such as the network for runs on one
GPU, keeps its default and its prior uncertainty. The covariance is that of the linearised model at
the optimum.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import stats
from scipy.optimize import least_squares

from wattlaw.errors import BadInput, Refused
from wattlaw.simulator.cluster import Gpu
from wattlaw.simulator.job import Parameters, Prediction, SimulatedJob
from wattlaw.simulator.predict import predict
from wattlaw.study.base import Model
from wattlaw.study.document import read_document
from wattlaw.text import json_with_rows

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
#: That of the prior of a workload's factor: its data may differ from those of its profile.
FACTOR_PRIOR = 2.0
_STEP = 1e-4
#: An interval is at most exp(-300) to exp(300) times the prediction, which keeps it finite.
_MAX_LOG_WIDTH = 300.0
#: A parameter with slopes below this (standard deviations per unit of its log) is not fitted.
_NO_INFLUENCE = 1e-3
_FIT_TOLERANCE = 1e-5
#: The least standard deviation of a measurement, in logs.
_MIN_SIGMA = 0.005
_MAX_COVARIANCE = 1e300  # eigenvalues of larger ones overflow

Sigma = Annotated[float, Field(gt=0, le=10)]


@dataclass(frozen=True)
class MeasuredSetting:
    """One measured setting. Settings with the same ``workload`` share a factor of their work."""

    job: SimulatedJob
    workload: str
    epoch_time_s: float
    gpu_power_w: float | None = None  # mean of one GPU over the training window


class Calibration(Model):
    """Fitted parameters, their covariance (in logs and logits), and the deviations of the fit."""

    gpu: str  # the board that was measured
    settings: int = Field(ge=1)
    parameters: Parameters
    names: tuple[str, ...]  # of the rows of ``covariance``: parameters, then "work:<workload>"
    covariance: tuple[tuple[float, ...], ...]
    work_factors: dict[str, Annotated[float, Field(gt=0, le=10**6)]]
    time_sigma: Sigma  # standard deviation of ln(measured / predicted)
    power_sigma: Sigma | None = None
    energy_sigma: Sigma | None = None
    #: Degrees of freedom of these deviations: settings less those of the fitted parameters.
    freedom: Annotated[float, Field(gt=0, le=10**9)]
    made_from: str = ""

    @property
    def digest(self) -> str:
        """Return 8 hex digits that identify this calibration."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:8]


class Interval(NamedTuple):
    """A 95 % prediction interval."""

    low: float
    high: float


def calibrate(measured: Sequence[MeasuredSetting], made_from: str = "") -> Calibration:
    """Return the calibration of one GPU model to measured runs.

    Raises
    ------
    Refused
        There are fewer than three settings, or they are of several GPU models.
    """
    boards = {setting.job.cluster.gpu.name for setting in measured}
    if len(measured) < 3 or len(boards) != 1:
        raise Refused(
            f"{len(measured)} settings of {len(boards)} GPU models; a calibration needs at least "
            "three settings of one model"
        )
    fit = _Fit(measured)
    sigmas, packed = (0.05, 0.05), fit.start
    for _ in range(2):  # the residuals give new weights
        packed = fit.solve(packed, sigmas)
        sigmas = fit.scatter(packed, sigmas).sigmas
    packed = fit.solve(packed, sigmas)
    scatter = fit.scatter(packed, sigmas)
    if scatter.freedom < 1:
        raise Refused(
            f"{len(measured)} settings of {len(fit.workloads)} workloads leave no degrees of "
            "freedom for the error of predictions; measure more settings of each workload"
        )
    return Calibration(
        gpu=boards.pop(),
        settings=len(measured),
        parameters=fit.parameters(packed),
        names=fit.names,
        covariance=tuple(tuple(map(float, row)) for row in scatter.covariance),
        work_factors={name: exp(packed[i]) for i, name in enumerate(fit.workloads, len(NAMES))},
        time_sigma=scatter.sigmas[0],
        power_sigma=scatter.sigmas[1] if scatter.energy_sigma is not None else None,
        energy_sigma=scatter.energy_sigma,
        freedom=scatter.freedom,
        made_from=made_from,
    )


def apply_calibration(job: SimulatedJob, calibration: Calibration, workload: str) -> SimulatedJob:
    """Return a job with the parameters of a calibration and its workload's factor, if any."""
    factor = calibration.work_factors.get(workload, 1.0)
    return replace(job, parameters=calibration.parameters, work_factor=factor)


def prediction_intervals(
    job: SimulatedJob, calibration: Calibration, workload: str
) -> Mapping[str, Interval]:
    """Return 95 % intervals of ``epoch_time_s`` and, calibrated, ``gpu_power_w``, ``gpu_energy_j``.

    By the delta method: Var(ln y) = g' C g + sigma^2, with g the gradient of ln y by the
    parameters, C their covariance and sigma the standard deviation of the residuals; and Student's
    t with the residuals' degrees of freedom. The factor of a workload that was not measured is as
    uncertain as the measured factors differ from 1.
    """
    at = _pack(calibration.parameters, job.cluster.gpu)
    factor_name = f"work:{workload}"
    rows = [i for i, name in enumerate(calibration.names) if name in (*NAMES, factor_name)]
    covariance = np.array(calibration.covariance)[np.ix_(rows, rows)]
    at = np.append(at, log(calibration.work_factors.get(workload, 1.0)))
    if factor_name not in calibration.names:
        covariance = np.pad(covariance, (0, 1))
        covariance[-1, -1] = _factor_variance(calibration.work_factors)
    intervals = {}
    base = _logs(job, at)
    slopes = np.array([(_logs(job, at + step) - base) / _STEP for step in np.eye(len(at)) * _STEP])
    sigmas = {
        "epoch_time_s": calibration.time_sigma,
        "gpu_power_w": calibration.power_sigma,
        "gpu_energy_j": calibration.energy_sigma,
    }
    t = quantile(calibration)
    for index, (name, sigma) in enumerate(sigmas.items()):
        if sigma is None:  # no power was measured, so its error is unknown
            continue
        gradient = slopes[:, index]
        variance = max(float(gradient @ covariance @ gradient), 0.0)
        deviation = min(t * sqrt(variance + sigma**2), _MAX_LOG_WIDTH)
        intervals[name] = Interval(exp(base[index] - deviation), exp(base[index] + deviation))
    return intervals


def quantile(calibration: Calibration) -> float:
    """Return Student's t of a 95 % interval with the residuals' degrees of freedom."""
    return float(stats.t.ppf(0.975, calibration.freedom))


def _factor_variance(factors: Mapping[str, float]) -> float:
    """Return the variance of ln(factor) of a workload that was not measured."""
    squares = [log(factor) ** 2 for factor in factors.values()]
    return (sum(squares) + PRIOR**2) / (len(squares) + 1)


def _logs(job: SimulatedJob, packed: Floats) -> Floats:
    """Return ln of time, power and energy of a job with packed parameters and factor."""
    train = _predict(job, packed[:-1], float(packed[-1])).train
    return np.log([train.duration_s, train.gpu_power_w, train.gpu_energy_j])


def _predict(job: SimulatedJob, packed: Floats, log_factor: float) -> Prediction:
    parameters = _unpack(packed, job.parameters)
    return predict(replace(job, parameters=parameters, work_factor=exp(log_factor)))


def _logit(share: float) -> float:
    inside = min(max(share, 1e-3), 1 - 1e-3)
    return log(inside / (1 - inside))


def _pack(parameters: Parameters, gpu: Gpu) -> Floats:
    """Return parameters as numbers without bounds, in the order of ``NAMES``."""
    values = parameters.model_dump()
    values["least_voltage"] = values["least_voltage"] or gpu.least_voltage
    values["knee"] = values["knee"] or gpu.knee_clock_mhz / gpu.max_clock_mhz
    shares = [_logit(values[name]) for name in SHARES]
    return np.array(shares + [log(max(values[name], 1e-6)) for name in _POSITIVE])


def _unpack(packed: Floats, base: Parameters) -> Parameters:
    """Return ``base`` with the packed parameters."""
    clipped = np.clip(packed, -20, 20)
    shares = 1 / (1 + np.exp(-clipped[: len(SHARES)]))
    values = [*map(float, shares), *map(float, np.exp(clipped[len(SHARES) :]))]
    return base.model_copy(update=dict(zip(NAMES, values, strict=True)))


def calibration_json(calibration: Calibration) -> str:
    """Return the text of a calibration's file."""
    return json_with_rows(calibration.model_dump(mode="json"), "covariance")


def read_calibration(path: Path, gpu: Gpu | None = None) -> Calibration:
    """Return the calibration of a file that ``wattlaw calibrate`` wrote.

    Raises
    ------
    BadInput
        It cannot be read, is not a calibration, or is not of the board ``gpu``, where that is set.
    """
    calibration = read_document(path, Calibration, "calibration file")
    fault = _fault(calibration)
    if fault is not None:
        raise BadInput(f"{path}: {fault}; allowed: what 'wattlaw calibrate' writes")
    if gpu is not None and calibration.gpu != gpu.name:
        raise BadInput(
            f"{path}: gpu: given {calibration.gpu!a:.80}; allowed for this hardware: {gpu.name}"
        )
    return calibration


def _fault(calibration: Calibration) -> str | None:
    """Return what is inconsistent in a calibration, or None."""
    factors = tuple(f"work:{name}" for name in calibration.work_factors)
    if calibration.names != (*NAMES, *factors):
        return "names: not the parameters of this version followed by the workloads"
    size, rows = len(calibration.names), calibration.covariance
    if len(rows) != size or any(len(row) != size for row in rows):
        return f"covariance: not {size} rows of {size} numbers"
    covariance = np.array(rows)
    scale = float(np.abs(covariance).max())
    if scale > _MAX_COVARIANCE:
        return f"covariance: a number beyond {_MAX_COVARIANCE:g}"
    least = float(np.linalg.eigvalsh((covariance + covariance.T) / 2)[0])
    if not np.allclose(covariance, covariance.T, atol=1e-6 * scale) or least < -1e-6 * scale:
        return "covariance: not symmetric and positive semidefinite"
    return None


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
        self.workloads = tuple(dict.fromkeys(setting.workload for setting in measured))
        self.names = (*NAMES, *(f"work:{name}" for name in self.workloads))
        first = measured[0].job
        self.start = np.append(
            _pack(first.parameters, first.cluster.gpu), np.zeros(len(self.workloads))
        )
        widths = [PRIOR] * len(NAMES) + [FACTOR_PRIOR] * len(self.workloads)
        self._widths = np.array(widths)

    def parameters(self, packed: Floats) -> Parameters:
        """Return packed numbers as parameters."""
        return _unpack(packed[: len(NAMES)], self._measured[0].job.parameters)

    def log_ratios(self, packed: Floats) -> tuple[Floats, Floats]:
        """Return ln(predicted / measured) of times, and of the measured powers."""
        times, powers = [], []
        for setting in self._measured:
            factor = float(packed[len(NAMES) + self.workloads.index(setting.workload)])
            train = _predict(setting.job, packed[: len(NAMES)], factor).train
            times.append(log(train.duration_s / setting.epoch_time_s))
            if setting.gpu_power_w is not None:
                powers.append(log(train.gpu_power_w / setting.gpu_power_w))
        return np.array(times), np.array(powers)

    def residuals(self, packed: Floats, sigmas: tuple[float, float]) -> Floats:
        """Return all residuals in units of their standard deviations."""
        times, powers = self.log_ratios(packed)
        deviation = (packed - self.start) / self._widths
        return np.concatenate([times / sigmas[0], powers / sigmas[1], deviation])

    def solve(self, start: Floats, sigmas: tuple[float, float]) -> Floats:
        """Return the most probable packed parameters; the search begins at ``start``.

        Parameters without influence on these runs keep their defaults and are not fitted.
        """
        is_free = np.abs(self.jacobian(start, sigmas)[: -len(start)]).max(axis=0) > _NO_INFLUENCE

        def residuals(free: Floats) -> Floats:
            packed = start.copy()
            packed[is_free] = free
            return self.residuals(packed, sigmas)

        solution = least_squares(
            residuals,
            start[is_free],
            diff_step=_STEP,
            ftol=_FIT_TOLERANCE,
            xtol=_FIT_TOLERANCE,
            gtol=_FIT_TOLERANCE,
        )
        packed = start.copy()
        packed[is_free] = solution.x
        return packed

    def scatter(self, packed: Floats, sigmas: tuple[float, float]) -> "_Scatter":
        """Return the deviations of the residuals, and the covariance of the parameters.

        The parameters take as many degrees of freedom as the trace of the hat matrix; a parameter
        that the prior constrains takes less than one.
        """
        times, powers = self.log_ratios(packed)
        jacobian = self.jacobian(packed, sigmas)
        covariance = np.asarray(np.linalg.inv(jacobian.T @ jacobian), dtype=np.float64)
        data = jacobian[: len(times) + len(powers)]
        leverages = ((data @ covariance) * data).sum(axis=1)
        freedoms = [len(times) - float(leverages[: len(times)].sum())]
        if len(powers):
            freedoms.append(len(powers) - float(leverages[len(times) :].sum()))

        def sigma(ratios: Floats, freedom: float) -> float:
            return max(_MIN_SIGMA, sqrt(float((ratios**2).sum()) / max(freedom, 1.0)))

        freedom = min(freedoms)
        has_power = [setting.gpu_power_w is not None for setting in self._measured]
        return _Scatter(
            sigmas=(
                sigma(times, freedoms[0]),
                sigma(powers, freedoms[1]) if len(powers) else sigmas[1],
            ),
            energy_sigma=sigma(times[has_power] + powers, freedom) if len(powers) else None,
            freedom=freedom,
            covariance=covariance,
        )

    def jacobian(self, packed: Floats, sigmas: tuple[float, float]) -> Floats:
        """Return the derivatives of the residuals."""
        base = self.residuals(packed, sigmas)
        steps = np.eye(len(packed)) * _STEP
        return np.array([(self.residuals(packed + s, sigmas) - base) / _STEP for s in steps]).T
