"""The launcher ``replay``: runs from a table of measurements made elsewhere, in no time.

A table has one measurement in each row. Its columns are fields of ``store.fields``, and a few more.
"""

import json
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import write_parquet
from wattlaw.common.text import join_names, quote
from wattlaw.measure.telemetry.plausibility import energy_fault, power_fault
from wattlaw.running.launcher import VIRTUAL_BEGIN_NS, Allocation, Ended, Launcher
from wattlaw.running.node_setup import log_head
from wattlaw.store.fields import (
    FIELDS,
    OPTION,
    OPTIONS,
    STEP_PARTS,
    Field,
    InvalidCell,
    global_batch_of,
    in_range,
)
from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.rows import Row, read_rows
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.study.labels import group_label
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study, WorkloadSpec
from wattlaw.workloads import catalogue

#: The columns of which a table has exactly one: the time of a sample, a step or an epoch.
TIMES = ("time_per_sample_s", "step_time_s", "epoch_time_s")
_ENERGIES = ("power_per_gpu_w", "energy_per_sample_j")
#: Columns that a setting has as well, and those among them that must be equal, "none" included.
_OF_RUN = ("workload", "hardware", "nodes", "global_batch", "precision")
_EXACT = ("gpus", "power_limit_w", "clock_limit_mhz")
_MOST = 1e9
_COLUMNS: Mapping[str, Field] = {
    **{name: FIELDS[name] for name in (*_EXACT, *_OF_RUN, "local_batch", *STEP_PARTS)},
    **dict.fromkeys(TIMES, in_range(1e-9, _MOST, "seconds from 1e-9 to 1e9")),
    **dict.fromkeys(_ENERGIES, in_range(0, _MOST, "a number > 0 and <= 1e9", above_low=True)),
    "startup_s": in_range(0, _MOST, "seconds from 0 to 1e9"),
    "dataset_samples": FIELDS["gpus"],  # a whole number in the same range
}
#: More seconds or samples than these do not fit the columns of a store.
_MOST_S, _MOST_SAMPLES = 1e9, 2**53


class Measurement(NamedTuple):
    """One row of a table: its line, its cells that are not empty, the options of its workload."""

    line: int
    values: Mapping[str, Any]
    options: Mapping[str, str]

    def fits(self, spec: RunSpec, options: Mapping[str, str]) -> bool:
        """Return whether this is of a run; a value that is unknown fits every run."""
        wanted = {
            "workload": spec.workload.name,
            "hardware": spec.hardware,
            "nodes": spec.nodes,
            "global_batch": spec.global_batch,
            "precision": spec.setting.precision,
        }
        return all(self.values.get(name) in (None, wanted[name]) for name in _OF_RUN) and all(
            options.get(name) == text for name, text in self.options.items()
        )


@dataclass(frozen=True)
class ReplayTable:
    """The measurements of a file in its order, and the name of its time column."""

    path: Path
    time: str
    unit: str  # what ``Measurement.line`` counts: ``line`` or ``row``
    rows: tuple[Measurement, ...]

    def names(self, column: str) -> set[Any]:
        return {row.values.get(column) for row in self.rows}

    def measurement(self, spec: RunSpec, options: Mapping[str, str]) -> Measurement | None:
        """Return the measurement that a run replays; None if its setting is not in the table.

        Repeat r gets row r of the setting. If there are fewer rows, one is drawn, seeded by r.
        """
        setting = spec.setting
        if setting.dataset_fraction != 1 or setting.emulated_gpus or setting.power_profile:
            return None  # tables have no such settings
        alike = self._by_limits[tuple(getattr(setting, name) for name in _EXACT)]
        rows = [row for row in alike if row.fits(spec, options)]
        if not rows:
            return None
        if spec.repeat < len(rows):
            return rows[spec.repeat]
        return random.Random(spec.repeat).choice(rows)  # noqa: S311 - a draw, not a secret

    @cached_property
    def _by_limits(self) -> Mapping[tuple[Any, ...], list[Measurement]]:
        groups: dict[tuple[Any, ...], list[Measurement]] = defaultdict(list)
        for row in self.rows:
            groups[tuple(row.values.get(name) for name in _EXACT)].append(row)
        return groups


