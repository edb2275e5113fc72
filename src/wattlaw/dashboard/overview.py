"""The state of stores at one moment: progress, what runs, what failed and why, what it used."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from wattlaw.api.store_tables import stored_decision
from wattlaw.errors import BadInput
from wattlaw.formatting import MEASURED, origin_of, run_title
from wattlaw.launch.planning import count_statuses
from wattlaw.launch.run_status import store_status
from wattlaw.report.topics.decision import decision_text
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.terminal import escape_invisible

#: Rows of a table of runs.
MOST_ROWS = 50
#: The end of a log that is shown, in bytes, and its lines.
_LOG_BYTES, _LOG_LINES = 16_384, 40
#: Ended runs from which the rate of a study is taken.
_RECENT = 20
_HOUR_S = 3600.0
_COLUMNS = [
    "run_id", "status", "workload", "repeat", "gpus", "local_batch", "nodes", "emulated_gpus",
    "started_at", "finished_at", "launcher", "attempts",
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
        Active runs; the last runs that failed, were skipped or are damaged; the last done runs.
    gpu_hours
        Of all runs that ended and are no simulation; of each run the last attempt.
    left_s
        The time until no run is left at the rate of the last runs, None if it is unknown.
    decisions
        The state of each decision as a sentence.
    notes
        What could not be read.
    """

    stores: tuple[str, ...]
    counts: dict[str, int]
    running: tuple[RunRow, ...]
    failed: tuple[RunRow, ...]
    ended: tuple[RunRow, ...]
    gpu_hours: float
    left_s: float | None
    decisions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def runs(self) -> int:
        """The number of runs."""
        return sum(self.counts.values())

    @property
    def ended_count(self) -> int:
        """The number of runs that have ended."""
        return sum(self.counts.get(state, 0) for state in ("done", "failed", "skipped"))


def read_overview(paths: Sequence[Path]) -> Overview:
    """Return the state of stores; queues of schedulers are asked too."""
    running: list[RunRow] = []
    failed: list[RunRow] = []
    ended: list[RunRow] = []
    notes: list[str] = []
    decisions: list[str] = []
    counts: Counter[str] = Counter()
    hours, rates, left = 0.0, 0.0, 0
    for index, path in enumerate(paths):
        store = Store.existing(path)
        status = store_status(store)
        counts.update(status.states)
        notes += status.errors
        reasons = {run.run_id: (run.state, run.reason) for run in status.not_done}
        table = store.snapshot().runs.select(_COLUMNS)
        for state in ("running", "queued"):
            wanted = [run_id for run_id, (own, _) in reasons.items() if own == state]
            running += _rows(table, index, wanted, reasons)
        bad = ("failed", "skipped", "damaged", "interrupted")
        wanted = [run_id for run_id, (own, _) in reasons.items() if own in bad]
        failed += _last(_rows(table, index, wanted, reasons))
        done = table.filter(pc.equal(table["status"], "done")).sort_by(
            [("finished_at", "descending")]
        )
        ended += _rows(done.slice(0, MOST_ROWS), index, None, reasons)
        hours += _gpu_hours(table)
        left += sum(status.states.count(state) for state in ("planned", "running", "queued"))
        left -= sum(run.is_not_needed for run in status.not_done)
        rates += _rate(table)
        try:
            decision = stored_decision(path)
        except BadInput as error:
            notes.append(str(error))
        else:
            decisions += [] if decision is None else [decision_text(decision)]
    return Overview(
        tuple(map(str, paths)), count_statuses(counts.elements()), tuple(running[:MOST_ROWS]),
        tuple(_last(failed)), tuple(_last(ended)), hours,
        left / rates if left and rates and running else None, tuple(decisions), tuple(notes),
    )  # fmt: skip


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
        names = ("workload", "repeat", "gpus", "local_batch", "nodes", "emulated_gpus")
        title = run_title(run_id, **{name: row[name] for name in names})
        times = row["started_at"], row["finished_at"]
        rows.append(RunRow(store, run_id, title, state, reason, *times, row["attempts"] or 0))
    return rows


def _last(rows: Sequence[RunRow]) -> list[RunRow]:
    """Return the rows that ended last, the newest first."""
    oldest = datetime.min.replace(tzinfo=UTC)
    return sorted(rows, key=lambda row: row.finished_at or oldest, reverse=True)[:MOST_ROWS]


def _gpu_hours(table: Any) -> float:
    """Return the GPU-hours of the last attempt of each run that ended and was measured."""
    frame = table.select(["gpus", "started_at", "finished_at", "launcher"]).to_pandas()
    frame = frame[frame["launcher"].map(origin_of) == MEASURED]
    seconds = (frame["finished_at"] - frame["started_at"]).dt.total_seconds()
    return float((frame["gpus"] * seconds.clip(lower=0)).sum()) / _HOUR_S


def _rate(table: Any) -> float:
    """Return the runs per second that ended lately."""
    ends = table["finished_at"].drop_null().to_pylist()
    newest = sorted(ends)[-_RECENT:]
    if len(newest) < 2:
        return 0.0
    span_s = time.time() - newest[0].timestamp()
    return (len(newest) - 1) / span_s if span_s > 0 else 0.0


def log_tail(folder: RunFolder) -> str:
    """Return the last lines of a run's log without control characters; empty without a log."""
    try:
        with folder.log_path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [escape_invisible(line[-500:]) for line in text.splitlines()[-_LOG_LINES:]]
    return "\n".join(lines)
