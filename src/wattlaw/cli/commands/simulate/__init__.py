"""``wattlaw simulate``: predictions for settings on hardware that need not be available."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from wattlaw.cli.common import options as opts
from wattlaw.cli.common.lists import parse_counts, parse_limits
from wattlaw.cli.common.options import option, parse_json_object, positive
from wattlaw.errors import BadInput
from wattlaw.formatting import plural
from wattlaw.launch.simulated import machine as inputs
from wattlaw.simulator.job import SimulatedJob
from wattlaw.simulator.library import read_cluster
from wattlaw.simulator.predict import predict
from wattlaw.simulator.what_if import Target, add_scaling, prediction_row
from wattlaw.study.base import MAX_COUNT, Precision
from wattlaw.study.model import Measure, RunSpec, Setting, Train
from wattlaw.workloads import catalogue

if TYPE_CHECKING:
    from wattlaw.simulator.calibration import Calibration
from wattlaw.terminal import print_note

#: The largest sweep; its table is already too long to read.
_MAX_SETTINGS = 10_000
#: The same as ``store.tables.KINDS``, whose import takes longer than a simulation.
_KINDS = (".csv", ".parquet", ".jsonl")


def _count(metavar: str, text: str, most: int = MAX_COUNT) -> Any:
    return option(metavar, text, min=1, max=most)


def _positive_number(metavar: str, text: str) -> Any:
    return option(metavar, text, min=1e-9, max=1e9)


def simulate(
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Workload; see 'wattlaw workloads'.")
    ] = None,
    hardware: opts.HardwareOption = None,
    options: Annotated[
        str | None, option("JSON", "Options of the workload, a JSON object.")
    ] = None,
    profile: Annotated[
        Path | None,
        option("FILE", "Profile from 'wattlaw workloads profile', instead of the packaged one."),
    ] = None,
    samples: Annotated[
        int | None,
        _count("N", "Samples in the training data. Default: those of the workload.", 10**15),
    ] = None,
    gpus: Annotated[str, option("N,...", "GPU counts.")] = "1",
    gpus_per_node: Annotated[
        int | None, _count("N", "GPUs used per node. Default: all of them.")
    ] = None,
    local_batch: Annotated[int | None, _count("B", "Samples per GPU and step.")] = None,
    global_batch: Annotated[int | None, _count("B", "Samples per step on all GPUs.")] = None,
    power_limit: opts.PowersOption = None,
    clock_limit: opts.ClocksOption = None,
    precision: Annotated[Precision, typer.Option(help="Number format of the training.")] = "fp32",
    dataset_fraction: Annotated[
        float, option("X", "Share of the training data to use.", max=1, callback=positive)
    ] = 1.0,
    epochs: Annotated[int, _count("E", "Epochs to train.", 100_000)] = 1,
    gradient_accumulation: Annotated[int, _count("K", "Gradient-accumulation steps.", 100_000)] = 1,
    target_epochs: Annotated[
        float | None, _positive_number("E", "Epochs that small batches need to reach the target.")
    ] = None,
    critical_batch: Annotated[
        float | None, _positive_number("B", "Global batch that needs twice as many epochs.")
    ] = None,
    calibration: Annotated[Path | None, option("FILE", "File from 'wattlaw calibrate'.")] = None,
    measured_as: Annotated[
        str | None, option("NAME", "Use the factors of this workload of the calibration.", "--as")
    ] = None,
    list_hardware: Annotated[
        bool,
        typer.Option(
            "--list-hardware",
            help="List the known hardware; with --hardware, its parameters and their sources.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        option("FILE", "Also write a .csv, .parquet or .jsonl file.", "-o", "--output"),
    ] = None,
    raw: opts.RawOption = False,
    as_json: opts.JsonOption = False,
) -> int:
    """Predict time, energy and power without the hardware."""
    if list_hardware:
        from wattlaw.cli.commands.simulate.text import show_hardware

        return show_hardware(hardware, as_json=as_json)
    if (local_batch is None) == (global_batch is None):
        raise BadInput("simulate: exactly one of --local-batch and --global-batch is required")
    if measured_as is not None and calibration is None:
        raise BadInput("--as: requires --calibration")
    if output is not None and output.suffix.lower() not in _KINDS:
        listed = ", ".join(_KINDS)
        raise BadInput(f"{output}: unknown file type {output.suffix!r}; expected {listed}")
    target = None
    if target_epochs is not None and critical_batch is not None:
        target = Target(target_epochs, critical_batch)
    elif target_epochs is not None or critical_batch is not None:
        raise BadInput("simulate: --target-epochs and --critical-batch require each other")
    template = _job_template(
        workload, hardware, options=options, profile_path=profile, samples=samples,
        gpus_per_node=gpus_per_node,
        setting=Setting(gpus=1, precision=precision, dataset_fraction=dataset_fraction),
        train=Train(gradient_accumulation=gradient_accumulation),
    )  # fmt: skip
    calibrated = None
    if calibration is not None:
        from wattlaw.simulator.calibration import apply_calibration

        calibrated = _read_calibrated(calibration, template, measured_as)
        template = apply_calibration(template, *calibrated)
    jobs = [
        replace(
            template,
            gpus=count,
            local_batch=local_batch or _local_batch(global_batch or 0, count),
            power_limit_w=power_limit_w,
            clock_limit_mhz=clock_limit_mhz,
        )
        for power_limit_w, clock_limit_mhz, count in _settings(power_limit, clock_limit, gpus)
    ]
    rows = add_scaling(_rows(jobs, epochs, target, calibrated))
    if output is not None:
        _write(output, rows, raw=raw)
    if as_json:
        print(json.dumps(rows, allow_nan=False))
    else:
        from wattlaw.cli.commands.simulate.text import show

        show(rows, template, None if calibrated is None else calibrated.calibration)
    return 0 if len(rows) == len(jobs) else 1


class _Calibrated(NamedTuple):
    """A calibration, and which of its workloads the simulated one is."""

    calibration: "Calibration"
    key: str


def _job_template(
    workload: str | None,
    hardware: str | None,
    *,
    options: str | None,
    profile_path: Path | None,
    samples: int | None,
    gpus_per_node: int | None,
    setting: Setting,
    train: Train,
) -> SimulatedJob:
    """Return a job of one GPU and one sample, with what all settings of a sweep share."""
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
    if options is not None:
        values = parse_json_object("--options", options)
    else:
        values = {} if profile is None else profile.options
    spec = RunSpec(
        workload=inputs.workload_spec(name, values),
        setting=setting,
        repeat=0,
        measure=Measure(),
        train=train,
        launch_kind="simulated",
    )
    try:
        return inputs.simulation_job(
            spec, cluster, gpus_per_node=gpus_per_node, profile=profile, samples=samples
        )
    except BadInput as error:
        raise BadInput(f"simulate: {error}") from None


def _read_calibrated(path: Path, job: SimulatedJob, measured_as: str | None) -> _Calibrated:
    """Return the calibration of a file, for the workload of a job.

    A warning says so if the calibration has no single factor for this workload.
    """
    from wattlaw.simulator.calibration import read_calibration

    calibration = read_calibration(path, job.cluster.gpu)
    key, known = inputs.workload_key(job.profile), calibration.work_factors
    listed = "; ".join(known)
    if measured_as is not None:
        if measured_as not in known:
            raise BadInput(f"--as: {measured_as!r:.80} is unknown; expected one of: {listed}")
        return _Calibrated(calibration, measured_as)
    chosen = inputs.calibrated_key(calibration, key)
    if chosen not in known:
        several = inputs.matching_keys(calibration, key)
        reason = (
            f"it has several factors for {key} (choose one with --as): {'; '.join(several)}"
            if several
            else f"it has no factor for {key} (--as uses another one): {listed}"
        )
        print_note(f"{path}: no work factor is applied: {reason}")
    return _Calibrated(calibration, chosen)


def _settings(
    power_limits: str | None, clock_limits: str | None, gpus: str
) -> list[tuple[float | None, float | None, int]]:
    """Return each combination of a power limit, a clock limit and a GPU count."""
    powers = parse_limits("--power-limit", power_limits or "none")
    clocks = parse_limits("--clock-limit", clock_limits or "none")
    gpu_counts = parse_counts("--gpus", gpus)
    number = len(powers) * len(clocks) * len(gpu_counts)
    if number > _MAX_SETTINGS:
        raise BadInput(f"simulate: {number:,} settings; expected at most {_MAX_SETTINGS:,}")
    return list(product(powers, clocks, gpu_counts))


def _local_batch(global_batch: int, gpus: int) -> int:
    """Return the local batch, or 0 if the GPUs do not divide the global batch."""
    return 0 if global_batch % gpus else global_batch // gpus


def _rows(
    jobs: Sequence[SimulatedJob],
    epochs: int,
    target: Target | None,
    calibrated: _Calibrated | None,
) -> list[dict[str, Any]]:
    """Return the predictions; print the settings that cannot be simulated on standard error."""
    rows, errors = [], []
    for job in jobs:
        try:
            rows.append(_row(job, epochs, target, calibrated))
        except BadInput as error:
            if len(jobs) == 1:
                raise
            errors.append(f"{_label(job)}: {error}")
    for error_text in errors:
        print_note(f"skipped: {error_text}")
    if not rows:
        raise BadInput(f"simulate: none of the {len(jobs)} settings can be simulated")
    return rows


def _row(
    job: SimulatedJob, epochs: int, target: Target | None, calibrated: _Calibrated | None
) -> dict[str, Any]:
    if not job.local_batch:
        raise BadInput("--global-batch: is not a multiple of the GPU count")
    source, intervals = "uncalibrated", None
    if calibrated is not None:
        from wattlaw.simulator.calibration import prediction_intervals

        source = f"calibrated {calibrated.calibration.digest}"
        intervals = prediction_intervals(job, *calibrated)
    prediction = prediction_row(predict(job), epochs, target, intervals)
    return {"simulated": True, "calibration": source, **prediction}


def _label(job: SimulatedJob) -> str:
    limits = {"W": job.power_limit_w, "MHz": job.clock_limit_mhz}
    texts = [f"{value:g} {unit}" for unit, value in limits.items() if value is not None]
    return ", ".join([plural(job.gpus, "GPU"), *texts])


def _write(output: Path, rows: list[dict[str, Any]], *, raw: bool) -> None:
    """Write the rows as a table; a nested value becomes JSON text."""
    import pyarrow as pa

    from wattlaw.store.tables import write_table

    flat = [
        {
            name: json.dumps(value) if isinstance(value, dict | list) else value
            for name, value in row.items()
        }
        for row in rows
    ]
    write_table(output, pa.Table.from_pylist(flat), raw=raw)
