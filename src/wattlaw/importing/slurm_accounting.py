"""Slurm's accounting: ``sacct --parsable2 --format=...``.

One job that completed or ran into its time limit is one run, and one that was out of memory a
failed run; each attempt of a requeued job is a job of its own. The energy is that of the job's
nodes; 0 means that it was not measured.
"""

from collections import Counter, defaultdict
from datetime import UTC
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import join_names, quote
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, headers_in, moment_ns, text_in
from wattlaw.importing.runs import KIND, RunMaker
from wattlaw.importing.slurm_jobs import (
    ASK,
    RAW,
    ROUNDED,
    Job,
    duration_of,
    energy_of,
    gpus_of,
    is_header,
    jobs_of,
    nodes_of,
)
from wattlaw.store.field_map import columns_of
from wattlaw.store.fields import InvalidCell
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.record import Site
from wattlaw.study.out_of_memory import OUT_OF_MEMORY

_SCOPE = "node: all nodes of the job, with other jobs on them"
_RESOURCES = ("AllocTRES", "ReqTRES")
_DONE, _TIMEOUT, _NO_MEMORY = "COMPLETED", "TIMEOUT", "OUT_OF_MEMORY"
#: Why a run failed that Slurm ended for the memory of its nodes, as ``study.out_of_memory`` reads.
_MEMORY_REASON = f"ran out of memory on its nodes (state {_NO_MEMORY})"
#: States of jobs that ended without a result. The time and energy of these jobs are summed.
_ENDED = frozenset({
    "FAILED", "CANCELLED", "NODE_FAIL", "PREEMPTED", "REQUEUED", "BOOT_FAIL", "DEADLINE",
    "LAUNCH_FAILED", "REVOKED", "RESIZED", "SPECIAL_EXIT",
})  # fmt: skip
_NOT_ENDED = frozenset({
    "RUNNING", "PENDING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "REQUEUE_HOLD",
    "REQUEUE_FED", "RESV_DEL_HOLD", "SIGNALING", "STAGE_OUT", "STOPPED",
})  # fmt: skip


class SlurmImporter:
    name = "slurm"
    description = "accounting of Slurm: sacct --parsable2"
    mapped = ("workload",)

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        if head.lstrip()[:1] == b"{":
            return b'"jobs"' in head and any(key in head for key in (b'"association"', b'"tres"'))
        return any(map(is_header, headers_in(head)))

    def read(self, source: Source, options: Options) -> Imported:
        jobs = jobs_of(source)
        columns = {name for job in jobs for name in job.row}
        workload = columns_of(options.mapping).get("workload")
        if workload is not None and workload not in columns:
            raise BadInput(
                f"{source.path}: --map workload: no column {quote(workload)}; the jobs have: "
                f"{join_names(sorted(columns - {''}))}"
            )
        if jobs and not columns & {*_RESOURCES} and "gpus" not in options.constants:
            raise BadInput(
                f"{source.path}: no column AllocTRES, which has the number of GPUs; set it with "
                f"--map gpus=@N, or ask: {ASK}"
            )
        accounting = _Accounting(source, options, workload)
        runs = [run for job in jobs if (run := accounting.run_of(job)) is not None]
        gpu_s = sum(run.record.spec.setting.gpus * run.windows[0]["duration_s"] for run in runs)
        measured = sum(bool(run.record.site and run.record.site.energy_j) for run in runs)
        failed = sum(run.record.status == "failed" for run in runs)
        text = (
            f"Slurm accounting: {plural(len(jobs), 'job')}, {len(runs) - failed:,} with GPUs and a "
            f"result, {failed:,} {OUT_OF_MEMORY}, {gpu_s / 3600:,.1f} GPU-hours, {measured:,} with "
            f"an energy, times in {options.zone_note}"
        )
        notes = accounting.notes()
        if runs and not accounting.is_shared:
            notes.append(
                "each job is a workload of its own, such as "
                f"{runs[0].record.spec.workload.name}, since jobs of one name may train different "
                "things; --map workload=JobName, or --workload NAME, compares them as one"
            )
        if runs and not (measured or accounting.doubts or columns & {RAW, ROUNDED}):
            notes.append(f"no energies, since there is no column {RAW}; ask: {ASK}")
        return Imported(text, runs, notes=notes)


