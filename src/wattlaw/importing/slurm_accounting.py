"""Slurm's accounting: ``sacct --parsable2 --format=...`` and ``sacct --json``.

One completed job is one run. ``ConsumedEnergyRaw`` is the energy of the job's nodes; 0 means that
it was not measured.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import (
    Source,
    count,
    moment_ns,
    number,
    positive,
    text_in,
)
from wattlaw.importing.runs import RunMaker
from wattlaw.importing.units import quantity
from wattlaw.store.fields import InvalidCell
from wattlaw.store.imports import ImportedRun
from wattlaw.store.record import Site

_SOURCE = "sacct ConsumedEnergyRaw"
#: Greater energies mean unknown (NO_VAL64).
_MAX_J = 1e15
_DONE = "COMPLETED"
_GPU = re.compile(r"gres/gpu(?::([A-Za-z0-9_.-]+))?$")
_MAX_NODES = 100_000
#: A job: the number of its line, and its columns as of ``sacct``.
Job = tuple[int, Mapping[str, str]]


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

    def read(self, source: Source, options: Options) -> Imported:
        """Return a run for each completed job."""
        account, is_json = source.account, source.begins_with("{")
        jobs = list(_of_json(source) if is_json else _of_text(source))
        maker, runs = RunMaker(source.path, options), list[ImportedRun]()
        for line, row in jobs:
            try:
                runs.append(_run(maker, line, row, options))
            except InvalidCell as error:
                account.reject(line, f"job {_id(row)[:40]}: {error}")
            else:
                account.read(line)
        gpu_s = sum(run.record.spec.setting.gpus * run.windows[0]["duration_s"] for run in runs)
        measured = sum(bool(run.record.site and run.record.site.energy_j) for run in runs)
        text = (
            f"Slurm accounting: {len(jobs):,} jobs, {len(runs):,} completed with GPUs, "
            f"{gpu_s / 3600:,.1f} GPU-hours, {measured:,} with an energy, times in "
            f"{options.zone_note}"
        )
        return Imported(text, runs)


def _run(maker: RunMaker, line: int, row: Mapping[str, str], options: Options) -> ImportedRun:
    state = row.get("State", "").split(" ")[0]
    if state != _DONE:
        raise InvalidCell(f"state {state[:40] or 'unknown'}; allowed: {_DONE}")
    duration_s = positive(row.get("ElapsedRaw")) or _elapsed_s(row.get("Elapsed", ""))
    if duration_s is None:
        raise InvalidCell("Elapsed or ElapsedRaw is missing, or 0")
    tres = dict(_tres(row.get("AllocTRES", "")))
    types = {match[1]: amount for name, amount in tres.items() if (match := _GPU.fullmatch(name))}
    hardware = [name for name in types if name]
    values = {
        "workload": text_in(row, "JobName"),
        "gpus": count(types.get(None, sum(types.values())), 1, 10**7),
        "nodes": count(
            row.get("NNodes") or row.get("AllocNodes") or tres.get("node"), 1, _MAX_NODES
        ),
        "hardware": hardware[0] if len(hardware) == 1 else None,
    }
    start_ns = moment_ns(row.get("Start", ""), options.timezone)
    period = None if start_ns is None else (start_ns, start_ns + round(duration_s * 1e9))
    energy_j = _joules(row)
    site = Site(
        scheduler="slurm",
        job_id=_id(row),
        cluster=text_in(row, "Cluster"),
        partition=text_in(row, "Partition"),
        account=text_in(row, "Account"),
        energy_j=energy_j,
        energy_source=None if energy_j is None else _SOURCE,
    )
    window = {"phase": "run", "start_ns": start_ns, "duration_s": duration_s}
    known = {name: value for name, value in values.items() if value is not None}
    return maker.run(known, [window], line=line, site=site, period_ns=period)


def _id(row: Mapping[str, str]) -> str:
    return row.get("JobID") or row.get("JobIDRaw") or ""


def _joules(row: Mapping[str, str]) -> float | None:
    known = positive(row.get("ConsumedEnergyRaw"))
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


def _of_text(source: Source) -> Iterator[Job]:
    """Yield the jobs; without an energy of its own, a job has the greatest of its steps.

    The batch step runs as long as the job, on its nodes.
    """
    jobs: list[tuple[int, dict[str, str]]] = []
    of_steps: dict[str, float] = {}
    header: list[str] = []
    for line, text in source.lines():
        cells = text.split("|")
        if "JobID" in cells or "JobIDRaw" in cells:
            header = cells
            source.account.header(line)
        elif len(cells) == len(header):
            row = dict(zip(header, cells, strict=True))
            job_id, dot, _ = _id(row).partition(".")
            if dot:
                of_steps[job_id] = max(of_steps.get(job_id, 0.0), _joules(row) or 0.0)
            else:
                jobs.append((line, row))
    for line, row in jobs:
        energy_j = _joules(row) or of_steps.get(_id(row), 0.0)
        yield line, {**row, "ConsumedEnergyRaw": str(energy_j)}


def _of_json(source: Source) -> Iterator[Job]:
    for index, job in source.items(_list(source.json(), "jobs"), "job"):
        state = _get(job, "state", "current") or _get(job, "state")
        energies = [_plain(_get(step, "statistics", "energy", "consumed")) or 0.0
                    for step in _list(job, "steps")]  # fmt: skip
        tres = (
            (
                "/".join(str(each[key]) for key in ("type", "name") if each.get(key)),
                each.get("count"),
            )
            for each in _list(_get(job, "tres"), "allocated")
            if isinstance(each, dict)
        )
        numbers = {
            "ElapsedRaw": _plain(_get(job, "time", "elapsed")),
            "Start": _plain(_get(job, "time", "start")) or None,
            "NNodes": _plain(_get(job, "allocation_nodes")),
            "ConsumedEnergyRaw": max(energies, default=0.0),
        }
        names = {"JobName": "name", "Cluster": "cluster", "Partition": "partition",
                 "Account": "account"}  # fmt: skip
        yield (
            index,
            {
                "JobID": str(_get(job, "job_id"))[:40],
                "State": str(state[0] if isinstance(state, list) and state else state),
                "AllocTRES": ",".join(f"{name}={_plain(amount)}" for name, amount in tres),
                **{name: str(value) for name, value in numbers.items() if value is not None},
                **{
                    name: text_in(job, key) or ""
                    for name, key in names.items()
                    if isinstance(job, dict)
                },
            },
        )


def _get(value: Any, *keys: str) -> Any:
    """Return a value of nested mappings; None without it."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _list(value: Any, key: str) -> list[Any]:
    known = _get(value, key)
    return known if isinstance(known, list) else []


def _plain(value: Any) -> float | None:
    """Return a number, also of ``{"set": true, "number": 5}``."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set", True) is True else None
    return number(value)


IMPORTER = SlurmImporter()
