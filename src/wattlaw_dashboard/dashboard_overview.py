"""The state of stores at one moment: progress, what runs, what failed and why, what it used."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.api.store_tables import stored_decision
from wattlaw.common.errors import BadInput, WattlawError, one_line
from wattlaw.common.files import open_regular
from wattlaw.common.formatting import plural
from wattlaw.common.terminal import escape_invisible
from wattlaw.report.topics.decision_course import decision_text
from wattlaw.running.planning import count_statuses
from wattlaw.running.run_status import TITLE_COLUMNS, StatusPoller, run_title
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.sources import MEASURED, origins_label, source_of
from wattlaw_dashboard.tails import RunTail

#: Rows of a table of runs.
MOST_ROWS = 50
#: The end of a log that is shown, in bytes, and its lines.
_LOG_BYTES, _LOG_LINES = 16_384, 40
#: Ended runs from which the rate of a study is taken.
_RECENT = 20
_HOUR_S = 3600.0
#: Sources of runs that used GPUs, here or elsewhere.
_USE_GPUS = (MEASURED, "imported")
#: Active runs whose samples are kept while no page shows them.
_MOST_TAILS = 64
#: Reasons of skipped runs that are shown.
_MOST_REASONS = 5
_FAILED = ("failed", "damaged", "interrupted")
_COLUMNS = ["run_id", "status", *TITLE_COLUMNS, "started_at", "finished_at", "attempts"]


@dataclass(frozen=True)
class RunRow:
    """A run of a table: where it is, its title, its state and why, and when it began and ended."""

    store: int
    run_id: str
    title: str
    state: str
    reason: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempt: int = 0


@dataclass
class Overview:
    """The state of stores, summed up over them."""

    stores: tuple[str, ...]
    states: Counter[str] = field(default_factory=Counter)  # runs by status
    running: list[RunRow] = field(default_factory=list)  # or queued
    failed: list[RunRow] = field(default_factory=list)  # or damaged; the last first, not all
    ended: list[RunRow] = field(default_factory=list)  # done; the last first, not all
    decisions: list[str] = field(default_factory=list)  # sentences
    notes: list[str] = field(default_factory=list)  # on what could not be read
    #: Of the last attempt of runs that ended, by their source: measured or imported, never added
    #: up. Simulated and replayed runs use no GPUs.
    gpu_hours: dict[str, float] = field(default_factory=dict)
    runs_per_s: float = 0.0  # that ended lately
    not_needed: int = 0  # planned runs that a decision does without
    launchers: Counter[str] = field(default_factory=Counter)
    skip_reasons: Counter[str] = field(default_factory=Counter)

    @property
    def counts(self) -> dict[str, int]:
        """The runs by status, in the order in which ``status`` lists them."""
        return count_statuses(self.states.elements())

    @property
    def runs(self) -> int:
        return self.states.total()

    @property
    def ended_count(self) -> int:
        return sum(self.states[state] for state in ("done", "failed", "skipped"))

    @property
    def failed_count(self) -> int:
        return sum(self.states[state] for state in _FAILED)

    @property
    def active(self) -> list[RunRow]:
        """The running runs; a queued one has the samples of its last attempt at most."""
        return [row for row in self.running if row.state == "running"]

    @property
    def left_s(self) -> float | None:
        """The time until no run is left at the rate of the last runs, None if it is unknown."""
        left = sum(self.states[name] for name in ("planned", "running", "queued")) - self.not_needed
        return left / self.runs_per_s if left and self.runs_per_s and self.running else None

    @property
    def origin(self) -> str:
        """``simulated`` or ``replayed`` if no run is measured, else empty."""
        return origins_label(sorted(self.launchers))

    @property
    def sources(self) -> dict[str, int]:
        """The runs by source if there are several sources, else nothing."""
        counts: Counter[str] = Counter()
        for launcher, count in self.launchers.items():
            counts[source_of(launcher)] += count
        return dict(counts) if len(counts) > 1 else {}

    @property
    def skipped(self) -> list[str]:
        most = self.skip_reasons.most_common(_MOST_REASONS)
        return [f"{plural(count, 'run')} skipped: {reason}" for reason, count in most]

    def add(self, index: int, path: Path, poller: StatusPoller) -> None:
        store = Store.existing(path)
        status = poller.status(store)
        reasons = {run.run_id: (run.state, run.reason) for run in status.not_done}
        table = store.snapshot().runs
        self.states.update(status.states)
        self.notes += status.errors
        self.not_needed += sum(run.is_not_needed for run in status.not_done)
        for run in status.not_done:
            if run.state == "skipped":
                self.skip_reasons[run.reason or "without a reason"] += 1
            elif run.title is None:  # its record cannot be read
                self.failed.append(RunRow(index, run.run_id, run.run_id, run.state, run.reason))
        self.launchers.update(table["launcher"].drop_null().to_pylist())
        for states, shown in ((("running", "queued"), self.running), (_FAILED, self.failed)):
            wanted = [run_id for run_id, (state, _) in reasons.items() if state in states]
            chosen = table.filter(pc.is_in(table["run_id"], pa.array(wanted, "string")))
            shown.extend(_rows(chosen, index, reasons))
        done = table.filter(pc.equal(table["status"], "done"))
        newest = done.sort_by([("finished_at", "descending")]).slice(0, MOST_ROWS)
        self.ended += _rows(newest, index, reasons)
        self._add_times(table)
        try:
            decision = stored_decision(path)
        except BadInput as error:
            self.notes.append(str(error))
        else:
            self.decisions += [] if decision is None else [decision_text(decision)]

    def _add_times(self, table: pa.Table) -> None:
        """Add the GPU-hours of runs that ended, and the rate of those that ended lately."""
        frame = table.select(["gpus", "started_at", "finished_at", "launcher"]).to_pandas()
        seconds = (frame["finished_at"] - frame["started_at"]).dt.total_seconds()
        hours = (frame["gpus"] * seconds.clip(lower=0) / _HOUR_S).dropna()
        by_source = hours.groupby(frame["launcher"].map(source_of)).sum()
        for name in by_source.index.intersection(_USE_GPUS, sort=False):
            self.gpu_hours[name] = self.gpu_hours.get(name, 0.0) + float(by_source[name])
        ran = table.filter(pc.not_equal(table["status"], "skipped"))
        newest = sorted(ran["finished_at"].drop_null().to_pylist())[-_RECENT:]
        span_s = time.time() - newest[0].timestamp() if newest else 0.0
        if len(newest) > 1 and span_s > 0:
            self.runs_per_s += (len(newest) - 1) / span_s


def read_overview(paths: Sequence[Path], poller: StatusPoller) -> Overview:
    """Return the state of stores and of schedulers' queues; an unreadable store is a note."""
    overview = Overview(tuple(map(str, paths)))
    for index, path in enumerate(paths):
        try:
            overview.add(index, path, poller)
        except (WattlawError, OSError, pa.ArrowException) as error:
            overview.notes.append(one_line(error))
    overview.running.sort(key=lambda row: row.state != "running")
    oldest = datetime.min.replace(tzinfo=UTC)
    for rows in (overview.failed, overview.ended):
        rows.sort(key=lambda row: row.finished_at or oldest, reverse=True)
    for rows in (overview.running, overview.failed, overview.ended):
        del rows[MOST_ROWS:]
    return overview


def _rows(table: pa.Table, store: int, reasons: dict[str, tuple[str, str | None]]) -> list[RunRow]:
    rows = []
    for row in table.select(_COLUMNS).to_pylist():
        run_id = row["run_id"]
        state, reason = reasons.get(run_id, (row["status"], None))
        title = run_title(run_id, row)
        times = row["started_at"], row["finished_at"]
        rows.append(RunRow(store, run_id, title, state, reason, *times, row["attempts"] or 0))
    return rows


class RunTails:
    """What the processes of active runs have written, by store, run and attempt."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._tails: dict[tuple[int, str, int], RunTail] = {}

    def poll(self, rows: Sequence[RunRow]) -> list[RunTail]:
        """Read what runs have written since the last call; of many, forget the other runs."""
        tails = {}
        for row in rows:
            key = row.store, row.run_id, row.attempt
            folder = Store(self._paths[row.store]).folder(row.run_id)
            tails[key] = self._tails.get(key) or RunTail(folder, row.attempt)
            tails[key].poll()
        others = self._tails if len(self._tails | tails) <= _MOST_TAILS else {}
        self._tails = others | tails
        return list(tails.values())


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
