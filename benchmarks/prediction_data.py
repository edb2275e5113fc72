"""The public data of the prediction benchmark as jobs: observations of one workload and machine.

The files are read from the folder that ``WATTLAW_PUBLIC_DATA`` names (docs/benchmarks.md). A
*source* is data of one origin. What is checked never informs its own priors: the priors of a
job are learned from the sources that share neither its origin nor its workload's measurements.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from wattlaw.analysis.predict import Observation
from wattlaw.study.setting import Setting

FOLDER = Path(os.environ.get("WATTLAW_PUBLIC_DATA") or Path(__file__).parents[1] / "../shared/data")
#: GPUs of a node in pollux_t4.csv.
T4_NODE = 4
#: Some values of scaling_series.csv are rounded to 5 decimals.
ROUNDED_BELOW = 0.005
#: Both families of MLPerf are of the same runs.
ORIGINS = {"mlperf_s_per_epoch": "mlperf_ttt"}
#: Families whose series have a constant local batch.
CONSTANT_BATCH = {"dlperf_v100", "llmfoundry", "pollux_T4_const_lbs"}
CAP_CELL = ["gpu", "dataset", "network", "batch_size", "optimizer"]


@dataclass(frozen=True)
class Job:
    """The observations of a job; ``origin`` is where they come from."""

    family: str
    name: str
    origin: str
    observations: tuple[Observation, ...]
    is_exact: bool = True

    def where(self, condition: Callable[[Setting], bool]) -> list[Observation]:
        """Return the observations whose setting meets a condition."""
        return [item for item in self.observations if condition(item.setting)]


def pollux(*, with_sync: bool = False) -> list[Job]:
    """Return BERT and ImageNet on T4 GPUs, one observation for each run.

    ``with_sync`` adds the exposed communication of each run, ``sync_time_s``.
    """
    table = pd.read_csv(FOLDER / "pollux_t4.csv", dtype={"gpus_per_node": str})
    jobs = []
    for workload, rows in table.groupby("workload"):
        found: dict[Setting, list[tuple[float, float]]] = {}
        for row in rows.itertuples():
            digits = row.gpus_per_node
            placement = tuple(int(digit) for digit in digits) if isinstance(digits, str) else None
            setting = Setting(
                int(row.gpus), int(row.nodes), placement, local_batch=float(row.local_batch)
            )
            found.setdefault(setting, []).append((float(row.step_time_s), float(row.sync_time_s)))
        observations = (
            Observation(setting, step_s, session=f"{index}:{setting.gpus_per_node}",
                        communication_s=sync_s if with_sync else None)
            for setting, times in found.items()
            for index, (step_s, sync_s) in enumerate(times)
        )  # fmt: skip
        jobs.append(Job("pollux_t4", str(workload), f"pollux {workload}", tuple(observations)))
    return jobs


def is_packed(setting: Setting) -> bool:
    """Return whether a setting of pollux_t4.csv uses the fewest nodes."""
    return setting.gpus_per_node == Setting.packed(setting.gpus, T4_NODE).gpus_per_node


def series() -> list[Job]:
    """Return every scaling series; a step is a constant amount of work for each GPU."""
    strong = pd.read_csv(FOLDER / "scaling_series.csv")
    weak = pd.read_csv(FOLDER / "scaling_series_weak.csv")
    return [*_series(strong, per_gpu=False), *_series(weak, per_gpu=True)]


def _series(table: pd.DataFrame, per_gpu: bool) -> Iterable[Job]:
    for (family, name, unit), rows in table.groupby(["family", "series", "unit"]):
        batch = 1.0 if per_gpu or family in CONSTANT_BATCH else None
        yield Job(
            str(family), f"{name} ({unit})", ORIGINS.get(str(family), str(family)),
            tuple(
                Observation(Setting(int(gpus), local_batch=batch),
                            float(value) * (1 if per_gpu else int(gpus)))
                for gpus, value in sorted(zip(rows["gpus"], rows["value"], strict=True))
            ),
            is_exact=per_gpu or rows["value"].min() >= ROUNDED_BELOW,
        )  # fmt: skip


def caps() -> list[Job]:
    """Return the cells of power_caps.csv: one network and batch by power limit, one epoch each."""
    table = pd.read_csv(FOLDER / "power_caps.csv")
    jobs = []
    for cell, rows in table.groupby(CAP_CELL):
        gpu, _, network, batch, _ = cell
        observations = (
            Observation(
                Setting(1, 1, (1,), float(batch), power_limit_w=float(row.power_limit)),
                float(row.time_per_epoch), float(row.average_power),
            )
            for row in rows.sort_values("power_limit").itertuples()
        )  # fmt: skip
        name = " ".join(str(part) for part in cell)
        jobs.append(Job(f"power_caps {gpu}", name, f"caps {network}", tuple(observations)))
    return jobs


def by_origin(
    jobs: Iterable[Job], *without: str, most: int = 8
) -> dict[str, list[list[Observation]]]:
    """Return the observations of jobs by origin, at most ``most`` evenly chosen jobs of each."""
    found: dict[str, list[list[Observation]]] = {}
    for job in jobs:
        if job.origin not in without and len(job.observations) > 1:
            found.setdefault(job.origin, []).append(list(job.observations))
    return {
        origin: [each[index * len(each) // min(most, len(each))]
                 for index in range(min(most, len(each)))]
        for origin, each in found.items()
    }  # fmt: skip
