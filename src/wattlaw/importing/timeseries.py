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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import join_names
from wattlaw.importing.importer import Imported, Mark, Options, Readings
from wattlaw.importing.reading import MAX_READINGS
from wattlaw.importing.runs import EPOCHS_MEASURE, STEPS_MEASURE, RunMaker, single_run, workload_of
from wattlaw.measure.devices.meter import Facts
from wattlaw.measure.telemetry.device_energy import MIN_COVERAGE
from wattlaw.measure.telemetry.energy import energy_of_windows
from wattlaw.measure.telemetry.plausibility import power_fault
from wattlaw.store.imports import ImportedRun
from wattlaw.store.record import Facts as RunFacts
from wattlaw.store.record import RunRecord, Site
from wattlaw.store.schema import SAMPLES, TELEMETRY, WINDOWS
from wattlaw.study.base import MAX_COUNT
from wattlaw.study.model import Measure

#: Readings this long before and after a run's windows are kept with it.
_MARGIN_NS = 10 * 10**9
#: A GPU is active from this utilisation on, or else from this share of its range of power.
_ACTIVE_UTIL, _ACTIVE_POWER = 0.1, 0.25
#: The range of power of a GPU that is idle and busy, relative to its greatest power.
_MIN_RANGE = 0.3
#: Most notes of one kind.
_MAX_NOTES = 20
#: Windows that follow each other may overlap by so much: their times may be whole seconds.
_MAX_OVER_S = 1.0
#: How the names of GPUs begin that no two GPUs share.
UUIDS = ("GPU-", "MIG-")
#: Shorter pauses do not end an active phase; shorter phases are none.
_PAUSE_S, _PHASE_S = 10, 10
#: An interval is a pause if its steps take this many times the usual time, and longer.
_LONG_FACTOR, _MIN_LONG_S = 10, 1.0


Floats = npt.NDArray[np.float64]


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
        if (fault := power_fault_of(samples)) is not None:
            raise BadInput(f"{self._path}: {fault}")
        hardware = next(iter(self.names)) if len(self.names) == 1 else None
        return Readings(samples, self.facts, hardware)


def power_fault_of(samples: pa.Table) -> str | None:
    """Return why the powers of a device are more than it can draw; None if they can be.

    The median decides: a wrong unit changes all readings, and single ones can be wrong for other
    reasons; the verdict of an energy says so.
    """
    keys = ["kind", "host", "device"]
    medians = [(name, "approximate_median") for name in ("power_w", "power_limit_w")]
    for row in samples.group_by(keys).aggregate(medians).to_pylist():
        for name, _ in medians:
            median_w = row[f"{name}_approximate_median"]
            what = f"the median {name} of {row['device'][:100]}"
            if median_w is not None and (fault := power_fault(what, row["kind"], median_w)):
                return fault
    counters = samples.filter(pc.is_valid(samples["energy_j"]))
    for row in counters.group_by(keys).aggregate([]).to_pylist():
        is_own = [pc.equal(counters[name], row[name]) for name in keys]
        own = counters.filter(pc.and_(pc.and_(is_own[0], is_own[1]), is_own[2])).sort_by("t_ns")
        t_ns, gained_j = own["t_ns"].to_numpy(), np.diff(own["energy_j"].to_numpy())
        # Without the largest increase, which a wrong reading may have caused.
        gained_j = np.sort(gained_j[gained_j > 0])[:-1]
        if len(gained_j) and t_ns[-1] > t_ns[0]:
            mean_w = float(gained_j.sum() / ((t_ns[-1] - t_ns[0]) * 1e-9))
            what = f"the increase of energy_j of {row['device'][:100]}"
            if fault := power_fault(what, row["kind"], mean_w):
                return fault
    return None


#: The first one whose pattern is in a name: ``val_epoch`` is an evaluation, ``train_step`` a step.
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
    named = ((len(gpus), "GPU"), (others, "other device"))
    devices = [plural(number, noun) for number, noun in named if number]
    zone = "" if options is None else f", times in {options.zone_note}"
    bounds = pc.min_max(samples["t_ns"]).as_py()
    seconds = (bounds["max"] - bounds["min"]) * 1e-9
    span = f"{seconds:.3g} s" if seconds < 120 else f"{seconds / 60:.4g} min"
    return f"{kind}: {', '.join(devices)}, {len(samples):,} readings over {span}{zone}"


