"""The status of the runs of a store, by records and queues, and the cancellation of active runs."""

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattlaw.common import registry
from wattlaw.common.errors import WattlawError, one_line
from wattlaw.running.campaign import NOT_NEEDED
from wattlaw.running.finish import failed
from wattlaw.running.launcher import GROUP, Job, Launcher, Queue
from wattlaw.store.record import now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store
from wattlaw.study.labels import group_label, layout_label, run_setting
from wattlaw.study.not_as_declared import (
    OTHER_BATCH,
    UNCOOPERATIVE,
    batch_texts,
    uncooperative_text,
)

_TIMEOUT_S, _POLL_S = 60.0, 1.0
#: Shortest time between two queries of a queue by a view.
_QUEUE_S = 10.0
#: The columns of a run that say how its GPUs are limited.
LIMITS = ("power_limit_w", "clock_limit_mhz", "power_profile")
#: Those of the layout that its processes made.
_SEEN = ("tp", "pp", "cp", "ep", "sharding", "gradient_accumulation")
#: The columns of a run that its title has.
TITLE_COLUMNS = (
    "workload", "repeat", "gpus", "local_batch", "nodes", "emulated_gpus", *LIMITS,
    "layout", *_SEEN,
)  # fmt: skip
_COLUMNS = ["run_id", "status", "reason", "job_id", *TITLE_COLUMNS]
#: The jobs of a store by run id, and the errors of queues that cannot be read.
_Queued = tuple[dict[str, Job], list[str]]


@dataclass(frozen=True)
class RunStatus:
    run_id: str
    state: str
    title: str | None
    reason: str | None
    job: Job | None = None

    @property
    def is_not_needed(self) -> bool:  # a decision does without it
        return self.state == "planned" and (self.reason or "").startswith(NOT_NEEDED)


@dataclass(frozen=True)
class StoreStatus:
    runs: Any  # the table of those whose records can be read
    states: list[str]  # of each run
    not_done: list[RunStatus]  # in order of run id
    warnings: list[tuple[str, str]]  # code and text, about runs that did not train as declared
    errors: list[str]  # of queues that cannot be read


def run_title(run_id: str, values: Mapping[str, Any]) -> str:
    gpus, local_batch, nodes = values["gpus"], values["local_batch"], values["nodes"]
    setting = run_setting(values)
    layout = "" if setting is None else layout_label(setting)
    size = f" on {gpus} x {local_batch}" if local_batch else ""
    if setting is not None and setting.model_gpus > 1:  # no worker has a batch of its own
        batch = f", batch {setting.global_batch:g}" if setting.global_batch else ""
        size, layout = f" on {gpus} workers, {layout}{batch}", ""
    size += f", {nodes} nodes" if nodes > 1 else ""
    size += f", emulates {values['emulated_gpus']} GPUs" if values["emulated_gpus"] else ""
    for label in (layout, group_label({name: values[name] for name in LIMITS})):
        size += f", {label}" if label else ""
    return f"{values['workload']}{size} (repeat {values['repeat']}, {run_id})"


def load_queues() -> tuple[list[Queue], list[str]]:
    queues, errors = list[Queue](), list[str]()
    for name in registry.names(GROUP):
        try:
            launcher: type[Launcher] = registry.load(GROUP, name)
        except WattlawError as error:
            errors.append(str(error))
        else:
            queues += [] if launcher.queue is None else [launcher.queue]
    return queues, errors


def _queued_jobs(store: Store) -> _Queued:
    jobs: dict[str, Job] = {}
    queues, errors = load_queues()
    for queue in queues:
        try:
            jobs |= queue.jobs(store)
        except WattlawError as error:  # the records are still useful
            errors.append(str(error))
    return jobs, errors


def store_status(store: Store, queued: _Queued | None = None) -> StoreStatus:
    import pyarrow.compute as pc

    # before the records: a job that ends in between has updated its record
    jobs, errors = queued or _queued_jobs(store)
    snapshot = store.snapshot()
    runs = snapshot.runs
    # Arrow's comparisons with a value of Python import pandas, which takes longer than the rest.
    done = runs["status"].to_pylist().count("done")
    rows = []
    if done < len(runs):
        rows = runs.filter(pc.not_equal(runs["status"], "done")).select(_COLUMNS).to_pylist()
    not_done = [_status(store, row, jobs.get(row["run_id"])) for row in rows]
    unread = set(snapshot.damage) - {folder.path.name for folder in snapshot.imports}
    for run_id in unread.difference(runs["run_id"].to_pylist() if unread else ()):
        job = jobs.get(run_id)
        reason = one_line(snapshot.damage[run_id][1]) if job is None else _job_text(job)
        not_done.append(RunStatus(run_id, "damaged", None, reason, job))
    not_done.sort(key=lambda run: run.run_id)
    apart = runs.select(["workload", "gpus"]).filter(pc.invert(runs["workers_cooperate"]))
    names = [row["workload"] for row in apart.to_pylist() if (row["gpus"] or 0) > 1]
    warnings = [(UNCOOPERATIVE, uncooperative_text(len(names), set(names)))] if names else []
    columns = ["workload", "launcher", "gpus", "global_batch", "global_batch_declared"]
    declared = runs.select(columns).filter(pc.is_valid(runs["global_batch_declared"]))
    warnings += [(OTHER_BATCH, text) for text in batch_texts(declared.to_pylist())]
    states = ["done"] * done + [run.state for run in not_done]
    return StoreStatus(runs, states, not_done, warnings, list(errors))


