"""The data of a calibration, from rows of runs: one measured setting for all its repeats."""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.formatting import MEASURED, origin_of
from wattlaw.launch.simulated.machine import simulation_job, workload_key, workload_spec
from wattlaw.simulator.calibration import MeasuredSetting
from wattlaw.simulator.cluster import Cluster
from wattlaw.simulator.predict import predict
from wattlaw.simulator.profile import WorkloadProfile
from wattlaw.study.model import Measure, RunSpec, Setting, Train, WorkloadSpec
from wattlaw.workloads import catalogue

Row = Mapping[str, Any]
#: Sources of energy that were read from a device.
_MEASURED = {"counter", "integral"}
_SETTING = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "precision",
    "dataset_fraction",
)  # fmt: skip
#: Runs that are equal in these are repeats of one setting.
_SAME = ("workload", "options", "train", "hardware", "launcher", "nodes", *_SETTING)


@dataclass(frozen=True)
class WorkloadSource:
    """The workload of the runs with a name, and its profile if that comes from a file."""

    workload: str
    profile: WorkloadProfile | None = None


@dataclass
class CalibrationData:
    """The measured settings for a calibration, and the runs that cannot be used."""

    measured: list[MeasuredSetting] = field(default_factory=list)
    runs: int = 0  # in ``measured``
    left_out: Counter[str] = field(default_factory=Counter)  # runs by reason
    notes: Counter[str] = field(default_factory=Counter)  # runs by note


def calibration_data(
    rows: Iterable[Row], cluster: Cluster, sources: Mapping[str, WorkloadSource]
) -> CalibrationData:
    """Return the measured settings of runs.

    Parameters
    ----------
    rows
        One row per run: ``workload, options, train, hardware, launcher, nodes``, the setting,
        ``epoch_time_s, samples_per_epoch, power_per_gpu_w, energy_source``, as in the analysis.
        A missing value is None or NaN.
    cluster
        The cluster of the runs.
    sources
        The workloads of runs whose name is not that of their workload, by the runs' name.

    Notes
    -----
    Times and powers are means over repeats. The number of samples is that of the row, else the
    workload's. Power is used if it was read from a device.
    """
    repeats: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        repeats[tuple(_plain(row.get(name)) for name in _SAME)].append(row)
    data = CalibrationData()
    for setting_rows in repeats.values():
        notes: list[str] = []
        runs = len(setting_rows)
        try:
            data.measured.append(_measured(setting_rows, cluster, sources, notes))
        except BadInput as error:
            data.left_out[str(error)] += runs
            continue
        data.runs += runs
        for note in notes:
            data.notes[note] += runs
    return data


def _measured(
    rows: list[Row], cluster: Cluster, sources: Mapping[str, WorkloadSource], notes: list[str]
) -> MeasuredSetting:
    row = rows[0]
    name = str(row["workload"])
    source = sources.get(name, WorkloadSource(name))
    workload, labels = _workload(row, name, source)
    spec = _spec(row, workload)
    samples = _mean(rows, "samples_per_epoch")
    if samples is None:
        notes.append(f"{name}: samples per epoch are unknown; the workload's are assumed")
    per_node = -(-spec.setting.gpus // max(1, int(row["nodes"] or 1)))
    if per_node > cluster.node.gpus:
        notes.append(f"more GPUs per node than {cluster.name} has; full nodes are assumed")
    job = simulation_job(
        spec,
        cluster,
        profile=source.profile,
        gpus_per_node=per_node if per_node < cluster.node.gpus else None,
        samples=None if samples is None else round(samples / spec.setting.dataset_fraction),
    )
    predict(job)  # raises BadInput if the hardware does not support the setting
    time_s = _mean(rows, "epoch_time_s")
    if time_s is None or time_s <= 0:
        raise BadInput(f"{name}: no time of an epoch")
    power_w = _mean(rows, "power_per_gpu_w")
    other_sources = {str(repeat["energy_source"]) for repeat in rows} - _MEASURED
    if power_w is not None and other_sources:
        kind = ", ".join(sorted(other_sources))
        notes.append(f"{name}: energy is {kind}, not measured: only times are used")
        power_w = None
    if (origin := origin_of(row["launcher"])) != MEASURED:
        notes.append(f"{name}: the runs are {origin}, and the hardware was not measured")
    return MeasuredSetting(job, workload_key(job.profile, labels), time_s, power_w)


def _workload(row: Row, name: str, source: WorkloadSource) -> tuple[WorkloadSpec, dict[str, Any]]:
    """Return the workload with its own options, and the other options as labels."""
    options = json.loads(row["options"] or "{}")
    if "command" in options:
        raise BadInput(f"{name}: a command has no profile (set one with --profile {name}=FILE)")
    labels = {"runs": name} if name != source.workload else {}
    labels |= {key: value for key, value in options.items() if key != "workload"}
    if source.profile is not None:
        profiled = source.profile.options
        labels = {key: value for key, value in labels.items() if profiled.get(key) != value}
        return workload_spec(source.workload, profiled), labels
    try:
        entry = catalogue.entry(source.workload)
    except BadInput:
        raise BadInput(f"{name}: unknown workload (name it with --as {name}=WORKLOAD)") from None
    fields = entry.options.model_fields
    spec = workload_spec(source.workload, {key: options[key] for key in options if key in fields})
    return spec, {key: value for key, value in labels.items() if key not in fields}


def _spec(row: Row, workload: WorkloadSpec) -> RunSpec:
    setting = {name: _plain(row.get(name)) for name in _SETTING}
    if setting["local_batch"] is None:
        raise BadInput(f"{workload.name}: the local batch is unknown")
    for name in ("gpus", "global_batch", "local_batch"):
        setting[name] = int(setting[name])
    return RunSpec(
        workload=workload,
        setting=Setting(**setting),
        repeat=0,
        measure=Measure(evaluate=False),
        train=Train(**json.loads(row["train"] or "{}")),
        launch_kind=str(row["launcher"]),
    )


def _mean(rows: list[Row], name: str) -> float | None:
    """Return the mean over repeats, or None if a repeat has no value."""
    values = [_plain(row.get(name)) for row in rows]
    return None if any(value is None for value in values) else fmean(values)


def _plain(value: Any) -> Any:
    """Return a value of a table, None for a missing one."""
    return None if isinstance(value, float) and math.isnan(value) else value
