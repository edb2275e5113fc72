"""MLPerf Training logs: ``:::MLLOG`` lines of a training, and of the power of its nodes.

A training log has the time from ``run_start`` to ``run_stop``, epochs, evaluations and the global
batch. Where it counts samples or parts of epochs, its windows are blocks of steps. A power log has
readings of a node or an estimate for a switch; with the log of its training, the energy of the run
is computed as MLPerf's rules say (https://github.com/mlcommons/training_policies).
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Account, Source, count, positive
from wattlaw.importing.readings import SampleRows, describe
from wattlaw.importing.runs import RunMaker
from wattlaw.importing.timeseries import measure_of
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.record import Facts
from wattlaw_formats.mlperf_windows import METRIC, OTHER_RANK, SKEW_MS, Event, windows_of

_LINE = re.compile(r"(.*?):::MLLOG\s+(\{.*)$")
#: The rank before a line, as launchers write it: ``0:``, ``[1]``, ``rank 2:``.
_RANK = re.compile(r"(?:^|[\s\[(])(?:rank[ _=]?)?(\d{1,6})[\])]?:?\s*$", re.IGNORECASE)
#: The rules ask for a reading each second.
_RULE_S = 1.0
_MAX_EVENTS = 1_000_000
#: A training begins with the first of these that follows ``run_start``.
_BEGINNINGS = {"cache_clear", "init_start", "submission_benchmark", "run_start"}
_SETTINGS = {
    "submission_benchmark", "global_batch_size", "train_samples", "number_of_nodes",
    "accelerators_per_node", "max_sequence_length", "first_epoch_num", "status", "run_status",
}  # fmt: skip
_MARKS = re.compile(r"(?:epoch|block|eval)_(?:start|stop)|eval_accuracy")
_NO_TRAINING = "no training: it needs run_start and run_stop, or an epoch or block"


class TrainingImporter:
    name = "mlperf"
    description = "training log of MLPerf (:::MLLOG lines)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return b":::MLLOG" in head and not _is_power(head)

    def read(self, source: Source, options: Options) -> Imported:
        path, account, events = source.path, source.account, _events(source)
        maker, known = RunMaker(path, options), dict[str, Any]()
        runs, bounds, notes = list[ImportedRun](), list[tuple[int, int]](), list[str]()
        for training in _trainings(account, events):
            known |= {event.key: event.value for event in reversed(training)}
            rows = [event.row for event in training]
            start_ms, stop_ms = times = _bounds(training)
            if stop_ms <= start_ms:
                account.leave_out(_NO_TRAINING, *rows)
                continue
            gaps_ms = [max(abs(start_ms - a), abs(stop_ms - b)) for a, b in bounds]
            if min(gaps_ms, default=math.inf) <= SKEW_MS:
                account.leave_out(OTHER_RANK, *rows)
                continue
            bounds.append(times)
            run, own_notes = _training(account, maker, options, training, known, times)
            runs.append(run)
            notes += own_notes
        if not runs:
            raise BadInput(f"{path}: {_NO_TRAINING}")
        duration_s = sum(stop_ms - start_ms for start_ms, stop_ms in bounds) * 1e-3
        windows = sum(len(run.windows) for run in runs)
        several = f"{len(runs)} trainings, " if len(runs) > 1 else ""
        name = _setting(known).get("workload", "unnamed")
        text = f"MLPerf training log: {name}, {several}{duration_s:,.1f} s to train"
        return Imported(f"{text}, {windows} windows", runs, notes=notes)


class PowerImporter:
    name = "mlperf-power"
    description = "power log of MLPerf (:::MLLOG lines with power_reading)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return b":::MLLOG" in head and _is_power(head)

    def read(self, source: Source, options: Options) -> Imported:  # noqa: ARG002 - the protocol's
        path, account, events = source.path, source.account, _events(source)
        rows, efficiency, times_ms = SampleRows(path), 1.0, dict[str, list[int]]()
        readings_w = list[tuple[Event, float]]()
        for event in events:
            value = event.value.get("value") if isinstance(event.value, dict) else event.value
            known = positive(value)
            if event.key == "conversion_eff" and known is not None:
                efficiency = known
                account.read(event.row)
            elif event.key == "power_reading" and (known is not None or value == 0):
                readings_w.append((event, known or 0.0))
                account.read(event.row)
            elif event.key in ("conversion_eff", "power_reading"):
                account.leave_out(f"{event.key} without a value", event.row)
            else:
                account.leave_out("a key that is not needed", event.row)
        if not readings_w:
            raise BadInput(f"{path}: no power_reading")
        for event, watts in readings_w:
            host = str(event.metadata.get("host") or path.stem)[:100]
            times_ms.setdefault(host, []).append(event.t_ms)
            power = {"power_w": efficiency * watts}
            rows.add(host, f"node {host}", "node", event.t_ms * 10**6, power)
        readings, notes = rows.readings(), list[str]()
        if efficiency != 1:
            notes.append(f"conversion efficiency {efficiency:g} is applied to the power of nodes")
        gaps_s = np.concatenate([np.diff(np.sort(own)) for own in times_ms.values()]) * 1e-3
        spacing_s = float(np.median(gaps_s)) if len(gaps_s) else 0.0
        if spacing_s > 1.05 * _RULE_S:
            notes.append(f"a reading every {spacing_s:.3g} s; MLPerf's rules ask for one a second")
        missing = gaps_s[gaps_s > 1.5 * max(spacing_s, _RULE_S)]
        if len(missing):
            notes.append(
                f"readings are missing: {plural(len(missing), 'gap')} of up to {missing.max():.3g} "
                "s; the reading after a gap counts for all of it"
            )
        return Imported(describe("MLPerf power log", readings), readings=readings, notes=notes)


def _is_power(head: bytes) -> bool:
    return any(key in head for key in (b"power_measurement_start", b'"power_reading"'))


def _events(source: Source) -> list[Event]:
    path, events, decoder = source.path, list[Event](), json.JSONDecoder()
    for row, line in source.lines():
        match = _LINE.fullmatch(line)
        if match is None:
            source.account.leave_out("not a line of MLPerf's logging", row)
            continue
        try:
            data, _ = decoder.raw_decode(match[2])
        except (ValueError, RecursionError):
            data = {}
        t_ms, metadata = count(data.get("time_ms"), most=2**62 // 10**6 - 1), data.get("metadata")
        if t_ms is None or not isinstance(data.get("key"), str):
            source.account.leave_out("a damaged line of MLPerf's logging", row)
            continue
        metadata = metadata if isinstance(metadata, dict) else {}
        prefix = _RANK.search(match[1][-20:])
        rank = int(prefix[1]) if prefix else None
        events.append(Event(row, rank, t_ms, data["key"], data.get("value"), metadata))
        if len(events) > _MAX_EVENTS:
            raise BadInput(f"{path}: more than {_MAX_EVENTS:,} events")
    if not events:
        raise BadInput(f"{path}: no :::MLLOG line")
    return events


def _trainings(account: Account, events: Sequence[Event]) -> list[list[Event]]:
    started = [event.rank for event in events if event.key == "run_start"]
    if len({*started}) > 1:
        account.leave_out(OTHER_RANK, *(e.row for e in events if e.rank != started[0]))
        events = [event for event in events if event.rank == started[0]]
    trainings: list[list[Event]] = [[]]
    begun: Event | None = None
    for event in events:
        if begun is not None and event.key in _BEGINNINGS and not event.repeats(begun):
            trainings.append([])
            begun = None
        if event.key == "run_start" and begun is None:
            begun = event
        trainings[-1].append(event)
    return trainings


def _bounds(training: Sequence[Event]) -> tuple[int, int]:
    """Return when a training began and ended; without its marks, its first and last window."""
    starts, stops = (
        [each.t_ms for each in training if each.key == f"run_{end}"]
        or [each.t_ms for each in training if each.key in (f"epoch_{end}", f"block_{end}")]
        for end in ("start", "stop")
    )
    return (starts[0], stops[-1]) if starts and stops else (0, 0)


def _training(
    account: Account,
    maker: RunMaker,
    options: Options,
    training: Sequence[Event],
    known: Mapping[str, Any],
    bounds: tuple[int, int],
) -> tuple[ImportedRun, list[str]]:
    values = _setting(known)
    dataset = positive(known.get("train_samples"))
    batch = options.constants.get("global_batch", values.get("global_batch"))
    sequence = count(known.get("max_sequence_length"), 2, 10**9)
    rows, overlapping = windows_of(account, training, batch, dataset, sequence)
    duration_s = (bounds[1] - bounds[0]) * 1e-3
    notes = []
    if all(row["phase"] == "evaluate" for row in rows):
        rows.append({"phase": "run", "start_ns": bounds[0] * 10**6, "duration_s": duration_s})
        notes.append("no epoch or block is read: the one window is the run with its evaluations")
    rows.sort(key=lambda row: row.get("start_ns", math.inf))
    stop = _other_events(account, training)
    own = next((e.value for e in training if e.key in ("status", "run_status")), None)
    status = "no run_stop" if stop is None else stop.metadata.get("status") or own
    if status != "success":
        aborted = ": it has no run_stop" if stop is None else ""
        notes.append(f"the run did not reach its target{aborted}")
    if overlapping:
        notes.append(f"{plural(overlapping, 'evaluation')} ran beside training, within its windows")
    text = f"MLPerf status: {str(status)[:50]}; time to train {duration_s:.3f} s"
    metric = METRIC if any(event.key == METRIC for event in training) else None
    facts = Facts(dataset_samples=count(dataset, 1, 2**62), metric=metric)
    run = maker.run(
        values, rows, measure_of(rows), facts=facts,
        period_ns=(bounds[0] * 10**6, bounds[1] * 10**6), notes=(text, *notes),
    )  # fmt: skip
    return run, notes


def _other_events(account: Account, training: Sequence[Event]) -> Event | None:
    """Count the events that are of no window, and return ``run_stop``."""
    ends = dict[str, Event]()
    for event in training:
        if event.key in ("run_start", "run_stop"):
            first = ends.setdefault(event.key, event)
            if first is event:
                account.read(event.row)
            else:
                again = OTHER_RANK if event.repeats(first) else f"another {event.key}"
                account.leave_out(again, event.row)
        elif event.key in _SETTINGS:
            account.read(event.row)
        elif event.key == "tracked_stats":
            account.leave_out("tracked_stats: the windows have their own times", event.row)
        elif not _MARKS.fullmatch(event.key):
            account.leave_out("a key that is not needed", event.row)
    return ends.get("run_stop")


def _setting(known: Mapping[str, Any]) -> dict[str, Any]:
    benchmark = known.get("submission_benchmark")
    name = benchmark.strip()[:200] if isinstance(benchmark, str) else ""
    values = {"workload": name, "global_batch": count(known.get("global_batch_size"), 1, 10**7)}
    nodes = count(known.get("number_of_nodes"), 1, 10**7)
    per_node = count(known.get("accelerators_per_node"), 1, 10**5)
    values |= {"nodes": nodes, "gpus": nodes * per_node} if nodes and per_node else {}
    return {name: value for name, value in values.items() if value}


TRAINING = TrainingImporter()
POWER = PowerImporter()