def read_replay_table(path: Path) -> ReplayTable:
    """Return the measurements of a CSV, JSON-lines or Parquet file.

    Raises ``BadInput`` if the file cannot be read, has no rows or not the columns of such a table,
    or if a cell is invalid; the text names the row and the column.
    """
    table = read_rows(path)
    for name in table.columns:
        if name not in _COLUMNS and not (name.startswith(OPTIONS) and name != OPTIONS):
            allowed = ", ".join([*_COLUMNS, f"{OPTIONS}NAME"])
            raise BadInput(f"{path}: unknown column {quote(name)}; allowed: {allowed}")
    if not table.rows:
        raise BadInput(f"{path}: no rows; allowed: one row or more")
    if "gpus" not in table.columns:
        raise BadInput(f"{path}: no column gpus; the table has: {join_names(table.columns)}")
    times = [name for name in TIMES if name in table.columns]
    if len(times) != 1:
        given = join_names(times) or "none"
        raise BadInput(f"{path}: given {given}; allowed: exactly one of {', '.join(TIMES)}")
    if {*_ENERGIES} <= {*table.columns}:
        raise BadInput(f"{path}: given {' and '.join(_ENERGIES)}; allowed: one of them")
    rows = []
    for row in table.rows:
        try:
            rows.append(_measurement(row, times[0]))
        except InvalidCell as error:
            raise BadInput(f"{path}: {table.unit} {row.line}: {error}") from None
    return ReplayTable(path, times[0], table.unit, tuple(rows))


def _measurement(row: Row, time: str) -> Measurement:
    """Return the measurement of a row; ``InvalidCell`` if a cell is missing or invalid."""
    if row.fault is not None:
        raise InvalidCell(row.fault)
    values, options = dict[str, Any](), dict[str, str]()
    for name, cell in row.cells.items():
        if cell is None or (isinstance(cell, str) and not cell.strip()):
            continue
        if name.startswith(OPTIONS):
            options[name.removeprefix(OPTIONS)] = _option_text(OPTION.parse_cell(name, cell))
        else:
            values[name] = _COLUMNS[name].parse_cell(name, cell)
    for name in ("gpus", time):
        if name not in values:
            raise InvalidCell(f"{name} is missing")
    values["global_batch"] = global_batch_of(values)
    for name in ("power_limit_w", "power_per_gpu_w"):
        if (watts := values.get(name)) and (fault := power_fault(name, "gpu", watts)):
            raise InvalidCell(fault)
    samples = {"step_time_s": "global_batch", "epoch_time_s": "dataset_samples"}.get(time)
    count = 1 if samples is None else values.get(samples)
    sample_j = values.get("energy_per_sample_j")
    if sample_j is not None and count is not None:
        energy = {"gpu_energy_j": sample_j * count}
        if fault := energy_fault(energy, values[time], values["gpus"], values.get("nodes") or 1):
            raise InvalidCell(f"energy_per_sample_j is {sample_j:.4g}: {fault}")
    return Measurement(row.line, values, options)


def _option_text(value: object) -> str:
    """Return an option as text: 64, 64.0 and "64" are equal, and so are true and "True"."""
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        return str(float(text))
    except ValueError:
        return text.lower()


