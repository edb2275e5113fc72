"""Files of Zeus: the window log of ``ZeusMonitor`` and the log of its old power monitor.

``ZeusMonitor(log_file=...)`` writes ``start_time,window_name,elapsed_time,gpu0_energy,...``. The
start is a clock of unknown origin in old versions, Unix time in new ones.
"""

import re
from pathlib import Path
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import (
    Source,
    headers_in,
    moment_ns,
    ns_of,
    number,
    positive,
)
from wattlaw.importing.runs import HOST, NOT_CHECKED, RunMaker, checked_energy, single_run
from wattlaw.importing.timeseries import SampleRows, describe, measure_of, phase_of
from wattlaw.store.imports import ImportedRun

_COLUMNS = ("start_time", "window_name", "elapsed_time")
_GPU = re.compile(r"gpu(\d{1,4})_energy")
_LIMIT = re.compile(r"__GlobalPowerLimitOptimizer_(\d{1,5})")
#: Earlier starts, 2001, are of a clock that began when the machine was booted.
_UNIX_S = 1e9


class WindowsImporter:
    """Time and energy of the windows of a ``ZeusMonitor``."""

    name = "zeus"
    description = "window log of ZeusMonitor(log_file=...)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether the header is that of a window log."""
        return head.lstrip(b"\xef\xbb\xbf").startswith(",".join(_COLUMNS).encode())

    def read(self, source: Source, options: Options) -> Imported:
        """Return a run for each power limit of the optimizer, and one of all other windows."""
        path, account, maker = source.path, source.account, RunMaker(source.path, options)
        by_limit: dict[float | None, list[dict[str, Any]]] = {}
        gpus = 0
        for line, row in source.rows(_COLUMNS):
            energies = [number(row[name]) for name in row if _GPU.fullmatch(name)]
            gpus = len(energies)
            duration_s, name = positive(row["elapsed_time"]), row["window_name"]
            if duration_s is None or any(each is None for each in energies):
                account.leave_out("no time, or no energy of a GPU", line)
                continue
            account.read(line)
            limit = _LIMIT.fullmatch(name)
            power_limit_w = float(limit[1]) if limit else None
            energy_j = sum(each for each in energies if each is not None)
            start_s = number(row["start_time"])
            window = {
                "phase": "run" if limit else phase_of(name),
                "start_ns": ns_of(start_s) if start_s is not None and start_s > _UNIX_S else None,
                "duration_s": duration_s,
                **checked_energy({"gpu_energy_j": energy_j}, "counter", NOT_CHECKED),
            }
            if "gpu_energy_j" in window:
                window["gpu_power_mean_w"] = energy_j / duration_s / gpus
            by_limit.setdefault(power_limit_w, []).append(window)
            if len(by_limit) > 10_000:
                raise BadInput(f"{path}: line {line}: more than 10,000 power limits")
        if not by_limit or not gpus:
            raise BadInput(f"{path}: no window with a time and the energy of a GPU")
        runs = [
            _run(path, maker, limit, windows, gpus)
            for limit, windows in sorted(by_limit.items(), key=lambda item: item[0] or 0.0)
        ]
        count = sum(map(len, by_limit.values()))
        limits = len([limit for limit in by_limit if limit])
        text = f"Zeus window log: {gpus} GPUs, {count:,} windows"
        text += f", {limits} power limits of its optimizer" if limits else ""
        return Imported(text, runs)


def _run(
    path: Path, maker: RunMaker, limit: float | None, windows: list[dict[str, Any]], gpus: int
) -> ImportedRun:
    phases = {window["phase"] for window in windows}
    if len(phases) == 1 and phases.isdisjoint({"train", "evaluate", "steps"}):
        windows = [{**window, "phase": "run"} for window in windows]
    epoch = 0
    for window in windows:
        if window["phase"] == "train":
            window["epoch"], epoch = epoch, epoch + 1
        elif window["phase"] == "evaluate":
            window["epoch"] = max(0, epoch - 1)
        elif window["phase"] == "steps":
            window["steps"] = 1
    values: dict[str, Any] = {"gpus": gpus}
    if limit:
        values["power_limit_w"] = limit
    return single_run(path, maker, values, windows, measure_of(windows))


class PowerImporter:
    """The power of one GPU, in milliwatts, by the power monitor of old versions."""

    name = "zeus-power"
    description = "log of Zeus' old power monitor (Time,Power in mW)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether the header is that of a power log."""
        return {"Time", "Power"} in headers_in(head)

    def read(self, source: Source, options: Options) -> Imported:
        """Return the readings of the GPU."""
        rows = SampleRows(source.path)
        for line in source.table(lambda cells: {*cells} == {"Time", "Power"}, only_complete=True):
            row = dict(zip(line.header, line.cells, strict=True))
            t_ns, milliwatts = moment_ns(row["Time"], options.timezone), number(row["Power"])
            if t_ns is None or milliwatts is None:
                source.account.leave_out("no time or no power", line.number)
                continue
            rows.add(HOST, "0", "gpu", t_ns, {"power_w": milliwatts * 1e-3})
            source.account.read(line.number)
        readings = rows.readings()
        return Imported(describe("Zeus power log", readings, options), readings=readings)


WINDOWS = WindowsImporter()
POWER = PowerImporter()
