"""The launcher ``replay``: runs from a table of measurements made elsewhere, in no time."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import write_parquet
from wattlaw.common.text import join_names
from wattlaw.measure.telemetry.plausibility import energy_fault, power_fault
from wattlaw.running.launcher import VIRTUAL_BEGIN_NS, Allocation, Ended, Launcher
from wattlaw.running.node_setup import log_head
from wattlaw.store.fields import (
    FIELDS,
    OPTIONS,
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
from wattlaw.study.model import RunSpec, Study, WorkloadSpec
from wattlaw.workloads import catalogue

#: The times of a sample, a step or an epoch, of which a table has one, and its energies.
TIMES = ("time_per_sample_s", "step_time_s", "epoch_time_s")
_ENERGIES = ("power_per_gpu_w", "energy_per_sample_j")
#: Columns that must be equal to a run's setting: "none" included, and where they are known.
_EXACT = ("gpus", "power_limit_w", "clock_limit_mhz")
_IF_KNOWN = ("workload", "hardware", "nodes", "global_batch", "precision")
#: More seconds or samples than these do not fit the columns of a store.
_MOST, _MOST_SAMPLES = 1e9, 2**53
#: Columns that an import does not have.
_OTHERS: Mapping[str, Field] = {
    "time_per_sample_s": in_range(1e-9, _MOST, "seconds from 1e-9 to 1e9"),
    **dict.fromkeys(_ENERGIES, in_range(0, _MOST, "a number > 0 and <= 1e9", above_low=True)),
    "startup_s": in_range(0, _MOST, "seconds from 0 to 1e9"),
    "dataset_samples": FIELDS["gpus"],  # a whole number in the same range
}
_COLUMNS = (
    *(*_EXACT, *_IF_KNOWN, "local_batch", *STEP_PARTS, *TIMES[1:], THROUGHPUT, TOKENS),
    *_OTHERS,
)


class Row(NamedTuple):
    line: int
    values: Mapping[str, Any]
    options: Mapping[str, str]


@dataclass(frozen=True)
class ReplayTable:
    """The measurements of a file in its order; ``time`` is one of ``TIMES``."""

    path: Path
    time: str
    rows: tuple[Row, ...]

    @cached_property
    def _by_limits(self) -> Mapping[tuple[Any, ...], list[Row]]:
        groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
        for row in self.rows:
            groups[tuple(row.values.get(name) for name in _EXACT)].append(row)
        return groups

    def row(self, spec: RunSpec, options: Mapping[str, str]) -> Row | None:
        """Return the row that a run replays; None if its setting is not in the table.

        Repeat r gets row r of the setting. If there are fewer rows, one is drawn, seeded by r.
        """
        setting = spec.setting
        if setting.dataset_fraction != 1 or setting.emulated_gpus or setting.power_profile:
            return None  # tables have no such settings
        of_run = {
            "workload": spec.workload.name,
            "hardware": spec.hardware,
            "nodes": spec.nodes,
            "global_batch": spec.global_batch,
            "precision": setting.precision,
        }
        rows = [
            row
            for row in self._by_limits[tuple(getattr(setting, name) for name in _EXACT)]
            if all(row.values.get(name) in (None, value) for name, value in of_run.items())
            and row.options.items() <= options.items()
        ]
        if spec.repeat < len(rows):
            return rows[spec.repeat]
        draw = random.Random(spec.repeat)  # noqa: S311 - a draw, not a secret
        return draw.choice(rows) if rows else None


def read_replay_table(path: Path) -> ReplayTable:
    """Return the measurements of a file; ``BadInput`` names a row that cannot be replayed."""
    table = read_measurements(
        path, others=_OTHERS, required=(("gpus",), (*TIMES, THROUGHPUT))
    ).checked()
    times = [name for name in TIMES if any(name in row.result for row in table.rows)]
    if len(times) != 1:
        raise BadInput(f"{path}: given {join_names(times)}; allowed: one of {join_names(TIMES)}")
    rows = []
    for row in table.rows:
        if row.failure is not None:
            continue
        try:
            rows.append(_row(row, times[0]))
        except InvalidCell as error:
            raise BadInput(f"{path}: line {row.line}: {error}") from None
    return ReplayTable(path, times[0], tuple(rows))


def _row(row: Measurement, time: str) -> Row:
    known = {**(row.setting or {}), **row.result}
    options = {
        name.removeprefix(OPTIONS): _option_text(known.pop(name))
        for name in [*known]
        if name.startswith(OPTIONS)
    }
    if not known.keys() <= {*_COLUMNS}:
        unused = join_names(sorted(known.keys() - {*_COLUMNS}))
        raise InvalidCell(f"a replay does not use {unused}; allowed: {join_names(_COLUMNS)}")
    if not 1e-9 <= known.get(time, 0) <= _MOST:
        given = known.get(time, "missing")
        raise InvalidCell(f"{time} is {given}; allowed: seconds from 1e-9 to 1e9")
    if {*_ENERGIES} <= known.keys():
        raise InvalidCell(f"given {' and '.join(_ENERGIES)}; allowed: one of them")
    known["global_batch"] = global_batch_of(known)
    for name in ("power_limit_w", "power_per_gpu_w"):
        if (watts := known.get(name)) and (fault := power_fault(name, "gpu", watts)):
            raise InvalidCell(fault)
    of_time = {"step_time_s": "global_batch", "epoch_time_s": "dataset_samples"}.get(time)
    samples = known.get(of_time) if of_time else 1
    sample_j = known.get("energy_per_sample_j")
    if sample_j is not None and samples is not None:
        energy = {"gpu_energy_j": sample_j * samples}
        if fault := energy_fault(energy, known[time], known["gpus"], known.get("nodes") or 1):
            raise InvalidCell(f"energy_per_sample_j is {sample_j:.4g}: {fault}")
    return Row(row.line, known, options)


def _option_text(value: object) -> str:
    """Return an option as text: 64, 64.0 and "64" are equal, and so are true and "True"."""
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        return str(float(text))
    except ValueError:
        return text.lower()


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
            Replay.of(self._table, spec)
        except NotAvailable as error:
            return str(error)
        return None

    def start(
        self,
        record: RunRecord,
        folder: RunFolder,
        allocation: Allocation,  # noqa: ARG002 - a replay uses nothing
    ) -> "ReplayedAttempt":
        return ReplayedAttempt(Replay.of(self._table, record.spec).write(record, folder))


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


@dataclass(frozen=True)
class Replay:
    table: ReplayTable
    row: Row
    dataset_samples: int | None
    windows: tuple[Mapping[str, Any], ...]  # columns of ``epochs.parquet``

    @classmethod
    def of(cls, table: ReplayTable, spec: RunSpec) -> "Replay":
        """``NotAvailable`` if the table has no row of the setting, or its time does not suffice."""
        options, of_workload = _workload(spec.workload.model_dump_json())
        row, measure, batch = table.row(spec, options), spec.measure, spec.global_batch
        if row is None:
            known: dict[str, Any] = {"workload": spec.workload.name, "hardware": spec.hardware}
            known |= {"gpus": spec.setting.gpus} | ({"global_batch": batch} if batch else {})
            label = group_label(known | spec.setting.changed() | {"nodes": spec.nodes})
            given = [f"{name} {value}" for name, value in spec.workload.options.items()]
            raise NotAvailable(f"{table.path}: no row for {', '.join([label, *given])}")
        where = f"{table.path}: line {row.line}"
        samples: int | None = row.values.get("dataset_samples", of_workload)
        steps = math.ceil(samples / batch) if samples and batch else None
        unit = "step" if measure.is_by_steps else "epoch"
        time_s = _time_s(unit, table.time, row.values[table.time], batch, samples, steps)
        if time_s is None:
            raise NotAvailable(
                f"{where}: the time of one {unit} does not follow from {table.time} alone; add "
                "dataset_samples to the table or to the workload"
            )
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
            raise NotAvailable(f"{where}: the run takes {total_s:.3g} s; allowed: up to 1e9 s")
        for window in windows:
            window.update(_energy(row, window["duration_s"], window["samples"]))
        first = windows[0]
        if fault := energy_fault(first, first["duration_s"], spec.setting.gpus, spec.nodes):
            raise NotAvailable(f"{where}: {fault}")
        return cls(table, row, samples, tuple(windows))

    def write(self, record: RunRecord, folder: RunFolder) -> RunRecord:
        """The run starts at the begin of the virtual clock; all nodes are one host."""
        spec, table, values = record.spec, self.table, self.row.values
        host = "replay0001" if spec.nodes == 1 else f"replay[0001-{spec.nodes:04d}]"
        startup_s = float(values.get("startup_s", 0.0))
        rows, begin_s = list[dict[str, Any]](), startup_s
        for window in self.windows:
            steps = window["steps"]
            parts = {name: values[name] for name in STEP_PARTS if name in values and steps}
            rows.append(
                {
                    "run_id": record.run_id,
                    "host": host,
                    "interrupted": False,
                    "start_ns": VIRTUAL_BEGIN_NS + round(begin_s * 1e9),
                    **window,
                    "step_time_mean_s": window["duration_s"] / steps if steps else None,
                    **{name: float(part_s * steps) for name, part_s in parts.items()},
                }
            )
            begin_s += window["duration_s"]
        end_s = startup_s + math.fsum(window["duration_s"] for window in self.windows)
        epochs = pa.Table.from_pylist(rows, schema=EPOCHS)
        write_parquet(folder.telemetry_path, TELEMETRY.empty_table(), durable=False)
        write_parquet(folder.epochs_path, epochs, durable=False)
        with folder.log_path.open("a", encoding="utf-8") as log:
            log.write(log_head(record))
            log.write(f"replayed from {table.path}, line {self.row.line}\n")
        facts = Facts(
            hosts=(host,),
            hardware=spec.hardware,
            dataset_samples=self.dataset_samples,
            world_size=spec.setting.gpus,
        )
        begin = datetime.fromtimestamp(VIRTUAL_BEGIN_NS // 10**9, UTC)
        changes = {
            "status": "done",
            "reason": None,
            "notes": (*record.notes, f"replayed from {table.path.name}: nothing was measured"),
            "facts": facts,
            "started_at": begin,
            "finished_at": begin + timedelta(seconds=end_s),
        }
        done = record.model_copy(update=changes)
        folder.write(done, durable=False)
        folder.remove_live_files()
        return done


def _time_s(
    unit: str, name: str, time_s: float, batch: int | None, samples: int | None, steps: int | None
) -> float | None:
    if name == "time_per_sample_s":
        count = batch if unit == "step" else samples
        return count and time_s * count
    if name == f"{unit}_time_s":
        return time_s
    return steps and (time_s / steps if unit == "step" else time_s * steps)


def _energy(row: Row, duration_s: float, samples: int | None) -> dict[str, Any]:
    gpus, power_w = row.values["gpus"], row.values.get("power_per_gpu_w")
    sample_j = row.values.get("energy_per_sample_j")
    if power_w is not None:
        energy_j = gpus * power_w * duration_s
    elif sample_j is not None and samples is not None:
        energy_j = sample_j * samples
    else:
        return {"energy_source": "none", "energy_verdict": "unavailable"}
    return {
        "gpu_energy_j": energy_j,
        "gpu_power_mean_w": energy_j / (gpus * duration_s),
        "energy_source": "replayed",
        "energy_verdict": "ok",
    }


@cache  # thousands of runs share a workload
def _workload(text: str) -> tuple[Mapping[str, str], int | None]:
    spec = WorkloadSpec.model_validate_json(text)
    options = spec.options
    if catalogue.is_registered(spec):
        options = catalogue.validated(spec).model_dump(mode="json")
    work = catalogue.work(spec)
    samples = spec.dataset_samples or (work.samples if work else None)
    return {name: _option_text(value) for name, value in options.items()}, samples
