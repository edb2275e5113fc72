"""The grids of the decision benchmark: what a run of each setting showed or would show."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from prediction_data import FOLDER, is_packed, pollux
from wattlaw.analysis.decide.regret import regrets
from wattlaw.analysis.predict import Observation
from wattlaw.common.errors import BadInput
from wattlaw.hardware import library
from wattlaw.study.model import WorkloadSpec
from wattlaw.study.question import Question
from wattlaw.study.setting import Setting
from wattlaw.workloads import catalogue
from wattlaw_simulator.simulate_step import predict
from wattlaw_simulator.simulated_job import SimulatedJob

Floats = npt.NDArray[np.float64]
Measure = Callable[[np.random.Generator], Observation]

#: Steps of every run.
STEPS = 100
#: Deadlines, in times of the fastest training.
DEADLINES = (2, 4)
#: Samples of an epoch, from the data sets' own pages; power_caps.csv has times of an epoch.
SAMPLES = {
    "cifar100": 50_000, "imagenet": 1_281_167, "librispeech": 281_241, "movielens-1m": 4_970_845,
    "sentiment140": 1_600_000, "squad": 88_641,
}  # fmt: skip
MIT_GPUS = (2, 4, 8, 16, 32, 64, 128, 256, 424)
MIT_LIMITS = (
    {}, {"power_limit_w": 100.0}, {"power_limit_w": 200.0}, {"power_limit_w": 250.0},
    {"clock_limit_mhz": 135.0}, {"clock_limit_mhz": 735.0}, {"clock_limit_mhz": 1380.0},
)  # fmt: skip
KIT_GPUS, KIT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256), (16, 32, 64, 128, 256)
#: Standard deviations, in logs, of a run's time, and of the power of a GPU (the simulator's).
RUN_SPREAD, GPU_SPREAD = 0.01, 0.015


@dataclass(frozen=True)
class Outcome:
    """How a method did with one seed on one question of one grid."""

    contest: str
    grid: str
    question: str
    method: str
    seed: int
    share: float  # of the grid's GPU-hours
    regret: float
    tolerance: float
    runs: int
    stated: float | None = None
    is_within_own: bool | None = None
    step_s: float | None = None
    stopped_because: str | None = None


@dataclass(frozen=True)
class Grid:
    """Settings with their runs; ``truth`` is their true step time and power."""

    contest: str
    name: str
    truth: dict[Setting, tuple[float, float | None]]
    measure: Callable[[Setting, np.random.Generator], Observation]
    tolerance: float  # of the questions

    @cached_property
    def settings(self) -> list[Setting]:
        """Return all settings."""
        return list(self.truth)

    @cached_property
    def times(self) -> Floats:
        """Return the seconds of a sample of each setting."""
        return np.array([self.truth[item][0] / item.samples for item in self.settings])

    @cached_property
    def energies(self) -> Floats | None:
        """Return the joules of a sample of each setting, None where power is not known."""
        powers = [self.truth[item][1] for item in self.settings]
        gpus = np.array([item.gpus for item in self.settings])
        known = [power for power in powers if power is not None]
        return self.times * known * gpus if len(known) == len(powers) else None

    def hours(self, setting: Setting) -> float:
        """Return the GPU-hours of a run."""
        return setting.gpus * STEPS * self.truth[setting][0] / 3600

    @cached_property
    def grid_hours(self) -> float:
        """Return the GPU-hours of all settings."""
        return sum(self.hours(item) for item in self.settings)

    def questions(self) -> Iterator[tuple[str, Question]]:
        """Yield the questions; without powers, GPU-hours replace the energy."""
        fastest_s = float(self.times.min())
        for times in DEADLINES:
            question = Question("energy", deadline_s=times * fastest_s, tolerance=self.tolerance)
            yield f"energy, deadline {times}x the fastest", question
        yield "GPU-hours", Question("gpu_hours", tolerance=self.tolerance)
        yield "energy x delay", Question("edp", tolerance=self.tolerance)
        question = Question("energy", max_slowdown=0.1, tolerance=self.tolerance)
        yield "energy, slowdown <= 10 %", question

    def regrets(self, question: Question) -> dict[Setting, float]:
        """Return the true regret of each setting."""
        energies = None if self.energies is None else self.energies[None]
        found = regrets(question, self.settings, self.times[None], energies)[0]
        return dict(zip(self.settings, map(float, found), strict=True))


def grids() -> list[Grid]:
    """Return all grids."""
    return [*_t4(), *_caps(), *_mit(), _kit()]


def _from_rows(
    contest: str, name: str, rows: Iterable[Observation], tolerance: float = 0.05
) -> Grid:
    """Return a grid of measured settings; a run shows one of the setting's rows."""
    found: dict[Setting, list[Observation]] = {}
    for row in rows:
        found.setdefault(row.setting, []).append(row)
    truth = {
        setting: (
            float(np.median([row.step_time_s for row in each])),
            None if each[0].power_per_gpu_w is None
            else float(np.median([row.power_per_gpu_w or np.nan for row in each])),
        )
        for setting, each in found.items()
    }  # fmt: skip

    def measure(setting: Setting, dice: np.random.Generator) -> Observation:
        row = found[setting][dice.integers(len(found[setting]))]
        return Observation(setting, row.step_time_s, row.power_per_gpu_w)

    return Grid(contest, name, truth, measure, tolerance)


