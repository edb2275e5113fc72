"""What the simulator is asked of a run: the workload's profile, its data and the run's setting."""

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
    """Return the job of a run, with the limits that its setting asks for.

    Parameters
    ----------
    spec
        The run. Where its setting tells no batch, one sample for each GPU is taken.
    cluster
        What it runs on.
    calibration
        Its parameters, and its factor of this workload, take the place of the defaults.
    gpus_per_node
        Fewer than a node has; None for all of them.
    profile
        Those of a file, in the place of the stored ones.
    samples
        Of the whole data set, in the place of those that the workload's options tell.

    Raises
    ------
    BadInput
        It is a command, its options cannot be, no profile are stored for them, or the number of
        samples of its data is not known.
    """
    workload = spec.workload
    if workload.command is not None:
        raise BadInput(f"{workload.name}: a command has no profile; allowed: a workload")
    of_others = profile is not None and samples is not None  # it may be no workload known here
    known = workload.model_dump_json()
    work = None if of_others else _work(known)
    if profile is None:
        profile = _profile(known)
    if samples is None:
        if work is None:
            raise BadInput(f"{workload.name}: the number of samples of its data set is not known")
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
    """Return the profile of a workload, given as JSON: thousands of runs ask for the same."""
    return catalogue.profile(WorkloadSpec.model_validate_json(workload))


@cache
def _work(workload: str) -> Work | None:
    return catalogue.work(WorkloadSpec.model_validate_json(workload))


def workload_spec(name: str, options: Mapping[str, Any]) -> WorkloadSpec:
    """Return a workload; raises ``BadInput`` where none can have such a name."""
    try:
        return WorkloadSpec(name=name, options=dict(options))
    except ValidationError:
        raise BadInput(
            f"{name!a:.80}: allowed as a workload's name: letters, digits, '.', '_' and '-'"
        ) from None


def workload_key(profile: WorkloadProfile, labels: Mapping[str, object] | None = None) -> str:
    """Return the name under which runs share a factor of their work.

    Parameters
    ----------
    profile
        Their workload, and the options that give it its size.
    labels
        What else tells apart what was measured, such as the data set of an imported table.

    Returns
    -------
    str
        ``workload (option=value, ...) [label=value, ...]``.
    """
    own = profile.workload + (f" ({_words(profile.options)})" if profile.options else "")
    return f"{own}{_LABELS}{_words(labels)}]" if labels else own


def calibrated_key(calibration: "Calibration", key: str) -> str:
    """Return which of a calibration's workloads one is: itself, or the only one but for labels.

    Where there is none, or several that were measured with other data, the key comes back.
    """
    known = matching_keys(calibration, key)
    return known[0] if len(known) == 1 else key


def matching_keys(calibration: "Calibration", key: str) -> list[str]:
    """Return a calibration's workloads that differ from a key in labels alone, or are the key."""
    factors = calibration.work_factors
    return [key] if key in factors else [one for one in factors if _without_labels(one) == key]


def _without_labels(key: str) -> str:
    return key.partition(_LABELS)[0]


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(values.items()))
