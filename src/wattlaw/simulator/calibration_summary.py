"""What a calibration found, parameter by parameter: default, value, interval, and who told it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
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
from wattlaw.simulator.parameters import Parameters
from wattlaw.simulator.predict import predict

#: A parameter is told by the runs where they leave less than this of the prior's deviation.
_TOLD = 0.5


@dataclass(frozen=True)
class FittedParameter:
    """A parameter, or the factor of a workload's work, with its 95 % interval."""

    name: str
    default: float
    value: float
    low: float
    high: float
    is_identified: bool  # by the runs; else it is about its default


@dataclass(frozen=True)
class FitErrors:
    """Medians of |predicted / measured - 1| over the settings that were fitted to."""

    settings: int
    time: float
    power: float | None
    energy: float | None  # of GPUs, power times time


def fitted_parameters(calibration: Calibration, gpu: Gpu) -> list[FittedParameter]:
    """Return the free fractions; those that the board's file gives have that as their default."""
    of_board = {
        "least_voltage": gpu.least_voltage,
        "knee": gpu.knee_clock_mhz / gpu.max_clock_mhz,
    }
    defaults = Parameters().model_dump() | of_board
    values = calibration.parameters.model_dump()
    found = []
    for place, name in enumerate(NAMES):
        value = defaults[name] if values[name] is None else values[name]
        deviation = sqrt(max(0.0, calibration.covariance[place][place]))
        off = quantile(calibration) * deviation
        low, high = _interval(value, off, is_share=name in SHARES)
        told = deviation < _TOLD * PRIOR
        found.append(FittedParameter(name, defaults[name], value, low, high, told))
    return found


def fitted_work_factors(calibration: Calibration) -> list[FittedParameter]:
    """Return the workloads' factors: work of a sample over that of the profile."""
    found = []
    for place, (name, factor) in enumerate(calibration.work_factors.items(), len(NAMES)):
        deviation = sqrt(max(0.0, calibration.covariance[place][place]))
        low, high = _interval(factor, quantile(calibration) * deviation, is_share=False)
        told = deviation < _TOLD * FACTOR_PRIOR
        found.append(FittedParameter(name, 1.0, factor, low, high, told))
    return found


def fit_errors(calibration: Calibration, measured: Sequence[MeasuredSetting]) -> FitErrors:
    """Return how far predictions are from what they were fitted to."""
    times, powers, energies = [], [], []
    for one in measured:
        train = predict(apply_calibration(one.job, calibration, one.workload)).train
        times.append(abs(train.duration_s / one.epoch_time_s - 1))
        if one.gpu_power_w is not None:
            ratio = train.gpu_power_w / one.gpu_power_w
            powers.append(abs(ratio - 1))
            energies.append(abs(ratio * train.duration_s / one.epoch_time_s - 1))
    has_power = bool(powers)
    return FitErrors(
        len(measured),
        median(times),
        median(powers) if has_power else None,
        median(energies) if has_power else None,
    )


def _interval(value: float, off: float, *, is_share: bool) -> tuple[float, float]:
    """Return the interval of what lies so far around its value in logs, or in logits."""
    if value <= 0 or (is_share and value >= 1):
        return value, value
    middle = log(value / (1 - value)) if is_share else log(value)
    low, high = middle - off, middle + off
    if is_share:
        return 1 / (1 + exp(-low)), 1 / (1 + exp(-high))
    return exp(low), exp(high)
