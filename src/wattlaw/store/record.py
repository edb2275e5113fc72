"""``run.json``: what a run was asked to be, what became of it, and where it ran."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from wattlaw.study.model import RunSpec

Status = Literal["planned", "running", "done", "failed", "skipped"]
#: What a column of whole numbers holds.
Count = Annotated[int, Field(ge=0, lt=2**63)]
#: JSON has no other numbers, so a record with them could not be read again.
_FINITE = ConfigDict(frozen=True, allow_inf_nan=False)
#: On the energy of a window, from the best to the worst; a sum takes the worst of its parts.
#: From ``partial`` on no mean is made of it.
VERDICTS = ("ok", "suspect", "partial", "implausible", "unavailable")


def now() -> datetime:
    """Return the present moment, in UTC."""
    return datetime.now(UTC)


class DeviceReport(BaseModel):
    """One device that was read, with what its meter found out about it."""

    model_config = ConfigDict(frozen=True)

    id: str
    kind: str
    name: str
    facts: dict[str, str | float | bool | None] = Field(default_factory=dict)


class MeterReport(BaseModel):
    """How one meter was read."""

    model_config = _FINITE

    period_s: float
    reads: int
    missed: int  # turns that were left out because the one before took too long
    late_s: float  # mean time by which a reading began late


class SamplerReport(BaseModel):
    """How the sampler of one host fared."""

    model_config = _FINITE

    host: str
    samples: int
    duration_s: float
    cpu_s: float  # processor time while sampling, all its threads
    start_cpu_s: float  # processor time of its start
    devices: tuple[DeviceReport, ...]
    meters: dict[str, MeterReport] = Field(default_factory=dict)
    unavailable: dict[str, str] = Field(default_factory=dict)  # meter -> why
    problems: tuple[str, ...] = ()


class LimitReport(BaseModel):
    """What was limited on one device: asked for, enforced, and there before."""

    model_config = ConfigDict(frozen=True)

    host: str
    device: str
    limiter: str
    power_limit_w: float | None
    power_limit_enforced_w: float | None
    power_limit_before_w: float | None
    clock_limit_mhz: float | None
    note: str | None = None


class Facts(BaseModel):
    """What a run found where it ran, told by its processes."""

    model_config = _FINITE

    hosts: tuple[str, ...] = ()
    hardware: str | None = None
    device_ids: tuple[str, ...] = ()
    parameters: Count | None = None
    gradient_bytes: Count | None = None  # what the ranks exchange in one step
    flops_per_sample: float | None = None
    loader_workers: Count | None = None  # loader processes of each rank
    metric: str | None = None
    threads_per_worker: Count | None = None
    software: dict[str, str] = Field(default_factory=dict)


class ClockReport(BaseModel):
    """How far the wall clock of a host was from another's, when both were asked."""

    model_config = _FINITE

    host: str
    reference: str  # the host that it was compared with
    at: Literal["begin", "end"]  # of an attempt
    offset_s: float  # host's clock minus the reference's
    uncertainty_s: float  # the offset is within this of the truth: half of the quickest round trip


class Interruption(BaseModel):
    """An attempt that something else than the run itself ended, and after which it went on."""

    model_config = ConfigDict(frozen=True)

    attempt: int
    at: datetime
    reason: str
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    has_progress: bool = False  # it left a checkpoint further on than the one it began with


class Site(BaseModel):
    """Where a scheduler has put a run, and what the site itself measured of it."""

    model_config = ConfigDict(frozen=True)

    scheduler: str
    version: str | None = None
    cluster: str | None = None
    job_id: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    nodes: tuple[str, ...] = ()
    topology: dict[str, str] = Field(default_factory=dict)  # node -> its switches, root first
    submitted_at: datetime | None = None
    energy_j: float | None = None  # of the whole job, by the scheduler's accounting
    energy_source: str | None = None  # such as "sacct ConsumedEnergyRaw"
    energy_scope: str | None = None  # what that energy is of, in words
    energy_start_at: datetime | None = None  # the time that it is over
    energy_end_at: datetime | None = None


class RunRecord(BaseModel):
    """One run as a store keeps it."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    study: str
    spec: RunSpec
    seed: int
    order_seed: int
    status: Status = "planned"
    reason: str | None = None
    interrupted: bool = False  # failed because its launcher was asked to end, not by itself
    notes: tuple[str, ...] = ()
    attempts: Count = 0
    git_commit: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    facts: Facts = Facts()
    samplers: tuple[SamplerReport, ...] = ()
    limits: tuple[LimitReport, ...] = ()
    clocks: tuple[ClockReport, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    site: Site | None = None
