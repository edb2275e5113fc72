"""Jobs and steps of the lines of ``sacct``."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wattlaw.common.errors import BadInput
from wattlaw.importing.reading import Source, count, number

#: The columns of the energy.
RAW, ROUNDED = "ConsumedEnergyRaw", "ConsumedEnergy"
ASK = (
    "sacct --parsable2 --duplicates --format=JobID,JobName,State,ElapsedRaw,Start,NNodes,AllocTRES,"
    f"{RAW}"
)
#: Slurm's NO_VAL and INFINITE of 32 bits, and the least such value of 64.
NO_VAL, INFINITE, LEAST_NO_VAL64 = 2**32 - 2, 2**32 - 1, 2.0**63
_MAX_NODES = 100_000
_GPU = re.compile(r"gres/gpu(?::([A-Za-z0-9_.-]+))?$")
_ELAPSED = re.compile(r"(?:([0-9]{1,5})-)?(?:([0-9]{1,6}):)?([0-9]{1,2}):([0-9]{1,2}(?:\.[0-9]+)?)")
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
        return id_of(self.row)

    @property
    def state(self) -> str:
        """The first word of the state: ``CANCELLED`` of ``CANCELLED by 1000``."""
        return self.row.get("State", "").split(" ")[0].rstrip("+").upper()


def id_of(row: Row) -> str:
    return row.get("JobID") or row.get("JobIDRaw") or ""


def nodes_of(row: Row) -> int | None:
    tres = dict(resources(row.get("AllocTRES", "")))
    given = (row.get("NNodes"), row.get("AllocNodes"), tres.get("node"))
    return next((known for each in given if (known := count(each, 1, _MAX_NODES))), None)


def gpus_of(row: Row) -> tuple[int | None, list[str]]:
    types: dict[str | None, float] = {}
    for name, amount in resources(row.get("AllocTRES") or row.get("ReqTRES", "")):
        if match := _GPU.fullmatch(name):
            types[match[1]] = amount
    gpus = count(types.get(None, sum(types.values())), 1, 10**7)
    return gpus, [name for name in types if name]


def duration_of(row: Row) -> float | None:
    raw = number(row.get("ElapsedRaw"))
    if raw is not None and raw >= 0 and raw not in (NO_VAL, INFINITE):
        return raw
    match = _ELAPSED.fullmatch(row.get("Elapsed", ""))
    if match is None:
        return None
    days, hours, minutes = (int(part or 0) for part in match.groups()[:3])
    return ((days * 24 + hours) * 60 + minutes) * 60 + float(match[4])


def resources(text: str) -> Iterator[tuple[str, float]]:
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
        job_id, dot, _ = id_of(row).partition(".")
        of_job = attempts[row.get("Cluster"), job_id]
        if dot:
            steps.append((line.number, row, of_job[-1] if of_job else None))
        elif job_id:
            jobs.append(Job(line.number, row))
            of_job.append(jobs[-1])
        else:
            source.account.leave_out("no job id", line.number)
    for line_number, step, above in steps:
        of_job = attempts[step.get("Cluster"), id_of(step).partition(".")[0]]
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
