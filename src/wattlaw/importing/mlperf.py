"""MLPerf Training logs: ``:::MLLOG`` lines of a training, and of the power of its nodes.

A training log has the time from ``run_start`` to ``run_stop``, epochs, evaluations and the global
batch. Where it counts samples or parts of epochs, its windows are blocks of steps. A power log has
readings of a node or an estimate for a switch; with the log of its training, the energy of the run
is computed as MLPerf's rules say (https://github.com/mlcommons/training_policies).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, count, number, positive
from wattlaw.importing.runs import RunMaker, single_run
from wattlaw.importing.timeseries import SampleRows, describe, measure_of
from wattlaw.store.record import Facts

_LINE = re.compile(r".*?:::MLLOG\s+(\{.*)$")
_METRIC = "eval_accuracy"
#: The rules ask for a reading each second.
_RULE_S = 1.0
_MAX_EVENTS = 1_000_000


@dataclass(frozen=True)
class Event:
    """One line of a log."""

    t_ms: int
    key: str
    value: Any
    metadata: Mapping[str, Any]


class TrainingImporter:
    """Epochs or blocks of steps of one training."""

    name = "mlperf"
    description = "training log of MLPerf (:::MLLOG lines)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether there are log lines, and none of a power log."""
        return b":::MLLOG" in head and not _is_power(head)

    def read(self, source: Source, options: Options) -> Imported:
        """Return the run."""
        path, events = source.path, _events(source)
        start, stop = _only(path, events, "run_start"), _only(path, events, "run_stop")
        if stop.t_ms <= start.t_ms:
            raise BadInput(f"{path}: run_stop is not after run_start")
        values, facts = _setting(events)
        evaluations = _pairs(events, "eval_start", "eval_stop")
        duration_s = (stop.t_ms - start.t_ms) * 1e-3
        windows = _blocks(events, evaluations, values.get("global_batch"))
        windows += [_evaluation(events, *pair) for pair in evaluations]
        if not windows:
            windows = [{"phase": "run", "start_ns": start.t_ms * 10**6, "duration_s": duration_s}]
        windows.sort(key=lambda window: window["start_ns"])
        status = next((e.value for e in events if e.key in ("status", "run_status")), None)
        status = stop.metadata.get("status") or status
        run = single_run(
            path, RunMaker(path, options), values, windows, measure_of(windows),
            facts=Facts(**facts), period_ns=(start.t_ms * 10**6, stop.t_ms * 10**6),
            notes=(f"MLPerf status: {str(status)[:50]}; time to train {duration_s:.3f} s",),
        )  # fmt: skip
        notes = () if status == "success" else ("the run did not reach its target",)
        text = f"MLPerf training log: {values.get('workload', 'unnamed')}, {duration_s:,.1f} s "
        text += f"to train, {len(windows)} windows"
        return Imported(text, [run], notes=notes)


class PowerImporter:
    """The power of a node, as MLPerf's power logs have it."""

    name = "mlperf-power"
    description = "power log of MLPerf (:::MLLOG lines with power_reading)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether there are lines of a power log."""
        return b":::MLLOG" in head and _is_power(head)

    def read(self, source: Source, options: Options) -> Imported:  # noqa: ARG002 - the protocol's
        """Return the readings of the node."""
        path, events = source.path, _events(source)
        efficiency = 1.0
        rows, readings_w = SampleRows(path), []
        for event in events:
            value = event.value.get("value") if isinstance(event.value, dict) else event.value
            if event.key == "conversion_eff" and (known := positive(value)) is not None:
                efficiency = known
            elif event.key == "power_reading" and (watts := number(value)) is not None:
                host = str(event.metadata.get("host") or path.stem)[:100]
                readings_w.append((host, event.t_ms, watts))
        if not readings_w:
            raise BadInput(f"{path}: no power_reading")
        for host, t_ms, watts in readings_w:
            power = {"power_w": efficiency * watts}
            rows.add(host, f"node {host}", "node", t_ms * 10**6, power)
        readings, times_ms = rows.readings(), sorted(t_ms for _, t_ms, _ in readings_w)
        notes = []
        if efficiency != 1:
            notes.append(
                f"conversion efficiency {efficiency:g} is applied to the power of the nodes"
            )
        spacing_s = float(np.median(np.diff(times_ms))) * 1e-3 if len(times_ms) > 1 else 0
        if spacing_s > 1.05 * _RULE_S:
            notes.append(
                f"a reading every {spacing_s:.3g} s; MLPerf's rules ask for one each second"
            )
        return Imported(describe("MLPerf power log", readings), readings=readings, notes=notes)


def _is_power(head: bytes) -> bool:
    return any(key in head for key in (b"power_measurement_start", b'"power_reading"'))


