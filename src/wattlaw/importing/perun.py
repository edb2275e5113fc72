"""perun's HDF5 files: the nodes, sensors and regions of one application.

The tree is application, monitored runs, their rounds, hosts, device groups and sensors. A sensor
with a unit of J or W has ``raw_data``: seconds since the start of its round, and values. Counters
of energy begin again at ``valid_max``; such wraps are repaired. A region has the begin and end of
each of its calls, per rank.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.errors import BadInput
from wattlaw.importing.hdf5 import Node, read_tree
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MAX_READINGS, Source, moment_ns
from wattlaw.importing.runs import RunMaker, single_run
from wattlaw.importing.timeseries import SampleRows, gpus_of, measure_of, measured, phase_of
from wattlaw.store.imports import ImportedRun

_MAGIC = b"\x89HDF\r\n\x1a\n"
_KINDS = {"cpu": "cpu", "gpu": "gpu", "ram": "dram"}
_UNITS = {"J": "energy_j", "W": "power_w"}
#: Domains of RAPL that are parts of others.
_PARTS = re.compile(r"core|uncore|psys", re.IGNORECASE)
_MAX_ROUNDS, _MAX_CALLS = 10_000, 100_000


class PerunImporter:
    """Regions and sensors of an application."""

    name = "perun"
    description = "HDF5 file of perun (extra: import)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether this is an HDF5 file."""
        return head.startswith(_MAGIC)

    def read(self, source: Source, options: Options) -> Imported:
        """Return a run for each round."""
        path = source.path
        maker, runs, wraps = RunMaker(path, options), list[ImportedRun](), 0
        apps = read_tree(path, MAX_READINGS).groups
        for app, monitored in ((a, m) for a in apps for m in _nodes(a)):
            started_ns, rounds = (
                moment_ns(monitored.text("execution_dt"), options.timezone), _nodes(monitored),
            )  # fmt: skip
            if started_ns is None or len(rounds) + len(runs) > _MAX_ROUNDS:
                raise BadInput(f"{path}: a run without a time, or more than {_MAX_ROUNDS:,} rounds")
            for each in rounds:
                run, end_ns, own_wraps = _round(path, maker, app, each, started_ns)
                started_ns, wraps = end_ns, wraps + own_wraps
                runs.append(run)
        if not runs:
            raise BadInput(f"{path}: no monitored run; not a file of perun")
        notes = [f"{wraps} wraps of energy counters repaired"] if wraps else []
        if len(runs) > 1:
            notes.append(
                "perun has one start for several rounds; later ones follow without a pause"
            )
        windows = sum(len(run.windows) for run in runs)
        text = f"perun: {len(runs)} runs, {windows:,} windows, times in {options.zone_note}"
        return Imported(text, runs, notes=notes)


def _round(
    path: Path, maker: RunMaker, app: Node, group: Node, started_ns: int
) -> tuple[ImportedRun, int, int]:
    """Return the run of one round, when it ended, and the wraps of its counters."""
    rows, wraps, hosts = SampleRows(path), 0, _nodes(group)
    duration_s = _value(group, "metrics/RUNTIME")
    for host in hosts:
        for sensor in (s for devices in _nodes(host) for s in _nodes(devices)):
            wraps += _add_sensor(path, rows, _name(host), sensor, started_ns)
    windows = list(_calls(path, group, started_ns))
    if not windows:
        if duration_s is None or not duration_s > 0:
            raise BadInput(f"{path}: a round has neither regions nor a runtime")
        windows = [{"phase": "run", "start_ns": started_ns, "duration_s": duration_s}]
    ends_ns = [row["start_ns"] + round(row["duration_s"] * 1e9) for row in windows]
    end_ns = max([*ends_ns, started_ns + round((duration_s or 0) * 1e9)])
    readings = rows.readings() if len(rows) else None
    gpus = 0 if readings is None else len(gpus_of(readings.samples))
    values: dict[str, Any] = {"workload": _name(app), "nodes": max(1, len(hosts))}
    values |= {"gpus": gpus} if gpus else {}
    run = single_run(
        path, maker, values, windows, measure_of(windows), period_ns=(started_ns, end_ns)
    )
    if readings is None:
        return run, end_ns, wraps
    measured_rows, telemetry = measured(run.record.run_id, run.windows, readings)
    return ImportedRun(record=run.record, windows=measured_rows, telemetry=telemetry), end_ns, wraps


