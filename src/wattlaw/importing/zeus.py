"""Files of Zeus: the window log of ``ZeusMonitor`` and the log of its old power monitor.

``ZeusMonitor(log_file=...)`` writes ``start_time,window_name,elapsed_time,gpu0_energy,...``. The
start is a clock of unknown origin in old versions, Unix time in new ones.
"""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattlaw.common.errors import BadInput
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, headers_in, moment_ns, ns_of, number, positive
from wattlaw.importing.readings import SampleRows, describe
from wattlaw.importing.runs import HOST, NOT_CHECKED, RunMaker, checked_energy
from wattlaw.importing.timeseries import measure_of, phase_of
from wattlaw.store.import_tables import ImportedRun

_COLUMNS = ("start_time", "window_name", "elapsed_time")
_GPU = re.compile(r"gpu(\d{1,4})_energy")
_LIMIT = re.compile(r"__GlobalPowerLimitOptimizer_(\d{1,5})")
_EPOCH, _MICRO = (re.compile(text, re.IGNORECASE) for text in ("epoch", "micro|mini"))
#: Windows that follow each other may overlap by so much, in s and as a share of the shorter one.
_SLACK_S, _SLACK = 0.05, 0.02
#: Ranks up to the first are of training: epochs, others, and steps. The last one is of the rest.
_INNERMOST, _LAST = 2, 4
#: The number of a GPU in the name of a file of the old power monitor.
_GPU_OF_FILE = re.compile(r"gpu[_-]?(\d{1,3})(?!\d)", re.IGNORECASE)
#: Earlier starts, 2001, are of a clock that began when the machine was booted.
_UNIX_S = 1e9


class WindowsImporter:
    name = "zeus"
    description = "window log of ZeusMonitor(log_file=...)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return any({*_COLUMNS} <= names for names in headers_in(head))

    def read(self, source: Source, options: Options) -> Imported:
        path, account, maker = source.path, source.account, RunMaker(source.path, options)
        windows: list[_Window] = []
        for line, row in source.rows(_COLUMNS):
            energies = [number(row[name]) for name in row if _GPU.fullmatch(name)]
            known = [each for each in energies if each is not None and each >= 0]
            start_s, duration_s = number(row["start_time"]), positive(row["elapsed_time"])
            if start_s is None or duration_s is None or len(known) < len(energies) or not known:
                account.leave_out("no time, or no energy of a GPU", line)
                continue
            name = row["window_name"]
            windows.append(_Window(line, name, start_s, duration_s, sum(known), len(known)))
        by_run: dict[tuple[float, int], list[_Window]] = {}
        reasons = _reasons(windows)
        for window in sorted(windows, key=lambda window: (window.start_s, window.line)):
            if window.line in reasons:
                account.leave_out(reasons[window.line], window.line)
                continue
            account.read(window.line)
            by_run.setdefault((window.limit_w or 0.0, window.gpus), []).append(window)
            if len(by_run) > 10_000:
                raise BadInput(f"{path}: line {window.line}: more than 10,000 power limits")
        if not by_run:
            why = "; ".join(["no window with a time and the energy of a GPU", *account.texts()[:2]])
            raise BadInput(f"{path}: {why}")
        runs = [_run(maker, own) for _, own in sorted(by_run.items())]
        gpus = "/".join(str(count) for count in sorted({count for _, count in by_run}))
        text = f"Zeus window log: {gpus} GPUs, {sum(map(len, by_run.values())):,} windows"
        limits = len({limit for limit, _ in by_run if limit})
        text += f", {limits} power limits of its optimizer" if limits else ""
        return Imported(text, runs)


@dataclass(frozen=True)
class _Window:
    line: int
    name: str
    start_s: float
    duration_s: float
    energy_j: float
    gpus: int

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    @property
    def limit_w(self) -> float | None:
        limit = _LIMIT.fullmatch(self.name)
        return float(limit[1]) if limit else None

    @property
    def rank(self) -> int:
        phase = phase_of(self.name)
        if self.limit_w is not None or (phase == "train" and _EPOCH.search(self.name)):
            return 0
        if phase == "steps" and _MICRO.search(self.name):
            return _LAST
        return {"train": 1, "steps": 2, "evaluate": 3}.get(phase, _LAST)