class ReplayLauncher(Launcher):
    """Takes the times and energies of runs from a table of measurements made elsewhere."""

    is_durable = False  # a replay can be repeated
    most_active = 200  # each has an open file, and a Ctrl-C waits for them

    def __init__(self, table: ReplayTable) -> None:
        self._table = table

    @classmethod
    def resolve(cls, study: Study) -> Study:
        """Return the study with the hardware of the table, if that is of one hardware only.

        Raises ``BadInput`` if the table cannot be read, has several kinds of hardware and the study
        names none of them, or has no row of a workload.
        """
        table, hardware = _read(study.launch), study.launch.hardware
        known = sorted(table.names("hardware") - {None})
        if hardware is None and len(known) == 1:
            hardware = known[0]
        if known and None not in table.names("hardware") and hardware not in known:
            raise BadInput(
                f"launch.hardware: given {hardware or 'nothing'}; allowed: the hardware of "
                f"{table.path}, one of {join_names(known)}"
            )
        workloads = table.names("workload")
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
        replayed = Replay.of(self._table, record.spec)
        done = replayed.write(record, folder, self._table)
        return ReplayedAttempt(Ended(record=done))


@dataclass
class ReplayedAttempt:
    """A run that has ended."""

    _ended: Ended

    def poll(self) -> Ended:
        return self._ended

    def stop(self) -> None:
        return


def _read(launch: Launch) -> ReplayTable:
    if launch.table is None:
        raise BadInput(
            "launch.table (or --table) is required; allowed: a .csv, .jsonl or .parquet file"
        )
    return read_replay_table(Path(launch.table))


class Window(NamedTuple):
    """An epoch or a block of steps; None is unknown."""

    duration_s: float
    samples: int | None
    steps: int | None


