"""``wattlaw.track``: records the windows of any training loop, with a sampler."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from wattlaw.common.errors import BadInput
from wattlaw.running.job_step import JobStep, first_number
from wattlaw.running.recording import NestedRecording, Recording
from wattlaw.running.tracker import Track
from wattlaw.running.training.environment import RUN_FOLDER
from wattlaw.store.record import Facts
from wattlaw.store.store import Store
from wattlaw.study.base_model import Precision
from wattlaw.study.model import Measure, RunSpec, Train, WorkloadSpec
from wattlaw.study.setting import Setting

KIND = "track"


def track(
    name: str | None = None,
    store: str | Path = "wattlaw-store",
    *,
    gpus: int | None = None,
    global_batch: int | None = None,
    options: Mapping[str, JsonValue] | None = None,
    precision: Precision = "fp32",
    gradient_accumulation: int = 1,
    dataset_samples: int | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    warmup_steps: int = 20,
    sample_hz: float = 10.0,
    assume_cpu_w: float | None = None,
    quiet: bool = False,
) -> Track:
    """Record the time and energy of a part of a program, in windows.

    Mark epochs and evaluations so that analyses can tell them apart. A block without marks is
    stored as one training window.

    Examples
    --------
    >>> import time
    >>> with wattlaw.track("my-training", store="tracked", global_batch=64, quiet=True) as run:
    ...     for epoch in run.epochs(range(2)):
    ...         time.sleep(0.05)  # train here
    ...         with run.evaluation():
    ...             time.sleep(0.05)  # evaluate here
    >>> run.result.duration_s > 0.2
    True
    >>> run.result.verdict in ("ok", "suspect", "partial", "implausible", "unavailable")
    True

    Parameters
    ----------
    name
        The name of the run in the store; by default the name of the program.
    store
        The folder of results, which is created if necessary.
    gpus
        Workers that train together; by default the number that the launcher has set.
    global_batch, options, precision, gradient_accumulation, epochs
        The setting of the run, as far as it is known. Only runs of the same setting are repeats.
    dataset_samples
        Samples of an epoch of the full data set, from which steps give the time of an epoch.
    steps, seconds
        Measure this many optimizer steps, or the steps of this time, instead of epochs. The
        program calls ``step`` after each. It continues when enough are measured.
    warmup_steps
        Steps before the measured ones. The first includes all since the start of the block.
    sample_hz
        Samples per second.
    assume_cpu_w
        Watts per busy core, for an estimate if nothing measures the processors.
    quiet
        Print no summary at the end.

    Raises
    ------
    ValueError
        An argument is invalid, such as a name with a blank.
    """
    name = name or Path(sys.argv[0] or "python").stem or "python"
    if not is_first_of_host():
        return Track(name, None, quiet=True)
    if RUN_FOLDER in os.environ:
        return Track(name, NestedRecording.of_environment(), quiet=True)
    gpus = (first_number(_WORLDS) or 1) if gpus is None else gpus
    if global_batch is not None and gpus > 0 and global_batch % gpus:
        raise ValueError(
            f"wattlaw.track: global_batch: {global_batch} with {gpus} gpus; allowed: a multiple"
        )
    local_batch = None if global_batch is None else global_batch // max(gpus, 1)
    step = JobStep.of_environment()
    window: dict[str, Any] = {"epochs": epochs or 1, "warmup_epochs": 0}
    if steps is not None or seconds is not None:
        given = {"steps": steps, "seconds": seconds}.items()
        window = {"warmup_steps": warmup_steps} | {k: v for k, v in given if v is not None}
    try:
        spec = RunSpec(
            workload=WorkloadSpec(name=name, options=dict(options or {})),
            setting=Setting(gpus=gpus, local_batch=local_batch, precision=precision),
            repeat=0,
            measure=Measure(**window, sample_hz=sample_hz, assume_cpu_w=assume_cpu_w),
            train=Train(gradient_accumulation=gradient_accumulation),
            launch_kind=KIND,
            nodes=1 if step is None else step.nodes,
        )
        facts = Facts(world_size=gpus, dataset_samples=dataset_samples)
    except (ValueError, BadInput) as error:
        lines = str(error).splitlines()
        raise ValueError(f"wattlaw.track: {' '.join(lines[1:3]) or error}") from None
    return Track(name, Recording(Store(Path(store)), spec, facts, step), quiet=quiet)


#: Environment variables of launchers for the local rank, and for the number of all ranks.
_LOCAL_RANKS = (
    *("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
    *("MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID"),
)
_WORLDS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def is_first_of_host() -> bool:
    """Say whether this process is the first of its job on this host."""
    return not first_number(_LOCAL_RANKS)
