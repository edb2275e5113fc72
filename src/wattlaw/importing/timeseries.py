"""Time series of devices as telemetry, and the windows and runs that are made of them.

Energies of windows come from the code that computes those of our own measurements, so that they
have the same verdicts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.devices.meter import Facts
from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Mark, Options, Readings
from wattlaw.importing.reading import MAX_READINGS
from wattlaw.importing.runs import EPOCHS_MEASURE, STEPS_MEASURE, RunMaker, single_run
from wattlaw.store.imports import ImportedRun
from wattlaw.store.record import Facts as RunFacts
from wattlaw.store.record import RunRecord, Site
from wattlaw.store.schema import SAMPLES, TELEMETRY, WINDOWS
from wattlaw.study.base import MAX_COUNT
from wattlaw.study.model import Measure
from wattlaw.telemetry.device_energy import MIN_COVERAGE
from wattlaw.telemetry.energy import energy_of_windows
from wattlaw.text import join_names

#: Readings this long before and after a run's windows are kept with it.
_MARGIN_NS = 10 * 10**9
#: A GPU is active from this utilisation on, or else from this share of its range of power.
_ACTIVE_UTIL, _ACTIVE_POWER = 0.1, 0.25
#: The range of power of a GPU that is idle and busy, relative to its greatest power.
_MIN_RANGE = 0.3
#: Shorter pauses do not end an active phase; shorter phases are none.
_PAUSE_S, _PHASE_S = 10, 10


class SampleRows:
    """Collects the readings of a file by column."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._columns: dict[str, list[Any]] = {name: [] for name in SAMPLES.names}
        self.facts: dict[tuple[str, str], dict[str, Any]] = {}
        self.names: set[str] = set()  # of the GPUs

    def __len__(self) -> int:
        return len(self._columns["t_ns"])

    def add(
        self, host: str, device: str, kind: str, t_ns: int, values: Mapping[str, float | None]
    ) -> None:
        """Add a reading; it has no others than ``values``, columns of ``store.schema.SAMPLES``."""
        if len(self) >= MAX_READINGS:
            raise BadInput(f"{self._path}: more than {MAX_READINGS:,} readings")
        row = {"host": host, "device": device, "kind": kind, "t_ns": t_ns, **values}
        if row.get("power_w") is not None or row.get("energy_j") is not None:
            row["power_source"] = "measured"
        for name, column in self._columns.items():
            column.append(row.get(name))

    def readings(self, left_out: Sequence[str] = ()) -> Readings:
        """Return the readings; raise ``BadInput`` if there are none, with what was left out."""
        if not len(self):
            why = "; ".join(("no reading with a time and a value", *left_out[:3]))
            raise BadInput(f"{self._path}: {why}")
        columns = {field.name: pa.array(self._columns[field.name], field.type) for field in SAMPLES}
        samples = pa.table(columns, schema=SAMPLES)
        hardware = next(iter(self.names)) if len(self.names) == 1 else None
        return Readings(samples, self.facts, hardware)


#: The first phase whose pattern is in a name: ``val_epoch`` is an evaluation, ``train_step`` a step.
_PHASES = (
    ("evaluate", re.compile(r"eval|valid|(?<![a-z])(?:val|test(?:ing)?)(?![a-z])", re.IGNORECASE)),
    ("steps", re.compile(r"step|iter(?!at(?:ed|ive))|batch(?!.?size)", re.IGNORECASE)),
    ("train", re.compile(r"epoch|train", re.IGNORECASE)),
)


def describe(kind: str, readings: Readings, options: Options | None = None) -> str:
    """Return what a time series is: ``nvidia-smi log: 2 GPUs, 1,204 readings over 20 min``."""
    samples = readings.samples
    gpus = gpus_of(samples)
    others = samples.group_by(["host", "device"]).aggregate([]).num_rows - len(gpus)
    devices = [f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"] if gpus else []
    devices += [f"{others} other device{'s' * (others != 1)}"] if others else []
    zone = "" if options is None else f", times in {options.zone_note}"
    return f"{kind}: {', '.join(devices)}, {len(samples):,} readings over {_span(samples)}{zone}"


def _span(samples: pa.Table) -> str:
    bounds = pc.min_max(samples["t_ns"]).as_py()
    seconds = (bounds["max"] - bounds["min"]) * 1e-9
    return f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.4g} min"


