"""The state of stores at one moment: progress, what runs, what failed and why, what it used."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wattlaw.api.store_tables import stored_decision
from wattlaw.common.errors import BadInput, WattlawError, one_line
from wattlaw.common.files import open_regular
from wattlaw.common.formatting import plural
from wattlaw.common.terminal import escape_invisible
from wattlaw.report.topics.decision import decision_text
from wattlaw.run.planning import count_statuses
from wattlaw.run.run_status import TITLE_COLUMNS, StatusPoller, run_title
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
_COLUMNS = [
    "run_id", "status", *TITLE_COLUMNS, "started_at", "finished_at", "launcher", "attempts",
]  # fmt: skip


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


@dataclass(frozen=True)
class Overview:
    """The state of stores.

    Parameters
    ----------
    stores
        Their paths.
    counts
        Runs by status, in the order in which ``status`` lists them.
    running, failed, ended
        Active runs; the last runs that failed or are damaged; the last done runs.
    gpu_hours
        Of the runs that ended, by their source: measured or imported, never added up. Of each run
        the last attempt. Simulated and replayed runs use no GPUs.
    left_s
        The time until no run is left at the rate of the last runs, None if it is unknown.
    decisions
        The state of each decision as a sentence.
    notes
        What could not be read.
    not_needed
        Planned runs that a decision does without.
    origin
        ``simulated`` or ``replayed`` if no run is measured, else empty.
    sources
        Runs by source, where there are several.
    skipped
        Sentences on the runs that cannot run here, by reason.
    """

    stores: tuple[str, ...]
    counts: dict[str, int]
    running: tuple[RunRow, ...]
    failed: tuple[RunRow, ...]
    ended: tuple[RunRow, ...]
    gpu_hours: dict[str, float]
    left_s: float | None
    decisions: tuple[str, ...]
    notes: tuple[str, ...]
    not_needed: int = 0
    origin: str = ""
    sources: dict[str, int] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(self.counts.values())

    @property
    def ended_count(self) -> int:
        """The number of runs that have ended."""
        return sum(self.counts.get(state, 0) for state in ("done", "failed", "skipped"))

    @property
    def active(self) -> list[RunRow]:
        """The running runs; a queued one has the samples of its last attempt at most."""
        return [row for row in self.running if row.state == "running"]

    @property
    def failed_count(self) -> int:
        """The number of runs of which ``failed`` has the last ones."""
        return sum(self.counts.get(state, 0) for state in _FAILED)


def read_overview(paths: Sequence[Path], poller: StatusPoller) -> Overview:
    """Return the state of stores, also of the queues of schedulers.

    A store that cannot be read is a note.
    """
    state = _State()
    for index, path in enumerate(paths):
        try:
            state.add(index, path, poller)
        except (WattlawError, OSError, pa.ArrowException) as error:
            state.notes.append(one_line(error))
    running = sorted(state.running, key=lambda row: row.state != "running")
    is_known = state.left and state.rates and running
    return Overview(
        tuple(map(str, paths)), count_statuses(state.counts.elements()),
        tuple(running[:MOST_ROWS]), tuple(_last(state.failed)), tuple(_last(state.ended)),
        dict(state.hours), state.left / state.rates if is_known else None, tuple(state.decisions),
        tuple(state.notes), state.not_needed, origins_label(sorted(state.launchers)),
        state.sources,
        tuple(f"{plural(count, 'run')} skipped: {reason}"
              for reason, count in state.skipped.most_common(_MOST_REASONS)),
    )  # fmt: skip


@dataclass
class _State:
    """The sums over stores; GPU-hours by source."""

    counts: Counter[str] = field(default_factory=Counter)
    running: list[RunRow] = field(default_factory=list)
    failed: list[RunRow] = field(default_factory=list)
    ended: list[RunRow] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    hours: Counter[str] = field(default_factory=Counter)
    rates: float = 0.0
    left: int = 0
    not_needed: int = 0
    launchers: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def sources(self) -> dict[str, int]:
        """The runs by source if there are several sources, else nothing."""
        counts: Counter[str] = Counter()
        for launcher, count in self.launchers.items():
            counts[source_of(launcher)] += count
        return dict(counts) if len(counts) > 1 else {}

    def add(self, index: int, path: Path, poller: StatusPoller) -> None:
        """Add a store."""
        store = Store.existing(path)
        status = poller.status(store)
        reasons = {run.run_id: (run.state, run.reason) for run in status.not_done}
        table = store.snapshot().runs.select(_COLUMNS)
        self.counts.update(status.states)
        self.notes += status.errors
        for state in ("running", "queued"):
            wanted = [run_id for run_id, (own, _) in reasons.items() if own == state]
            self.running += _rows(table, index, wanted, reasons)
        wanted = [run_id for run_id, (own, _) in reasons.items() if own in _FAILED]
        self.failed += _last(_rows(table, index, wanted, reasons))
        self.failed += [
            RunRow(index, run.run_id, run.run_id, run.state, run.reason)
            for run in status.not_done if run.title is None  # its record cannot be read
        ][:MOST_ROWS]  # fmt: skip
        done = table.filter(pc.equal(table["status"], "done")).sort_by(
            [("finished_at", "descending")]
        )
        self.ended += _rows(done.slice(0, MOST_ROWS), index, None, reasons)
        self.hours.update(_gpu_hours(table))
        self.left += sum(status.states.count(state) for state in ("planned", "running", "queued"))
        not_needed = sum(run.is_not_needed for run in status.not_done)
        self.left -= not_needed
        self.not_needed += not_needed
        self.skipped.update(
            reason or "without a reason" for state, reason in reasons.values() if state == "skipped"
        )
        self.launchers.update(table["launcher"].drop_null().to_pylist())
        self.rates += _rate(table)
        try:
            decision = stored_decision(path)
        except BadInput as error:
            self.notes.append(str(error))
        else:
            self.decisions += [] if decision is None else [decision_text(decision)]


def _rows(
    table: Any, store: int, run_ids: Sequence[str] | None, states: dict[str, tuple[str, str | None]]
) -> list[RunRow]:
    if run_ids is not None:
        table = table.filter(pc.is_in(table["run_id"], pc.cast(run_ids, "string"))) if run_ids \
            else table.slice(0, 0)  # fmt: skip
    rows = []
    for row in table.to_pylist():
        run_id = row["run_id"]
        state, reason = states.get(run_id, (row["status"], None))
        title = run_title(run_id, **{name: row[name] for name in TITLE_COLUMNS})
        times = row["started_at"], row["finished_at"]
        rows.append(RunRow(store, run_id, title, state, reason, *times, row["attempts"] or 0))
    return rows


def _last(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the rows that ended last, the newest first."""
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(rows, key=lambda row: row.finished_at or oldest, reverse=True)[:MOST_ROWS]


def _gpu_hours(table: Any) -> dict[str, float]:
    """Return the GPU-hours of the last attempt of each run that ended, by source."""
    frame = table.select(["gpus", "started_at", "finished_at", "launcher"]).to_pandas()
    seconds = (frame["finished_at"] - frame["started_at"]).dt.total_seconds()
    hours = (frame["gpus"] * seconds.clip(lower=0) / _HOUR_S).dropna()
    by_source = hours.groupby(frame["launcher"].map(source_of)).sum()
    return {name: float(by_source[name]) for name in _USE_GPUS if name in by_source.index}


def _rate(table: Any) -> float:
    """Return the runs per second that ended lately, without those that were skipped."""
    table = table.filter(pc.not_equal(table["status"], "skipped"))
    ends = table["finished_at"].drop_null().to_pylist()
    newest = sorted(ends)[-_RECENT:]
    if len(newest) < 2:
        return 0.0
    span_s = time.time() - newest[0].timestamp()
    return (len(newest) - 1) / span_s if span_s > 0 else 0.0


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
