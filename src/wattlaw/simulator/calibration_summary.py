"""A calibration parameter by parameter: default, value, interval, and whether runs determine it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt
from statistics import median

from wattlaw.simulator.calibration import (
    FACTOR_PRIOR,
    NAMES,
    PRIOR,
    SHARES,
    Calibration,
    MeasuredSetting,
    apply_calibration,
    quantile,
)
from wattlaw.simulator.cluster import Gpu
from wattlaw.simulator.job import Parameters
from wattlaw.simulator.predict import predict

#: Runs identify a parameter where its deviation is less than this share of the prior's.
_IDENTIFIED_BELOW = 0.5


@dataclass(frozen=True)
class FittedParameter:
    """A parameter, or the factor of a workload's work, with its 95 % interval."""

    name: str
    default: float
    value: float
    low: float
    high: float
    is_identified: bool  # the runs determine it; otherwise it stays near its default


@dataclass(frozen=True)
class FitErrors:
    """Medians of |predicted / measured - 1| over the fitted settings."""

    settings: int
    time: float
    power: float | None
    energy: float | None  # of GPUs, power times time


def fitted_parameters(calibration: Calibration, gpu: Gpu) -> list[FittedParameter]:
    """Return the fitted parameters; those that the board's file sets have that default."""
    of_board = {
        "least_voltage": gpu.least_voltage,
        "knee": gpu.knee_clock_mhz / gpu.max_clock_mhz,
    }
    defaults = Parameters().model_dump() | of_board
    values = {name: value for name, value in calibration.parameters if value is not None}
    return [
        _fitted(calibration, i, name, defaults[name], values.get(name, defaults[name]), PRIOR)
        for i, name in enumerate(NAMES)
    ]


def fitted_work_factors(calibration: Calibration) -> list[FittedParameter]:
    """Return the factors of the workloads: work of a sample over that of the profile."""
    return [
        _fitted(calibration, i, name, 1.0, factor, FACTOR_PRIOR)
        for i, (name, factor) in enumerate(calibration.work_factors.items(), len(NAMES))
    ]


def _fitted(
    calibration: Calibration, row: int, name: str, default: float, value: float, prior: float
) -> FittedParameter:
    """Return a parameter with its interval, which is symmetric in logs, or in logits of a share."""
    deviation = sqrt(max(0.0, calibration.covariance[row][row]))
    is_share = row < len(SHARES)
    low = high = value
    if value > 0 and not (is_share and value >= 1):
        off = quantile(calibration) * deviation
        odds = value / (1 - value) if is_share else value
        low, high = odds * exp(-off), odds * exp(off)
        if is_share:
            low, high = low / (1 + low), high / (1 + high)
    return FittedParameter(name, default, value, low, high, deviation < _IDENTIFIED_BELOW * prior)


def fit_errors(calibration: Calibration, measured: Sequence[MeasuredSetting]) -> FitErrors:
    """Return how far predictions are from the settings that they were fitted to."""
    times, powers, energies = [], [], []
    for setting in measured:
        job = apply_calibration(setting.job, calibration, setting.workload)
        train = predict(job).train
        time_ratio = train.duration_s / setting.epoch_time_s
        times.append(abs(time_ratio - 1))
        if setting.gpu_power_w is not None:
            power_ratio = train.gpu_power_w / setting.gpu_power_w
            powers.append(abs(power_ratio - 1))
            energies.append(abs(power_ratio * time_ratio - 1))
    return FitErrors(
        len(measured),
        median(times),
        median(powers) if powers else None,
        median(energies) if energies else None,
    )
