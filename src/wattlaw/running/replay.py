"""The launcher ``replay``: runs from a table of measurements made elsewhere, in no time."""

import math
import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import write_parquet
from wattlaw.common.text import join_names
from wattlaw.measure.telemetry.plausibility import power_fault
from wattlaw.running.launcher import VIRTUAL_BEGIN_NS, Allocation, Ended, Launcher
from wattlaw.running.node_setup import log_head
from wattlaw.store.fields import (
    FIELDS,
    STEP_PARTS,
    THROUGHPUT,
    TOKENS,
    Field,
    InvalidCell,
    global_batch_of,
    in_range,
)
from wattlaw.store.measurements import Measurement, read_measurements
from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.study.labels import group_label
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study
from wattlaw.workloads import catalogue

#: The times of a step or an epoch, of which a table has one.
_TIMES = ("step_time_s", "epoch_time_s")
#: Columns that must be equal to a run's setting: "none" included, and where they are known.
_EXACT = ("gpus", "power_limit_w", "clock_limit_mhz")
_IF_KNOWN = ("workload", "hardware", "nodes", "global_batch", "precision")
#: More seconds or samples than these do not fit the columns of a store.
_MOST, _MOST_SAMPLES = 1e9, 2**53
#: Columns that an import does not have.
_OTHERS: dict[str, Field] = {
    "power_per_gpu_w": in_range(0, _MOST, "a number > 0 and <= 1e9", above_low=True),
    "startup_s": in_range(0, _MOST, "seconds from 0 to 1e9"),
    "dataset_samples": FIELDS["gpus"],  # a whole number in the same range
}
_COLUMNS = (
    *(*_EXACT, *_IF_KNOWN, "local_batch", *STEP_PARTS, *_TIMES, THROUGHPUT, TOKENS),
    *_OTHERS,
)


@dataclass(frozen=True)
class Row:
    where: str  # its file and line
    values: dict[str, Any]

    def fits(self, spec: RunSpec) -> bool:
        setting, values = spec.setting, self.values
        if any(values.get(name) != getattr(setting, name) for name in _EXACT):
            return False
        if setting.dataset_fraction != 1 or setting.emulated_gpus or setting.power_profile:
            return False  # tables have no such settings
        of_run = {
            "workload": spec.workload.name,
            "hardware": spec.hardware,
            "nodes": spec.nodes,
            "global_batch": spec.global_batch,
            "precision": setting.precision,
        }
        return all(values.get(name) in (None, value) for name, value in of_run.items())


@dataclass(frozen=True)
class ReplayTable:
    """The measurements of a file in its order; ``time`` is one of ``_TIMES``."""

    path: Path
    time: str
    rows: tuple[Row, ...]

    def row(self, spec: RunSpec) -> Row:
        """Return the row that a run replays; ``NotAvailable`` if its setting is not in the table.

        Repeat r gets row r of the setting. If there are fewer rows, one is drawn, seeded by r.
        """
        rows = [row for row in self.rows if row.fits(spec)]
        if not rows:
            known: dict[str, Any] = {"workload": spec.workload.name, "hardware": spec.hardware}
            known |= {"gpus": spec.setting.gpus}
            known |= {"global_batch": spec.global_batch} if spec.global_batch else {}
            label = group_label(known | spec.setting.changed() | {"nodes": spec.nodes})
            raise NotAvailable(f"{self.path}: no row for {label}")
        if spec.repeat < len(rows):
            return rows[spec.repeat]
        return random.Random(spec.repeat).choice(rows)  # noqa: S311 - a draw, not a secret


def read_replay_table(path: Path) -> ReplayTable:
    """Return the measurements of a file; ``BadInput`` names a row that cannot be replayed."""
    table = read_measurements(
        path, others=_OTHERS, required=(("gpus",), (*_TIMES, THROUGHPUT))
    ).checked()
    rows = []
    for row in table.rows:
        if row.failure is None:
            where = f"{path}: line {row.line}"
            try:
                rows.append(Row(where, _values(row, table.time_field)))
            except InvalidCell as error:
                raise BadInput(f"{where}: {error}") from None
    return ReplayTable(path, table.time_field, tuple(rows))


