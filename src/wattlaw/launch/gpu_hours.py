"""The GPU-hours of a plan, estimated from the runs of a store or from counted operations."""

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
    """An estimate by source: measured repeats and counted operations, with the runs of each."""

    measured: float
    measured_runs: int
    counted: float
    counted_runs: int
    unknown_runs: int


def gpu_hours(
    runs: Sequence[PlannedRun], done: Iterable[RunRecord], flops_per_gpu_s: float
) -> GpuHours:
    """Estimate the GPU-hours of runs.

    A run takes as long as the mean of its repeats in the store. Without repeats the operations of
    training are divided by a rate: gpus x time = samples x FLOPs per sample / rate. This is a lower
    bound at that rate, because it excludes start, evaluation, input and communication.

    Parameters
    ----------
    runs
        The planned runs.
    done
        The records of the store.
    flops_per_gpu_s
        The assumed operations of a GPU per second.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for record in done:
        is_timed = record.status == "done" and record.attempts <= 1  # else only the last attempt is
        is_timed = is_timed and record.spec.launch_kind != "simulated"  # on the simulator's clock
        if is_timed and record.started_at and record.finished_at:
            duration = record.finished_at - record.started_at
            times[_setting(record.spec)].append(duration.total_seconds())
    works: dict[int, Work | None] = {}  # cached: a plan has thousands of runs
    measured = counted = 0.0
    measured_runs = counted_runs = unknown = 0
    for run in runs:
        spec = run.spec
        repeats_s = times.get(_setting(spec)) if times else None
        if id(spec.workload) not in works:
            works[id(spec.workload)] = catalogue.work(spec.workload)
        work = works[id(spec.workload)]
        if repeats_s:
            measured += spec.setting.gpus * sum(repeats_s) / len(repeats_s) / _HOUR_S
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
