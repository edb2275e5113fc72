"""The question of a decision, and the runs that may answer it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from wattlaw.analysis.predict.observation import Floats
from wattlaw.common.errors import BadInput
from wattlaw.study.setting import Setting

#: What can be minimized.
GOALS = ("energy", "time", "gpu_hours", "edp", "cost", "carbon")
_OF_ENERGY = ("energy", "edp", "carbon")
#: A setting that misses a constraint by a share is as bad as one that costs more by this multiple.
_PENALTY = 2.0


#: Bounds, each with its least value, and whether that is allowed.
_LEAST = {
    "deadline_s": (0, False), "max_slowdown": (0, True), "energy_budget_j": (0, False),
    "max_gpus": (1, True),
}  # fmt: skip


@dataclass(frozen=True)
class Constraints:
    """What is minimized, and the bounds that a setting must meet; None is no bound."""

    minimize: str | None = None  # one of ``GOALS``; None for what suits the bounds
    deadline_s: float | None = None  # of a training
    max_slowdown: float | None = None  # share of the time on the fastest allowed setting
    energy_budget_j: float | None = None  # of a training
    max_gpus: int | None = None

    def __post_init__(self) -> None:
        if self.minimize is not None and self.minimize not in GOALS:
            raise BadInput(f"minimize: given {self.minimize!r}; allowed: {', '.join(GOALS)}")
        for name, (least, is_allowed) in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):
                raise BadInput(f"{name}: given {value:g}; allowed: a number of at least {least:g}")
            if value == least and not is_allowed:
                raise BadInput(f"{name}: given {value:g}; allowed: above {least:g}")


@dataclass(frozen=True)
class Question(Constraints):
    """What a setting is chosen for.

    Without ``samples``, totals are of one sample, and deadline and budget too.
    """

    minimize: str = "energy"
    max_global_batch: float | None = None
    samples: float | None = None  # of a training
    #: By global batch, where the batch changes how many are needed; others are not allowed.
    samples_by_batch: Mapping[float, float] = field(default_factory=dict)
    price_per_kwh: float = 0.0  # for ``cost``
    price_per_gpu_hour: float = 0.0
    tolerance: float = 0.02  # the regret that does not matter, as a share of the goal
    confidence: float = 0.9  # probability of a regret within the tolerance when measuring ends

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tolerance", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise BadInput(f"{name}: given {getattr(self, name)!r}; allowed: above 0, below 1")
        if self.minimize == "cost" and not self.price_per_kwh + self.price_per_gpu_hour > 0:
            raise BadInput("minimize: given cost; allowed: together with a price above 0")

    @property
    def needs_energy(self) -> bool:
        """Return whether the answer depends on energy."""
        is_price = self.minimize == "cost" and self.price_per_kwh > 0
        return self.minimize in _OF_ENERGY or is_price or self.energy_budget_j is not None

    def allows(self, setting: Setting) -> bool:
        """Return whether GPUs and batch of a setting are within the bounds."""
        batch = setting.global_batch
        if self.samples_by_batch and batch not in self.samples_by_batch:
            return False
        too_large = self.max_global_batch is not None and (batch or 0) > self.max_global_batch
        return not too_large and setting.gpus <= (self.max_gpus or setting.gpus)

    def regrets(
        self, settings: Sequence[Setting], time_s: Floats, energy_j: Floats | None
    ) -> Floats:
        """Return the regret of choosing each of some allowed settings, in each draw.

        It is the goal over that of the best setting, minus 1; and twice the share by which a
        constraint is missed. GPU-hours replace an energy that is not known; an energy budget is
        then not checked. ``time_s`` and ``energy_j`` are of one sample, shape (draws,
        settings).
        """
        gpus = np.array([item.gpus for item in settings], dtype=float)
        samples = np.array([self._samples(item) for item in settings])
        times = time_s * samples
        goal = self._goal(times, None if energy_j is None else energy_j * samples, gpus)
        missed = self.missed(settings, time_s, energy_j)
        meets = missed <= 0
        best = np.where(meets, goal, np.inf).min(1)
        # Where no setting meets the constraints, the one that misses them least is right.
        nearest = goal[np.arange(len(goal)), missed.argmin(1)]
        best = np.where(meets.any(1), best, nearest)[:, None]
        unavoidable = missed.min(1)[:, None]
        regret: Floats = np.maximum(0.0, goal / best - 1)
        return np.where(meets, regret, regret + _PENALTY * (missed - unavoidable))

    def missed(
        self, settings: Sequence[Setting], time_s: Floats, energy_j: Floats | None
    ) -> Floats:
        """Return the share by which each setting misses a constraint, 0 if it meets all.

        Arguments and shape are those of ``regrets``.
        """
        samples = np.array([self._samples(item) for item in settings])
        times = time_s * samples
        missed: Floats = np.zeros_like(times)
        for values, bound in (
            (times, self.deadline_s),
            (None if energy_j is None else energy_j * samples, self.energy_budget_j),
            (times, self._slowest(times)),
        ):
            if values is not None and bound is not None:
                missed = np.maximum(missed, values / bound - 1)
        return missed

    def _slowest(self, times: Floats) -> Floats | None:
        if self.max_slowdown is None:
            return None
        bound: Floats = times.min(1)[:, None] * (1 + self.max_slowdown)
        return bound

    def _samples(self, setting: Setting) -> float:
        return self.samples_by_batch.get(setting.global_batch or 0.0, self.samples or 1.0)

    def _goal(self, times: Floats, energies: Floats | None, gpus: Floats) -> Floats:
        gpu_s = times * gpus
        if energies is None:
            instead = {"time": times, "edp": gpu_s * times}
            return instead.get(self.minimize, gpu_s)  # the price of GPU-hours is proportional
        hours = gpu_s / 3600
        goals: dict[str, Callable[[], Floats]] = {
            "energy": lambda: energies,
            "carbon": lambda: energies,  # proportional to it
            "time": lambda: times,
            "gpu_hours": lambda: hours,
            "edp": lambda: energies * times,
            "cost": lambda: self.price_per_gpu_hour * hours + self.price_per_kwh * energies / 3.6e6,
        }
        return goals[self.minimize]()


#: The standard error of a run's mean step time that suffices, as a share of the tolerance.
_PRECISE = 0.25


def is_long_enough(error: float, tolerance: float) -> bool:
    """Return whether more steps of a run would hardly change a decision.

    ``error`` is the standard error of its mean step time, as a share of it: of n independent steps,
    their coefficient of variation over sqrt(n). ``tolerance`` is the regret that does not matter.
    """
    return error <= _PRECISE * tolerance


@dataclass(frozen=True)
class Candidate:
    """A run that could be made.

    ``steps`` are its optimizer steps, with warm-up; ``startup_s`` is the time before the first.
    ``informs`` is the setting that the run is to decide about, where it emulates it on fewer GPUs.
    """

    setting: Setting
    steps: float
    startup_s: float = 0.0
    informs: Setting | None = None

    def gpu_hours(self, step_time_s: float) -> float:
        """Return the GPU-hours of the run for a time of a step."""
        return self.setting.gpus * (self.startup_s + self.steps * step_time_s) / 3600


def may_fit_memory(setting: Setting, out_of_memory: Sequence[Setting]) -> bool:
    """Return whether a setting may fit into memory, given those that did not.

    Settings of the same precision with at least as many samples in a micro-batch of a GPU do not.
    """

    def micro(item: Setting) -> float:
        return (item.local_batch or 0.0) / item.gradient_accumulation

    return not any(
        item == setting
        or (item.local_batch is not None and item.precision == setting.precision
            and micro(setting) >= micro(item))
        for item in out_of_memory
    )  # fmt: skip
