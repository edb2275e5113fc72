"""The three tables of a store, as Arrow schemas. A value that was not measured is null.

``columns.csv`` has the unit and the meaning of each column.
"""

import csv
import json
from collections.abc import Collection
from importlib.resources import files
from typing import get_args, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.store.record import VERDICTS
from wattlaw.store.streams import Sample, Window

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
_MOMENT = pa.timestamp("us", tz="UTC")


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


def _schema_of(row: type) -> pa.Schema:
    """Return the columns of a named tuple; the type of a column is that of its values."""
    types = {str: _TEXT, int: _INT, float: _FLOAT, bool: _BOOL}
    columns = []
    for name, hint in get_type_hints(row).items():
        kind = next(iter(get_args(hint)), hint)  # float of ``float | None``
        while get_args(kind):
            kind = get_args(kind)[0]  # a name of a Literal
        columns.append((name, types[kind if isinstance(kind, type) else type(kind)]))
    return pa.schema(columns)


RUNS = _schema(
    run_id=_TEXT,
    study=_TEXT,
    workload=_TEXT,
    options=_TEXT,
    metric_name=_TEXT,
    parameters=_INT,
    gradient_bytes=_INT,
    flops_per_sample=_FLOAT,
    dataset_samples=_INT,
    world_size=_INT,
    backend=_TEXT,
    parallelism=_TEXT,
    workers_cooperate=_BOOL,
    instrumented=_BOOL,
    gpus=_INT,
    power_limit_w=_FLOAT,
    power_limit_enforced_w=_FLOAT,
    clock_limit_mhz=_FLOAT,
    global_batch=_INT,
    local_batch=_INT,
    precision=_TEXT,
    dataset_fraction=_FLOAT,
    emulated_gpus=_INT,
    nodes=_INT,
    train=_TEXT,
    loader_workers=_INT,
    threads_per_worker=_INT,
    repeat=_INT,
    seed=_INT,
    order_seed=_INT,
    epochs=_INT,
    warmup_epochs=_INT,
    measure_steps=_INT,
    measure_seconds=_FLOAT,
    warmup_steps=_INT,
    sample_hz=_FLOAT,
    assume_cpu_w=_FLOAT,
    launcher=_TEXT,
    hardware=_TEXT,
    device_ids=pa.list_(_TEXT),
    sampler_cpu_share=_FLOAT,
    software=_TEXT,
    git_commit=_TEXT,
    status=_TEXT,
    reason=_TEXT,
    notes=pa.list_(_TEXT),
    attempts=_INT,
    started_at=_MOMENT,
    finished_at=_MOMENT,
    job_id=_TEXT,
    partition=_TEXT,
    node_names=pa.list_(_TEXT),
    interruptions=_INT,
    clock_offset_max_s=_FLOAT,
    site_energy_j=_FLOAT,
    site_energy_source=_TEXT,
    site_energy_start_at=_MOMENT,
    site_energy_end_at=_MOMENT,
)

#: What a worker writes at the end of each window: one row per host.
WINDOWS = _schema_of(Window)

#: Columns of a window that are computed from device samples.
WINDOW_ENERGY = _schema(
    gpu_energy_j=_FLOAT,
    gpu_energy_counter_j=_FLOAT,
    gpu_energy_integral_j=_FLOAT,
    cpu_energy_j=_FLOAT,
    dram_energy_j=_FLOAT,
    energy_source=_TEXT,
    energy_verdict=_TEXT,
    energy_reason=_TEXT,
    gpu_power_mean_w=_FLOAT,
    sm_util_mean=_FLOAT,
    sm_util_cv=_FLOAT,
    mem_util_mean=_FLOAT,
    mem_util_cv=_FLOAT,
    sm_clock_mean_mhz=_FLOAT,
    power_limit_mean_w=_FLOAT,
    power_throttle_share=_FLOAT,
    cpu_cores_mean=_FLOAT,
    mem_used_max_bytes=_INT,
)

#: What the sampler writes: the time series of each device.
SAMPLES = pa.schema([("host", _TEXT), *_schema_of(Sample)])
_ID = _schema(run_id=_TEXT)
EPOCHS = pa.schema([*_ID, *WINDOWS, *WINDOW_ENERGY])
TELEMETRY = pa.schema([*_ID, *SAMPLES])
TABLES = {"runs": RUNS, "epochs": EPOCHS, "telemetry": TELEMETRY}

#: Columns that are never null in any table.
REQUIRED = (
    "run_id", "host", "phase", "device", "kind", "t_ns", "energy_source", "energy_verdict",
)  # fmt: skip
_CHOICES = {
    "energy_source": ("counter", "integral", "estimated", "simulated", "replayed", "none"),
    "energy_verdict": VERDICTS,
}
#: The end of a window stays within the nanoseconds that 64 bits hold.
_MAX_S, _MAX_NS = 4e9, 2**62


def find_faults(table: pa.Table, also_required: Collection[str] = ()) -> list[tuple[str, pa.Array]]:
    """Return the invalid rows of a table: a sentence for each kind of fault, and a row mask.

    The table has columns of ``EPOCHS`` or ``TELEMETRY``, or of a live file.
    """
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


def describe_columns() -> list[dict[str, str]]:
    """Return the ``table``, ``column``, ``unit`` and ``meaning`` of each column of ``TABLES``."""
    text = files("wattlaw.store").joinpath("columns.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


#: Columns of runs that are never null, and those of them that hold JSON objects.
_OF_EACH_RUN = (
    "run_id", "study", "workload", "options", "train", "gpus", "nodes", "repeat", "launcher",
    "precision", "dataset_fraction", "software", "status",
)  # fmt: skip
_OBJECTS = ("options", "train", "software")
_STATUSES = ("planned", "running", "interrupted", "done", "damaged", "failed", "skipped")


def check_runs(runs: pa.Table) -> None:
    """Check a table of runs that another wattlaw wrote; raise ValueError if a value is invalid."""
    for field in runs.schema:
        column = runs[field.name]
        if field.name in _OF_EACH_RUN and column.null_count:
            raise ValueError(f"column {field.name}: no value")
        if field.type in (_INT, _FLOAT):
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
            if not isinstance(json.loads(text), dict):
                raise ValueError(f"column {name}: allowed: a JSON object")