@dataclass(frozen=True)
class Replay:
    """A run as its table says: the row, the samples of the full data set, and the windows."""

    row: Measurement
    dataset_samples: int | None
    windows: tuple[Window, ...]

    @classmethod
    def of(cls, table: ReplayTable, spec: RunSpec) -> "Replay":
        """Return the replay of a run.

        Raises ``NotAvailable`` if the setting of the run is not in the table, if the time of a step
        or of an epoch does not follow from its row, or if a store cannot hold so long a run.
        """
        options, of_workload = _workload(spec.workload.model_dump_json())
        row = table.measurement(spec, options)
        measure, gpus, batch = spec.measure, spec.setting.gpus, spec.global_batch
        if row is None:
            known = {"gpus": gpus} | ({"global_batch": batch} if batch else {})
            setting = known | spec.setting.changed() | {"nodes": spec.nodes}
            named = {"workload": spec.workload.name, "hardware": spec.hardware}
            given = [f"{name} {value}" for name, value in spec.workload.options.items()]
            label = ", ".join(filter(None, [group_label(named | setting), *given]))
            raise NotAvailable(f"{table.path}: no row for {label}")
        where = f"{table.path}: {table.unit} {row.line}"
        samples: int | None = row.values.get("dataset_samples", of_workload)
        steps = math.ceil(samples / batch) if samples and batch else None
        step_s, epoch_s = _times_s(table.time, row.values[table.time], batch, samples, steps)
        unit, window_s = ("step", step_s) if measure.is_by_steps else ("epoch", epoch_s)
        if window_s is None:
            raise NotAvailable(
                f"{where}: the time of one {unit} does not follow from {table.time} alone; add "
                "dataset_samples to the table or to the workload"
            )
        windows = [Window(window_s, samples, steps)] * measure.epoch_count
        if measure.is_by_steps:
            measured = measure.steps or math.ceil((measure.seconds or 0.0) / window_s)
            windows = [
                Window(count * window_s, count * batch if batch else None, count)
                for count in (measure.warmup_steps, measured)
                if count
            ]
        total_s = math.fsum(window.duration_s for window in windows)
        if total_s > _MOST_S or max(window.samples or 0 for window in windows) > _MOST_SAMPLES:
            raise NotAvailable(f"{where}: the run takes {total_s:.3g} s; allowed: up to 1e9 s")
        replayed = cls(row, samples, tuple(windows))
        energy = replayed._energy(windows[0], gpus)
        if fault := energy_fault(energy, windows[0].duration_s, gpus, spec.nodes):
            raise NotAvailable(f"{where}: {fault}")
        return replayed

    def write(self, record: RunRecord, folder: RunFolder, table: ReplayTable) -> RunRecord:
        """Write the tables, the log and the record of a run, and return the record.

        The run starts at the begin of the virtual clock and ends after its startup and its windows.
        All nodes are one host.
        """
        spec = record.spec
        host = "replay0001" if spec.nodes == 1 else f"replay[0001-{spec.nodes:04d}]"
        startup_s = float(self.row.values.get("startup_s", 0.0))
        shared = {"run_id": record.run_id, "host": host, "interrupted": False}
        rows = [shared | row for row in self._rows(spec, startup_s)]
        epochs = pa.Table.from_pylist(rows, schema=EPOCHS)
        write_parquet(folder.telemetry_path, TELEMETRY.empty_table(), durable=False)
        write_parquet(folder.epochs_path, epochs, durable=False)
        with folder.log_path.open("a", encoding="utf-8") as log:
            log.write(log_head(record))
            log.write(f"replayed from {table.path}, {table.unit} {self.row.line}\n")
        facts = Facts(
            hosts=(host,),
            hardware=spec.hardware,
            dataset_samples=self.dataset_samples,
            world_size=spec.setting.gpus,
        )
        end_s = startup_s + math.fsum(window.duration_s for window in self.windows)
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

    def _rows(self, spec: RunSpec, start_s: float) -> Iterator[dict[str, Any]]:
        measure, from_step = spec.measure, 0
        for index, window in enumerate(self.windows):
            duration_s, steps = window.duration_s, window.steps
            row = {
                "start_ns": VIRTUAL_BEGIN_NS + round(start_s * 1e9),
                **window._asdict(),
                "step_time_mean_s": duration_s / steps if steps else None,
                **self._energy(window, spec.setting.gpus),
            }
            for name in STEP_PARTS:
                if steps is not None and (part_s := self.row.values.get(name)) is not None:
                    row[name] = float(part_s * steps)
            if measure.is_by_steps:
                is_warmup = from_step < measure.warmup_steps
                yield row | {"phase": "steps", "warmup": is_warmup, "from_step": from_step}
                from_step += steps or 0
            else:
                is_warmup = index < measure.warmup_epochs
                yield row | {"phase": "train", "epoch": index, "warmup": is_warmup, "from_step": 0}
            start_s += duration_s

    def _energy(self, window: Window, gpus: int) -> dict[str, Any]:
        power_w = self.row.values.get("power_per_gpu_w")
        sample_j = self.row.values.get("energy_per_sample_j")
        if power_w is not None:
            energy_j = gpus * power_w * window.duration_s
        elif sample_j is not None and window.samples is not None:
            energy_j = sample_j * window.samples
        else:
            return {"energy_source": "none", "energy_verdict": "unavailable"}
        return {
            "gpu_energy_j": energy_j,
            "gpu_power_mean_w": energy_j / (gpus * window.duration_s),
            "energy_source": "replayed",
            "energy_verdict": "ok",
        }


def _times_s(
    name: str, time_s: float, batch: int | None, samples: int | None, steps: int | None
) -> tuple[float | None, float | None]:
    """Return the times of a step and of an epoch of so many samples and steps; None is unknown."""
    if name == "time_per_sample_s":
        return batch and time_s * batch, samples and time_s * samples
    if name == "step_time_s":
        return time_s, steps and time_s * steps
    return steps and time_s / steps, time_s


@cache  # thousands of runs share a workload
def _workload(text: str) -> tuple[Mapping[str, str], int | None]:
    """Return the options of a workload, with defaults, and its samples of an epoch if known."""
    spec = WorkloadSpec.model_validate_json(text)
    options = spec.options
    if catalogue.is_registered(spec):
        options = catalogue.validated(spec).model_dump(mode="json")
    work = catalogue.work(spec)
    samples = spec.dataset_samples or (work.samples if work else None)
    return {name: _option_text(value) for name, value in options.items()}, samples
