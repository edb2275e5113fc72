"""A setting with its time and energy, and the effect of twice its GPUs."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.footprint import Footprint
from wattlaw.analysis.metrics import HOUR_S
from wattlaw.analysis.result import Result, plain
from wattlaw.formatting import limit_label, plural

#: Settings of an option in its JSON; workload, options and training loop are the job's.
SETTING = (
    "hardware", "launcher", "nodes", "gpus", "global_batch", "local_batch", "precision",
    "power_limit_w", "clock_limit_mhz", "dataset_fraction", "threads_per_worker", "run_length",
)  # fmt: skip


@dataclass(frozen=True)
class Quantity:
    """A mean with the bounds of its 95 % interval; None where there is no interval."""

    mean: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, mean: float, low: float, high: float) -> "Quantity | None":
        """Return a quantity; None without a mean, without bounds if one is missing or infinite."""
        if not math.isfinite(mean):
            return None
        if not (math.isfinite(low) and math.isfinite(high)):
            return cls(float(mean))
        return cls(float(mean), max(float(low), 0.0), float(high))

    @property
    def interval(self) -> list[float] | None:
        """Return ``[low, high]``."""
        return None if self.low is None or self.high is None else [self.low, self.high]

    def times(self, other: "Quantity | float") -> "Quantity":
        """Return the product with a factor above 0.

        The bounds of two uncertain factors are multiplied: the interval is conservative.
        """
        factor = other if isinstance(other, Quantity) else Quantity(other, other, other)
        ends = [(self.low, factor.low), (self.high, factor.high)]
        low, high = (None if a is None or b is None else a * b for a, b in ends)
        return Quantity(self.mean * factor.mean, low, high)


@dataclass(frozen=True)
class Option(Result):
    """One setting, with quantities per unit and for the amount to train.

    The amount is a number of epochs, or one run. If the unit is a sample or a step, the amount of a
    training is unknown: it is 1, and the JSON has no values of a training.
    """

    setting: Mapping[str, Any]
    unit: str  # epoch | sample | step | run
    time_s: Quantity  # per unit
    energy_j: Quantity | None  # per unit
    amount: Quantity  # units to be trained
    measured: bool
    repeats: int
    energy_is: str | None = None
    extrapolates: tuple[str, ...] = ()  # settings outside of the measured range
    measured_gpus: tuple[int, int] | None = None  # least and most of the runs of a prediction
    eval_time_s: float | None = None  # of an evaluation; no total includes it
    metric: float | None = None
    quality_warnings: tuple[str, ...] = ()  # why its global batch may be too large
    falls: bool = False  # quality is shown to fall at its global batch
    footprint: Footprint | None = None  # factors of cost and carbon
    per: Mapping[str, Any] = field(default_factory=dict)  # means of ``PER``

    @property
    def gpus(self) -> int:
        """Return the GPU count."""
        return int(self.setting["gpus"])

    @property
    def train_time_s(self) -> Quantity:
        """Return the time of the whole amount."""
        return self.time_s.times(self.amount)

    @property
    def epochs(self) -> Quantity | None:
        """Return the epochs to be trained; None where the unit is no epoch."""
        return self.amount if self.unit == "epoch" else None

    @property
    def train_energy_j(self) -> Quantity | None:
        """Return the energy of the whole amount."""
        return None if self.energy_j is None else self.energy_j.times(self.amount)

    @property
    def gpu_hours(self) -> Quantity:
        """Return GPUs x hours of the whole amount."""
        return self.train_time_s.times(self.gpus / HOUR_S)

    def label(
        self, worker: str, names: Collection[str] = (*LIMITS, "precision", "hardware")
    ) -> str:
        """Return ``16 GPUs, 200 W, free clock, batch 64 each (1024 in all), fp32``.

        Besides GPUs and batch, it has the settings of ``names``.
        """
        setting = self.setting
        parts = [plural(self.gpus, worker)]
        if "nodes" in names and setting["nodes"] is not None:
            parts[0] += f" on {plural(setting['nodes'], 'node')}"
        parts += [limit_label(name, setting[name]) for name in LIMITS if name in names]
        if setting["local_batch"] is not None:
            parts.append(f"batch {setting['local_batch']} each ({setting['global_batch']} in all)")
        others = [setting[name] for name in ("precision", "hardware") if name in names]
        return ", ".join([*parts, *(str(value) for value in others if value)])

    def matches(self, other: "Option", *but: str) -> bool:
        """Say whether all settings except ``but`` equal those of another option."""
        return all(self.setting[name] == other.setting[name] for name in SETTING if name not in but)

    @property
    def cost(self) -> Quantity | None:
        """Return the cost of the whole amount; None without prices."""
        return self._footprint("cost")

    @property
    def co2_kg(self) -> Quantity | None:
        """Return the carbon of the whole amount; None without the grid's carbon intensity."""
        return self._footprint("co2_kg")

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python: the settings, each quantity and its ``<name>_ci``, and the rest."""
        quantities = {name: getattr(self, name) for name in _QUANTITIES}
        if self.unit in ("sample", "step"):
            quantities |= dict.fromkeys(_OF_TRAINING)
        quantities["epoch_time_s"] = self.time_s if self.unit == "epoch" else None
        values = {name: self.setting[name] for name in SETTING} | {"unit": self.unit}
        for name, quantity in quantities.items():
            values[name] = None if quantity is None else quantity.mean
            values[f"{name}_ci"] = None if quantity is None else quantity.interval
        values |= {name: self.per.get(name) for name in PER}
        return plain(values | {name: getattr(self, name) for name in _FACTS})  # type: ignore[no-any-return]

    def _footprint(self, name: str) -> Quantity | None:
        factors, energy, hours = self.footprint, self.train_energy_j, self.gpu_hours
        if factors is None:
            return None

        def bound(end: str) -> float:
            energy_j, gpu_hours = getattr(energy, end, None), getattr(hours, end)
            if gpu_hours is None or (energy is not None and energy_j is None):
                return math.nan
            value = getattr(factors.of(energy_j, gpu_hours), name)
            return math.nan if value is None else float(value)

        return Quantity.of(*map(bound, ("mean", "low", "high")))


_OF_TRAINING = ("train_time_s", "train_energy_j", "gpu_hours", "cost", "co2_kg")
_QUANTITIES = ("time_s", "energy_j", *_OF_TRAINING, "epochs")
#: Means of an option in its JSON, where they are known, in any unit.
PER = (
    "time_per_sample_s", "step_time_s", "energy_per_epoch_j", "energy_per_sample_j",
    "energy_per_step_j",
)  # fmt: skip
_FACTS = (
    "measured", "repeats", "extrapolates", "measured_gpus", "energy_is", "eval_time_s",
    "metric", "quality_warnings",
)  # fmt: skip


@dataclass(frozen=True)
class Doubling(Result):
    """An option with twice the GPUs of another, and the change over the amount to train."""

    of: Option
    option: Option
    rule: str  # the batch that is kept: global_batch or local_batch

    @property
    def time_ratio(self) -> float:
        """Return the time as a share of that with half the GPUs."""
        return self.option.train_time_s.mean / self.of.train_time_s.mean

    @property
    def energy_ratio(self) -> float | None:
        """Return the energy likewise; None where either is not known."""
        larger, smaller = self.option.train_energy_j, self.of.train_energy_j
        return None if larger is None or smaller is None else larger.mean / smaller.mean

    def to_dict(self) -> dict[str, Any]:
        """Return the option's values, with the ratios and differences of the means."""
        values, base = self.option.to_dict(), self.of.to_dict()
        changes = {
            f"extra_{name}": None if values[name] is None or base[name] is None
            else values[name] - base[name]
            for name in _OF_TRAINING
        }  # fmt: skip
        saved_s = changes.pop("extra_train_time_s")
        return values | {
            "keeps": self.rule, "from_gpus": self.of.gpus, "time_ratio": self.time_ratio,
            "energy_ratio": self.energy_ratio,
            "saves_s": None if saved_s is None else -saved_s, **changes,
        }  # fmt: skip


def next_doubling(option: Option, options: Sequence[Option]) -> Doubling | None:
    """Return the option with twice the GPUs and all else the same; None where there is none.

    A measured option is preferred to a predicted one, and a prediction close to the runs to one
    that is not. A constant global batch is preferred to a constant local one, because the training
    is then the same.
    """
    batch = option.setting["global_batch"]
    # Without known batches, all other settings have to be the same.
    rules = {
        "global_batch": ("local_batch",) if batch is not None else None,
        "local_batch": ("global_batch",) if option.setting["local_batch"] is not None else None,
        "unknown_batch": () if batch is None else None,
    }
    doublings = [
        Doubling(option, other, rule)
        for rule, may_differ in rules.items()
        for other in options
        if may_differ is not None
        and other.gpus == 2 * option.gpus
        and other.matches(option, *may_differ, "gpus", "nodes")
    ]
    return min(doublings, key=_order, default=None)


def _order(doubling: Doubling) -> tuple[bool, int, bool, int]:
    """Return the sort key: measured, close to the runs, the same global batch, fewest nodes."""
    option = doubling.option
    return (
        not option.measured, len(option.extrapolates), doubling.rule != "global_batch",
        int(option.setting["nodes"] or 0),
    )  # fmt: skip