def _status(store: Store, row: dict[str, Any], job: Job | None) -> RunStatus:
    run_id, state, reason, job_id = (row.pop(n) for n in ("run_id", "status", "reason", "job_id"))
    ended = state in ("failed", "skipped", "damaged")
    if job is not None and state == "interrupted":
        record = store.folder(run_id).read()  # its launcher died, or recorded its end
        ended = record is not None and record.status == "failed"
    job = None if ended else job
    if job is not None:
        state, reason = "queued" if job.is_queued else "running", _job_text(job)
    elif state == "running" and job_id is not None:
        reason = f"job {job_id} is not in the queue; run 'wattlaw run' to update its status"
    return RunStatus(run_id, state, run_title(run_id, row), reason, job)


def _job_text(job: Job) -> str:
    why = f" ({job.reason})" if job.reason not in ("", "None") else ""
    return f"job {job.id}: {job.state}{why}"


class StatusPoller:
    """The status of stores for a view that reads it often; queues are read every ``_QUEUE_S``."""

    def __init__(self) -> None:
        self._read: dict[Path, tuple[float, _Queued]] = {}

    def status(self, store: Store) -> StoreStatus:
        read_s, queued = self._read.get(store.path, (-math.inf, ({}, [])))
        if time.monotonic() - read_s >= _QUEUE_S:
            read_s, queued = time.monotonic(), _queued_jobs(store)
            self._read[store.path] = read_s, queued
        return store_status(store, queued)


@dataclass(frozen=True)
class Cancelled:
    jobs: int
    runs: int
    left: int
    errors: tuple[str, ...]  # of queues that could not be emptied; their runs are unchanged


def cancel(store: Store) -> Cancelled:
    """Raises ``BadInput`` for a damaged record, after all other runs are cancelled."""
    store.cancel()  # first, so that no campaign submits a cancelled run again
    end_s = time.monotonic() + _TIMEOUT_S
    queues, errors = load_queues()
    cancelled_jobs: set[tuple[int, str]] = set()  # by queue
    while True:
        left = 0
        for queue in list(queues):
            try:
                jobs = {(id(queue), job.id) for job in queue.jobs(store).values()}
                if new := [job_id for _, job_id in jobs - cancelled_jobs]:
                    queue.cancel(new)
            except WattlawError as error:
                errors.append(str(error))
                queues.remove(queue)
            else:
                cancelled_jobs |= jobs
                left += len(jobs)
        if not left or time.monotonic() > end_s:
            break
        time.sleep(_POLL_S)
    cancelled, (active, damaged) = 0, _active_runs(store, queues)
    while active and time.monotonic() < end_s:
        cancelled += sum(_record_cancellation(folder) for folder in active)
        active, damaged = _active_runs(store, queues)
        time.sleep(_POLL_S if active else 0)
    if damaged:
        raise damaged[0]
    return Cancelled(len(cancelled_jobs), cancelled, left + len(active), tuple(errors))


def _active_runs(
    store: Store, emptied: Collection[Queue]
) -> tuple[list[RunFolder], list[WattlawError]]:
    active, errors = list[RunFolder](), list[WattlawError]()
    for folder in store.folders():
        try:
            record = folder.read()
            if record is None or record.status not in ("planned", "running"):
                continue
            if RunLock(folder).is_locked() or any(q.was_submitted(folder) for q in emptied):
                active.append(folder)
        except WattlawError as error:
            errors.append(error)
    return active, errors


def _record_cancellation(folder: RunFolder) -> bool:
    with RunLock(folder) as lock:
        record = folder.read() if lock.acquire() else None
        if record is None or record.status not in ("planned", "running"):
            return False
        reason = "cancelled by 'wattlaw cancel'"
        folder.write(failed(record, reason, interrupted=True, finished_at=now()))
        return True
