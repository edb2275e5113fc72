"""The simulator's job of a run: the workload's profile, its data and the run's setting."""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from wattlaw.errors import BadInput
from wattlaw.simulator.cluster import Cluster
from wattlaw.simulator.job import SimulatedJob
from wattlaw.simulator.profile import WorkloadProfile
from wattlaw.study.model import RunSpec, WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw.workloads.workload import Work

if TYPE_CHECKING:
    from wattlaw.simulator.calibration import Calibration

_LABELS = " ["


def simulation_job(
    spec: RunSpec,
    cluster: Cluster,
    *,
    calibration: "Calibration | None" = None,
    gpus_per_node: int | None = None,
    profile: WorkloadProfile | None = None,
    samples: int | None = None,
) -> SimulatedJob:
    """Return the simulator's job of a run, with the limits of its setting.

    Parameters
    ----------
    spec
        The run. Without a local batch, one sample per GPU is assumed.
    cluster
        The cluster.
    calibration
        Replaces the default parameters and the workload's factor.
    gpus_per_node
        Fewer than a node has; None for all of them.
    profile
        Replaces the stored profile.
    samples
        The samples of the full data set; replaces the number by the workload's options.

    Raises
    ------
    BadInput
        The run is a command, its options are invalid, no profile is stored for them, or the number
        of samples is unknown.
    """
    workload = spec.workload
    if workload.command is not None:
        raise BadInput(f"{workload.name}: a command has no profile; allowed: a workload")
    is_external = profile is not None and samples is not None  # may be an unregistered workload
    text = workload.model_dump_json()
    work = None if is_external else _work(text)
    if profile is None:
        profile = _profile(text)
    if samples is None:
        if work is None:
            raise BadInput(f"{workload.name}: the number of samples of its data set is unknown")
        samples = work.samples
    setting, train = spec.setting, spec.train
    job = SimulatedJob(
        profile=profile,
        cluster=cluster,
        gpus=setting.gpus,
        local_batch=setting.local_batch or 1,
        samples=samples,
        evaluation_samples=work.evaluation_samples if work and spec.measure.evaluate else 0,
        precision=setting.precision,
        power_limit_w=setting.power_limit_w,
        clock_limit_mhz=setting.clock_limit_mhz,
        dataset_fraction=setting.dataset_fraction,
        gradient_accumulation=train.gradient_accumulation,
        bucket_mb=train.bucket_mb,
        gpus_per_node=gpus_per_node,
        loader_workers=train.loader_workers,
    )
    if calibration is None:
        return job
    from wattlaw.simulator.calibration import apply_calibration

    return apply_calibration(job, calibration, calibrated_key(calibration, workload_key(profile)))


@cache
def _profile(workload: str) -> WorkloadProfile:
    """Return the profile of a workload in JSON; cached, because thousands of runs share it."""
    return catalogue.profile(WorkloadSpec.model_validate_json(workload))


@cache
def _work(workload: str) -> Work | None:
    return catalogue.work(WorkloadSpec.model_validate_json(workload))


def workload_spec(name: str, options: Mapping[str, Any]) -> WorkloadSpec:
    """Return a workload; raise ``BadInput`` if its name is invalid."""
    try:
        return WorkloadSpec(name=name, options=dict(options))
    except ValidationError:
        raise BadInput(
            f"{name!a:.80}: allowed as a workload's name: letters, digits, '.', '_' and '-'"
        ) from None


def workload_key(profile: WorkloadProfile, labels: Mapping[str, object] | None = None) -> str:
    """Return the key of the factor that runs of a workload share in a calibration.

    Parameters
    ----------
    profile
        The profile of the workload, with the options of its size.
    labels
        Other differences between runs, such as the data set of an imported table.

    Returns
    -------
    str
        ``workload (option=value, ...) [label=value, ...]``.
    """
    key = profile.workload + (f" ({_join(profile.options)})" if profile.options else "")
    return f"{key}{_LABELS}{_join(labels)}]" if labels else key


def calibrated_key(calibration: "Calibration", key: str) -> str:
    """Return the calibration's key that matches a key; the key itself if not exactly one does."""
    matches = matching_keys(calibration, key)
    return matches[0] if len(matches) == 1 else key


def matching_keys(calibration: "Calibration", key: str) -> list[str]:
    """Return the key if a calibration has it, else the keys that differ only in labels."""
    factors = calibration.work_factors
    if key in factors:
        return [key]
    return [factor for factor in factors if factor.partition(_LABELS)[0] == key]


def _join(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
