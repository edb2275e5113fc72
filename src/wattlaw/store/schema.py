"""The three tables of a store: columns, rows of runs, faults. What was not measured is null.

``columns.csv`` has the type, the unit and the meaning of each column.
"""

import csv
import json
from collections.abc import Collection, Mapping, Sequence
from importlib.resources import files
from typing import Any, get_args

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.store.record import VERDICTS, Facts, RunRecord, Site, Status
from wattlaw.store.streams import Sample, Window
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.setting import RECORDED

_TYPES = {
    "text": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(),
    "texts": pa.list_(pa.string()), "time": pa.timestamp("us", tz="UTC"),
}  # fmt: skip


def describe_columns() -> list[dict[str, str]]:
    text = files("wattlaw.store").joinpath("columns.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _described(table: str) -> pa.Schema:
    rows = [row for row in describe_columns() if row["table"] == table]
    return pa.schema([(row["column"], _TYPES[row["type"]]) for row in rows])


RUNS, EPOCHS, TELEMETRY = map(_described, ("runs", "epochs", "telemetry"))
#: What a worker writes at the end of each window: one row per host.
WINDOWS = pa.schema([EPOCHS.field(name) for name in Window._fields])
#: Columns of a window that are computed from device samples.
WINDOW_ENERGY = pa.schema(list(EPOCHS)[1 + len(WINDOWS) :])
#: What the sampler writes: the time series of each device.
SAMPLES = pa.schema([TELEMETRY.field(name) for name in ("host", *Sample._fields)])
TABLES = {"runs": RUNS, "epochs": EPOCHS, "telemetry": TELEMETRY}

#: Columns that are never null in any table.
REQUIRED = ("run_id", "host", "phase", "device", "kind", "t_ns", "energy_source", "energy_verdict")
_SOURCES = ("counter", "integral", "estimated", "simulated", "replayed", "none")
_CHOICES = {
    "energy_source": _SOURCES,
    "node_energy_source": _SOURCES,
    "energy_verdict": VERDICTS,
    "node_energy_verdict": VERDICTS,
}
#: The end of a window stays within the nanoseconds that 64 bits hold.
_MAX_S, _MAX_NS = 4e9, 2**62


def find_faults(table: pa.Table, also_required: Collection[str] = ()) -> list[tuple[str, pa.Array]]:
    """Return the invalid rows of a table of ``EPOCHS`` or ``TELEMETRY``, or of a live file: a
    sentence for each kind of fault, and a row mask."""
    faults = []
    for name in table.schema.names:
        column = table[name]
        if name in (*REQUIRED, *also_required) and column.null_count:
            faults.append((f"column {name}: no value", pc.is_null(column)))
        if name in _CHOICES:
            allowed = _CHOICES[name]
            is_bad = pc.and_(pc.is_valid(column), pc.invert(pc.is_in(column, pa.array(allowed))))
            faults.append((f"column {name}: allowed: {', '.join(allowed)}", is_bad))
        if name == "duration_s":
            is_good = pc.and_(pc.is_finite(column), pc.greater_equal(column, 0.0))
            faults.append((f"column {name}: allowed: a number >= 0", pc.invert(is_good)))
            start_ns = table["start_ns"]
            is_in_range = pc.and_(
                pc.and_(pc.greater_equal(start_ns, 0), pc.less(start_ns, _MAX_NS)),
                pc.less(column, _MAX_S),
            )
            faults.append(("columns start_ns, duration_s: out of range", pc.invert(is_in_range)))
    masks = ((text, pc.fill_null(is_bad, fill_value=False)) for text, is_bad in faults)
    return [(text, is_bad) for text, is_bad in masks if pc.any(is_bad).as_py()]


#: Columns of runs that are never null, and those of them that hold JSON objects.
_OF_EACH_RUN = (
    "run_id", "study", "workload", "options", "train", "gpus", "nodes", "repeat", "launcher",
    "precision", "dataset_fraction", "software", "status",
)  # fmt: skip
_OBJECTS = ("options", "train", "software")
_STATUSES = (*get_args(Status), "interrupted", "damaged", OUT_OF_MEMORY)


def check_runs(runs: pa.Table) -> None:
    """Check the runs of an import, which may come from elsewhere; raise ValueError for a value."""
    for field in runs.schema:
        column = runs[field.name]
        if field.name in _OF_EACH_RUN and column.null_count:
            raise ValueError(f"column {field.name}: no value")
        if field.type in (_TYPES["int"], _TYPES["float"]):
            least = 1 if field.name in ("gpus", "nodes") else 0
            is_good = pc.and_(pc.is_finite(column), pc.greater_equal(column, least))
            if not pc.all(is_good, min_count=0).as_py():
                raise ValueError(f"column {field.name}: allowed: numbers >= {least}")
    if pc.count_distinct(runs["run_id"]).as_py() < len(runs):
        raise ValueError("column run_id: a value occurs twice")
    if unknown := set(runs["status"].unique().to_pylist()) - {*_STATUSES}:
        raise ValueError(f"column status: {unknown.pop()!a}; allowed: {', '.join(_STATUSES)}")
    for name in _OBJECTS:
        for text in runs[name].unique().to_pylist():
            try:
                is_object = isinstance(json.loads(text), dict)
            except (ValueError, RecursionError):
                is_object = False
            if not is_object:
                raise ValueError(f"column {name}: allowed: a JSON object")


#: Columns of runs by the part of a record that has them.
_OF_RECORD = tuple(
    name for name in RUNS.names if name in RunRecord.model_fields and name != "interruptions"
)
_OF_FACTS = tuple(name for name in RUNS.names if name in Facts.model_fields)
_OF_SITE = tuple(name for name in Site.model_fields if f"site_{name}" in RUNS.names)


def rows_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema = RUNS) -> pa.Table:
    used = set[str]().union(*rows)
    columns = [
        pa.array([row.get(field.name) for row in rows], field.type)
        if field.name in used
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def row_of(record: RunRecord, status: str, reason: str | None = None) -> dict[str, Any]:
    spec, facts, measure = record.spec, record.facts, record.spec.measure
    setting, site = spec.setting, record.site
    command, program = spec.workload.command, spec.workload.launch_with
    job: dict[str, Any] = spec.workload.options if command is None else {"command": command}
    job = job if program == "auto" else {**job, "launch_with": program}
    row = {name: getattr(record, name) for name in _OF_RECORD}
    row |= {name: getattr(facts, name) for name in _OF_FACTS}
    row |= {name: getattr(setting, name) for name in RECORDED}
    layout = setting.layout
    if setting.gradient_accumulation > 1:
        layout["gradient_accumulation"] = setting.gradient_accumulation
    if layout:  # what ran counts, where it was seen
        ran = {name: getattr(facts, name, None) for name in layout}
        row["layout"] = json.dumps(layout | {k: v for k, v in ran.items() if v is not None})
    if spec.workload.model is not None:
        row["network"] = spec.workload.model.model_dump_json(exclude_defaults=True)
    if (setting.local_batch or 0) % 1:  # several GPUs share a sample
        row["local_batch"] = None
    if facts.global_batch:  # analyses use the batch that ran
        local_batch, rest = divmod(facts.global_batch, setting.gpus)
        row |= {
            "global_batch": facts.global_batch,
            "local_batch": None if rest else local_batch,
            "global_batch_declared": setting.global_batch,
        }
    row |= {
        "status": status,
        "reason": record.reason if reason is None else reason,
        "out_of_memory": record.out_of_memory,
        "epochs": measure.epochs,
        "sample_hz": measure.sample_hz,
        "assume_cpu_w": measure.assume_cpu_w,
        "warmup_epochs": None if measure.is_by_steps else measure.warmup_epochs,
        "measure_steps": measure.steps,
        "measure_seconds": measure.seconds,
        "warmup_steps": measure.warmup_steps if measure.is_by_steps else None,
        "dataset_samples": spec.workload.dataset_samples or facts.dataset_samples,
        "workload": spec.workload.name,
        "options": json.dumps(job, sort_keys=True),
        "metric_name": facts.metric,
        "train": spec.train.model_dump_json(),
        "nodes": spec.nodes,
        "repeat": spec.repeat,
        "launcher": spec.launch_kind,
        "hardware": spec.hardware or facts.hardware,
        "power_limit_enforced_w": min(
            (r.power_limit_enforced_w for r in record.limits if r.power_limit_enforced_w),
            default=None,
        ),
        "sampler_cpu_share": max(
            (r.cpu_s / r.duration_s for r in record.samplers if r.duration_s), default=None
        ),
        "software": json.dumps(facts.software, sort_keys=True),
        "interruptions": len(record.interruptions) if record.attempts else None,
    }
    if site is not None:
        row |= {"job_id": site.job_id, "partition": site.partition}
        row["node_names"] = site.nodes or None
        row |= {f"site_{name}": getattr(site, name) for name in _OF_SITE}
    return row