def gpus_of(samples: pa.Table) -> list[tuple[str, str]]:
    gpus = samples.filter(pc.field("kind") == "gpu").group_by(["host", "device"]).aggregate([])
    return [(row["host"], row["device"]) for row in gpus.to_pylist()]


def assemble(
    parts: Sequence[tuple[Path, Imported]], options: Options
) -> tuple[list[ImportedRun], list[str], list[str]]:
    """Return the runs of several files, how their windows were marked, and what is left out.

    Readings get the windows of runs from other files, else those of marks, else their active
    phases. Raises ``BadInput`` if files do not fit together.
    """
    runs = [run for _, part in parts for run in part.runs]
    marks = [*options.windows, *(mark for _, part in parts for mark in part.marks)]
    series = [(path, part.readings) for path, part in parts if part.readings is not None]
    if not series:
        if marks:
            raise BadInput("windows without a time series: name the file of the readings too")
        return runs, [], []
    path = series[0][0]
    readings, missing = _with_missing_power(_combined(series))
    readings, notes = _selected(readings, options)
    notes = [*missing, *notes]
    if runs:
        runs, how = _attached(path, runs, readings)
    elif marks:
        runs = [_run_of_marks(path, marks, readings, options)]
        how = [f"{plural(len(marks), 'window')}, as marked"]
        if not runs[0].telemetry:
            raise BadInput(f"{path}: no reading is within a window; --timezone sets their zone")
    else:
        marks, how = _active_phases(path, readings.samples)
        runs = [_run_of_marks(path, marks, readings, options)]
    notes = [*notes, *how[1:], *_not_covered(runs, readings.samples)]
    marked, left_out = ([f"{path.name}: {line}" for line in lines] for lines in (how[:1], notes))
    return runs, marked, left_out


def _not_covered(runs: Sequence[ImportedRun], samples: pa.Table) -> list[str]:
    edges = sorted({
        (row["start_ns"], row["start_ns"] + round(row["duration_s"] * 1e9))
        for run in runs for row in run.windows if row.get("start_ns") is not None
    })  # fmt: skip
    t_ns = np.sort(samples["t_ns"].to_numpy())
    is_covered = np.zeros(len(t_ns), bool)
    empty = 0
    for start_ns, end_ns in edges:
        first, last = np.searchsorted(t_ns, start_ns), np.searchsorted(t_ns, end_ns, "right")
        is_covered[first:last] = True
        empty += first == last
    outside = int((~is_covered).sum())
    notes = [f"{plural(outside, 'reading')} left out: in no window"] if outside else []
    return notes + ([f"{plural(empty, 'window')} without a reading"] if empty else [])


def _combined(series: Sequence[tuple[Path, Readings]]) -> Readings:
    """Return the readings of several files; a GPU has its power from one of them at a time."""
    facts: dict[tuple[str, str], Facts] = {}
    spans: dict[tuple[str, str, str], list[tuple[int, int, Path]]] = {}
    for path, each in series if len(series) > 1 else ():
        for column in ("power_w", "energy_j"):
            known = each.samples.filter(pc.field(column).is_valid())
            table = known.group_by(["host", "device"]).aggregate([("t_ns", "min_max")])
            for row in table.to_pylist():
                first, last = row["t_ns_min_max"]["min"], row["t_ns_min_max"]["max"]
                own = spans.setdefault((column, row["host"], row["device"]), [])
                for begin, end, other in own:
                    if first < end and begin < last:
                        raise BadInput(
                            f"{path}: has {column.partition('_')[0]} of device {row['device']} at "
                            f"the same times as {other}; import files of several machines or GPUs "
                            "one by one, or log the uuid of GPUs"
                        )
                own.append((first, last, path))
    names = {each.hardware for _, each in series if each.hardware}
    samples = pa.concat_tables([each.samples for _, each in series])
    joined = joined_hosts(gpus_of(samples))
    for _, each in series:
        for (host, device), known in each.facts.items():
            key = joined.get(host, host), device
            facts[key] = {**facts.get(key, {}), **known}
    hosts = samples["host"].combine_chunks().dictionary_encode()
    names_of = [joined.get(host, host) for host in hosts.dictionary.to_pylist()]
    place = samples.schema.get_field_index("host")
    samples = samples.set_column(place, "host", pa.array(names_of, pa.string()).take(hosts.indices))
    return Readings(samples, facts, next(iter(names)) if len(names) == 1 else None)


