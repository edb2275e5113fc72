"""``wattlaw simulate``: predictions for settings on hardware that need not be available."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import log
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from wattlaw.cli.common import options as opts
from wattlaw.cli.common.options import option
from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.terminal import print_note
from wattlaw.hardware.library import read_cluster
from wattlaw.study.base_model import MAX_COUNT, OwnPrecision
from wattlaw.study.labels import group_label
from wattlaw.study.model import Measure, RunSpec, Train, WorkloadSpec
from wattlaw.study.setting import Setting
from wattlaw.workloads import catalogue
from wattlaw_simulator.launching.simulated_machine import simulation_job
from wattlaw_simulator.profiling.profile_command import parse_json_object, read_profile
from wattlaw_simulator.simulate_step import predict
from wattlaw_simulator.simulated_job import Prediction, SimulatedJob, Split

#: The largest sweep; its table is already too long to read.
_MAX_SETTINGS = 10_000
_HOUR_S = 3600.0
#: Names of the parts of a step in a row: ``compute_s`` and so on.
PARTS = tuple(part.name for part in fields(Split))


def _count(metavar: str, text: str, most: int = MAX_COUNT) -> Any:
    return option(metavar, text, min=1, max=most)


def simulate(
    workload: Annotated[
        str | None, typer.Option("--workload", "-w", help="Workload; see 'wattlaw workloads'.")
    ] = None,
    hardware: opts.HardwareOption = None,
    options: Annotated[
        str | None, option("JSON", "Options of the workload, a JSON object.")
    ] = None,
    profile: Annotated[
        Path | None, option("FILE", "Profile from 'wattlaw profile', instead of the packaged one.")
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
    precision: Annotated[
        OwnPrecision, typer.Option(help="Number format of the training.")
    ] = "fp32",
    dataset_fraction: Annotated[
        float, option("X", "Share of the training data to use.", max=1, callback=opts.positive)
    ] = 1.0,
    epochs: Annotated[int, _count("E", "Epochs to train.", 100_000)] = 1,
    gradient_accumulation: Annotated[int, _count("K", "Gradient-accumulation steps.", 100_000)] = 1,
    list_hardware: Annotated[
        bool,
        typer.Option(
            "--list-hardware",
            help="List the known hardware; with --hardware, its parameters and their sources.",
        ),
    ] = False,
    as_json: opts.JsonOption = False,
) -> int:
    """Predict time, energy and power without the hardware."""
    if list_hardware:
        from wattlaw_simulator.command.simulation_text import show_hardware

        return show_hardware(hardware, as_json=as_json)
    if (local_batch is None) == (global_batch is None):
        raise BadInput("simulate: exactly one of --local-batch and --global-batch is required")
    template = _job_template(
        workload, hardware, options=options, profile_path=profile, samples=samples,
        gpus_per_node=gpus_per_node,
        setting=Setting(gpus=1, precision=precision, dataset_fraction=dataset_fraction),
        train=Train(gradient_accumulation=gradient_accumulation),
    )  # fmt: skip
    powers = opts.parse_limits("--power-limit", power_limit or "none")
    clocks = opts.parse_limits("--clock-limit", clock_limit or "none")
    counts = opts.parse_counts("--gpus", gpus)
    number = len(powers) * len(clocks) * len(counts)
    if number > _MAX_SETTINGS:
        raise BadInput(f"simulate: {number:,} settings; expected at most {_MAX_SETTINGS:,}")
    jobs = []
    for power_w, clock_mhz, count in product(powers, clocks, counts):
        batch = global_batch or 0
        setting = replace(
            template.setting,
            gpus=count,
            nodes=None,
            gpus_per_node=None,
            local_batch=local_batch or (None if batch % count else batch // count),
            power_limit_w=power_w,
            clock_limit_mhz=clock_mhz,
        ).on_nodes_of(gpus_per_node or template.cluster.node.gpus)
        jobs.append(replace(template, setting=setting))
    rows = add_scaling(_rows(jobs, epochs))
    if as_json:
        print(json.dumps(rows, allow_nan=False))
    else:
        from wattlaw_simulator.command.simulation_text import show

        show(rows, template)
    return 0 if len(rows) == len(jobs) else 1


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
        has = f"a node of {cluster.name} has {cluster.node.gpus} GPUs"
        raise BadInput(f"--gpus-per-node: {gpus_per_node} is too large; {has}")
    profile = None if profile_path is None else read_profile(profile_path)
    name = workload or (profile.workload if profile else None)
    if name is None:
        raise BadInput("--workload is required; see 'wattlaw workloads'")
    if profile is not None and name != profile.workload:
        raise BadInput(f"--workload: {profile_path} is a profile of {profile.workload}")
    if profile is None or samples is None:
        catalogue.entry(name)  # raises BadInput for an unknown name
    values = {} if profile is None else profile.options
    if options is not None:
        values = parse_json_object("--options", options)
    try:
        spec = RunSpec(
            workload=WorkloadSpec(name=name, options=values), setting=setting, repeat=0,
            measure=Measure(), train=train, launch_kind="simulated",
        )  # fmt: skip
        return simulation_job(
            spec, cluster, gpus_per_node=gpus_per_node, profile=profile, samples=samples
        )
    except ValidationError:
        allowed = "allowed as a workload's name: letters, digits, '.', '_' and '-'"
        raise BadInput(f"{name!a:.80}: {allowed}") from None
    except BadInput as error:
        raise BadInput(f"simulate: {error}") from None


def _rows(jobs: Sequence[SimulatedJob], epochs: int) -> list[dict[str, Any]]:
    """Return the predictions; print the settings that cannot be simulated on standard error."""
    rows = []
    for job in jobs:
        try:
            if job.setting.local_batch is None:
                raise BadInput("--global-batch: is not a multiple of the GPU count")
            rows.append({"simulated": True, **prediction_row(predict(job), epochs)})
        except BadInput as error:
            if len(jobs) == 1:
                raise
            limits = {"power_limit_w": job.setting.power_limit_w,
                      "clock_limit_mhz": job.setting.clock_limit_mhz}  # fmt: skip
            given = ", ".join(filter(None, (plural(job.gpus, "GPU"), group_label(limits))))
            print_note(f"skipped: {given}: {error}")
    if not rows:
        raise BadInput(f"simulate: none of the {len(jobs)} settings can be simulated")
    return rows


def prediction_row(prediction: Prediction, epochs: int = 1) -> dict[str, Any]:
    """Return a prediction as a flat row, as docs/simulator.md says; an unknown value is None."""
    job, train = prediction.job, prediction.train
    energies_j = {"gpu": train.gpu_energy_j, "cpu": train.cpu_energy_j, "dram": train.dram_energy_j}
    energy_j = sum(energies_j.values())
    evaluation = prediction.evaluation
    return {
        "workload": job.profile.workload,
        "options": dict(job.profile.options),
        "hardware": job.cluster.name,
        "calibration": job.cluster.calibration,
        "gpus": job.gpus,
        "nodes": job.nodes,
        "local_batch": job.local_batch,
        "global_batch": job.global_batch,
        "precision": job.precision,
        "power_limit_w": job.setting.power_limit_w,
        "clock_limit_mhz": job.setting.clock_limit_mhz,
        "dataset_fraction": job.setting.dataset_fraction,
        "epochs": epochs,
        "memory_gb": prediction.memory_gb,
        "fits_memory": prediction.memory_gb <= job.cluster.gpu.memory_gb,
        "epoch_time_s": train.duration_s,
        "train_time_s": train.duration_s * epochs,
        "samples_per_s": train.samples / train.duration_s,
        "steps_per_epoch": train.steps,
        "power_per_gpu_w": train.gpu_power_w,
        **{f"{part}_energy_per_epoch_j": own_j for part, own_j in energies_j.items()},
        "energy_per_epoch_j": energy_j,
        **{f"{part}_energy_j": own_j * epochs for part, own_j in energies_j.items()},
        "energy_j": energy_j * epochs,
        "gpu_hours": job.gpus * train.duration_s * epochs / _HOUR_S,
        "eval_time_s": evaluation.duration_s if evaluation else None,
        "eval_gpu_energy_j": evaluation.gpu_energy_j if evaluation else None,
        "sm_util": train.sm_util,
        "mem_util": train.mem_util,
        "sm_clock_mhz": prediction.clock_mhz,
        "limited_by": train.limited_by,
        "power_throttle_share": prediction.power_throttle_share,
        "step_time_s": prediction.split.step_s,
        **{part: getattr(prediction.split, part) for part in PARTS},
        "step_time_cv": prediction.step_cv,
        "roofline_s": prediction.roofline_s,
        "startup_s": prediction.startup_s,
        "bottleneck": prediction.bottleneck,
        "warnings": list(prediction.warnings),
    }


def add_scaling(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with their speedups, in series of equal limits and with GPUs ascending. They are
    None in a series of one count; ``beta``, of a count and the next smaller one, also at the least.
    """
    series: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        series.setdefault((row["power_limit_w"], row["clock_limit_mhz"]), []).append(row)
    scaled = []
    for group in series.values():
        ordered = sorted(group, key=lambda row: int(row["gpus"]))
        for smaller, row in zip([None, *ordered[:-1]], ordered, strict=True):
            speedup = ordered[0]["epoch_time_s"] / row["epoch_time_s"] if len(group) > 1 else None
            ratio = row["gpus"] / ordered[0]["gpus"]
            efficiency = None if speedup is None else speedup / ratio
            beta = None
            if smaller is not None:
                time_ratio = row["epoch_time_s"] / smaller["epoch_time_s"]
                beta = -log(time_ratio) / log(row["gpus"] / smaller["gpus"])
            values = {"speedup": speedup, "parallel_efficiency": efficiency, "beta": beta}
            scaled.append({**row, **values})
    return scaled
