"""The pages as parts of HTML: the overview and one run; and the report of the done runs."""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Generic, TypeVar

import pandas as pd
import pyarrow as pa

from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.api.results import open as open_results
from wattlaw.common import formatting as fmt
from wattlaw.common.errors import NoSuchRun, WattlawError, one_line
from wattlaw.common.text import join_names
from wattlaw.report.rendering import environment
from wattlaw.report.sections import Answer
from wattlaw.report.tables import Table
from wattlaw.report.topics import verdict
from wattlaw.running.planning import count_statuses
from wattlaw.running.run_status import LIMITS, StatusPoller
from wattlaw.store.record import RunRecord, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.labels import layout_label
from wattlaw.study.sources import source_of
from wattlaw_dashboard import dashboard_overview as view
from wattlaw_dashboard.tails import Written, ended_run
from wattlaw_dashboard.timeline import timelines

T = TypeVar("T")
Parts = dict[str, str]  # of HTML, by name
_Used = tuple[view.Total, dict[str, str]]

#: The part that says why the page cannot be computed; empty if it can.
PROBLEM = "problem"
#: The shortest time between two states.
PERIOD_S = 1.0
#: The shortest time between two readings of all results.
_RESULTS_S = 10.0
#: How long a page waits for a new state before it shows the last one, in s.
_WAIT_S = 0.2
#: Energies of windows, with what they are of. Outer scopes contain inner ones.
_ENERGIES = {
    "gpu_energy_j": "energy of GPUs", "cpu_energy_j": "energy of processors",
    "dram_energy_j": "energy of memory", "module_energy_j": "energy of modules",
    "node_energy_j": "energy of nodes",
}  # fmt: skip
_TIME = "time of GPUs or workers"
_EVERYTHING = view.Chosen()
_USED = (_TIME, *_ENERGIES.values(), *(f"estimated {name}" for name in _ENERGIES.values()))
#: The headings of the parts; the summary has its own.
_HEADINGS = {
    "answer": "What to run", "filter": "Runs by setting", "runs": "Runs", "failed": "Failures",
    "live": "Devices", "windows": "Windows", "log": "Log",
}  # fmt: skip


class Refreshed(Generic[T]):
    """A value that takes long to read: a thread reads it, for at most a tenth of the time."""

    def __init__(self, read: Callable[[], T], shortest_s: float = _RESULTS_S) -> None:
        self._read, self._shortest_s = read, shortest_s
        self._value: T | None = None
        self._due_s = 0.0
        self._lock = threading.Lock()  # of the thread that reads
        self._ended = threading.Event()

    def get(self, wait_s: float | None = 0.0) -> T | None:
        """Return the last value, None before the first; ``wait_s`` is for a new one, if due."""
        if time.monotonic() >= self._due_s and self._lock.acquire(blocking=False):
            self._ended.clear()
            threading.Thread(target=self._refresh, daemon=True).start()
        self._ended.wait(wait_s)
        return self._value

    def _refresh(self) -> None:
        begin_s = time.monotonic()
        try:
            self._value = self._read()
        finally:
            end_s = time.monotonic()
            self._due_s = end_s + max(self._shortest_s, (end_s - begin_s) / view.SHARE)
            self._lock.release()
            self._ended.set()


@dataclass(frozen=True)
class Reading:
    """What takes long to read of the done runs: the advice, and what each run used."""

    advice: tuple[Advice, ...] = ()
    refusals: tuple[tuple[str, str], ...] = ()  # workload, reason
    used: dict[str, dict[str, float]] = field(default_factory=dict)  # by run id and name
    others: tuple[str, ...] = ()  # workloads that are shown where they are chosen only
    problem: str = ""
    read_at: datetime = field(default_factory=now)