def _with_missing_power(readings: Readings) -> tuple[Readings, list[str]]:
    """Mark the GPUs without power in the facts, so that sums that lack them are ``partial``.

    The second GPU of a board has none of its own.
    """
    has_power = pc.field("power_w").is_valid() | pc.field("energy_j").is_valid()
    known = set(gpus_of(readings.samples.filter(has_power)))
    gpus = gpus_of(readings.samples)
    if gpus and not known:
        return readings, ["no reading has the power of a GPU, so windows have no energy"]
    facts, notes = dict(readings.facts), []
    for host, device in gpus:
        own = facts.get((host, device), {})
        if (host, device) not in known and not {"reporter", "failed"} & own.keys():
            failed = {"kind": "gpu", "failed": "the readings have no power of it"}
            facts[host, device] = {**own, **failed}
            notes.append(f"GPU {device}: no power")
    return replace(readings, facts=facts), notes[:_MAX_NOTES]


def joined_hosts(gpus: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return a name for each host, one name for hosts that have a GPU of the same UUID.

    What names a host may be the pod of an exporter, which is another one after a restart.
    """
    joined: dict[str, str] = {}
    first: dict[str, str] = {}  # by UUID, a host that has it

    def root(host: str) -> str:
        while joined.setdefault(host, host) != host:
            host = joined[host]
        return host

    for host, device in gpus:
        name = root(host)
        if device.startswith(UUIDS):
            joined[name] = root(first.setdefault(device, name))
    return {host: root(host) for host in joined}


def _selected(readings: Readings, options: Options) -> tuple[Readings, list[str]]:
    if not options.devices:
        return readings, []
    known = pc.unique(readings.samples["device"]).to_pylist()
    for device in options.devices:
        if device not in known:
            raise BadInput(f"--device: no {device!r}; the readings have: {join_names(known)}")
    samples = readings.samples.filter(
        pc.is_in(readings.samples["device"], pa.array(options.devices))
    )
    facts = {
        key: _of_part(known, options.devices)
        for key, known in readings.facts.items() if key[1] in options.devices
    }  # fmt: skip
    others = sorted({*known} - {*options.devices})
    count = len(readings.samples) - len(samples)
    left_out = f"{plural(count, 'reading')} left out: of {join_names(others)}, not in --device"
    return replace(readings, samples=samples, facts=facts), [left_out] if others else []


def _of_part(facts: Facts, devices: Sequence[str]) -> Facts:
    """Return the facts of a GPU of a board; its other GPU may not be among the devices."""
    if facts.get("board") and facts["board"] not in devices:
        return {**facts, "is_shared": True}
    if facts.get("reporter") and facts["reporter"] not in devices:
        return {
            **facts, "kind": "gpu", "failed": f"GPU {facts['reporter']} has the power of its board"
        }  # fmt: skip
    return facts


def _attached(
    path: Path, runs: Sequence[ImportedRun], readings: Readings
) -> tuple[list[ImportedRun], list[str]]:
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
    return attached, [f"energy of {plural(count, 'window')} from the other file"]


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
    ends: dict[str, int] = {}  # of the windows of each phase
    for row in rows:
        start_ns, phase = row["start_ns"], row["phase"]
        over_s = (ends.get(phase, start_ns) - start_ns) * 1e-9
        if over_s > _MAX_OVER_S:
            raise BadInput(
                f"{path}: two windows of phase {phase} overlap by {over_s:,.3g} s, so that energy "
                "would count twice; name windows that follow each other"
            )
        ends[phase] = max(ends.get(phase, 0), start_ns + round(row["duration_s"] * 1e9))
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
    maker, values = RunMaker(path, options), {"workload": workload_of(path)}
    return single_run(path, maker, values, windows, measure, facts=facts, notes=notes)


def are_pauses(durations_s: Sequence[float], counts: Sequence[int]) -> list[bool]:
    """Say which intervals are pauses: their steps take far longer than those of most others.

    ``counts`` are the steps, or epochs, of each interval.
    """
    per_step = sorted(
        duration_s / count for duration_s, count in zip(durations_s, counts, strict=True)
    )
    most_s = _LONG_FACTOR * per_step[(len(per_step) - 1) // 2] if per_step else 0.0
    return [
        duration_s > max(most_s * count, _MIN_LONG_S)
        for duration_s, count in zip(durations_s, counts, strict=True)
    ]


def phase_of(name: str) -> str:
    """Return the phase of a window that a user has named: ``epoch`` is one of training."""
    known = (phase for phase, pattern in _PHASES if pattern.search(name))
    clean = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")[:50]
    return next(known, clean or "window")


def measure_of(windows: Iterable[Mapping[str, Any]]) -> Measure:
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
    timed = [row for row in windows if row.get("start_ns") is not None]
    start_ns = min(row["start_ns"] for row in timed) - _MARGIN_NS
    end_ns = max(row["start_ns"] + int(row["duration_s"] * 1e9) for row in timed) + _MARGIN_NS
    t_ns = pc.field("t_ns")
    samples = readings.samples.filter((t_ns >= start_ns) & (t_ns <= end_ns))
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


def _active_phases(path: Path, samples: pa.Table) -> tuple[list[Mark], list[str]]:
    """Return the phases in which a GPU is active, how they were detected, and what is left out."""
    first, last = (pc.min_max(samples["t_ns"]).as_py()[name] for name in ("min", "max"))
    if last == first:
        raise BadInput(f"{path}: given one reading; a time series needs at least two")
    whole = [Mark(first, last)]
    if (last - first) * 1e-9 > 10 * 366 * 86_400:
        raise BadInput(
            f"{path}: the readings are years apart; name a window with --window START..END"
        )
    second = ((samples["t_ns"].to_numpy() - first) // 10**9).astype(np.int64)
    active = np.zeros(int(second.max()) + 1, bool)
    by: set[str] = set()
    for host, device in gpus_of(samples):
        is_own = pc.and_(pc.equal(samples["host"], host), pc.equal(samples["device"], device))
        own = is_own.to_numpy()
        busy, of = _busy(
            *(samples[name].to_numpy()[own].astype(float) for name in ("sm_util", "power_w"))
        )
        if busy is None:
            return whole, ["one window for the whole log: its power hardly changes"]
        by |= of
        active[second[own][busy]] = True
    seconds = np.flatnonzero(active)
    breaks = np.flatnonzero(np.diff(seconds) > _PAUSE_S) + 1
    spans = [(int(part[0]), int(part[-1])) for part in np.split(seconds, breaks) if len(part)]
    marks = [
        Mark(max(first, first + begin * 10**9), min(last, first + (end + 1) * 10**9))
        for begin, end in spans
        if end + 1 - begin >= _PHASE_S
    ]
    short = len(spans) - len(marks)
    notes = [f"{plural(short, 'phase')} of less than {_PHASE_S} s left out"] if short else []
    if not marks:
        return whole, ["one window for the whole log: no active phase was detected"]
    active_s = sum(mark.end_ns - mark.start_ns for mark in marks) * 1e-9
    total_s = (last - first) * 1e-9
    return marks, [
        f"{plural(len(marks), 'active phase')} by {' and '.join(sorted(by))}, {active_s:.4g} of "
        f"{total_s:.4g} s; --window START..END marks others",
        *notes,
    ]


def _busy(util: Floats, power_w: Floats) -> tuple[Any, set[str]]:
    """Return in which readings a GPU is active, and by what; None if that cannot be said.

    Readings without a utilisation count by their power: a part of a log may lack a column.
    """
    has_util, has_power = np.isfinite(util), np.isfinite(power_w)
    busy = has_util & (util >= _ACTIVE_UTIL)
    by_power = has_power & ~has_util
    if not by_power.any():
        return busy, {"utilisation"} if has_util.any() else set()
    low, high = np.nanquantile(power_w, [0.02, 0.98])
    if high - low >= _MIN_RANGE * high:
        least = low + _ACTIVE_POWER * (high - low)
    elif not has_util.any():
        return None, set()
    else:  # it is as active as where its utilisation is known
        least = low if busy.sum() > 0.5 * has_util.sum() else np.inf
    busy |= by_power & (power_w >= least)
    return busy, {"utilisation", "power"} if has_util.any() else {"power"}
