"""A setting with its time and energy, and where these come from."""

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattlaw.analysis.decide.needed_runs import shows
from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.estimates import Floats
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.analysis.metrics.result import Result, plain
from wattlaw.analysis.predict.job import Job
from wattlaw.common.formatting import plural
from wattlaw.study.footprint import Footprint
from wattlaw.study.labels import layout_label, limit_label
from wattlaw.study.launching import time_limit
from wattlaw.study.setting import LAYOUT, LAYOUT_NAMES, Setting

#: Columns of an option in its JSON; workload, options and training loop are the job's.
COLUMNS = (
    "hardware", "launcher", "nodes", "gpus", "global_batch", "local_batch", "precision",
    "power_limit_w", "clock_limit_mhz", "power_profile", "dataset_fraction", "threads_per_worker",
    "run_length",
)  # fmt: skip
#: What a decision is about.
_DECIDED = (
    "gpus", "nodes", "global_batch", "gradient_accumulation", "precision", "power_limit_w",
    "clock_limit_mhz", *LAYOUT,
)  # fmt: skip
#: What a whole job takes time for beside its training.
BESIDE_TRAINING = ("start-up", "evaluation", "checkpoints")
#: The source of an option that no run has; that of others is ``sources.source_of``.
PREDICTED = "predicted"


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
        return cls(float(mean), float(low), float(high))

    @property
    def interval(self) -> list[float] | None:
        return None if self.low is None or self.high is None else [self.low, self.high]

    def times(self, other: "Quantity | float") -> "Quantity":
        """Return the product with a factor above 0; multiplied bounds are conservative."""
        factor = other if isinstance(other, Quantity) else Quantity(other, other, other)
        ends = [(self.low, factor.low), (self.high, factor.high)]
        low, high = (None if a is None or b is None else a * b for a, b in ends)
        return Quantity(self.mean * factor.mean, low, high)

    def plus(self, other: "Quantity") -> "Quantity":
        """Return the sum; its bounds are conservative."""
        ends = [(self.low, other.low), (self.high, other.high)]
        low, high = (None if a is None or b is None else a + b for a, b in ends)
        return Quantity(self.mean + other.mean, low, high)