def gpus_of(samples: pa.Table) -> list[tuple[str, str]]:
    """Return host and device of each GPU."""
    gpus = samples.filter(pc.field("kind") == "gpu").group_by(["host", "device"]).aggregate([])
    return [(row["host"], row["device"]) for row in gpus.to_pylist()]


def assemble(
    parts: Sequence[tuple[Path, Imported]], options: Options
) -> tuple[list[ImportedRun], list[str]]:
    """Return the runs of several files, and lines that say how windows were marked.

    Readings get the windows of runs from other files, else those of marks, else their active
    phases. Raises ``BadInput`` if files do not fit together.
    """
    runs = [run for _, part in parts for run in part.runs]
    marks = [*options.windows, *(mark for _, part in parts for mark in part.marks)]
    series = [(path, part.readings) for path, part in parts if part.readings is not None]
    if not series:
        if marks:
            raise BadInput("windows without a time series: name the file of the readings too")
        return runs, []
    path, readings = series[0][0], _selected(_combined([each for _, each in series]), options)
    if runs:
        return _attached(path, runs, readings)
    if not marks:
        marks, how = _active_phases(readings.samples)
    else:
        how = f"{len(marks)} windows, as marked"
    return [_run_of_marks(path, marks, readings, options)], [f"{path.name}: {how}"]


def _combined(series: Sequence[Readings]) -> Readings:
    facts: dict[tuple[str, str], Facts] = {}
    for each in series:
        for key, known in each.facts.items():
            facts[key] = {**facts.get(key, {}), **known}
    names = {each.hardware for each in series if each.hardware}
    samples = pa.concat_tables([each.samples for each in series])
    return Readings(samples, facts, next(iter(names)) if len(names) == 1 else None)


def _selected(readings: Readings, options: Options) -> Readings:
    """Return the readings of the devices that the user names."""
    if not options.devices:
        return readings
    known = pc.unique(readings.samples["device"]).to_pylist()
    for device in options.devices:
        if device not in known:
            raise BadInput(f"--device: no {device!r}; the readings have: {join_names(known)}")
    samples = readings.samples.filter(
        pc.is_in(readings.samples["device"], pa.array(options.devices))
    )
    return replace(readings, samples=samples)


def _attached(
    path: Path, runs: Sequence[ImportedRun], readings: Readings
) -> tuple[list[ImportedRun], list[str]]:
    """Return runs from other files with the energy and the readings of their windows."""
    attached, count = [], 0
    for run in runs:
        timed = [row for row in run.windows if row.get("start_ns") is not None]
        if not timed:
            raise BadInput(
                f"{path}: the windows of the other file have no times since 1970, so its readings "
                "cannot be assigned to them"
            )
        rows, telemetry = measured(run.record.run_id, run.windows, readings)
        count += len(timed) if len(telemetry) else 0
        record = run.record
        if (site := _node_energy(record, readings)) is not None:
            record = record.model_copy(update={"site": site})
        attached.append(
            ImportedRun(record=record, windows=rows, telemetry=telemetry, line=run.line)
        )
    if not count:
        raise BadInput(f"{path}: no reading is within a window of the other file")
    return attached, [f"{path.name}: energy of {count} windows from the other file"]


