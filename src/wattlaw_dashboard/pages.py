"""The pages as parts of HTML: the overview and one run; and the report of the done runs."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

import pyarrow as pa

from wattlaw.api.results import open as open_results
from wattlaw.common import formatting as fmt
from wattlaw.common.errors import NoSuchRun, WattlawError, one_line
from wattlaw.report.rendering import environment
from wattlaw.running.run_status import StatusPoller
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.sources import MEASURED, source_of
from wattlaw_dashboard.channels import PROBLEM, Parts
from wattlaw_dashboard.dashboard_overview import RunRow, RunTails, log_tail, read_overview
from wattlaw_dashboard.tails import Device, Mark, Totals, ended_run
from wattlaw_dashboard.timeline import timelines

T = TypeVar("T")

#: The shortest time between two readings of all results, and times of their duration.
_RESULTS_S, _RESULTS_FACTOR = 10.0, 10.0
#: The longest id of a run.
_MAX_ID = 64
#: Energies of windows, with what they are of. Outer scopes contain inner ones.
_ENERGIES = {
    "gpu_energy_j": "GPUs", "cpu_energy_j": "processors", "dram_energy_j": "memory",
    "module_energy_j": "modules", "node_energy_j": "nodes",
}  # fmt: skip
#: The headings of the parts; the summary has its own.
_HEADINGS = {
    "live": "Devices", "running": "Running", "failed": "Failures", "ended": "Done",
    "windows": "Windows", "log": "Log",
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
            end_s = time.monotonic()
            self._due_s = end_s + max(_RESULTS_S, _RESULTS_FACTOR * (end_s - begin_s))
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
        self._report = Refreshed(partial(read_report, self.paths))

    def report(self) -> str | None:
        """Return the report as a page; None until it has been read for the first time."""
        return self._report.get()

    def overview(self) -> Parts:
        with self._lock:
            state = read_overview(self.paths, self._poller)
            tails = self._tails.poll(state.active)
        devices = [device for tail in tails for device in tail.devices.values()]
        marks = [mark for tail in tails for mark in tail.marks]
        totals = Totals()
        for tail in tails:
            totals.update(tail.totals)
        failed = [
            (row, log_tail(Store(self.paths[row.store]).folder(row.run_id)))
            for row in state.failed[:10]
        ]
        return {
            "summary": _render("summary", state=state, energies=self._energies.get() or {}),
            "live": _render("live", charts=timelines(devices, totals, marks), running=tails),
            "running": _render("runs", rows=state.running, kind="running"),
            "failed": _render("failed", rows=failed, more=max(0, state.failed_count - 10)),
            "ended": _render("runs", rows=state.ended, kind="ended"),
        }

    def run(self, store: int, run_id: str) -> Parts:
        """Return the parts of the page of a run; ``NoSuchRun`` if the store has no such run."""
        folder, record = self._record(store, run_id)
        devices: Sequence[Device] = ()
        marks: Sequence[Mark] = ()
        totals, note = Totals(), None
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
        newest = sorted(marks, key=lambda mark: -mark.end_s)[:50]
        return {
            "facts": _render("facts", record=record, state=folder.state(record), note=note),
            "live": _render("live", charts=timelines(devices, totals, marks), running=()),
            "windows": _render("windows", marks=newest),
            "log": _render("log", text=log_tail(folder)),
        }

    def _record(self, store: int, run_id: str) -> tuple[RunFolder, RunRecord]:
        # Letters and digits only, so that the id cannot lead out of the store.
        is_id = run_id.isascii() and run_id.isalnum() and len(run_id) <= _MAX_ID
        if is_id and 0 <= store < len(self.paths):
            folder = Store.existing(self.paths[store]).folder(run_id)
            record = folder.read()
            if record is not None:
                return folder, record
        raise NoSuchRun("there is no such run")


def read_energies(paths: Sequence[Path]) -> dict[str, float] | str:
    """Return the energy of all windows of the done runs in J, by what it is of; or why not.

    Energies of different sources are never added up, and impossible ones are left out.
    """
    try:
        results = open_results(*paths)
        epochs = results.epochs
        sources = epochs["run_id"].map(results.runs.set_index("run_id")["launcher"].map(source_of))
        energies: dict[str, float] = {}
        for column, name in _ENERGIES.items():
            of_node = "node_" if name == "nodes" else ""
            known = epochs[column].notna() & (epochs[f"{of_node}energy_verdict"] != "implausible")
            is_estimated = epochs[f"{of_node}energy_source"] == "estimated"
            labels = sources.where(~is_estimated, sources.replace(MEASURED, "") + " estimated")
            sums = epochs.loc[known, column].groupby(labels[known].str.strip()).sum()
            energies |= {f"{name} ({label})": float(sum_j) for label, sum_j in sums.items()}
        return energies
    except Exception as error:  # the page says so, and the next reading may succeed
        return f"the energies cannot be read: {one_line(error)}"


def read_report(paths: Sequence[Path]) -> str:
    """Return the report of the done runs, or a page that says why there is none."""
    try:
        with TemporaryDirectory() as folder:
            page = open_results(*paths).report(Path(folder) / "report.html").page
            return page.read_text("utf-8")
    except Exception as error:  # also of data that a figure does not expect
        return results_page(one_line(error))


def results_page(text: str) -> str:
    return page("Results", "", {PROBLEM: "", "results": _render("note", text=text)}, "results")


def page(title: str, events: str, parts: Parts, nav: str) -> str:
    return _render("page", title=title, events=events, parts=parts, nav=nav, headings=_HEADINGS)


def _render(name: str, **values: Any) -> str:
    template = environment("wattlaw_dashboard").get_template(f"{name}.html.j2")
    return template.render(fmt=fmt, **values)
