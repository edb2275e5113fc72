"""perun's HDF5 files: the nodes, sensors and regions of one application.

The tree is application, monitored runs, their rounds, hosts, device groups and sensors. A sensor
with a unit of J or W has ``raw_data``: seconds since the start of its round, and values. Counters
of energy begin again at ``valid_max``; such wraps are repaired. A region has the begin and end of
each of its calls, per rank.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MAX_READINGS, Source, moment_ns
from wattlaw.importing.readings import SampleRows, gpus_of
from wattlaw.importing.runs import RunMaker
from wattlaw.importing.timeseries import measure_of, measured, overlapping, phase_of
from wattlaw.store.import_tables import ImportedRun
from wattlaw_formats.hdf5 import Node, read_tree

_MAGIC = b"\x89HDF\r\n\x1a\n"
_KINDS = {"cpu": "cpu", "gpu": "gpu", "ram": "dram"}
_UNITS = {"J": "energy_j", "W": "power_w"}
#: Domains of RAPL that are parts of others.
_PARTS = re.compile(r"core|uncore|psys", re.IGNORECASE)
_MAX_ROUNDS, _MAX_CALLS = 10_000, 100_000


class PerunImporter:
    name = "perun"
    description = "HDF5 file of perun (extra: import)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return head.startswith(_MAGIC)

    def read(self, source: Source, options: Options) -> Imported:
        path = source.path
        reader, runs = _Reader(source, read_tree(path, MAX_READINGS)), list[ImportedRun]()
        maker, dropped = RunMaker(path, options), Counter[tuple[str, str]]()
        for app, monitored in ((a, m) for a in reader.tree.groups for m in _nodes(a)):
            started_ns = moment_ns(monitored.text("execution_dt"), options.timezone)
            rounds = _nodes(monitored)
            if started_ns is None or len(rounds) + len(runs) > _MAX_ROUNDS:
                raise BadInput(f"{path}: a run without a time, or more than {_MAX_ROUNDS:,} rounds")
            for each in rounds:
                run, started_ns = _round(reader, maker, app, each, started_ns)
                runs.append(run)
                dropped += reader.dropped
        if not runs:
            raise BadInput(f"{path}: no monitored run; not a file of perun")
        notes = [f"{reader.wraps} wraps of energy counters repaired"] if reader.wraps else []
        if len(runs) > 1:
            notes.append("perun has one start for several rounds; they follow without a pause")
        notes += _texts(dropped)
        windows = sum(len(run.windows) for run in runs)
        text = f"perun: {len(runs)} runs, {windows:,} windows, times in {options.zone_note}"
        return Imported(text, runs, notes=notes)


def _texts(dropped: Counter[tuple[str, str]]) -> list[str]:
    return [f"{plural(count, what)} left out: {why}" for (what, why), count in dropped.items()]


class _Reader:
    """The tree of a file with the account of its datasets, and what else is left out."""

    def __init__(self, source: Source, tree: Node) -> None:
        self.path, self.tree, self.account = source.path, tree, source.account
        self.wraps = 0
        self.dropped = Counter[tuple[str, str]]()  # of a round: what it is, and why
        self._rows = {id(node): row for row, node in source.items(_datasets(tree), "dataset")}

    def read(self, *nodes: Node) -> None:
        self.account.read(*(self._rows[id(node)] for node in nodes))

    def leave_out(self, why: str, node: Node) -> None:
        self.account.leave_out(why, *(self._rows[id(each)] for each in _datasets(node)))

    def array(self, data: Node) -> npt.NDArray[np.float64]:
        if data.values is None:
            raise BadInput(f"{self.path}: {_name(data)} {data.refusal or 'is a group'}")
        return data.values


def _datasets(node: Node) -> Iterator[Node]:
    if node.is_dataset:
        yield node
    for _, member in sorted(node.members.items()):
        yield from _datasets(member)


def _round(
    reader: _Reader, maker: RunMaker, app: Node, group: Node, started_ns: int
) -> tuple[ImportedRun, int]:
    path, hosts = reader.path, _nodes(group)
    rows, reader.dropped = SampleRows(path), Counter()
    metrics = group.members.get("metrics")
    runtime = metrics and metrics.members.get("RUNTIME")
    duration_s = 0.0 if runtime is None else runtime.number("value") or runtime.number("mean")
    duration_s = duration_s if 0 < duration_s < 1e8 else 0.0
    for host in hosts:
        for sensor in (s for devices in _nodes(host) for s in _nodes(devices)):
            _add_sensor(reader, rows, _name(host), sensor, started_ns)
    windows = list(_calls(reader, group, started_ns))
    ends_ns = [row["start_ns"] + round(row["duration_s"] * 1e9) for row in windows]
    left = overlapping({
        index: (row["phase"], row["start_ns"], end_ns)
        for index, (row, end_ns) in enumerate(zip(windows, ends_ns, strict=True))
    })  # fmt: skip
    reader.dropped.update(("call", why) for why in left.values())
    windows = [row for index, row in enumerate(windows) if index not in left]
    if not windows:
        if not duration_s:
            raise BadInput(f"{path}: a round has neither regions nor a runtime")
        windows = [{"phase": "run", "start_ns": started_ns, "duration_s": duration_s}]
    end_ns = max([*ends_ns, started_ns + round(duration_s * 1e9)])
    readings = rows.readings() if len(rows) else None
    gpus = 0 if readings is None else len(gpus_of(readings.samples))
    values: dict[str, Any] = {"workload": _name(app), "nodes": max(1, len(hosts))}
    values |= {"gpus": gpus} if gpus else {}
    period_ns, notes = (started_ns, end_ns), _texts(reader.dropped)
    run = maker.run(values, windows, measure_of(windows), period_ns=period_ns, notes=notes)
    if readings is None:
        return run, end_ns
    return measured(run, readings), end_ns


def _add_sensor(
    reader: _Reader, rows: SampleRows, host: str, sensor: Node, started_ns: int
) -> None:
    data = sensor.members.get("raw_data") or Node("", {}, {})
    kind = _KINDS.get(sensor.text("device_type"))
    times, values = data.members.get("timesteps"), data.members.get("values")
    alternative = data.members.get("alt_values")
    if alternative is not None and alternative.text("unit") == "J":
        values = alternative  # processed files have power in place of the counter
    column = None if values is None else _UNITS.get(values.text("unit"))
    if times is None or values is None or kind is None or column is None:
        return reader.leave_out("of a sensor without a power or an energy", sensor)
    if kind == "cpu" and _PARTS.search(_name(sensor)):
        return reader.leave_out("of a part of a processor whose sum is another sensor", sensor)
    reader.leave_out("of a sensor with another unit of its values", sensor)
    reader.read(times, values)
    time_s, raw = reader.array(times) * _factor(times), reader.array(values)
    size = min(len(time_s), len(raw))
    if size < max(len(time_s), len(raw)):
        count = max(len(time_s), len(raw)) - size
        reader.dropped["reading", "without a time, or a time without one"] += count
    time_s, raw = time_s[:size], raw[:size]
    most = values.number("valid_max")
    if column == "energy_j" and 0 < most < 1e19:
        is_wrap = np.diff(raw) < 0
        reader.wraps += int(is_wrap.sum())
        raw = raw + np.concatenate([[0.0], np.cumsum(np.where(is_wrap, most, 0.0))])[:size]
    raw = raw * _factor(values)
    is_valid = (time_s >= 0) & (time_s < 1e8) & np.isfinite(raw) & (raw >= 0)
    if count := int((~is_valid).sum()):
        reader.dropped["reading", "negative, infinite or before its start"] += count
    for offset_s, value in zip(time_s[is_valid].tolist(), raw[is_valid].tolist(), strict=True):
        rows.add(host, _name(sensor), kind, started_ns + round(offset_s * 1e9), {column: value})
    return None


def _calls(reader: _Reader, group: Node, started_ns: int) -> Iterator[dict[str, Any]]:
    """Yield a window for each call of each region, from the first rank's begin to the last end."""
    regions = group.members.get("regions")
    for region in regions.groups if regions else ():
        name = region.text("id") or _name(region)
        calls = region.members.get("raw_data")
        members = [data for data in calls.members.values() if data.is_dataset] if calls else []
        reader.read(*members)
        edges = [reader.array(data) for data in members]
        ranks = [rank[: len(rank) // 2 * 2].reshape(-1, 2) for rank in edges]
        count = min((len(rank) for rank in ranks), default=0)
        if count > _MAX_CALLS:
            raise BadInput(f"{reader.path}: a region has more than {_MAX_CALLS:,} calls")
        for why, more in (
            ("without an end", any(len(rank) % 2 for rank in edges)),
            ("not of all ranks", max((len(rank) for rank in ranks), default=0) - count),
        ):
            reader.dropped.update({("call", why): int(more)} if more else {})
        phase = phase_of(name)
        for call in range(count):
            begin = min(float(rank[call, 0]) for rank in ranks)
            end = max(float(rank[call, 1]) for rank in ranks)
            if not 0 <= begin < end < 1e8:
                reader.dropped["call", "its end is not after its begin"] += 1
                continue
            window = {"phase": phase, "start_ns": started_ns + round(begin * 1e9),
                      "duration_s": end - begin}  # fmt: skip
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


IMPORTER = PerunImporter()
