"""The launcher ``replay``: each run is ready when it is started, from one measurement."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import write_parquet
from wattlaw.common.formatting import group_label
from wattlaw.common.text import join_names
from wattlaw.measure.telemetry.plausibility import energy_fault
from wattlaw.run.launcher import Ended, Examination, Launcher
from wattlaw.run.node_setup import log_head
from wattlaw.run.replay.table import Measurement, ReplayTable, option_text, read_replay_table
from wattlaw.store.fields import STEP_PARTS
from wattlaw.store.record import Facts, RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.schema import EPOCHS, TELEMETRY
from wattlaw.study.launching import Launch
from wattlaw.study.model import RunSpec, Study, WorkloadSpec
from wattlaw.workloads import catalogue
from wattlaw_simulator.launching.launcher import Allocation
from wattlaw_simulator.launching.tables import BEGIN_NS

#: Active runs: each has an open file, and a Ctrl-C waits for them.
_IN_FLIGHT = 200
#: More seconds or samples than these do not fit the columns of a store.
_MOST_S, _MOST_SAMPLES = 1e9, 2**53
_BEGIN = datetime.fromtimestamp(BEGIN_NS // 10**9, UTC)


class ReplayLauncher(Launcher):
    """Takes the times and energies of runs from a table of measurements made elsewhere."""

    is_durable = False  # a replay can be repeated

    def __init__(self, table: ReplayTable) -> None:
        self._table = table
        self._allocated: set[Allocation] = set()

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
        """Read the table; raise ``BadInput`` if it is invalid."""
        return cls(_read(launch))

    @classmethod
    def examine(cls, launch: Launch) -> Examination:
        """Return why runs are skipped."""
        return Examination(cls(_read(launch)).unsupported_reason)

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        """Return why the table has no time of a run, or None."""
        try:
            Replay.of(self._table, spec)
        except NotAvailable as error:
            return str(error)
        return None

    def allocate(self, spec: RunSpec) -> Allocation | None:  # noqa: ARG002 - all runs are alike
        """Return an allocation while few runs are active."""
        return Allocation(self._allocated) if len(self._allocated) < _IN_FLIGHT else None

    def start(
        self, record: RunRecord, folder: RunFolder, allocation: Allocation
    ) -> "ReplayedAttempt":
        """Write the results of a run."""
        return ReplayedAttempt(replay(self._table, record, folder), allocation)


class ReplayedAttempt:
    """A run that has ended."""

    def __init__(self, record: RunRecord, allocation: Allocation) -> None:
        self._record, self._allocation = record, allocation

    def poll(self) -> Ended:
        """Return the record of the run."""
        self._allocation.release()
        return Ended(record=self._record)

    def stop(self) -> None:
        """Release the allocation; the run has ended."""
        self._allocation.release()


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
        if row is None:
            raise NotAvailable(f"{table.path}: no row for {_label(spec)}")
        measure, batch = spec.measure, spec.global_batch
        samples: int | None = row.values.get("dataset_samples", of_workload)
        steps = math.ceil(samples / batch) if samples and batch else None
        step_s, epoch_s = _times_s(table.time, row.time_s, batch, samples, steps)
        unit, window_s = ("step", step_s) if measure.is_by_steps else ("epoch", epoch_s)
        where = f"{table.path}: {table.unit} {row.line}"
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
        replayed, gpus = cls(row, samples, tuple(windows)), spec.setting.gpus
        energy = replayed._energy(windows[0], gpus)
        if fault := energy_fault(energy, windows[0].duration_s, gpus, spec.nodes):
            raise NotAvailable(f"{where}: {fault}")
        return replayed

    @property
    def startup_s(self) -> float:
        """Return the time before the first window; 0 where it is unknown."""
        return float(self.row.values.get("startup_s", 0.0))

    @property
    def end_s(self) -> float:
        """Return the time from the start of the run to its end."""
        return self.startup_s + math.fsum(window.duration_s for window in self.windows)

    def epochs(self, run_id: str, spec: RunSpec) -> pa.Table:
        """Return the windows with the schema ``EPOCHS``: all nodes of a run are one host."""
        shared = {"run_id": run_id, "host": _host(spec), "interrupted": False}
        rows = [shared | row for row in self._rows(spec)]
        return pa.Table.from_pylist(rows, schema=EPOCHS)

    def _rows(self, spec: RunSpec) -> Iterator[dict[str, Any]]:
        measure, start_s, from_step = spec.measure, self.startup_s, 0
        for index, window in enumerate(self.windows):
            row = {
                "start_ns": BEGIN_NS + round(start_s * 1e9),
                **window._asdict(),
                "step_time_mean_s": window.duration_s / window.steps if window.steps else None,
                **{name: self._total_s(window, name) for name in STEP_PARTS},
                **self._energy(window, spec.setting.gpus),
            }
            if measure.is_by_steps:
                is_warmup = from_step < measure.warmup_steps
                yield row | {"phase": "steps", "warmup": is_warmup, "from_step": from_step}
                from_step += window.steps or 0
            else:
                is_warmup = index < measure.warmup_epochs
                yield row | {"phase": "train", "epoch": index, "warmup": is_warmup, "from_step": 0}
            start_s += window.duration_s

    def _total_s(self, window: Window, part: str) -> float | None:
        step_s = self.row.values.get(part)
        return None if step_s is None or window.steps is None else float(step_s * window.steps)

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


def replay(table: ReplayTable, record: RunRecord, folder: RunFolder) -> RunRecord:
    """Write the tables, the log and the record of a run, and return the record.

    The run starts at the begin of the virtual clock and ends after its startup and its windows.
    Raises ``NotAvailable`` as ``Replay.of`` does.
    """
    spec = record.spec
    replayed = Replay.of(table, spec)
    write_parquet(folder.telemetry_path, TELEMETRY.empty_table(), durable=False)
    write_parquet(folder.epochs_path, replayed.epochs(record.run_id, spec), durable=False)
    with folder.log_path.open("a", encoding="utf-8") as log:
        log.write(log_head(record))
        log.write(f"replayed from {table.path}, {table.unit} {replayed.row.line}\n")
    facts = Facts(
        hosts=(_host(spec),),
        hardware=spec.hardware,
        dataset_samples=replayed.dataset_samples,
        world_size=spec.setting.gpus,
    )
    notes = (*record.notes, f"replayed from {table.path.name}: nothing was measured")
    changes = {"status": "done", "reason": None, "notes": notes, "facts": facts}
    end = _BEGIN + timedelta(seconds=replayed.end_s)
    done = record.model_copy(update=changes | {"started_at": _BEGIN, "finished_at": end})
    folder.write(done, durable=False)
    folder.remove_live_files()
    return done


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
    return {name: option_text(value) for name, value in options.items()}, samples


def _host(spec: RunSpec) -> str:
    return "replay0001" if spec.nodes == 1 else f"replay[0001-{spec.nodes:04d}]"


def _label(spec: RunSpec) -> str:
    """Return the setting of a run as text."""
    setting = spec.setting.changed() | {"nodes": spec.nodes}
    named = {"workload": spec.workload.name, "hardware": spec.hardware}
    options = ", ".join(f"{name} {value}" for name, value in spec.workload.options.items())
    return ", ".join(filter(None, [group_label(named | setting), options]))
