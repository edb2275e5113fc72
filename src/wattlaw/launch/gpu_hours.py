"""How many GPU-hours a plan takes: from runs that a store has, else from counted operations."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wattlaw.store.record import RunRecord
from wattlaw.study.model import RunSpec
from wattlaw.study.plan import PlannedRun
from wattlaw.workloads import catalogue
from wattlaw.workloads.workload import Work

_HOUR_S = 3600.0


@dataclass(frozen=True)
class GpuHours:
    """An estimate, in parts by where it is from, and how many runs each part is of."""

    measured: float
    measured_runs: int
    counted: float
    counted_runs: int
    unknown_runs: int


def gpu_hours(
    runs: Sequence[PlannedRun], done: Iterable[RunRecord], flops_per_gpu_s: float
) -> GpuHours:
    """Estimate the GPU-hours of runs.

    A run of which the store has a repeat takes as long as that did, mean over the repeats. For
    others the operations of training are divided by a rate: gpus x time = samples x FLOPs per
    sample / rate. That is computation alone: start, evaluation, input and gradient communication
    are not in it, which is why it is a lower bound at the rate that is assumed.

    Parameters
    ----------
    runs
        What is planned.
    done
        Records of the store.
    flops_per_gpu_s
        Operations that a GPU is assumed to achieve per second.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for record in done:
        whole = record.status == "done" and record.attempts <= 1  # else only the last is timed
        whole = whole and record.spec.launch_kind != "simulated"  # whose clock is its simulator's
        if whole and record.started_at and record.finished_at:
            took = record.finished_at - record.started_at
            times[_setting(record.spec)].append(took.total_seconds())
    works: dict[int, Work | None] = {}  # asked once each: a plan has thousands of runs
    measured = counted = 0.0
    measured_runs = counted_runs = unknown = 0
    for run in runs:
        spec = run.spec
        took_s = times.get(_setting(spec)) if times else None
        if id(spec.workload) not in works:
            works[id(spec.workload)] = catalogue.work(spec.workload)
        work = works[id(spec.workload)]
        if took_s:
            measured += spec.setting.gpus * sum(took_s) / len(took_s) / _HOUR_S
            measured_runs += 1
        elif work is not None:
            samples = work.samples * spec.setting.dataset_fraction * spec.measure.epochs
            counted += samples * work.flops_per_sample / flops_per_gpu_s / _HOUR_S
            counted_runs += 1
        else:
            unknown += 1
    return GpuHours(measured, measured_runs, counted, counted_runs, unknown)


def _setting(spec: RunSpec) -> str:
    return spec.model_copy(update={"repeat": 0}).model_dump_json()