def _values(row: Measurement, time: str) -> dict[str, Any]:
    known = {**(row.setting or {}), **row.result}
    if unused := sorted(known.keys() - {*_COLUMNS}):
        allowed = join_names(_COLUMNS)
        raise InvalidCell(f"a replay does not use {join_names(unused)}; allowed: {allowed}")
    if not 1e-9 <= known.get(time, 0) <= _MOST:
        given = known.get(time, "missing")
        raise InvalidCell(f"{time} is {given}; allowed: seconds from 1e-9 to 1e9")
    known["global_batch"] = global_batch_of(known)
    for name in ("power_limit_w", "power_per_gpu_w"):
        if (watts := known.get(name)) and (fault := power_fault(name, "gpu", watts)):
            raise InvalidCell(fault)
    return known


class ReplayLauncher(Launcher):
    is_durable = False  # a replay can be repeated
    most_active = 200  # each has an open file, and a Ctrl-C waits for them

    def __init__(self, table: ReplayTable) -> None:
        self._table = table

    @classmethod
    def resolve(cls, study: Study) -> Study:
        """Fill in the hardware of the table, if that is of one kind only."""
        table, hardware = _read(study.launch), study.launch.hardware
        of_rows: set[Any] = {row.values.get("hardware") for row in table.rows}
        known = sorted(of_rows - {None})
        if hardware is None and len(known) == 1:
            hardware = known[0]
        if known and None not in of_rows and hardware not in known:
            raise BadInput(
                f"launch.hardware: given {hardware or 'nothing'}; allowed: the hardware of "
                f"{table.path}, one of {join_names(known)}"
            )
        workloads: set[Any] = {row.values.get("workload") for row in table.rows}
        for workload in study.workloads:
            if not workloads & {None, workload.name}:
                raise BadInput(
                    f"{table.path}: no rows of workload {workload.name}; the table has: "
                    f"{join_names(sorted(workloads))}"
                )
        launch = study.launch.model_copy(update={"hardware": hardware})
        return study.model_copy(update={"launch": launch})

    @classmethod
    def open(cls, launch: Launch, store: Path) -> Self:  # noqa: ARG003 - every store works
        return cls(_read(launch))

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        try:
            _windows(self._table, spec)
        except NotAvailable as error:
            return str(error)
        return None

    def start(
        self,
        record: RunRecord,
        folder: RunFolder,
        allocation: Allocation,  # noqa: ARG002 - a replay uses nothing
    ) -> "ReplayedAttempt":
        return ReplayedAttempt(_replay(self._table, record, folder))


@dataclass
class ReplayedAttempt:
    _record: RunRecord

    def poll(self) -> Ended:
        return Ended(record=self._record)

    def stop(self) -> None:
        return


def _read(launch: Launch) -> ReplayTable:
    if launch.table is None:
        raise BadInput("launch.table (or --table) is required; allowed: a .csv or .jsonl file")
    return read_replay_table(Path(launch.table))


def _dataset_samples(row: Row, spec: RunSpec) -> int | None:
    work = catalogue.work(spec.workload)
    of_workload = spec.workload.dataset_samples or (work.samples if work else None)
    samples: int | None = row.values.get("dataset_samples", of_workload)
    return samples


