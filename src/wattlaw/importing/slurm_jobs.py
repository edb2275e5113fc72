"""Jobs and steps of the lines of ``sacct``, and the energy of a job."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import quote, shorten
from wattlaw.importing.reading import MISSING, Source, count, moment_ns, number

#: The columns of the energy.
RAW, ROUNDED = "ConsumedEnergyRaw", "ConsumedEnergy"
ASK = (
    "sacct --parsable2 --duplicates --format=JobID,JobName,State,ElapsedRaw,Start,NNodes,AllocTRES,"
    f"{RAW}"
)
#: Slurm's NO_VAL and INFINITE of 32 bits, and the least such value of 64.
_NO_VAL, _INFINITE, _LEAST_NO_VAL64 = 2**32 - 2, 2**32 - 1, 2.0**63
_MAX_NODES = 100_000
_GPU = re.compile(r"gres/gpu(?::([A-Za-z0-9_.-]+))?$")
_ELAPSED = re.compile(r"(?:([0-9]{1,5})-)?(?:([0-9]{1,6}):)?([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]+)?)")
_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_JOULES = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([KMGTP]?)")
#: A node with eight GPUs of 1.4 kW and its processors draws 16 kW; a single board draws 5 W.
_LEAST_NODE_W, _MOST_NODE_W = 5.0, 25_000.0
#: Share of a step at its start and end in which another may run: its start and its clean-up.
_EDGE = 0.005
Row = Mapping[str, str]


@dataclass
class Job:
    """A job or one attempt of it, with its steps: columns as of ``sacct``."""

    line: int
    row: Row
    steps: list[tuple[int, Row]] = field(default_factory=list)  # with their lines

    @property
    def id(self) -> str:
        """The job's id, such as 12, 12_3 of an array or 12+0 of a heterogeneous job."""
        return _id_of(self.row)

    @property
    def state(self) -> str:
        """The first word of the state: ``CANCELLED`` of ``CANCELLED by 1000``."""
        return self.row.get("State", "").split(" ")[0].rstrip("+").upper()


def _id_of(row: Row) -> str:
    return row.get("JobID") or row.get("JobIDRaw") or ""


def nodes_of(row: Row) -> int | None:
    tres = dict(_resources(row.get("AllocTRES", "")))
    given = (row.get("NNodes"), row.get("AllocNodes"), tres.get("node"))
    return next((known for each in given if (known := count(each, 1, _MAX_NODES))), None)


def gpus_of(row: Row) -> tuple[int | None, list[str]]:
    types: dict[str | None, float] = {}
    for name, amount in _resources(row.get("AllocTRES") or row.get("ReqTRES", "")):
        if match := _GPU.fullmatch(name):
            types[match[1]] = amount
    gpus = count(types.get(None, sum(types.values())), 1, 10**7)
    return gpus, [name for name in types if name]


def duration_of(row: Row) -> float | None:
    raw = number(row.get("ElapsedRaw"))
    if raw is not None and raw >= 0 and raw not in (_NO_VAL, _INFINITE):
        return raw
    match = _ELAPSED.fullmatch(row.get("Elapsed", ""))
    if match is None:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])


def _resources(text: str) -> Iterator[tuple[str, float]]:
    for part in text.split(","):
        name, equals, amount = part.strip().partition("=")
        if not equals:
            name, _, amount = name.rpartition(":")
        if (known := number(amount)) is not None:
            yield name, known


def is_header(cells: Sequence[str] | set[str]) -> bool:
    names = {*cells}
    has_more = names & {"State", "Elapsed", "ElapsedRaw", "AllocTRES", RAW}
    return bool(names & {"JobID", "JobIDRaw"} and has_more)


def jobs_of(source: Source) -> list[Job]:
    """With ``--duplicates`` a job has a line for each attempt. A step belongs to the last attempt
    that began before it, or else to the last one above it."""
    if source.begins_with("{"):
        raise BadInput(f"{source.path}: output of sacct --json; ask: {ASK}")
    jobs: list[Job] = []
    attempts: dict[tuple[str | None, str], list[Job]] = defaultdict(list)
    steps: list[tuple[int, Row, Job | None]] = []
    for line in source.table(is_header):
        row = dict(zip(line.header, line.cells, strict=True))
        job_id, dot, _ = _id_of(row).partition(".")
        of_job = attempts[row.get("Cluster"), job_id]
        if dot:
            steps.append((line.number, row, of_job[-1] if of_job else None))
        elif job_id:
            jobs.append(Job(line.number, row))
            of_job.append(jobs[-1])
        else:
            source.account.leave_out("no job id", line.number)
    for line_number, step, above in steps:
        of_job = attempts[step.get("Cluster"), _id_of(step).partition(".")[0]]
        start = step.get("Start", "")
        begun = [job for job in of_job if "" < job.row.get("Start", "") <= start]
        if begun and start[:1].isdecimal():
            max(begun, key=lambda job: job.row["Start"]).steps.append((line_number, step))
        elif of_job:
            (above or of_job[0]).steps.append((line_number, step))
        else:
            source.account.leave_out("a step without a line of its job", line_number)
    if not (jobs or steps):
        found = "; ".join([f"{source.path}: no job", *source.account.texts()[:2]])
        raise BadInput(f"{found}; ask: {ASK}")
    return jobs


