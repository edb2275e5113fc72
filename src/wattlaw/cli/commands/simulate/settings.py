"""The simulated jobs that the options of ``simulate`` describe."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattlaw.cli.common.parsing import parse_counts, parse_json_object, parse_limits
from wattlaw.errors import BadInput
from wattlaw.launch.simulated.machine import (
    calibrated_key,
    matching_keys,
    simulation_job,
    workload_key,
    workload_spec,
)
from wattlaw.simulator.job import SimulatedJob
from wattlaw.simulator.library import read_cluster
from wattlaw.simulator.what_if import Intervals
from wattlaw.study.base import MAX_COUNT, Precision
from wattlaw.study.model import Measure, RunSpec, Setting, Train
from wattlaw.workloads import catalogue

if TYPE_CHECKING:
    from wattlaw.simulator.calibration import Calibration

#: A larger sweep makes tables that nobody can read.
_MOST_SETTINGS = 10_000


@dataclass(frozen=True)
class Calibrated:
    """A calibration, and which of its workloads the simulated one is."""

    calibration: "Calibration"
    key: str

    @property
    def digest(self) -> str:
        """The identity of the calibration."""
        return self.calibration.digest

    def applied(self, job: SimulatedJob) -> SimulatedJob:
        """Return a job with the calibration's parameters and the workload's factor."""
        from wattlaw.simulator.calibration import apply_calibration

        return apply_calibration(job, self.calibration, self.key)

    def intervals(self, job: SimulatedJob) -> Intervals:
        """Return the 95 % intervals of a job's prediction."""
        from wattlaw.simulator.calibration import prediction_intervals

        by_name = prediction_intervals(job, self.calibration, self.key)
        return {name: (interval.low, interval.high) for name, interval in by_name.items()}


def job_template(
    workload: str | None,
    hardware: str | None,
    *,
    options: str | None,
    profile_path: Path | None,
    samples: int | None,
    gpus_per_node: int | None,
    precision: Precision,
    dataset_fraction: float,
    gradient_accumulation: int,
) -> SimulatedJob:
    """Return a job of one GPU and one sample, with what all settings of a sweep share.

    Raises
    ------
    BadInput
        An option is missing, or the options do not describe a job.
    """
    if hardware is None:
        raise BadInput("--hardware is required; see 'wattlaw simulate --list-hardware'")
    cluster = read_cluster(hardware)
    if gpus_per_node is not None and gpus_per_node > cluster.node.gpus:
        raise BadInput(
            f"--gpus-per-node: {gpus_per_node} is too large; a node of {cluster.name} has "
            f"{cluster.node.gpus} GPUs"
        )
    profile = None if profile_path is None else catalogue.read_profile(profile_path)
    name = workload or (profile.workload if profile else None)
    if name is None:
        raise BadInput("--workload is required; see 'wattlaw workloads'")
    if profile is not None and name != profile.workload:
        raise BadInput(
            f"--workload: {name!r:.80} does not match {profile_path}, a profile of "
            f"{profile.workload}"
        )
    if profile is None or samples is None:
        catalogue.entry(name)  # raises BadInput for an unknown name
    values: Mapping[str, Any] = {} if profile is None else profile.options
    if options is not None:
        values = parse_json_object("--options", options)
    spec = RunSpec(
        workload=workload_spec(name, values),
        setting=Setting(gpus=1, precision=precision, dataset_fraction=dataset_fraction),
        repeat=0,
        measure=Measure(),
        train=Train(gradient_accumulation=gradient_accumulation),
        launch_kind="simulated",
    )
    try:
        return simulation_job(
            spec, cluster, gpus_per_node=gpus_per_node, profile=profile, samples=samples
        )
    except BadInput as error:
        raise BadInput(f"simulate: {error}") from None


def read_calibrated(path: Path, job: SimulatedJob, measured_as: str | None) -> Calibrated:
    """Return the calibration of a file, for the workload of a job.

    A warning says so if the calibration has no single factor for this workload.

    Raises
    ------
    BadInput
        The file is not a calibration of the job's GPU, or has no workload ``measured_as``.
    """
    from wattlaw.simulator.calibration_file import read_calibration

    calibration = read_calibration(path, job.cluster.gpu)
    key, known = workload_key(job.profile), calibration.work_factors
    listed = "; ".join(known)
    if measured_as is not None:
        if measured_as not in known:
            raise BadInput(f"--as: {measured_as!r:.80} is unknown; expected one of: {listed}")
        return Calibrated(calibration, measured_as)
    chosen = calibrated_key(calibration, key)
    if chosen not in known:
        several = matching_keys(calibration, key)
        reason = (
            f"it has several factors for {key} (choose one with --as): {'; '.join(several)}"
            if several
            else f"it has no factor for {key} (--as uses another one): {listed}"
        )
        print(f"wattlaw: {path}: no work factor is applied: {reason}", file=sys.stderr)
    return Calibrated(calibration, chosen)


def sweep(
    template: SimulatedJob,
    *,
    gpus: str,
    power_limits: str | None,
    clock_limits: str | None,
    local_batch: int | None,
    global_batch: int | None,
) -> list[SimulatedJob]:
    """Return a job for each combination, possible or not.

    A global batch that the GPUs do not divide makes a local batch of 0.

    Raises
    ------
    BadInput
        An option cannot be parsed, or there are too many combinations.
    """
    powers = parse_limits("--power-limit", power_limits)
    clocks = parse_limits("--clock-limit", clock_limits)
    counts = sorted(parse_counts("--gpus", gpus, MAX_COUNT))
    number = len(powers) * len(clocks) * len(counts)
    if number > _MOST_SETTINGS:
        raise BadInput(f"simulate: {number:,} settings; expected at most {_MOST_SETTINGS:,}")
    jobs = []
    for power_limit_w, clock_limit_mhz, count in product(powers, clocks, counts):
        share, remainder = divmod(global_batch or 0, count)
        jobs.append(
            replace(
                template,
                gpus=count,
                local_batch=local_batch or (0 if remainder else share),
                power_limit_w=power_limit_w,
                clock_limit_mhz=clock_limit_mhz,
            )
        )
    return jobs
