"""Runs from time series of devices: their windows, with the energy of each.

Energies of windows come from the code that computes those of our own measurements, so that they
have the same verdicts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.importing.importer import Imported, Mark, Options, Readings
from wattlaw.importing.readings import combined, gpus_of, selected
from wattlaw.importing.runs import EPOCHS_MEASURE, STEPS_MEASURE, RunMaker
from wattlaw.measure.telemetry.device_energy import MIN_COVERAGE
from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.store.fields import InvalidCell
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.record import RunRecord, Site
from wattlaw.store.schema import TELEMETRY, WINDOWS
from wattlaw.study.base_model import MAX_COUNT
from wattlaw.study.model import Measure

#: Readings this long before and after a run's windows are kept with it.
_MARGIN_NS = 10 * 10**9
#: A GPU is active from this utilisation on, or else from this share of its range of power.
_ACTIVE_UTIL, _ACTIVE_POWER = 0.1, 0.25
#: The range of power of a GPU that is idle and busy, relative to its greatest power.
_MIN_RANGE = 0.3
#: Windows that follow each other may overlap by so much: their times may be whole seconds.
_MAX_OVER_S = 1.0
#: Shorter pauses do not end an active phase; shorter phases are none.
_PAUSE_S, _PHASE_S = 10, 10
#: An interval is a pause if its steps take this many times the usual time, and longer.
_LONG_FACTOR, _MIN_LONG_S = 10, 1.0
#: Windows of these phases add up; those of other ones may lie within each other.
_COUNTED = ("train", "steps", "run", "evaluate")

Key = TypeVar("Key")
Floats = npt.NDArray[np.float64]


#: The first one whose pattern is in a name: ``val_epoch`` is an evaluation, ``train_step`` a step.
_PHASES = (
    ("evaluate", re.compile(r"eval|valid|(?<![a-z])(?:val|test(?:ing)?)(?![a-z])", re.IGNORECASE)),
    ("steps", re.compile(r"step|iter(?!at(?:ed|ive))|batch(?!.?size)", re.IGNORECASE)),
    ("train", re.compile(r"epoch|train", re.IGNORECASE)),
)


def assemble(
    parts: Sequence[tuple[Path, Imported]], options: Options
) -> tuple[list[ImportedRun], list[str], list[str]]:
    """Readings get the windows of other files' runs, else of marks, else their active phases."""
    runs = [run for _, part in parts for run in part.runs]
    marks = [*options.windows, *(mark for _, part in parts for mark in part.marks)]
    series = [(path, part.readings) for path, part in parts if part.readings is not None]
    if not series:
        if marks:
            raise BadInput("windows without a time series: name the file of the readings too")
        return runs, [], []
    path = series[0][0]
    readings, missing = combined(series)
    readings, others = selected(readings, options.devices)
    if runs:
        runs, marked = _attached(path, runs, readings)
        notes = []
    else:
        marked, notes = f"{plural(len(marks), 'window')}, as marked", list[str]()
        are_given = bool(marks)
        if not are_given:
            marks, marked, notes = _active_phases(path, readings.samples)
        runs = [_run_of_marks(path, marks, readings, options)]
        if are_given and not runs[0].telemetry:
            raise BadInput(f"{path}: no reading is within a window; --timezone sets their zone")
    left_out = [*missing, *others, *notes, *_not_covered(runs, readings.samples)]
    return runs, [f"{path.name}: {marked}"], [f"{path.name}: {line}" for line in left_out]


def _not_covered(runs: Sequence[ImportedRun], samples: pa.Table) -> list[str]:
    edges = sorted({
        (row["start_ns"], row["start_ns"] + round(row["duration_s"] * 1e9))
        for run in runs for row in run.windows if row.get("start_ns") is not None
    })  # fmt: skip
    t_ns = np.sort(samples["t_ns"].to_numpy())
    is_covered, empty = np.zeros(len(t_ns), bool), 0
    for start_ns, end_ns in edges:
        first, last = np.searchsorted(t_ns, start_ns), np.searchsorted(t_ns, end_ns, "right")
        is_covered[first:last] = True
        empty += first == last
    outside = int((~is_covered).sum())
    notes = [f"{plural(outside, 'reading')} left out: in no window"] if outside else []
    return notes + ([f"{plural(empty, 'window')} without a reading"] if empty else [])