@dataclass(frozen=True)
class Energy:
    joules: float | None = None
    source: str | None = None
    why: str | None = None


def energy_of(job: Job, duration_s: float | None, nodes: int | None) -> Energy:
    """Return the greatest known energy of a job: its own, that in AllocTRES, or that of its steps,
    each of which may be of a part of the job. Without any, the first reason is returned."""
    allocated = _parsed(_energy_in(job.row, "AllocTRES"), "AllocTRES energy")
    stated = (_reported(job.row), allocated, _of_steps(job.steps))
    found = [_plausible(energy, duration_s, nodes) for energy in stated]
    known = [each for each in found if each.joules is not None]
    return max(known, key=lambda each: each.joules or 0.0) if known else _first_why(found)


def _energy_in(row: Row, column: str) -> str:
    return str(dict(_resources(row.get(column, ""))).get("energy", ""))


def _first_why(found: Sequence[Energy]) -> Energy:
    return next((each for each in found if each.why is not None), Energy())


def _reported(row: Row) -> Energy:
    cells = {RAW: row.get(RAW, ""), ROUNDED: row.get(ROUNDED, ""),
             "TRESUsageInTot": _energy_in(row, "TRESUsageInTot")}  # fmt: skip
    found = [_parsed(text, column) for column, text in cells.items()]
    return next((each for each in found if each.joules is not None), None) or _first_why(found)


def _parsed(text: str, column: str) -> Energy:
    text = text.strip()
    if text.lower() in MISSING:
        return Energy()
    match = _JOULES.fullmatch(text)
    value = None if match is None else number(match[1])
    if match is None or value is None:
        return Energy(why=f"no number: {quote(text, 40)}")
    if value == 0:
        return Energy()
    value *= _SUFFIXES[match[2]]
    if value == _INFINITE or abs(value) >= _LEAST_NO_VAL64 or value % _NO_VAL == 0:
        return Energy(why=f'Slurm\'s "no value": {shorten(text, 40)}')
    if value < 0:
        return Energy(why=f"a negative number: {shorten(text, 40)} J")
    rounded = " (rounded)" if match[2] else ""
    return Energy(value, f"sacct {column}{rounded}")


def _plausible(energy: Energy, duration_s: float | None, nodes: int | None) -> Energy:
    if energy.joules is None or not duration_s:
        return energy
    power_w = energy.joules / duration_s / (nodes or 1)
    if _LEAST_NODE_W <= power_w <= _MOST_NODE_W:
        return energy
    return Energy(
        why=f"a power that no node has: {energy.joules:,.0f} J in {duration_s:,.0f} s on "
        f"{plural(nodes or 1, 'node')} are {power_w:,.0f} W for each"
    )


def _of_steps(steps: Sequence[tuple[int, Row]]) -> Energy:
    """Return the greatest energy of steps that follow each other. Steps that overlap may count the
    same nodes twice, as the batch step and those within it do, or one without a time."""
    alone, timed, why = list[tuple[float, str]](), list[tuple[float, float, float]](), None
    started = 0  # by srun, apart from "batch" and "extern"
    for _, row in steps:
        start_ns, elapsed_s = moment_ns(row.get("Start", ""), UTC), duration_of(row)
        energy = _plausible(_reported(row), elapsed_s, nodes_of(row))
        why = why or energy.why
        if energy.joules is None:
            continue
        alone.append((energy.joules, str(energy.source)))
        started += _id_of(row).rpartition(".")[2].isdecimal()
        if start_ns is not None and elapsed_s is not None:
            edge_s, start_s = max(0.5, _EDGE * elapsed_s), start_ns * 1e-9
            timed.append((start_s + elapsed_s - edge_s, start_s + edge_s, energy.joules))
    if not alone:
        return Energy(why=why)
    timed.sort()
    ends = [end for end, _, _ in timed]
    best: list[tuple[float, int]] = [(0.0, 0)]  # energy and number of steps, of the first ones
    for place, (_, start, joules) in enumerate(timed):
        before = best[bisect_right(ends, start, hi=place)]
        best.append(max(best[-1], (before[0] + joules, before[1] + 1)))
    total_j, in_total = best[-1]
    greatest_j, source = max(alone)
    is_all = started <= max(1, in_total)
    bound = None if is_all else "a lower bound, since steps that overlap are not added"
    if total_j > greatest_j:
        return Energy(total_j, f"{source}, sum of {plural(in_total, 'step')}", bound)
    return Energy(greatest_j, f"{source} of its greatest step", bound)
