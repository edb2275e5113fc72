"""The three tables of a store, as Arrow schemas. A value that was not measured is null."""

from collections.abc import Collection
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
    options=_TEXT,  # JSON
    metric_name=_TEXT,  # what the workload's metric is, such as accuracy
    parameters=_INT,  # trainable parameters of the model
    gradient_bytes=_INT,  # what the ranks exchange in one step
    flops_per_sample=_FLOAT,  # of one forward and backward pass, counted
    dataset_samples=_INT,  # of an epoch of the full data set
    world_size=_INT,  # processes of the process group
    backend=_TEXT,  # of torch.distributed
    parallelism=_TEXT,  # a store.record.Parallelism
    workers_cooperate=_BOOL,  # false: several processes trained without a process group
    instrumented=_BOOL,  # the steps of a command were counted in its processes
    gpus=_INT,
    power_limit_w=_FLOAT,
    power_limit_enforced_w=_FLOAT,  # as read back; the least of the devices
    clock_limit_mhz=_FLOAT,
    global_batch=_INT,
    local_batch=_INT,
    precision=_TEXT,
    dataset_fraction=_FLOAT,
    emulated_gpus=_INT,  # GPUs of the job whose local batch was trained; null for a real job
    nodes=_INT,
    train=_TEXT,  # JSON: settings of the training loop, with defaults
    loader_workers=_INT,  # loader processes of each worker
    threads_per_worker=_INT,  # processor threads that the workers used
    repeat=_INT,
    seed=_INT,
    order_seed=_INT,
    epochs=_INT,
    warmup_epochs=_INT,
    measure_steps=_INT,  # optimizer steps that the study requests, after the warm-up
    measure_seconds=_FLOAT,  # the same as a time
    warmup_steps=_INT,  # null where epochs are measured
    sample_hz=_FLOAT,
    assume_cpu_w=_FLOAT,
    launcher=_TEXT,
    hardware=_TEXT,
    device_ids=pa.list_(_TEXT),
    sampler_cpu_share=_FLOAT,  # share of a core that the sampler used, maximum over hosts
    software=_TEXT,  # JSON: package -> version
    git_commit=_TEXT,
    status=_TEXT,  # planned | running | interrupted | done | damaged | failed | skipped
    reason=_TEXT,
    notes=pa.list_(_TEXT),
    attempts=_INT,
    started_at=_MOMENT,
    finished_at=_MOMENT,
    job_id=_TEXT,  # the scheduler's, as the next two
    partition=_TEXT,
    node_names=pa.list_(_TEXT),
    interruptions=_INT,  # attempts that were ended from outside and continued by another
    clock_offset_max_s=_FLOAT,  # largest |offset| + uncertainty between the clocks of its hosts
    site_energy_j=_FLOAT,  # of the whole job, by the scheduler's accounting
    site_energy_source=_TEXT,  # such as "sacct ConsumedEnergyRaw"
    site_energy_start_at=_MOMENT,  # the period of that energy
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
    energy_source=_TEXT,  # counter | integral | estimated | simulated | replayed | none
    energy_verdict=_TEXT,  # one of store.record.VERDICTS
    energy_reason=_TEXT,  # of a verdict that is not ok: which device, and why
    gpu_power_mean_w=_FLOAT,
    sm_util_mean=_FLOAT,
    sm_util_cv=_FLOAT,
    mem_util_mean=_FLOAT,
    mem_util_cv=_FLOAT,
    sm_clock_mean_mhz=_FLOAT,
    power_limit_mean_w=_FLOAT,  # enforced limit of the GPUs
    power_throttle_share=_FLOAT,  # share of the window in which the power limit lowered the clocks
    cpu_cores_mean=_FLOAT,  # busy cores of the run's processes
    mem_used_max_bytes=_INT,  # resident memory of the run's processes
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