def _attached(
    path: Path, runs: Sequence[ImportedRun], readings: Readings
) -> tuple[list[ImportedRun], str]:
    attached, count = [], 0
    for imported in runs:
        timed = sum(row.get("start_ns") is not None for row in imported.windows)
        if not timed:
            raise BadInput(
                f"{path}: the windows of the other file have no times since 1970, so its readings "
                "cannot be assigned to them"
            )
        run = measured(imported, readings)
        count += timed if run.telemetry else 0
        site = _node_energy(run.record, readings) or run.record.site
        attached.append(replace(run, record=run.record.model_copy(update={"site": site})))
    if not count:
        raise BadInput(f"{path}: no reading is within a window of the other file")
    return attached, f"energy of {plural(count, 'window')} from the other file"


def _node_energy(record: RunRecord, readings: Readings) -> Site | None:
    """Each reading counts for the time since the one before, and the sum is scaled to the time of
    the run: the rule of MLPerf Training. None if the readings do not cover the run."""
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
    ends, epoch = dict[str, int](), 0  # the end of the windows of each phase
    for mark in sorted(marks, key=lambda mark: mark.start_ns):
        if mark.end_ns <= mark.start_ns:
            raise BadInput("a window ends before it starts")
        over_s = (ends.get(mark.phase, mark.start_ns) - mark.start_ns) * 1e-9
        if over_s > _MAX_OVER_S:
            raise BadInput(
                f"{path}: two windows of phase {mark.phase} overlap by {over_s:,.3g} s, so that "
                "energy would count twice; name windows that follow each other"
            )
        ends[mark.phase] = max(ends.get(mark.phase, 0), mark.end_ns)
        duration_s = (mark.end_ns - mark.start_ns) * 1e-9
        edges = {"phase": mark.phase, "start_ns": mark.start_ns, "duration_s": duration_s}
        rows.append({**edges, **mark.columns})
        if mark.phase == "train":
            epoch = rows[-1].setdefault("epoch", epoch) + 1
    try:
        run = RunMaker(path, options).run(values, rows, measure_of(rows))
    except InvalidCell as error:
        raise BadInput(f"{path}: {error}") from None
    return measured(run, readings)


def are_pauses(durations_s: Sequence[float], counts: Sequence[int]) -> list[bool]:
    """Say which intervals of ``counts`` steps or epochs are pauses: a step takes far longer."""
    if not len(durations_s):
        return []
    lengths_s, steps = np.array(durations_s), np.array(counts)
    usual_s = np.quantile(lengths_s / steps, 0.5, method="lower")
    is_pause = lengths_s > np.maximum(_LONG_FACTOR * usual_s * steps, _MIN_LONG_S)
    return is_pause.tolist()  # type: ignore[no-any-return]


def phase_of(name: str) -> str:
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


def measured(run: ImportedRun, readings: Readings) -> ImportedRun:
    """Return a run with its telemetry and the energy of its windows, unless they have one, by
    host."""
    timed = [row for row in run.windows if row.get("start_ns") is not None]
    start_ns = min(row["start_ns"] for row in timed) - _MARGIN_NS
    end_ns = max(row["start_ns"] + int(row["duration_s"] * 1e9) for row in timed) + _MARGIN_NS
    t_ns = pc.field("t_ns")
    samples = readings.samples.filter((t_ns >= start_ns) & (t_ns <= end_ns))
    hosts = pc.unique(samples["host"]).to_pylist()
    rows = []
    for window in run.windows:
        for host in hosts or [window["host"]]:
            row = {**window, "host": host}
            if row.get("samples") is not None and len(hosts) > 1:
                share, rest = divmod(row["samples"], len(hosts))
                row["samples"] = share + (hosts.index(host) < rest)
            rows.append(row)
    open_rows = [
        row for row in rows if row.get("start_ns") is not None and row["energy_source"] == "none"
    ]
    table = pa.Table.from_pylist(open_rows, schema=WINDOWS)
    energies = energy_of_windows(table, samples, readings.facts).to_pylist()
    for row, energy in zip(open_rows, energies, strict=True):
        row.update(energy)
    run_ids = pa.repeat(pa.scalar(run.record.run_id, pa.string()), len(samples))
    telemetry = samples.add_column(0, TELEMETRY.field(0), run_ids)
    return replace(run, windows=rows, telemetry=telemetry)


