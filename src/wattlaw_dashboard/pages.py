"""The pages as parts of HTML: overview, results, one run, and a comparison of runs."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import pandas as pd
import pyarrow as pa

from wattlaw.api.results import open as open_results
from wattlaw.common import formatting as fmt
from wattlaw.common.errors import NoSuchRun, WattlawError, one_line
from wattlaw.report.rendering import environment
from wattlaw.running.run_status import StatusPoller
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw_dashboard.channels import Parts
from wattlaw_dashboard.dashboard_overview import RunRow, RunTails, log_tail, read_overview
from wattlaw_dashboard.shown_results import read_energies, read_results
from wattlaw_dashboard.tails import Device, Mark, Totals, ended_run
from wattlaw_dashboard.timeline import timelines

T = TypeVar("T")

#: The shortest time between two readings of all results, and times of their duration.
_RESULTS_S, _RESULTS_FACTOR = 10.0, 10.0
#: The longest id of a run.
MAX_ID = 64
#: The values of a comparison, with their titles.
COMPARED = {
    "workload": "workload", "hardware": "hardware", "gpus": "GPUs", "nodes": "nodes",
    "global_batch": "global batch", "power_limit_w": "power limit, W",
    "clock_limit_mhz": "clock limit, MHz", "power_profile": "power profile",
    "precision": "precision", "unit": "unit",
    "time_s": "time of a unit, s", "energy_j": "energy of a unit, J", "energy_is": "energy counts",
    "power_per_gpu_w": "power per GPU, W", "samples_per_s": "samples per s",
    "gpu_hours": "GPU-hours of a unit", "sm_util_mean": "utilisation", "metric": "quality",
}  # fmt: skip


class Refreshed(Generic[T]):
    """A value that takes long to read: a thread reads it again from time to time."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._value: T | None = None
        self._due_s = 0.0
        self._lock = threading.Lock()

    def get(self) -> T | None:
        """Return the last value, None before the first one, and start to read it if it is due."""
        if time.monotonic() >= self._due_s and self._lock.acquire(blocking=False):
            threading.Thread(target=self._refresh, daemon=True).start()
        return self._value

    def _refresh(self) -> None:
        begin_s = time.monotonic()
        try:
            self._value = self._read()
        finally:
            took_s = time.monotonic() - begin_s
            self._due_s = time.monotonic() + max(_RESULTS_S, _RESULTS_FACTOR * took_s)
            self._lock.release()


@dataclass
class Pages:
    """The pages of stores; reading happens in threads."""

    paths: tuple[Path, ...]
    _poller: StatusPoller = field(default_factory=StatusPoller)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._tails = RunTails(self.paths)
        #: Tables of a done run do not change.
        self._ended = lru_cache(maxsize=8)(lambda path, _: ended_run(RunFolder(path)))
        self._energies = Refreshed(partial(read_energies, self.paths))
        self._results = Refreshed(partial(read_results, self.paths))

    def overview(self) -> Parts:
        with self._lock:
            state = read_overview(self.paths, self._poller)
            tails = self._tails.poll(state.active)
        devices = [device for tail in tails for device in tail.devices.values()]
        marks = [mark for tail in tails for mark in tail.marks]
        totals = Totals()
        for tail in tails:
            totals.update(tail.totals)
        folders = (Store(self.paths[row.store]).folder(row.run_id) for row in state.failed[:10])
        failed = list(zip(state.failed, map(log_tail, folders), strict=False))
        return {
            "summary": _render(
                "summary", state=state, energies=self._energies.get() or {}, fmt=fmt
            ),
            "live": _render(
                "live", charts=timelines(devices, totals, marks), running=state.active
            ),
            "running": _render("runs", rows=state.running, kind="running"),
            "failed": _render("failed", rows=failed, more=max(0, state.failed_count - 10)),
            "ended": _render("runs", rows=state.ended, kind="ended"),
        }  # fmt: skip

    def results(self) -> Parts:
        return {"results": _render("results", results=self._results.get())}

    def run(self, store: int, run_id: str) -> Parts:
        """Return the parts of the page of a run.

        Raises ``NoSuchRun`` if the store has no such run.
        """
        folder, record = self._record(store, run_id)
        devices: Sequence[Device] = ()
        marks: Sequence[Mark] = ()
        totals = Totals()
        note = None
        try:
            if record.status == "done":
                devices, totals, marks = self._ended(folder.path, record.finished_at)
            else:
                row = RunRow(store, run_id, "", record.state, attempt=record.attempts)
                with self._lock:
                    (tail,) = self._tails.poll([row])
                devices, totals, marks = list(tail.devices.values()), tail.totals, tail.marks
        except (OSError, pa.ArrowException, WattlawError) as error:
            note = one_line(error)
        return {
            "facts": _render(
                "facts", record=record, state=folder.state(record), note=note, fmt=fmt
            ),
            "live": _render("live", charts=timelines(devices, totals, marks), running=()),
            "windows": _render("windows", marks=sorted(marks, key=lambda mark: -mark.end_s)[:50],
                               fmt=fmt),
            "log": _render("log", text=log_tail(folder)),
        }  # fmt: skip

    def comparison(self, chosen: Sequence[tuple[int, str]]) -> Parts:
        """Return the parts of the comparison of runs; runs that are not done have no values."""
        for store, run_id in chosen:
            self._record(store, run_id)
        metrics = {
            store: open_results(self.paths[store]).metrics for store in {each for each, _ in chosen}
        }
        columns: list[pd.Series] = []
        for store, run_id in chosen:
            rows = metrics[store][metrics[store]["run_id"] == run_id]
            columns.append(rows.iloc[0] if len(rows) else pd.Series(dtype=object))

        def cell(value: Any) -> str:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return fmt.number(value, 4) if is_number else fmt.printable(value, 80)

        table = [
            (title, [cell(column.get(name)) for column in columns])
            for name, title in COMPARED.items()
        ]
        shown = [row for row in table if any(cell != fmt.MISSING for cell in row[1])]
        return {"comparison": _render("comparison", names=chosen, rows=shown)}

    def _record(self, store: int, run_id: str) -> tuple[RunFolder, RunRecord]:
        if not 0 <= store < len(self.paths):
            raise NoSuchRun(f"there is no store {store}")
        # Letters and digits only, so that the id cannot lead out of the store.
        if run_id.isascii() and run_id.isalnum() and len(run_id) <= MAX_ID:
            folder = Store.existing(self.paths[store]).folder(run_id)
            record = folder.read()
            if record is not None:
                return folder, record
        raise NoSuchRun("there is no such run")


def _render(name: str, **values: Any) -> str:
    return environment("wattlaw_dashboard").get_template(f"{name}.html.j2").render(**values)


def page(title: str, events: str, parts: Parts, nav: str) -> str:
    """Return a whole page with its parts as they are now."""
    return _render("page", title=title, events=events, parts=parts, nav=nav, headings=HEADINGS)


#: The headings of the parts; the summary has its own.
HEADINGS = {
    "summary": None, "live": "Devices", "running": "Running", "failed": "Failures",
    "ended": "Done", "results": None, "facts": None, "windows": "Windows", "log": "Log",
    "comparison": None,
}  # fmt: skip
