"""Slurm's accounting: ``sacct --parsable2 --format=...`` and ``sacct --json``.

One completed job is one run. ``ConsumedEnergyRaw`` is the energy of the job's nodes; 0 means that
it was not measured.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import (
    count,
    lines_of,
    moment_ns,
    ns_of,
    number,
    positive,
    read_json,
    text_in,
)
from wattlaw.importing.runs import RunMaker
from wattlaw.importing.units import quantity
from wattlaw.store.fields import InvalidCell
from wattlaw.store.imports import ImportedRun, RejectedRow
from wattlaw.store.record import Site

_SOURCE = "sacct ConsumedEnergyRaw"
#: Greater energies mean unknown (NO_VAL64).
_MAX_J = 1e15
_DONE = "COMPLETED"
_GPU = re.compile(r"gres/gpu(?::([A-Za-z0-9_.-]+))?$")
_MAX_NODES = 100_000


@dataclass
class Job:
    """A job of the accounting; None for what it does not say."""

    line: int
    job_id: str
    name: str | None
    state: str
    elapsed_s: float | None
    start_ns: int | None
    tres: Mapping[str, float]
    energy_j: float | None
    nodes: int | None
    labels: Mapping[str, str | None]

    @property
    def gpus(self) -> int | None:
        """Return the number of allocated GPUs."""
        totals = [amount for name, amount in self.tres.items() if name == "gres/gpu"]
        typed = [amount for name, amount in self.tres.items() if _GPU.fullmatch(name)]
        return count((totals or [sum(typed)])[0], 1, 10**7)

    @property
    def hardware(self) -> str | None:
        """Return the type of the GPUs, if there is one."""
        types = {match[1] for name in self.tres if (match := _GPU.fullmatch(name)) and match[1]}
        return types.pop() if len(types) == 1 else None


class SlurmImporter:
    """Times, GPUs and energies of jobs."""

    name = "slurm"
    description = "accounting of Slurm: sacct --parsable2 or sacct --json"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether the header, or the JSON, is that of sacct."""
        if head.lstrip()[:1] == b"{":
            return b'"jobs"' in head and any(key in head for key in (b'"association"', b'"tres"'))
        names = head.decode("utf-8", "replace").split("\n", 1)[0].strip("\r|").split("|")
        return "JobID" in names or "JobIDRaw" in names

    def read(self, path: Path, options: Options) -> Imported:
        """Return a run for each completed job."""
        is_json = next((line for _, line in lines_of(path) if line.strip()), "").startswith("{")
        jobs = list(_of_json(path) if is_json else _of_text(path, options))
        maker, runs, rejected = RunMaker(path, options), [], []
        gpu_hours = 0.0
        for job in jobs:
            try:
                runs.append(_run(maker, job))
            except InvalidCell as error:
                rejected.append(RejectedRow(job.line, f"job {job.job_id[:40]}: {error}"))
                continue
            gpu_hours += (job.gpus or 0) * (job.elapsed_s or 0.0) / 3600
        measured = sum(run.record.site is not None and run.record.site.energy_j is not None
                       for run in runs)  # fmt: skip
        return Imported(
            f"Slurm accounting: {len(jobs):,} jobs, {len(runs):,} completed with GPUs, "
            f"{gpu_hours:,.1f} GPU-hours, {measured:,} with an energy, times in "
            f"{options.zone_note}",
            runs=tuple(runs),
            rejected=tuple(rejected),
            unit="job" if is_json else "line",
        )


def _run(maker: RunMaker, job: Job) -> ImportedRun:
    if job.state != _DONE:
        raise InvalidCell(f"state {job.state[:40] or 'unknown'}; allowed: {_DONE}")
    if job.elapsed_s is None:
        raise InvalidCell("Elapsed or ElapsedRaw is missing, or 0")
    values: dict[str, Any] = {"workload": job.name} if job.name else {}
    values |= {"gpus": job.gpus} if job.gpus else {}
    values |= {"nodes": job.nodes} if job.nodes else {}
    values |= {"hardware": job.hardware} if job.hardware else {}
    end_ns = None if job.start_ns is None else job.start_ns + round(job.elapsed_s * 1e9)
    period = None if job.start_ns is None or end_ns is None else (job.start_ns, end_ns)
    site = Site(
        scheduler="slurm",
        job_id=job.job_id,
        cluster=job.labels.get("cluster"),
        partition=job.labels.get("partition"),
        account=job.labels.get("account"),
        energy_j=job.energy_j,
        energy_source=None if job.energy_j is None else _SOURCE,
    )
    window = {"phase": "run", "start_ns": job.start_ns, "duration_s": job.elapsed_s}
    run = maker.run(values, [window], line=job.line, site=site, period_ns=period)
    if job.energy_j is None or period is None:
        return run
    moments = {"energy_start_at": run.record.started_at, "energy_end_at": run.record.finished_at}
    record = run.record.model_copy(update={"site": site.model_copy(update=moments)})
    return ImportedRun(record=record, windows=run.windows, line=run.line)