def overlapping(spans: Mapping[Key, tuple[str, int, int]]) -> dict[Key, str]:
    """Return the windows to leave out, with the reasons; of two that are nested, the outer one.
    ``spans`` are phase, start and end of each window."""
    reasons, before = dict[Key, str](), dict[str, list[tuple[Key, int, int]]]()
    # Of two windows with one start the longer one is first.
    ordered = sorted(spans.items(), key=lambda item: (item[1][1], -item[1][2]))
    for key, (phase, start, end) in ordered:
        if phase not in _COUNTED:
            continue
        kept = before.setdefault(phase, [])
        while kept and kept[-1][2] > start:
            last, last_start, last_end = kept[-1]
            if (last_start, last_end) == (start, end):
                reasons[key] = "a window that is in the file twice"
            elif last_end < end:
                reasons[key] = "a window that overlaps the one before"
            else:
                reasons[last] = "a window that contains others of its phase"
                kept.pop()
                continue
            break
        if key not in reasons:
            kept.append((key, start, end))
    return reasons


def _active_phases(path: Path, samples: pa.Table) -> tuple[list[Mark], str, list[str]]:
    first, last = (pc.min_max(samples["t_ns"]).as_py()[name] for name in ("min", "max"))
    if last == first:
        raise BadInput(f"{path}: given one reading; a time series needs at least two")
    whole = [Mark(first, last)]
    if (last - first) * 1e-9 > 10 * 366 * 86_400:
        raise BadInput(
            f"{path}: the readings are years apart; name a window with --window START..END"
        )
    active = np.zeros((last - first) // 10**9 + 1, bool)  # by second
    by: set[str] = set()
    gpus = samples.filter(pc.field("kind") == "gpu")
    frame = gpus.select(["host", "device", "t_ns", "sm_util", "power_w"]).to_pandas()
    for _, own in frame.groupby(["host", "device"], sort=False):
        busy, of = _busy(*(own[name].to_numpy(float) for name in ("sm_util", "power_w")))
        if busy is None:
            return whole, "one window for the whole log: its power hardly changes", []
        by |= of
        active[(own["t_ns"].to_numpy()[busy] - first) // 10**9] = True
    seconds = np.flatnonzero(active)
    breaks = np.flatnonzero(np.diff(seconds) > _PAUSE_S) + 1
    spans = [(int(part[0]), int(part[-1])) for part in np.split(seconds, breaks) if len(part)]
    marks = [
        Mark(first + begin * 10**9, min(last, first + (end + 1) * 10**9))
        for begin, end in spans
        if end + 1 - begin >= _PHASE_S
    ]
    short = len(spans) - len(marks)
    notes = [f"{plural(short, 'phase')} of less than {_PHASE_S} s left out"] if short else []
    if not marks:
        return whole, "one window for the whole log: no active phase was detected", []
    active_s = sum(mark.end_ns - mark.start_ns for mark in marks) * 1e-9
    marked = (
        f"{plural(len(marks), 'active phase')} by {' and '.join(sorted(by))}, {active_s:.4g} of "
        f"{(last - first) * 1e-9:.4g} s; --window START..END marks others"
    )
    return marks, marked, notes


def _busy(util: Floats, power_w: Floats) -> tuple[Any, set[str]]:
    """Return in which readings a GPU is active, and by what. Those without a utilisation count by
    their power: a part of a log may lack a column."""
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
