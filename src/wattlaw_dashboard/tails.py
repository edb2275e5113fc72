"""Samples and windows of a run, also while its processes write them.

Samples become means of a second, so that a view costs the same at any sample rate. A view of an
active run shows its last ten minutes; that of a long run that has ended has longer steps.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from wattlaw.common.files import open_regular
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.streams import Kind

#: Steps of time that are kept; a step is a second, or longer for a long run that has ended.
STEPS = 600
#: With more devices than this, each keeps fewer steps, but so many at least.
MOST_DEVICES, LEAST_STEPS = 64, 60
#: Values of a device that a view shows, with the factor to the unit in which it shows them.
SHOWN: Mapping[str, float] = {
    "power_w": 1.0, "sm_util": 100.0, "sm_clock_mhz": 1.0, "temperature_c": 1.0,
    "power_limit_w": 1.0, "cpu_cores": 1.0,
}  # fmt: skip
#: Bytes of a file that are read at once, and of a file that is long when it is first read.
_MAX_BYTES, _HEADER_BYTES = 4 * 2**20, 4096
_HIGHEST = 1e12
_FILE = re.compile(r"(telemetry|windows)\.(.+)\.csv")
_KINDS = frozenset(get_args(Kind))
_NOT_MEASURED = ("estimated", "simulated")


@dataclass
class Device:
    """The samples of one device, by column and step of time since 1970."""

    host: str
    id: str
    kind: str
    step_s: int = 1
    origin: str | None = None  # of its power, if that is not measured: estimated or simulated
    #: Sum and number of the samples, by column and step.
    steps: dict[str, dict[int, tuple[float, int]]] = field(default_factory=dict)
    _counter: tuple[float, float] | None = None  # time in s, energy in J

    def add(self, row: Mapping[str, Any]) -> None:
        t_s = _number(row.get("t_ns")) * 1e-9
        if not 0 <= t_s < 2**33:
            return
        values = {name: _number(row.get(name)) * factor for name, factor in SHOWN.items()}
        if math.isnan(values["power_w"]):
            values["power_w"] = self._power_of_counter(t_s, _number(row.get("energy_j")))
        if row.get("power_source") in _NOT_MEASURED:
            self.origin = row["power_source"]
        step = int(t_s // self.step_s)
        for name, value in values.items():
            if abs(value) < _HIGHEST:  # neither nan nor a value whose sum is not finite
                steps = self.steps.setdefault(name, {})
                total, count = steps.get(step, (0.0, 0))
                steps[step] = total + value, count + 1

    def forget(self, before: int) -> None:
        for column, steps in self.steps.items():
            self.steps[column] = {step: each for step, each in steps.items() if step >= before}

    def _power_of_counter(self, t_s: float, energy_j: float) -> float:
        before = self._counter
        if math.isnan(energy_j) or (before is not None and t_s - before[0] < 0.5):
            return math.nan
        self._counter = t_s, energy_j
        if before is None or energy_j < before[1] or t_s - before[0] > STEPS:
            return math.nan
        return (energy_j - before[1]) / (t_s - before[0])

    def title(self, column: str) -> str:
        return f"{self.id} on {self.host}" + self.column(column).removeprefix(column)

    def column(self, column: str) -> str:
        """Return a column with its origin if not measured: two origins are not added up."""
        is_marked = self.origin == "simulated" or (self.origin is not None and column == "power_w")
        return column + (f" ({self.origin})" if is_marked else "")

    def series(self, column: str) -> dict[int, float]:
        """Return the mean of each step that has values, by the time of its begin in seconds."""
        steps = sorted(self.steps.get(column, {}).items())
        return {step * self.step_s: total / count for step, (total, count) in steps}

    def last(self, column: str) -> float | None:
        return next(reversed(self.series(column).values()), None)


@dataclass(frozen=True)
class Mark:
    host: str
    phase: str
    is_warmup: bool
    start_s: float
    end_s: float
    step_s: float | None

    @classmethod
    def of(cls, host: str, row: Mapping[str, Any]) -> "Mark | None":
        start_s, duration_s = _number(row.get("start_ns")) * 1e-9, _number(row.get("duration_s"))
        step_s = _number(row.get("step_time_mean_s"))
        if not math.isfinite(start_s + duration_s):
            return None
        return cls(
            host, row.get("phase", ""), str(row.get("warmup")) == "True", start_s,
            start_s + duration_s, step_s if math.isfinite(step_s) else None,
        )  # fmt: skip


#: The devices and the windows of runs.
Written = tuple[list[Device], list[Mark]]


def ends(devices: Iterable[Device]) -> tuple[int, int]:
    """Return the first and the last step with a sample."""
    steps = {step for device in devices for own in device.steps.values() for step in own}
    return min(steps, default=0), max(steps, default=0)


class RunTail:
    def __init__(self, folder: RunFolder, attempt: int) -> None:
        self._live = folder.live(attempt)
        self._files: dict[Path, _FileTail] = {}
        self.devices: dict[tuple[str, str], Device] = {}
        self.marks: list[Mark] = []

    def poll(self) -> None:
        for path in sorted(self._live.glob("*.csv")):
            match = _FILE.fullmatch(path.name)
            if match is None:
                continue
            what, host = match.groups()
            for row in self._files.setdefault(path, _FileTail(path)).rows():
                if what == "windows":
                    mark = Mark.of(host, row)
                    self.marks += [] if mark is None else [mark]
                elif (name := row.get("device", "")) and row.get("kind") in _KINDS:
                    device = Device(host, name, row["kind"])
                    self.devices.setdefault((host, name), device).add(row)
        newest = ends(self.devices.values())[1]
        share = min(1.0, MOST_DEVICES / max(1, len(self.devices)))
        for device in self.devices.values():
            device.forget(newest - max(LEAST_STEPS, round(share * STEPS)))
        self.marks = [mark for mark in self.marks if mark.end_s >= newest - STEPS]


class _FileTail:
    """The new rows of a growing file; each reading opens it, so that NFS shows what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names: list[str] | None = None
        self._offset = 0

    def rows(self) -> Iterator[dict[str, str]]:
        try:
            with open_regular(self._path, follow_links=False) as file:
                if self._names is None:
                    header, newline, _ = file.read(_HEADER_BYTES).partition(b"\n")
                    if not newline:
                        return
                    self._names = header.decode("utf-8", "replace").split(",")
                    self._offset = len(header) + 1
                size = file.seek(0, 2)
                is_cut = size - self._offset > _MAX_BYTES
                file.seek(max(self._offset, size - _MAX_BYTES))
                content = file.read(_MAX_BYTES)
        except OSError:
            return
        begin = content.find(b"\n") + 1 if is_cut else 0
        end = content.rfind(b"\n") + 1
        if end <= begin:
            return
        self._offset = size - len(content) + end
        for line in content[begin:end].decode("utf-8", "replace").splitlines():
            try:
                (values,) = csv.reader([line], strict=True)
            except (ValueError, csv.Error):
                continue
            if len(values) == len(self._names or ()):
                yield dict(zip(self._names or (), values, strict=True))


def ended_run(folder: RunFolder) -> Written:
    import pyarrow.parquet as pq

    names = ["host", "device", "kind", "t_ns", "energy_j", "power_source", *SHOWN]
    samples = pq.read_table(folder.telemetry_path, columns=names).to_pydict()
    times = samples["t_ns"]
    length_s = (max(times) - min(times)) * 1e-9 if times else 0.0
    step_s = max(1, math.ceil(length_s / STEPS))
    devices: dict[tuple[str, str], Device] = {}
    for row in zip(*samples.values(), strict=True):
        values = dict(zip(names, row, strict=True))
        key = values["host"], values["device"]
        devices.setdefault(key, Device(*key, values["kind"], step_s)).add(values)
    columns = ["host", "phase", "warmup", "start_ns", "duration_s", "step_time_mean_s"]
    windows = pq.read_table(folder.epochs_path, columns=columns).to_pylist()
    marks = [mark for row in windows if (mark := Mark.of(row["host"], row)) is not None]
    return list(devices.values()), marks


def _number(value: float | str | None) -> float:
    try:
        return float(value) if value not in (None, "") else math.nan
    except ValueError:
        return math.nan