def _of_text(path: Path, options: Options) -> Iterator[Job]:
    """Yield the jobs; the rows of their steps have energies only."""
    jobs: dict[str, Job] = {}
    energies: dict[str, float] = {}
    header: list[str] = []
    for line, text in lines_of(path):
        cells = text.split("|")
        if "JobID" in cells or "JobIDRaw" in cells:
            header = cells
            continue
        if len(cells) != len(header):
            continue
        row = dict(zip(header, cells, strict=True))
        job_id, _, step = (row.get("JobID") or row.get("JobIDRaw") or "").partition(".")
        energy_j = _joules(row.get("ConsumedEnergyRaw"))
        if step:
            energies[job_id] = max(energies.get(job_id, 0.0), energy_j or 0.0)
            continue
        tres = dict(_tres(row.get("AllocTRES", "")))
        labels = {key.lower(): text_in(row, key) for key in ("Cluster", "Partition", "Account")}
        jobs[f"{line} {job_id}"] = Job(
            line, job_id, text_in(row, "JobName"), row.get("State", "").split(" ")[0],
            positive(row.get("ElapsedRaw")) or _elapsed_s(row.get("Elapsed", "")),
            moment_ns(row.get("Start", ""), options.timezone), tres, energy_j,
            count(row.get("NNodes") or row.get("AllocNodes") or tres.get("node"), 1, _MAX_NODES),
            labels,
        )  # fmt: skip
    for job in jobs.values():
        # The batch step runs as long as the job, on its nodes.
        job.energy_j = job.energy_j or energies.get(job.job_id) or None
        yield job


def _joules(value: Any) -> float | None:
    known = positive(value)
    return known if known is not None and known < _MAX_J else None


def _elapsed_s(text: str) -> float | None:
    try:
        return positive(quantity(text, "time", None))
    except ValueError:
        return None


def _tres(text: str) -> Iterator[tuple[str, float]]:
    for part in text.split(","):
        name, _, amount = part.partition("=")
        if (known := number(amount)) is not None:
            yield name, known


def _of_json(path: Path) -> Iterator[Job]:
    data = read_json(path)
    jobs = data.get("jobs") if isinstance(data, dict) else None
    for index, job in enumerate(jobs if isinstance(jobs, list) else [], 1):
        if not isinstance(job, dict):
            continue
        time: Any = job.get("time")
        time = time if isinstance(time, dict) else {}
        state: Any = job.get("state")
        state = state.get("current") if isinstance(state, dict) else state
        state = state[0] if isinstance(state, list) and state else state
        start_s = _plain(time.get("start"))
        tres = dict(_tres_of(job.get("tres")))
        yield Job(
            index, str(job.get("job_id", ""))[:40], text_in(job, "name"), str(state),
            positive(_plain(time.get("elapsed"))),
            None if start_s is None or start_s <= 0 else ns_of(start_s),
            tres, _energy_of(job),
            count(_plain(job.get("allocation_nodes")) or tres.get("node"), 1, _MAX_NODES),
            {key: text_in(job, key) for key in ("cluster", "partition", "account")},
        )  # fmt: skip


def _plain(value: Any) -> float | None:
    """Return a number, also of ``{"set": true, "number": 5}``."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) is True else None
    return number(value)


def _tres_of(value: Any) -> Iterator[tuple[str, float]]:
    allocated = value.get("allocated") if isinstance(value, dict) else None
    for each in allocated if isinstance(allocated, list) else []:
        if isinstance(each, dict) and (amount := _plain(each.get("count"))) is not None:
            name = "/".join(str(each[key]) for key in ("type", "name") if each.get(key))
            yield name, amount


def _energy_of(job: Mapping[str, Any]) -> float | None:
    steps = job.get("steps")
    energies = [0.0]
    for step in steps if isinstance(steps, list) else []:
        known = step.get("statistics") if isinstance(step, dict) else None
        energy = known.get("energy") if isinstance(known, dict) else None
        consumed = energy.get("consumed") if isinstance(energy, dict) else None
        energies.append(_joules(_plain(consumed)) or 0.0)
    return max(energies) or None


IMPORTER = SlurmImporter()
