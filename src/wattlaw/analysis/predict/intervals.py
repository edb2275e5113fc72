"""A prediction: values with intervals, the parts of a step, and what they rest on."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from wattlaw.analysis.metrics.result import Caution, Result
from wattlaw.analysis.predict.observation import Floats
from wattlaw.study.setting import Setting

#: The level of the intervals of predictions.
LEVEL = 0.9
#: A part that takes at least this share of the longest holds a step up as much: where the longest
#: were quicker by a fifth, it would be the longest.
_AS_LONG = 0.8


@dataclass(frozen=True)
class Components(Result):
    """The median parts of an optimizer step, in seconds.

    ``compute_s`` includes the fixed overhead of a step. ``communication_s`` is the part that the
    backward pass does not hide. ``waiting_s`` is the wait for the slowest rank.
    """

    compute_s: float
    communication_s: float
    input_s: float
    waiting_s: float

    @property
    def bottleneck(self) -> str:
        """Return the longest part, with those that take about as long."""
        parts = {name.removesuffix("_s"): getattr(self, name) for name in self.__dict__}
        order = sorted(parts, key=parts.__getitem__, reverse=True)
        return " and ".join(name for name in order if parts[name] >= _AS_LONG * parts[order[0]])


@dataclass(frozen=True)
class Basis(Result):
    """The measurements that a prediction rests on, and the parts that rest on priors alone.

    ``priors`` says where the priors come from.
    """

    observations: int
    gpus: tuple[int, ...]
    nodes: tuple[int, ...]
    local_batches: tuple[float, ...]
    prior_only: tuple[str, ...]
    priors: str


@dataclass(frozen=True)
class Prediction(Result):
    """Time, power and energy of one setting, with 90 % intervals for a future run.

    Values that need what was not measured or not given (power; the samples of an epoch) are None.
    ``p_faster`` is the probability that the time per sample is less than that of the baseline; a
    setting that does not fit into memory is not faster.
    ``extrapolates`` names the quantities that are outside of the measured range. ``energy_is`` says
    what the energy counts; ``power_per_gpu_w`` is that of GPUs alone. ``peak_memory_bytes`` is of
    the fullest GPU, and ``fits`` the probability that it is within its memory. ``bottleneck`` is
    the longest part of a step, with those about as long: ``compute and communication``.
    """

    workload: str | None
    hardware: str | None
    setting: Setting
    step_time_s: float | None
    step_time_s_ci: tuple[float, float] | None
    time_per_sample_s: float | None
    time_per_sample_s_ci: tuple[float, float] | None
    epoch_time_s: float | None
    epoch_time_s_ci: tuple[float, float] | None
    train_time_s: float | None
    train_time_s_ci: tuple[float, float] | None
    power_per_gpu_w: float | None
    power_per_gpu_w_ci: tuple[float, float] | None
    energy_per_sample_j: float | None
    energy_per_sample_j_ci: tuple[float, float] | None
    components: Components
    bottleneck: str
    p_faster: float | None
    rests_on: Basis
    extrapolates: tuple[str, ...]
    warnings: tuple[Caution, ...]
    energy_is: str | None
    seed: int
    source: str = "predicted"
    ci_level: float = LEVEL
    peak_memory_bytes: float | None = None
    peak_memory_bytes_ci: tuple[float, float] | None = None
    fits: float | None = None
    out_of_memory: bool = False  # in a run

    def to_dict(self) -> dict[str, Any]:
        values = super().to_dict()
        names = {name: values.pop(name) for name in ("workload", "hardware")}
        setting: dict[str, Any] = values.pop("setting")
        return names | setting | values


def quantiles(draws: Floats, level: float) -> Floats:
    """Return the lower bound, the median and the upper bound of draws, for each column."""
    return np.quantile(draws, [(1 - level) / 2, 0.5, (1 + level) / 2], axis=0)


def pair(name: str, draws: Floats | None, scale: float = 1.0) -> dict[str, Any]:
    """Return ``name`` and ``name_ci`` as keyword arguments of ``Prediction``.

    They are the median and the central interval of draws times a factor; None without draws.
    """
    if draws is None:
        return {name: None, f"{name}_ci": None}
    low, middle, high = (quantiles(draws, LEVEL) * scale).tolist()
    return {name: middle, f"{name}_ci": (low, high)}
