"""The state of stores at one moment: its runs by setting, status and source, and what ended."""

import heapq
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pandas as pd

from wattlaw.analysis.metrics.comparable_runs import worker_noun
from wattlaw.api.store_tables import stored_decision
from wattlaw.common.errors import BadInput, one_line
from wattlaw.common.files import open_regular
from wattlaw.common.formatting import plural
from wattlaw.common.terminal import escape_invisible
from wattlaw.report.topics.decision_course import decision_text
from wattlaw.running.planning import count_statuses
from wattlaw.running.run_status import LIMITS, TITLE_COLUMNS, StatusPoller, run_title
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.labels import group_label, run_layout
from wattlaw.study.out_of_memory import OUT_OF_MEMORY
from wattlaw.study.sources import MEASURED, origins_label, source_of
from wattlaw_dashboard.tails import RunTail, Written

#: What runs are filtered and grouped by.
FIELDS = {
    "workload": "workload", "gpus": "GPUs", "nodes": "nodes", "batch": "global batch",
    "layout": "layout", "cap": "cap", "status": "status", "source": "source",
}  # fmt: skip
#: Rows of a table of runs, or of groups.
MOST_ROWS = 100
#: The end of a log that is shown, in bytes, and its lines.
_LOG_BYTES, _LOG_LINES = 16_384, 40
#: Ended runs from which the rate of a study is taken.
_RECENT = 20
_HOUR_S = 3600.0
#: Reading and computing take at most this share of the time of a core.
SHARE = 0.1
#: Sources of runs whose GPU-time is from their start to their end; others have a virtual clock.
ON_A_CLOCK = (MEASURED, "imported")
#: Active runs whose samples are shown, or kept while no page shows them.
_MOST_TAILS = 64
#: Reasons of skipped runs that are shown.
_MOST_REASONS = 5
ACTIVE, FAILED = ("running", "queued"), ("failed", "damaged", "interrupted")
_ENDED = ("done", OUT_OF_MEMORY, "failed", "skipped")
_COLUMNS = [
    "run_id", "status", "launcher", "global_batch", "started_at", "finished_at", "attempts",
    "hardware", "gpu_memory_bytes", *TITLE_COLUMNS,
]  # fmt: skip
_OLDEST = datetime.min.replace(tzinfo=UTC)
_LAYOUT = [name for name in TITLE_COLUMNS if name not in ("workload", "repeat", "nodes", *LIMITS)]
limits_label = cache(lambda *limits: group_label(dict(zip(LIMITS, limits, strict=True))) or "none")
_layout_label = cache(
    lambda *layout: run_layout(dict(zip(_LAYOUT, layout, strict=True))) or "none stated"
)


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run: where it is, its fields as text by the names of ``FIELDS``, and its state and why."""

    store: int
    run_id: str
    fields: dict[str, str]
    record: dict[str, Any]  # ``_COLUMNS``; empty if it cannot be read
    reason: str | None = None
    is_not_needed: bool = False  # a decision does without it

    @property
    def title(self) -> str:
        return run_title(self.run_id, self.record) if self.record else self.run_id

    @property
    def status(self) -> str:
        return self.fields["status"]

    @property
    def source(self) -> str:
        return self.fields["source"]

    @property
    def finished_at(self) -> datetime | None:
        return self.record.get("finished_at")

    @property
    def hours(self) -> float:
        """The GPU-hours of the last attempt if it has ended, on a real clock."""
        if self.finished_at is None or self.source not in ON_A_CLOCK:
            return 0.0
        time = self.finished_at - (self.record["started_at"] or self.finished_at)
        return float(self.record["gpus"] * max(0.0, time.total_seconds()) / _HOUR_S)


@dataclass
class Total:
    """Runs of one source, and of one group: values of different sources are never added up."""

    source: str
    group: tuple[str, ...] = ()
    rows: list[RunRow] = field(default_factory=list)

    @property
    def text(self) -> str:
        return f"{len(self.rows):,} {self.source}"

    @cached_property
    def counts(self) -> dict[str, int]:
        return count_statuses(row.status for row in self.rows)

    @property
    def not_needed(self) -> int:
        return sum(row.is_not_needed for row in self.rows)

    @property
    def ended(self) -> int:
        return sum(row.status in _ENDED for row in self.rows)

    @property
    def hours(self) -> float:
        return sum(row.hours for row in self.rows)

    def worker(self, gpu_energy_j: float | None = None) -> str:
        """Return what a "gpu" of the rows is called, by their records and energy."""
        records = pd.DataFrame([row.record for row in self.rows], columns=_COLUMNS)
        return worker_noun(records.assign(gpu_energy_j=gpu_energy_j))

    @property
    def left_s(self) -> float | None:
        """The time until no run is left at the rate of the last runs, None if it is unknown."""
        counts = self.counts
        left = sum(counts.get(each, 0) for each in ("planned", *ACTIVE)) - self.not_needed
        times = (row.finished_at for row in self.rows if row.status != "skipped")
        newest = heapq.nlargest(_RECENT, filter(None, times))
        span_s = time.time() - newest[-1].timestamp() if newest else 0.0
        if left and len(newest) > 1 and span_s > 0 and any(name in counts for name in ACTIVE):
            return left * span_s / (len(newest) - 1)
        return None


def totals(rows: Iterable[RunRow], by: Sequence[str] = ()) -> list[Total]:
    """Return the rows by the texts of fields and by their source, in natural order."""
    found: dict[tuple[str, ...], Total] = {}
    for row in rows:
        key = (*(row.fields[name] for name in by), row.source)
        (found.get(key) or found.setdefault(key, Total(row.source, key[:-1]))).rows.append(row)
    return [found[key] for key in sorted(found, key=lambda key: [*map(natural, key)])]


def natural(text: str) -> tuple[str, float, str]:
    """Return what sorts texts by the unit after the number that they begin with, and by that."""
    number, _, unit = text.partition(" ")
    return (unit, float(number), text) if number.isdecimal() else ("", 0.0, text)


@dataclass(frozen=True)
class Chosen:
    """The runs that a page shows, by the texts of fields, and the fields that group them."""

    values: tuple[tuple[str, str], ...] = ()
    by: tuple[str, ...] = ("workload",)

    @classmethod
    def of(cls, query: Iterable[tuple[str, str]]) -> "Chosen":
        """Read the query of an address; what it does not know is left out."""
        pairs = list(query)
        values = {name: text[:200] for name, text in pairs if name in FIELDS and text}
        by = tuple(name for name in FIELDS if ("by", name) in pairs and name != "source")
        return cls(tuple(values.items()), by or cls.by)

    @property
    def query(self) -> str:
        by = () if self.by == Chosen.by else self.by
        return urlencode([*self.values, *(("by", name) for name in by)])

    def of_group(self, total: Total) -> "Chosen":
        group = dict(zip((*self.by, "source"), (*total.group, total.source), strict=True))
        return Chosen(tuple((dict(self.values) | group).items()), self.by)

    def rows(self, rows: Iterable[RunRow]) -> list[RunRow]:
        return [row for row in rows if all(row.fields[name] == text for name, text in self.values)]


@dataclass
class Overview:
    rows: list[RunRow] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # on what could not be read

    @property
    def origin(self) -> str:
        """``simulated`` or ``replayed`` if no run is measured, else empty."""
        return origins_label({*filter(None, (row.record.get("launcher") for row in self.rows))})

    @property
    def skipped(self) -> Iterator[str]:
        skipped = (row for row in self.rows if row.status == "skipped")
        counts = Counter((row.source, row.reason or "without a reason") for row in skipped)
        for (source, reason), count in counts.most_common(_MOST_REASONS):
            yield f"{plural(count, f'{source} run')} skipped: {reason}"

    def add(self, index: int, path: Path, poller: StatusPoller) -> None:
        store = Store.existing(path)
        status = poller.status(store)
        self.notes += [*status.errors, *(text for _, text in status.warnings)]
        not_done = {run.run_id: run for run in status.not_done}
        for record in status.runs.select(_COLUMNS).to_pylist():
            run_id, run = record["run_id"], not_done.get(record["run_id"])
            texts = [record["workload"], record["gpus"], record["nodes"]]
            texts += [record["global_batch"] or "unknown", _layout_label(*map(record.get, _LAYOUT))]
            texts += [limits_label(*map(record.get, LIMITS))]
            texts += [run.state if run else record["status"], source_of(record["launcher"])]
            fields = dict(zip(FIELDS, map(str, texts), strict=True))
            why = (run.reason, run.is_not_needed) if run else ()
            self.rows.append(RunRow(index, run_id, fields, record, *why))
        for run in status.not_done:
            if run.title is None:  # its record cannot be read
                fields = dict.fromkeys(FIELDS, "unknown") | {"status": run.state}
                self.rows.append(RunRow(index, run.run_id, fields, {}, run.reason))
        try:
            decision = stored_decision(path)
        except BadInput as error:
            self.notes.append(str(error))
        else:
            self.decisions += [] if decision is None else [decision_text(decision)]


def read_overview(paths: Sequence[Path], poller: StatusPoller) -> Overview:
    """Return the state of stores and of schedulers' queues; an unreadable store is a note."""
    overview = Overview()
    for index, path in enumerate(paths):
        try:
            overview.add(index, path, poller)
        except Exception as error:  # the page says so, and the next reading may succeed
            overview.notes.append(one_line(error))
    return overview