def _windows(table: ReplayTable, spec: RunSpec) -> list[dict[str, Any]]:
    """Return the columns of a run's windows; ``NotAvailable`` if the table does not have them."""
    row, measure, batch = table.row(spec), spec.measure, spec.global_batch
    samples, time_s = _dataset_samples(row, spec), row.values[table.time]
    steps = math.ceil(samples / batch) if samples and batch else None
    unit = "step" if measure.is_by_steps else "epoch"
    if table.time != f"{unit}_time_s":
        if steps is None:
            raise NotAvailable(
                f"{row.where}: the time of one {unit} does not follow from {table.time} alone; add "
                "dataset_samples to the table or to the workload"
            )
        time_s = time_s / steps if measure.is_by_steps else time_s * steps
    windows: list[dict[str, Any]] = [
        {"phase": "train", "epoch": epoch, "warmup": epoch < measure.warmup_epochs,
         "from_step": 0, "duration_s": time_s, "samples": samples, "steps": steps}
        for epoch in range(measure.epoch_count)
    ]  # fmt: skip
    if measure.is_by_steps:
        measured = measure.steps or math.ceil((measure.seconds or 0.0) / time_s)
        warmup = measure.warmup_steps
        windows = [
            {"phase": "steps", "warmup": begin < warmup, "from_step": begin, "steps": count,
             "duration_s": count * time_s, "samples": batch and count * batch}
            for begin, count in ((0, warmup), (warmup, measured))
            if count
        ]  # fmt: skip
    total_s = math.fsum(window["duration_s"] for window in windows)
    if total_s > _MOST or max(window["samples"] or 0 for window in windows) > _MOST_SAMPLES:
        raise NotAvailable(f"{row.where}: the run takes {total_s:.3g} s; allowed: up to 1e9 s")
    for window in windows:
        if (power_w := row.values.get("power_per_gpu_w")) is None:
            window |= {"energy_source": "none", "energy_verdict": "unavailable"}
        else:
            energy_j = spec.setting.gpus * power_w * window["duration_s"]
            window |= {"gpu_energy_j": energy_j, "gpu_power_mean_w": power_w,
                       "energy_source": "replayed", "energy_verdict": "ok"}  # fmt: skip
    return windows


def _replay(table: ReplayTable, record: RunRecord, folder: RunFolder) -> RunRecord:
    """Store a run that starts at the begin of the virtual clock; all nodes are one host."""
    spec, row = record.spec, table.row(record.spec)
    host = "replay0001" if spec.nodes == 1 else f"replay[0001-{spec.nodes:04d}]"
    rows, end_s = list[dict[str, Any]](), float(row.values.get("startup_s", 0.0))
    for window in _windows(table, spec):
        steps = window["steps"]
        parts = {name: row.values[name] for name in STEP_PARTS if name in row.values and steps}
        rows.append(
            {
                "run_id": record.run_id,
                "host": host,
                "interrupted": False,
                "start_ns": VIRTUAL_BEGIN_NS + round(end_s * 1e9),
                **window,
                "step_time_mean_s": window["duration_s"] / steps if steps else None,
                **{name: float(part_s * steps) for name, part_s in parts.items()},
            }
        )
        end_s += window["duration_s"]
    epochs = pa.Table.from_pylist(rows, schema=EPOCHS)
    write_parquet(folder.telemetry_path, TELEMETRY.empty_table(), durable=False)
    write_parquet(folder.epochs_path, epochs, durable=False)
    with folder.log_path.open("a", encoding="utf-8") as log:
        log.write(f"{log_head(record)}replayed from {row.where}\n")
    begin = datetime.fromtimestamp(VIRTUAL_BEGIN_NS // 10**9, UTC)
    changes = {
        "status": "done",
        "reason": None,
        "notes": (*record.notes, f"replayed from {table.path.name}: nothing was measured"),
        "facts": Facts(
            hosts=(host,),
            hardware=spec.hardware,
            dataset_samples=_dataset_samples(row, spec),
            world_size=spec.setting.gpus,
        ),
        "started_at": begin,
        "finished_at": begin + timedelta(seconds=end_s),
    }
    done = record.model_copy(update=changes)
    folder.write(done, durable=False)
    folder.remove_live_files()
    return done