def _add_sensor(path: Path, rows: SampleRows, host: str, sensor: Node, started_ns: int) -> int:
    """Add the readings of a sensor; return the wraps of its counter."""
    data = sensor.members.get("raw_data") or Node("", {}, {})
    kind = _KINDS.get(sensor.text("device_type"))
    times, values = data.members.get("timesteps"), data.members.get("values")
    alternative = data.members.get("alt_values")
    if alternative is not None and alternative.text("unit") == "J":
        values = alternative  # processed files have power in place of the counter
    if kind is None or times is None or values is None:
        return 0
    column = _UNITS.get(values.text("unit"))
    if column is None:
        return 0
    if kind == "cpu" and _PARTS.search(_name(sensor)):
        return 0
    time_s, raw = _array(path, times) * _factor(times), _array(path, values)
    size = min(len(time_s), len(raw))
    time_s, raw, wraps = time_s[:size], raw[:size], 0
    if column == "energy_j":
        most = values.number("valid_max")
        steps = np.diff(raw)
        is_wrap = steps < 0
        wraps = int(is_wrap.sum())
        if wraps and 0 < most < 1e19:
            raw = raw.copy()
            raw[1:] += np.cumsum(np.where(is_wrap, most, 0.0))
    raw = raw * _factor(values)
    for offset_s, value in zip(time_s.tolist(), raw.tolist(), strict=True):
        if 0 <= offset_s < 1e8 and np.isfinite(value) and value >= 0:
            rows.add(host, _name(sensor), kind, started_ns + round(offset_s * 1e9), {column: value})
    return wraps


def _calls(path: Path, group: Node, started_ns: int) -> Iterator[dict[str, Any]]:
    """Yield a window for each call of each region, from the first rank's begin to the last end."""
    regions = group.members.get("regions")
    for region in regions.groups if regions else ():
        name = region.text("id") or _name(region)
        calls = region.members.get("raw_data")
        members = calls.members.values() if calls else ()
        ranks = [_array(path, data) for data in members if data.is_dataset]
        ranks = [rank[: len(rank) // 2 * 2].reshape(-1, 2) for rank in ranks]
        count = min((len(rank) for rank in ranks), default=0)
        if count > _MAX_CALLS:
            raise BadInput(f"{path}: a region has more than {_MAX_CALLS:,} calls")
        phase = phase_of(name)
        for call in range(count):
            begin = min(float(rank[call, 0]) for rank in ranks)
            end = max(float(rank[call, 1]) for rank in ranks)
            if not 0 <= begin < end < 1e8:
                continue
            window = {
                "phase": phase,
                "start_ns": started_ns + round(begin * 1e9),
                "duration_s": end - begin,
            }
            if phase in ("train", "evaluate"):
                window["epoch"] = call
            elif phase == "steps":
                window["steps"] = 1
            yield window


def _nodes(group: Node) -> list[Node]:
    nodes = group.members.get("nodes")
    return nodes.groups if nodes else []


def _name(node: Node) -> str:
    return "".join(c if c.isprintable() else "?" for c in node.name)[:100] or "unnamed"


def _factor(data: Node) -> float:
    factor = data.number("mag")
    return factor if 1e-12 <= factor <= 1e12 else 1.0


def _value(group: Node, name: str) -> float | None:
    metric: Node | None = group
    for part in name.split("/"):
        metric = metric and metric.members.get(part)
    value = None if metric is None else metric.number("value") or metric.number("mean")
    return value if value is not None and 0 < value < 1e8 else None


def _array(path: Path, data: Node) -> npt.NDArray[np.float64]:
    """Return the values of a dataset; raise ``BadInput`` if it has none that can be read."""
    if data.values is None:
        raise BadInput(f"{path}: {_name(data)} {data.refusal or 'is a group'}")
    return data.values


IMPORTER = PerunImporter()