@dataclass(frozen=True)
class Option(Result):
    """One setting, with quantities per unit and for the amount to train.

    The amount is a number of epochs or samples, or one run. ``is_training`` is whether it is that
    of a training: where that is not known, it is 1, and the JSON has no values of a training.
    """

    setting: Setting
    hardware: str | None
    launcher: str
    threads_per_worker: int | None
    run_length: Any
    global_batch: int | None  # that ran: it need not be a multiple of the GPUs
    unit: str  # epoch | sample | step | run
    time_s: Quantity  # per unit
    energy_j: Quantity | None  # per unit
    amount: Quantity  # units to be trained
    source: str  # measured | imported | replayed | simulated | predicted
    repeats: int
    model: Job | None = field(default=None, repr=False, compare=False)
    #: Times and energies of a unit, a row for each repeat; a missing energy is NaN.
    runs: Floats | None = field(default=None, repr=False, compare=False)
    #: Deviations of its mean logarithms of time and energy that others on the same nodes, or of the
    #: same session there, share: standard deviations by nodes and session.
    shared: Mapping[Hashable, tuple[float, ...]] = field(
        default_factory=dict, repr=False, compare=False
    )
    #: How far its own steps leave the mean of a run unknown, in logs.
    time_error: float = field(default=0.0, repr=False)
    is_short: bool = False  # no run of it shows its steady state: ``metrics.SHORT``
    slow_log: float = field(default=0.0, repr=False)  # its mean log time is higher for slow nodes
    #: What runs vary by: its repeats | other settings | public data.
    interval_from: str | None = None
    energy_is: str | None = None
    extrapolates: tuple[str, ...] = ()  # settings outside of the measured range
    epochs_trained: float | None = None  # by its runs, at most; None where it is not known
    eval_time_s: float | None = None  # of an evaluation; only the whole job includes it
    whole_job_s: Quantity | None = None  # of one job, with what is known beside its training
    whole_job_without: tuple[str, ...] = BESIDE_TRAINING  # what of it was not measured
    overhead_from: str | None = None  # the measured setting of which a predicted one has these
    beside_j: float = field(default=0.0, repr=False)  # energy of evaluations, where it is known
    counts_job: bool = True  # whether it is compared by the whole job; see Question.is_of_jobs
    #: How far runs leave its mean time beside training unknown, in logs.
    beside_error: float = field(default=0.0, repr=False)
    #: The means of ``run_overhead.PARTS``.
    parts: Mapping[str, float] = field(default_factory=dict, repr=False, compare=False)
    metric: float | None = None
    quality_warnings: tuple[str, ...] = ()  # why its global batch may be too large
    falls: bool = False  # quality is shown to fall at its global batch
    quality_known: bool = False  # quality is known at its global batch
    fits: float | None = None  # the probability of a predicted one to fit into memory
    left_out: str = ""  # why it may not be recommended
    worker: str = "GPU"  # what a "gpu" is called
    shown: Collection[str] = ()  # columns in which the options of the job differ
    footprint: Footprint | None = None  # factors of cost and carbon
    per: Mapping[str, Any] = field(default_factory=dict)  # means of ``PER``

    @property
    def gpus(self) -> int:
        return self.setting.gpus

    def is_at(self, setting: Setting | None) -> bool:
        """Whether this is the setting that a decision names."""
        names = _DECIDED if setting is not None else ()
        return bool(names) and all(
            getattr(self.setting, name) == getattr(setting, name) for name in names
        )

    @property
    def is_predicted(self) -> bool:
        return self.source == PREDICTED

    @property
    def train_time_s(self) -> Quantity:
        return self.time_s.times(self.amount)

    @property
    def train_energy_j(self) -> Quantity | None:
        return None if self.energy_j is None else self.energy_j.times(self.amount)

    @property
    def is_measured(self) -> bool:
        """Whether it, or a setting near it, ran for long enough to be certain of it."""
        if self.is_short or not self.is_predicted:
            return not self.is_short
        seen = [] if self.model is None else self.model.settings
        return any(shows(run, self.setting) for run in seen)

    @property
    def is_training(self) -> bool:
        return self.unit in ("epoch", "run") or self.amount.mean != 1

    @property
    def job_time_s(self) -> Quantity:
        """What settings are compared by: the whole job, as far as it is known and counts."""
        return (self.is_whole_job and self.whole_job_s) or self.train_time_s

    @property
    def is_whole_job(self) -> bool:
        """Whether its time, GPU-hours and energy of a job are of more than the training."""
        return self.has_overhead and self.counts_job

    @property
    def beside_s(self) -> float:
        return self.job_time_s.mean - self.train_time_s.mean

    @property
    def has_overhead(self) -> bool:
        return not {*BESIDE_TRAINING} <= {*self.whole_job_without}

    @property
    def job_energy_j(self) -> Quantity | None:
        energy, beside = self.train_energy_j, Quantity(*[self.beside_j] * 3)
        return None if energy is None else energy.plus(beside)

    @property
    def epochs(self) -> Quantity | None:
        return self.amount if self.unit == "epoch" else None

    @property
    def gpu_hours(self) -> Quantity:
        return self.job_time_s.times(self.gpus / HOUR_S)

    @property
    def slurm_time(self) -> str | None:
        """The upper bound of the whole job in steps of 5 minutes, for Slurm's ``--time``."""
        if self.whole_job_s is None or self.whole_job_s.high is None:
            return None
        return time_limit(math.ceil(self.whole_job_s.high / 300) * 300)

    @property
    def cost(self) -> Quantity | None:
        return self._of_footprint("cost")

    @property
    def co2_kg(self) -> Quantity | None:
        return self._of_footprint("co2_kg")

    def _of_footprint(self, name: str) -> Quantity | None:
        """Return cost or carbon: both are linear in energy and GPU-hours, so bounds give bounds."""
        energy, ends = self.job_energy_j, []
        if self.footprint is None:
            return None
        for end in ("mean", "low", "high"):
            energy_j, gpu_hours = getattr(energy, end, None), getattr(self.gpu_hours, end)
            value = None
            if gpu_hours is not None and (energy is None or energy_j is not None):
                value = getattr(self.footprint.of(energy_j, gpu_hours), name)
            ends.append(math.nan if value is None else value)
        return Quantity.of(*ends)

    @property
    def columns(self) -> dict[str, Any]:
        holders = {name: self if name in _BESIDE else self.setting for name in COLUMNS}
        values = {name: getattr(holder, name) for name, holder in holders.items()}
        batch = values["local_batch"]
        return values | {"local_batch": None if batch is None or batch % 1 else int(batch)}

    @property
    def identity(self) -> dict[str, Any]:
        """Return what tells it from other options, the layout too."""
        return self.columns | {name: getattr(self.setting, name) for name in LAYOUT_NAMES}

    @property
    def label(self) -> str:
        """``16 GPUs on 4 nodes, tp 2, 200 W, batch 1024 (64 each)``: batch and what is shown."""
        values, names, parts = self.columns, self.shown, [plural(self.gpus, self.worker)]
        if "nodes" in names and values["nodes"] is not None and self.gpus > 1:
            parts[0] += f" on {plural(values['nodes'], 'node')}"
        parts += [layout_label(self.setting, among_others=True)] if "layout" in names else []
        parts += [limit_label(name, values[name]) for name in LIMITS if name in names]
        if self.global_batch is not None:
            has_local = self.gpus > 1 and values["local_batch"] is not None
            each = f" ({values['local_batch']} each)" if has_local else ""
            parts.append(f"batch {self.global_batch}{each}")
        shown = [
            values[name] for name in ("power_profile", "precision", "hardware") if name in names
        ]
        return ", ".join(str(part) for part in (*parts, *shown) if part)

    def label_beyond(self, other: "Option") -> list[str]:
        """Return the parts of the label that another one lacks; of a layout, all or none."""
        known = other.label.split(", ")
        layout = layout_label(self.setting, among_others=True).split(", ")
        if set(layout) != set(layout_label(other.setting, among_others=True).split(", ")):
            known = [part for part in known if part not in layout]
        return [part for part in self.label.split(", ") if part not in known]

    def to_dict(self) -> dict[str, Any]:
        quantities = {name: getattr(self, name) for name in _QUANTITIES}
        if not self.is_training:
            quantities |= dict.fromkeys(_OF_TRAINING)
        quantities["epoch_time_s"] = self.time_s if self.unit == "epoch" else None
        values = self.columns | self.setting.layout | {"unit": self.unit}
        for name, quantity in quantities.items():
            values[name] = None if quantity is None else quantity.mean
            values[f"{name}_ci"] = None if quantity is None else quantity.interval
        values |= {name: self.per.get(name) for name in PER}
        return plain(values | {name: getattr(self, name) for name in _FACTS})  # type: ignore[no-any-return]


_BESIDE = ("hardware", "launcher", "threads_per_worker", "run_length", "global_batch")
_OF_TRAINING = ("train_time_s", "train_energy_j", "gpu_hours", "cost", "co2_kg")
_QUANTITIES = ("time_s", "energy_j", *_OF_TRAINING, "whole_job_s", "epochs")
#: Means of an option in its JSON, where they are known, in any unit.
PER = (
    "time_per_sample_s", "step_time_s", "energy_per_epoch_j", "energy_per_sample_j",
    "energy_per_step_j",
)  # fmt: skip
_FACTS = (
    "source", "repeats", "interval_from", "extrapolates", "fits", "energy_is", "epochs_trained",
    "eval_time_s", "whole_job_without", "overhead_from", "slurm_time", "metric", "quality_known",
    "quality_warnings", "left_out",
)  # fmt: skip