def _node_energy(record: RunRecord, readings: Readings) -> Site | None:
    """Return the energy of a run's nodes; each reading counts for the time since the one before.

    This is the rule of MLPerf Training; the sum is scaled to the time of the run. None if the run
    has no times, or the readings do not cover it.
    """
    nodes = readings.samples.filter(pc.field("kind") == "node")
    if record.started_at is None or record.finished_at is None or not len(nodes):
        return None
    start_ns, end_ns = (
        round(moment.timestamp() * 1e6) * 1000 for moment in (record.started_at, record.finished_at)
    )
    total_j, hosts = 0.0, pc.unique(nodes["host"]).to_pylist()
    for host in hosts:
        own = nodes.filter(pc.field("host") == host).sort_by("t_ns")
        t_ns, power_w = own["t_ns"].to_numpy(), own["power_w"].to_numpy()
        since_ns = np.concatenate([t_ns[:1], t_ns[:-1]])
        counted_ns = np.clip(np.minimum(t_ns, end_ns) - np.maximum(since_ns, start_ns), 0, None)
        covered_ns = int(counted_ns.sum())
        if covered_ns < MIN_COVERAGE * (end_ns - start_ns):
            return None
        energy_j = float((power_w * counted_ns).sum()) * 1e-9
        total_j += energy_j * (end_ns - start_ns) / covered_ns
    return Site(
        scheduler="none",
        nodes=tuple(hosts),
        energy_j=total_j,
        energy_source="power log of the nodes",
        energy_scope="node",
        energy_start_at=record.started_at,
        energy_end_at=record.finished_at,
    )


def _run_of_marks(
    path: Path, marks: Sequence[Mark], readings: Readings, options: Options
) -> ImportedRun:
    gpus = gpus_of(readings.samples)
    wanted = options.constants.get("gpus", len(gpus))
    if gpus and wanted != len(gpus):
        raise BadInput(
            f"{path}: readings of {len(gpus)} GPUs; --map says gpus=@{wanted}; name the devices of "
            "the run with --device"
        )
    hosts = len(pc.unique(readings.samples["host"]))
    values: dict[str, Any] = {"gpus": len(gpus)} if gpus else {}
    values |= {"hardware": readings.hardware} if readings.hardware else {}
    values |= {"nodes": hosts} if hosts > 1 else {}
    rows: list[dict[str, Any]] = []
    for mark in sorted(marks, key=lambda mark: mark.start_ns):
        if mark.end_ns <= mark.start_ns:
            raise BadInput("a window ends before it starts")
        duration_s = (mark.end_ns - mark.start_ns) * 1e-9
        edges = {"phase": mark.phase, "start_ns": mark.start_ns, "duration_s": duration_s}
        rows.append({**edges, **mark.columns})
    epoch = 0
    for row in rows:
        if row["phase"] == "train":
            epoch = row.setdefault("epoch", epoch) + 1
    run = single_run(path, RunMaker(path, options), values, rows, measure_of(rows))
    windows, telemetry = measured(run.record.run_id, run.windows, readings)
    return ImportedRun(record=run.record, windows=windows, telemetry=telemetry)


def run_of_training(
    path: Path,
    options: Options,
    windows: Sequence[Mapping[str, Any]],
    metrics: Iterable[str],
    notes: Iterable[str] = (),
) -> ImportedRun:
    """Return the run of one training; of the names of its metrics, the first is the run's."""
    facts, measure = RunFacts(metric=min(metrics, default=None)), measure_of(windows)
    maker = RunMaker(path, options)
    return single_run(path, maker, {}, windows, measure, facts=facts, notes=notes)


def phase_of(name: str) -> str:
    """Return the phase of a window that a user has named: ``epoch`` is one of training."""
    known = (phase for phase, pattern in _PHASES if pattern.search(name))
    clean = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:50]
    return next(known, clean or "window")


def measure_of(windows: Iterable[Mapping[str, Any]]) -> Measure:
    """Return what was measured, from the phases of the windows."""
    rows = list(windows)
    epochs = {row.get("epoch") for row in rows if row["phase"] == "train"}
    if epochs:
        return Measure(epochs=min(len(epochs), 100_000), warmup_epochs=0)
    if any(row["phase"] == "steps" for row in rows):
        steps = sum(row.get("steps") or 0 for row in rows if row["phase"] == "steps")
        return STEPS_MEASURE.model_copy(update={"steps": min(max(steps, 1), MAX_COUNT)})
    return EPOCHS_MEASURE