def newest(rows: Iterable[RunRow], most: int = MOST_ROWS) -> list[RunRow]:
    """Return the first rows of a table: what runs, what is queued, what changed last, the rest."""

    def place(row: RunRow) -> tuple[bool, bool, datetime]:
        changed_at = row.finished_at or row.record.get("started_at") or _OLDEST
        return row.status == "running", row.status == "queued", changed_at

    return heapq.nlargest(most, rows, key=place)


def failures(rows: Iterable[RunRow]) -> list[list[RunRow]]:
    """Return the runs that failed, newest first, those of one source and reason together."""
    failed = [row for row in rows if row.status in FAILED]
    same: dict[tuple[str, str, str | None], list[RunRow]] = {}
    for row in newest(failed, len(failed)):
        same.setdefault((row.source, row.status, row.reason), []).append(row)
    return list(same.values())


def active(rows: Iterable[RunRow]) -> list[RunRow]:
    """Return the running runs; a queued one has the samples of its last attempt at most."""
    return [row for row in rows if row.status == "running"][:_MOST_TAILS]


class RunTails:
    """What the processes of active runs have written, by store, run and attempt."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._tails: dict[tuple[int, str, int], RunTail] = {}

    def poll(self, rows: Sequence[RunRow]) -> Written:
        """Read what runs have written since the last call; of many, forget the other runs."""
        tails = {}
        for row in rows:
            key = row.store, row.run_id, row.record.get("attempts") or 0
            folder = Store(self._paths[row.store]).folder(row.run_id)
            tails[key] = self._tails.get(key) or RunTail(folder, key[2])
            tails[key].poll()
        others = self._tails if len(self._tails | tails) <= _MOST_TAILS else {}
        self._tails = others | tails
        devices = [device for tail in tails.values() for device in tail.devices.values()]
        return devices, [mark for tail in tails.values() for mark in tail.marks]


def log_tail(folder: RunFolder) -> str:
    """Return the last lines of a run's log without control characters; empty without a log."""
    try:
        # A link could lead out of the store, and a pipe would block.
        with open_regular(folder.log_path, follow_links=False) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [escape_invisible(line[-500:]) for line in text.splitlines()[-_LOG_LINES:]]
    return "\n".join(lines)