def _t4() -> Iterator[Grid]:
    for job in pollux():
        packed = [item for item in job.observations if is_packed(item.setting)]
        yield _from_rows("T4: GPUs x batch", job.name, packed)
        yield _from_rows("T4: GPUs x batch x placement", job.name, job.observations)


def _caps() -> Iterator[Grid]:
    table = pd.read_csv(FOLDER / "power_caps.csv")
    for cell, rows in table.groupby(["gpu", "dataset", "network", "optimizer"]):
        samples = SAMPLES[str(cell[1])]
        observations = (
            Observation(
                Setting(1, 1, (1,), float(row.batch_size),
                                power_limit_w=float(row.power_limit)),
                float(row.time_per_epoch) * float(row.batch_size) / samples,
                float(row.average_power),
            )
            for row in rows.itertuples()
        )  # fmt: skip
        yield _from_rows("caps: limit x batch", " ".join(map(str, cell)), observations)


def _simulated(
    contest: str, workload: str, cluster_name: str,
    settings: Iterable[Setting],
) -> Grid:  # fmt: skip
    cluster = library.read_cluster(cluster_name)
    profile = catalogue.profile(WorkloadSpec(name=workload))
    truth: dict[Setting, tuple[float, float | None]] = {}
    for setting in settings:
        batch = int(setting.local_batch or 1)
        try:
            result = predict(
                SimulatedJob(profile, cluster, setting, samples=setting.gpus * batch * 1000)
            )
        except BadInput:  # the batch does not fit
            continue
        power_w = sum(phase.power_w * phase.duration_s for phase in result.phases)
        power_w /= sum(phase.duration_s for phase in result.phases)
        truth[setting] = (result.split.step_s, power_w)

    def measure(setting: Setting, dice: np.random.Generator) -> Observation:
        step_s, power_w = truth[setting]
        time_factor = np.exp(dice.normal(0, RUN_SPREAD))
        power_factor = np.exp(dice.normal(0, GPU_SPREAD / np.sqrt(setting.gpus)))
        return Observation(setting, step_s * time_factor, (power_w or 1) * power_factor)

    return Grid(contest, f"{workload} {cluster_name}", truth, measure, 0.02)


def _mit() -> Iterator[Grid]:
    for workload, precision, batch in (("resnet50", "fp16", 256.0), ("bert-base", "fp32", 8.0)):
        settings = (
            Setting.packed(gpus, 2, local_batch=batch, precision=precision, **limit)
            for gpus in MIT_GPUS
            for limit in MIT_LIMITS
        )
        yield _simulated("simulated MIT: GPUs x limit", workload, "mit-v100", settings)


def _kit() -> Grid:
    settings = (
        Setting.packed(gpus, 4, local_batch=float(batch), precision="fp32")
        for gpus in KIT_GPUS
        for batch in KIT_BATCHES
    )
    return _simulated("simulated KIT: GPUs x batch", "resnet50", "kit-a100", settings)