def measured(
    run_id: str, windows: Sequence[Mapping[str, Any]], readings: Readings
) -> tuple[list[dict[str, Any]], pa.Table]:
    """Return a run's windows, one row for each host, with their energy; and its telemetry.

    A window that has an energy keeps it.
    """
    samples = _around(windows, readings.samples)
    hosts = pc.unique(samples["host"]).to_pylist()
    rows = []
    for window in windows:
        for host in hosts or [window["host"]]:
            row = {**window, "host": host}
            if row.get("samples") is not None and len(hosts) > 1:
                share, rest = divmod(row["samples"], len(hosts))
                row["samples"] = share + (hosts.index(host) < rest)
            rows.append(row)
    places = [
        index for index, row in enumerate(rows)
        if row.get("start_ns") is not None and row["energy_source"] == "none"
    ]  # fmt: skip
    table = pa.Table.from_pylist([rows[index] for index in places], schema=WINDOWS)
    energies = energy_of_windows(table, samples, readings.facts).to_pylist()
    for index, energy in zip(places, energies, strict=True):
        rows[index] |= energy
    ids = pa.array([run_id], pa.string()).take(pa.array(np.zeros(len(samples), np.int64)))
    return rows, samples.add_column(0, TELEMETRY.field(0), ids)


def _around(windows: Sequence[Mapping[str, Any]], samples: pa.Table) -> pa.Table:
    timed = [row for row in windows if row.get("start_ns") is not None]
    start_ns = min(row["start_ns"] for row in timed) - _MARGIN_NS
    end_ns = max(row["start_ns"] + int(row["duration_s"] * 1e9) for row in timed) + _MARGIN_NS
    t_ns = pc.field("t_ns")
    return samples.filter((t_ns >= start_ns) & (t_ns <= end_ns))


def _active_phases(samples: pa.Table) -> tuple[list[Mark], str]:
    """Return the phases in which a GPU is active, and how they were detected."""
    first, last = (pc.min_max(samples["t_ns"]).as_py()[name] for name in ("min", "max"))
    if last == first:
        raise BadInput("one reading is no time series; at least two are needed")
    whole = [Mark(first, last)]
    if (last - first) * 1e-9 > 10 * 366 * 86_400:
        raise BadInput("the readings are years apart; name a window with --window START..END")
    second = ((samples["t_ns"].to_numpy() - first) // 10**9).astype(np.int64)
    active = np.zeros(int(second.max()) + 1, bool)
    devices = np.asarray(samples["device"].to_pylist(), dtype=object)
    by = "utilisation"
    for _, device in gpus_of(samples):
        own = devices == device
        util = samples["sm_util"].to_numpy()[own].astype(float)
        power = samples["power_w"].to_numpy()[own].astype(float)
        if np.isfinite(util).any():
            busy = util >= _ACTIVE_UTIL
        elif np.isfinite(power).any():
            low, high = np.nanquantile(power, [0.02, 0.98])
            if high - low < _MIN_RANGE * high:
                return whole, "one window, all of it: its power does not change much"
            busy, by = power >= low + _ACTIVE_POWER * (high - low), "power"
        else:
            continue
        active[second[own][busy]] = True
    spans = _spans(np.flatnonzero(active))
    marks = [
        Mark(max(first, first + begin * 10**9), min(last, first + (end + 1) * 10**9))
        for begin, end in spans
        if end + 1 - begin >= _PHASE_S
    ]
    if not marks:
        return whole, "one window, all of it: no active phase was detected"
    active_s = sum(mark.end_ns - mark.start_ns for mark in marks) * 1e-9
    total_s = (last - first) * 1e-9
    return marks, (
        f"{len(marks)} active phase{'s' * (len(marks) != 1)} by {by}, {active_s:.4g} of "
        f"{total_s:.4g} s; --window START..END marks others"
    )


def _spans(seconds: Any) -> list[tuple[int, int]]:
    """Return intervals of seconds that are active, with pauses of up to ``_PAUSE_S``."""
    if not len(seconds):
        return []
    breaks = np.flatnonzero(np.diff(seconds) > _PAUSE_S) + 1
    return [(int(part[0]), int(part[-1])) for part in np.split(seconds, breaks)]