class _Accounting:
    def __init__(self, source: Source, options: Options, workload: str | None) -> None:
        self._account, self._options = source.account, options
        self._maker = RunMaker(source.path, options)
        self._workload = workload
        self.is_shared = workload is not None or "workload" in options.constants
        self.doubts: Counter[str] = Counter()
        self._lost: dict[str, list[tuple[float, float]]] = defaultdict(list)  # GPU-seconds, joules
        self._seen: set[tuple[Any, ...]] = set()

    def notes(self) -> list[str]:
        notes = []
        for state, lost in self._lost.items():
            gpu_s, energy_j = (sum(part) for part in zip(*lost, strict=True))
            energy = f" and {energy_j / 1e6:,.3f} MJ" if energy_j else ""
            notes.append(
                f"{plural(len(lost), 'job')} of state {state} left out, with "
                f"{gpu_s / 3600:,.2f} GPU-hours{energy}"
            )
        return notes + [f"{plural(jobs, 'job')}: {doubt}" for doubt, jobs in self.doubts.items()]

    def run_of(self, job: Job) -> ImportedRun | None:
        account, run = self._account, None
        try:
            if (why := self._why_left_out(job)) is None:
                run = self._run(job)
            else:
                account.leave_out(why, job.line)
        except InvalidCell as error:
            account.reject(job.line, f"job {job.id[:40]}: {error}")
        lines = [line for line, _ in job.steps]
        if run is None:
            account.leave_out("a step of a job that is not imported", *lines)
        else:
            account.read(job.line, *lines)
        return run

    def _why_left_out(self, job: Job) -> str | None:
        state, duration_s = job.state, duration_of(job.row)
        gpus = self._options.constants.get("gpus", gpus_of(job.row)[0])
        start_ns = moment_ns(job.row.get("Start", ""), UTC)
        key = (job.row.get("Cluster"), job.id, start_ns)
        is_repeated = start_ns is not None and key in self._seen
        if state in _NOT_ENDED:
            return "a job that has not ended"
        if state not in {_DONE, _TIMEOUT, _NO_MEMORY, *_ENDED}:
            raise InvalidCell(f"state {quote(state, 40)} is unknown")
        self._seen.add(key)
        if is_repeated:
            return "a job that is in the file twice, with the same start"
        if duration_s == 0:
            return "a job that never ran"
        if gpus is None:
            is_share = any("gres/shard" in job.row.get(name, "") for name in _RESOURCES)
            return "a job with a share of a GPU (gres/shard)" if is_share else "a job without GPUs"
        if state in _ENDED:
            energy_j = energy_of(job, duration_s, nodes_of(job.row)).joules
            self._lost[state].append((gpus * (duration_s or 0.0), energy_j or 0.0))
            return f"a job of state {state}"
        if duration_s is None:
            raise InvalidCell("Elapsed or ElapsedRaw is missing")
        return None

    def _run(self, job: Job) -> ImportedRun:
        row, notes = job.row, list[str]()
        duration_s, nodes = duration_of(row) or 0.0, nodes_of(row)
        gpus, hardware = gpus_of(row)
        workload = text_in(row, self._workload or "JobName")
        if not self.is_shared:
            workload = f"{(workload or KIND)[:100]}-{job.id[:40]}"
        values = {"workload": workload, "gpus": gpus, "nodes": nodes,
                  "hardware": hardware[0] if len(hardware) == 1 else None}  # fmt: skip
        start_ns = moment_ns(row.get("Start", ""), self._options.timezone)
        period = None if start_ns is None else (start_ns, start_ns + round(duration_s * 1e9))
        energy = energy_of(job, duration_s, nodes)
        if energy.why is not None:
            doubt = "energy unknown" if energy.joules is None else "energy doubtful"
            notes.append(f"{doubt}: {energy.why}")
        if "(rounded)" in (energy.source or ""):
            notes.append(f"energy in three digits ({ROUNDED}); {RAW} has all")
        if gpus and not row.get("AllocTRES"):
            notes.append("GPUs as requested (ReqTRES); AllocTRES has the allocated ones")
        if job.state == _TIMEOUT:
            notes.append("ended by its time limit, before the end of training")
        if "+" in job.id:
            notes.append("one component of a heterogeneous job, with its own GPUs and energy")
        site = Site(
            scheduler="slurm", job_id=job.id, cluster=text_in(row, "Cluster"),
            partition=text_in(row, "Partition"), account=text_in(row, "Account"),
            energy_j=energy.joules, energy_source=energy.source,
            energy_scope=None if energy.joules is None else _SCOPE,
        )  # fmt: skip
        window = {"phase": "run", "start_ns": start_ns, "duration_s": duration_s,
                  "interrupted": job.state == _TIMEOUT}  # fmt: skip
        known = {name: value for name, value in values.items() if value is not None}
        failure = _MEMORY_REASON if job.state == _NO_MEMORY else None
        run = self._maker.run(
            known, [window], line=job.line, notes=notes, site=site, period_ns=period,
            failure=failure,
        )  # fmt: skip
        # Without the values of an energy, which differ from job to job.
        self.doubts.update(": ".join(note.split(": ")[:2]) for note in notes)
        return run


IMPORTER = SlurmImporter()