def _reasons(windows: Sequence[_Window]) -> dict[int, str]:
    """Return why windows do not count, by their lines. Of windows inside windows only one counts:
    epochs first, whatever is around or in them, then other windows of training, steps, evaluations,
    the rest. Of equals the inner ones count if they are of training, and else the outermost one."""
    ranks = {window.line: window.rank for window in windows}
    trainings = [line for line, rank in ranks.items() if rank == 1]
    if len(trainings) == 1 and 2 in ranks.values():
        ranks[trainings[0]] = _LAST  # it is all of the training, whose parts are steps

    def order(window: _Window) -> tuple[int, float, int]:
        rank, duration_s = ranks[window.line], window.duration_s
        return rank, duration_s if rank <= _INNERMOST else -duration_s, window.line

    kept, starts, reasons = list[_Window](), list[float](), dict[int, str]()
    for window in sorted(windows, key=order):
        place = bisect_right(starts, window.start_s)
        beside = kept[max(0, place - 1) : place + 1]
        other = next((each for each in beside if _is_conflict(each, window)), None)
        if other is None:
            starts.insert(place, window.start_s)
            kept.insert(place, window)
        elif (other.name, other.start_s) == (window.name, window.start_s):
            reasons[window.line] = "a window that is in the file twice"
        elif window.duration_s > other.duration_s and window.end_s > other.end_s - _SLACK_S:
            reasons[window.line] = "an outer window: it contains windows that count"
        else:
            reasons[window.line] = "inside a window that counts, or overlaps it"
    return reasons


def _is_conflict(one: _Window, other: _Window) -> bool:
    if (one.name, one.start_s) == (other.name, other.start_s):
        return True
    if one.limit_w is not None and other.limit_w is not None:
        return False
    over_s = min(one.end_s, other.end_s) - max(one.start_s, other.start_s)
    return over_s > min(_SLACK_S, _SLACK * min(one.duration_s, other.duration_s))


def _run(maker: RunMaker, windows: Sequence[_Window]) -> ImportedRun:
    limit_w, gpus = windows[0].limit_w, windows[0].gpus
    phases = ["run" if limit_w else phase_of(window.name) for window in windows]
    if len({*phases}) == 1 and phases[0] not in ("train", "evaluate", "steps"):
        phases = ["run"] * len(phases)
    rows, epoch = [], 0
    for window, phase in zip(windows, phases, strict=True):
        row = {
            "phase": phase,
            "start_ns": ns_of(window.start_s) if window.start_s > _UNIX_S else None,
            "duration_s": window.duration_s,
            **checked_energy({"gpu_energy_j": window.energy_j}, "counter", NOT_CHECKED),
        }
        if "gpu_energy_j" in row:
            row["gpu_power_mean_w"] = window.energy_j / window.duration_s / gpus
        if phase == "train":
            row["epoch"], epoch = epoch, epoch + 1
        elif phase == "evaluate":
            row["epoch"] = max(0, epoch - 1)
        elif phase == "steps":
            row["steps"] = 1
        rows.append(row)
    values = {"gpus": gpus, **({"power_limit_w": limit_w} if limit_w else {})}
    return maker.run(values, rows, measure_of(rows))


class PowerImporter:
    """The power of one GPU, in milliwatts, by the power monitor of old versions."""

    name = "zeus-power"
    description = "log of Zeus' old power monitor (Time,Power in mW)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return {"Time", "Power"} in headers_in(head)

    def read(self, source: Source, options: Options) -> Imported:
        rows, gpu = SampleRows(source.path), _GPU_OF_FILE.search(source.path.stem)
        for line in source.table(lambda cells: {*cells} == {"Time", "Power"}, only_complete=True):
            row = dict(zip(line.header, line.cells, strict=True))
            t_ns, milliwatts = moment_ns(row["Time"], options.timezone), number(row["Power"])
            if t_ns is None or milliwatts is None:
                source.account.leave_out("no time or no power", line.number)
                continue
            rows.add(HOST, gpu[1] if gpu else "0", "gpu", t_ns, {"power_w": milliwatts * 1e-3})
            source.account.read(line.number)
        readings = rows.readings(source.account.texts())
        return Imported(describe("Zeus power log", readings, options), readings=readings)


WINDOWS = WindowsImporter()
POWER = PowerImporter()