def _events(source: Source) -> list[Event]:
    path, events = source.path, list[Event]()
    for row, line in source.lines():
        match = _LINE.fullmatch(line)
        if match is None:
            source.account.leave_out("no line of MLPerf's logging", row)
            continue
        try:
            data, _ = json.JSONDecoder().raw_decode(match[1])
        except (ValueError, RecursionError):
            source.account.leave_out("a damaged line of MLPerf's logging", row)
            continue
        t_ms = count(data.get("time_ms"), most=2**62 // 10**6 - 1)
        metadata = data.get("metadata")
        if t_ms is None or not isinstance(data.get("key"), str):
            source.account.leave_out("a damaged line of MLPerf's logging", row)
            continue
        metadata = metadata if isinstance(metadata, dict) else {}
        events.append(Event(t_ms, data["key"], data.get("value"), metadata))
        if len(events) > _MAX_EVENTS:
            raise BadInput(f"{path}: more than {_MAX_EVENTS:,} events")
    if not events:
        raise BadInput(f"{path}: no :::MLLOG line")
    return events


def _only(path: Path, events: Sequence[Event], key: str) -> Event:
    matching = [event for event in events if event.key == key]
    if len(matching) != 1:
        raise BadInput(
            f"{path}: {key} occurs {len(matching)} times; allowed: one training in a file"
        )
    return matching[0]


def _setting(events: Sequence[Event]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields that the log says, and facts of the run."""
    known: dict[str, Any] = {}
    for event in events:
        known.setdefault(event.key, event.value)
    values: dict[str, Any] = {}
    benchmark = known.get("submission_benchmark")
    if isinstance(benchmark, str) and benchmark.strip():
        values["workload"] = benchmark.strip()[:200]
    batch = count(known.get("global_batch_size"), 1, 10**7)
    if batch is not None:
        values["global_batch"] = batch
    nodes = count(known.get("number_of_nodes"), 1, 10**7)
    per_node = count(known.get("accelerators_per_node"), 1, 10**5)
    if nodes and per_node:
        values |= {"nodes": nodes, "gpus": nodes * per_node}
    samples = count(known.get("train_samples"), 1, 2**62)
    metric = _METRIC if any(event.key == _METRIC for event in events) else None
    return values, {"dataset_samples": samples, "metric": metric}


def _pairs(events: Sequence[Event], begin: str, end: str) -> list[tuple[Event, Event]]:
    pairs, begun = [], None
    for event in events:
        if event.key == begin:
            begun = event
        elif event.key == end and begun is not None and event.t_ms > begun.t_ms:
            pairs.append((begun, event))
            begun = None
    return pairs


def _position(event: Event) -> float | None:
    """Return the number of the epoch at an event; it may have a fraction, or count samples."""
    for name in ("samples_count", "epoch_num"):
        if (known := number(event.metadata.get(name))) is not None:
            return known
    return number(event.value)


def _blocks(
    events: Sequence[Event], evaluations: Sequence[tuple[Event, Event]], batch: int | None
) -> list[dict[str, Any]]:
    """Return the windows of training: epochs, or blocks of steps between evaluations.

    The last epoch is interrupted if training ends within it.
    """
    dataset = next((number(event.value) for event in events if event.key == "train_samples"), None)
    by_samples = any("samples_count" in event.metadata for event in events)
    epochs = _pairs(events, "epoch_start", "epoch_stop")
    blocks = epochs or _pairs(events, "block_start", "block_stop")
    end_ms = next(event.t_ms for event in events if event.key == "run_stop")
    windows: list[dict[str, Any]] = []
    for begin, stop in blocks:
        inside = [p for p in evaluations if begin.t_ms <= p[0].t_ms and p[1].t_ms <= stop.t_ms]
        marks = [begin, *(event for pair in inside for event in pair), stop]
        positions = [_position(event) for event in marks]
        has_fraction = any(each is not None and each != int(each) for each in positions)
        whole = number(begin.metadata.get("epoch_num", begin.value))
        for first, last in zip(marks[::2], marks[1::2], strict=True):
            window: dict[str, Any] = {
                "start_ns": first.t_ms * 10**6,
                "duration_s": (last.t_ms - first.t_ms) * 1e-3,
            }
            if window["duration_s"] <= 0:
                continue
            if has_fraction or by_samples or not epochs:
                done = _amount(first, last, dataset if not by_samples else 1.0)
                if done is None or not batch or round(done / batch) < 1:
                    continue
                window |= {"phase": "steps", "samples": round(done), "steps": round(done / batch)}
            else:
                is_cut = stop.t_ms >= end_ms
                window |= {"phase": "train", "epoch": int(whole or 0), "interrupted": is_cut}
            windows.append(window)
    if windows and all(window.get("interrupted") for window in windows):
        return []
    return windows


def _amount(first: Event, last: Event, per_unit: float | None) -> float | None:
    """Return the samples between two events; None if the log does not say it."""
    before, after = _position(first), _position(last)
    if before is None or after is None or per_unit is None or after <= before:
        return None
    return (after - before) * per_unit


def _evaluation(events: Sequence[Event], begin: Event, stop: Event) -> dict[str, Any]:
    results = [
        number(event.value)
        for event in events
        if event.key == _METRIC and begin.t_ms <= event.t_ms <= stop.t_ms
    ]
    position = _position(begin)
    return {
        "phase": "evaluate",
        "epoch": int(position) if position is not None and 0 <= position < 10**7 else None,
        "start_ns": begin.t_ms * 10**6,
        "duration_s": (stop.t_ms - begin.t_ms) * 1e-3,
        "metric": results[-1] if results else None,
    }


TRAINING = TrainingImporter()
POWER = PowerImporter()
