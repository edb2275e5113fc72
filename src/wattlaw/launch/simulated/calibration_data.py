"""From rows of runs to what a calibration is fitted to: one measured setting for all repeats."""

import json
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.launch.simulated.simulation_inputs import simulation_job, workload_key, workload_spec
from wattlaw.simulator.calibration import MeasuredSetting
from wattlaw.simulator.cluster import Cluster
from wattlaw.simulator.predict import predict
from wattlaw.simulator.profile import WorkloadProfile
from wattlaw.study.model import Measure, RunSpec, Setting, Train, WorkloadSpec
from wattlaw.workloads import catalogue

Row = Mapping[str, Any]
#: Energies of which a power can be had; the others were not read from a device.
_MEASURED = ("counter", "integral")
_SETTING = (
    "gpus", "global_batch", "local_batch", "power_limit_w", "clock_limit_mhz", "precision",
    "dataset_fraction",
)  # fmt: skip
#: Runs that are equal in these are repeats of one setting.
_SAME = ("workload", "options", "train", "hardware", "launcher", "nodes", *_SETTING)


@dataclass(frozen=True)
class WorkloadSource:
    """Which workload the runs of a name are, and profile of them that come from a file."""

    workload: str
    profile: WorkloadProfile | None = None


@dataclass
class CalibrationData:
    """What a store says to a calibration, and what of it cannot be used."""

    measured: list[MeasuredSetting] = field(default_factory=list)
    runs: int = 0  # in ``measured``
    left_out: dict[str, int] = field(default_factory=dict)  # runs by reason
    notes: dict[str, int] = field(default_factory=dict)  # runs by what is to be known of them


def calibration_data(
    rows: Iterable[Row], cluster: Cluster, known: Mapping[str, WorkloadSource]
) -> CalibrationData:
    """Return the measured settings of runs.

    Parameters
    ----------
    rows
        One for each run: ``workload, options, train, hardware, launcher, nodes``, the setting,
        ``epoch_time_s, samples_per_epoch, power_per_gpu_w, energy_source``, as the analysis makes
        them. What is missing is None or NaN.
    cluster
        What they ran on.
    known
        By the runs' name, which workload they are, where it is not that of the same name.

    Notes
    -----
    Times and powers are means over repeats. The data set is that of the run where the row tells
    its samples, else the workload's. Power is used where it was read from a device.
    """
    repeats: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        repeats[tuple(_plain(row.get(name)) for name in _SAME)].append(row)
    found = CalibrationData()
    for own in repeats.values():
        notes: list[str] = []
        try:
            one = _measured(own, cluster, known, notes)
        except BadInput as error:
            _add(found.left_out, str(error), len(own))
            continue
        for note in notes:
            _add(found.notes, note, len(own))
        found.measured.append(one)
        found.runs += len(own)
    return found


def _add(counted: dict[str, int], words: str, runs: int) -> None:
    counted[words] = counted.get(words, 0) + runs


def _measured(
    rows: list[Row], cluster: Cluster, known: Mapping[str, WorkloadSource], notes: list[str]
) -> MeasuredSetting:
    row = rows[0]
    name = str(row["workload"])
    own = known.get(name, WorkloadSource(name))
    workload, labels = _workload(row, name, own)
    spec = _spec(row, workload)
    samples = _mean(rows, "samples_per_epoch")
    if samples is None:
        notes.append(f"{name}: samples per epoch are taken to be the workload's")
    per_node = -(-spec.setting.gpus // max(1, int(row["nodes"] or 1)))
    if per_node > cluster.node.gpus:
        notes.append(f"more GPUs per node than {cluster.name} has; its nodes are taken to be full")
    job = simulation_job(
        spec,
        cluster,
        profile=own.profile,
        gpus_per_node=per_node if per_node < cluster.node.gpus else None,
        samples=None if samples is None else round(samples / spec.setting.dataset_fraction),
    )
    predict(job)  # it raises BadInput where the hardware cannot do that
    time_s = _mean(rows, "epoch_time_s")
    if time_s is None or time_s <= 0:
        raise BadInput(f"{name}: no time of an epoch")
    power_w = _mean(rows, "power_per_gpu_w")
    sources = {str(one["energy_source"]) for one in rows}
    if power_w is not None and not sources <= {*_MEASURED}:
        told = ", ".join(sorted(sources - {*_MEASURED}))
        notes.append(f"{name}: energy is {told}, not measured: only times are used")
        power_w = None
    if str(row["launcher"]) == "simulated":
        notes.append(f"{name}: the runs are simulated, and tell nothing of real hardware")
    return MeasuredSetting(job, workload_key(job.profile, labels), time_s, power_w)


def _workload(row: Row, name: str, own: WorkloadSource) -> tuple[WorkloadSpec, dict[str, Any]]:
    """Return the workload with the options that it knows, and the others as labels."""
    options = json.loads(row["options"] or "{}")
    if "command" in options:
        raise BadInput(f"{name}: a command has no profile (--profile {name}=FILE gives some)")
    labels = {"runs": name} if name != own.workload else {}
    labels |= {key: value for key, value in options.items() if key != "workload"}
    if own.profile is not None:
        of_figures = own.profile.options
        labels = {key: value for key, value in labels.items() if of_figures.get(key) != value}
        return workload_spec(own.workload, of_figures), labels
    try:
        entry = catalogue.entry(own.workload)
    except BadInput:
        raise BadInput(
            f"{name}: no such workload (--as {name}=WORKLOAD says which it is)"
        ) from None
    fields = entry.options.model_fields
    spec = workload_spec(own.workload, {key: options[key] for key in options if key in fields})
    return spec, {key: value for key, value in labels.items() if key not in fields}


def _spec(row: Row, workload: WorkloadSpec) -> RunSpec:
    setting = {name: _plain(row.get(name)) for name in _SETTING}
    if setting["local_batch"] is None:
        raise BadInput(f"{workload.name}: the local batch is not known")
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
    """Return the mean over repeats, or None where one of them does not tell."""
    values = [_plain(row.get(name)) for row in rows]
    return None if any(value is None for value in values) else fmean(values)


def _plain(value: Any) -> Any:
    """Return a value of a table, None for one that is missing."""
    return None if isinstance(value, float) and math.isnan(value) else value