@dataclass
class Pages:
    paths: tuple[Path, ...]
    _poller: StatusPoller = field(default_factory=StatusPoller)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._tails = view.RunTails(self.paths)
        #: Tables of a done run do not change.
        self._ended = lru_cache(maxsize=8)(lambda path, _: ended_run(RunFolder(path)))
        read_state = partial(view.read_overview, self.paths, self._poller)
        self._state = Refreshed(read_state, PERIOD_S / 2)  # all choices share it
        self._reading = Refreshed(partial(read_results, self.paths))
        self._report = Refreshed(partial(read_report, self.paths))

    def report(self) -> str | None:
        return self._report.get()

    def overview(self, chosen: view.Chosen = _EVERYTHING) -> Parts:
        state = self._state.get(_WAIT_S) or self._state.get(None) or view.Overview()
        rows = chosen.rows(state.rows)
        running = view.active(rows)
        with self._lock:
            written = self._tails.poll(running)
        reading = self._reading.get()
        failures = view.failures(rows)
        logs = [
            (same, view.log_tail(Store(self.paths[same[0].store]).folder(same[0].run_id)))
            for same in failures[:10]
        ]
        groups = view.totals(rows, chosen.by)
        of_groups = _used(groups[: view.MOST_ROWS], reading)
        shown: dict[str, dict[str, Any]] = {
            "answer": {"reading": reading, "blocks": _answer(reading, chosen)},
            "summary": {"of": _used(view.totals(state.rows), reading), "paths": self.paths},
            "filter": {},
            "groups": {
                "of": of_groups, "groups": len(groups),
                "names": [name for name in _USED if any(name in used for _, used in of_groups)],
                "statuses": count_statuses(row.status for row in rows),
            },
            "live": {"charts": timelines(*written), "running": running},
            "failed": {"logs": logs, "reasons": len(failures)},
            "runs": {"rows": view.newest(rows), "of": view.totals(rows), "count": len(rows)},
        }  # fmt: skip
        common = {"state": state, "chosen": chosen, "fields": view.FIELDS,
                  "choices": _choices(state.rows, chosen)}  # fmt: skip
        return {name: _render(name, **common, **values) for name, values in shown.items()}

    def run(self, store: int, run_id: str) -> Parts:
        folder, record = self._record(store, run_id)
        written: Written = [], []
        note = None
        try:
            if record.status == "done":
                written = self._ended(folder.path, record.finished_at)
            else:
                with self._lock:
                    row = view.RunRow(store, run_id, {}, {"attempts": record.attempts})
                    written = self._tails.poll([row])
        except (OSError, pa.ArrowException, WattlawError) as error:
            note = one_line(error)
        marks = sorted(written[1], key=lambda mark: -mark.end_s)
        setting = record.spec.setting
        cap = view.limits_label(*(getattr(setting, name) for name in LIMITS))
        labels = {"layout": layout_label(setting), "cap": cap, "state": folder.state(record)}
        return {
            "facts": _render("facts", record=record, note=note, **labels),
            "live": _render("live", charts=timelines(*written)),
            "windows": _render("windows", marks=marks),
            "log": _render("log", text=view.log_tail(folder)),
        }

    def _record(self, store: int, run_id: str) -> tuple[RunFolder, RunRecord]:
        # Letters and digits only, so that the id cannot lead out of the store.
        is_id = run_id.isascii() and run_id.isalnum() and len(run_id) <= 64
        if is_id and 0 <= store < len(self.paths):
            folder = Store.existing(self.paths[store]).folder(run_id)
            record = folder.read()
            if record is not None:
                return folder, record
        raise NoSuchRun("there is no such run")


def _answer(reading: Reading | None, chosen: view.Chosen) -> list[Answer | Table | str]:
    if reading is None or reading.problem:
        return []
    workload = dict(chosen.values).get("workload")
    others = reading.others if workload is None else ()
    shown = {each.workload for each in reading.advice} | {name for name, _ in reading.refusals}
    shown = shown.difference(others) if workload is None else {workload}
    advice = [each for each in reading.advice if each.workload in shown]
    refusals = [each for each in reading.refusals if each[0] in shown]
    table = verdict.table(advice) if len(advice) > 1 else None
    blocks = [*verdict.answers(advice, refusals), *([table] if table else [])]
    if others:
        blocks.append(f"Also in the store: {join_names(others)}; choose it in the filter.")
    return blocks


def _used(found: Sequence[view.Total], reading: Reading | None) -> list[_Used]:
    shown, read = [], reading or Reading()
    for total in found:
        sums = Counter[str]({_TIME: total.hours} if total.hours else {})
        for row in total.rows:
            sums.update(read.used.get(row.run_id, {}))
        energies_j = (sums.get(f"{kind}energy of GPUs") for kind in ("", "estimated "))
        worker = total.worker(next((it for it in energies_j if it is not None), None))
        time_of = partial(fmt.work_text, worker=worker)
        texts = {
            name: (time_of if name == _TIME else fmt.energy_text)(sums[name])
            for name in _USED if name in sums
        }  # fmt: skip
        shown.append((total, texts))
    return shown


def _choices(rows: Sequence[view.RunRow], chosen: view.Chosen) -> dict[str, list[str]]:
    texts = {name: {row.fields[name] for row in rows} for name in view.FIELDS}
    for name, text in chosen.values:
        texts[name] |= {text}
    varied = (item for item in texts.items() if len(item[1] - {"unknown"}) > 1)
    return {name: sorted(each, key=view.natural) for name, each in varied}


def read_results(paths: Sequence[Path]) -> Reading:
    read_at = now()
    try:
        results = open_results(*paths)
        advice, refusals = results.advice_on_each()
        used = _used_by_run(results.runs, results.epochs)
        return Reading(advice, refusals, used, results.other_workloads, read_at=read_at)
    except Exception as error:  # the page says so, and the next reading may succeed
        return Reading(problem=f"the results cannot be read: {one_line(error)}")


def _used_by_run(runs: pd.DataFrame, epochs: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Return the energies of all windows of each done run in J, by name, without impossible ones;
    and its GPU-hours if its record has times of another clock."""
    used: dict[str, dict[str, float]] = defaultdict(dict)
    by_id = runs.set_index("run_id")
    virtual = epochs[~epochs["run_id"].map(by_id["launcher"].map(source_of)).isin(view.ON_A_CLOCK)]
    # The windows of the hosts of a run are at the same time.
    seconds = virtual.groupby(["run_id", "host"])["duration_s"].sum().groupby("run_id").max()
    for run_id, hours in (seconds * by_id["gpus"] / HOUR_S).dropna().items():
        used[str(run_id)][_TIME] = float(hours)
    for column, name in _ENERGIES.items():
        of_node = "node_" if name == "energy of nodes" else ""
        known = epochs[column].notna() & (epochs[f"{of_node}energy_verdict"] != "implausible")
        is_estimated = epochs[f"{of_node}energy_source"] == "estimated"
        for label, chosen in ((name, ~is_estimated), (f"estimated {name}", is_estimated)):
            for run_id, sum_j in epochs[known & chosen].groupby("run_id")[column].sum().items():
                used[str(run_id)][label] = float(sum_j)
    return used


def read_report(paths: Sequence[Path]) -> str:
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
