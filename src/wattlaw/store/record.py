"""``run.json``: the specification of a run, its result, and where it ran."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from wattlaw.study.base_model import Checkpointing, Sharding
from wattlaw.study.model import RunSpec
from wattlaw.study.out_of_memory import OUT_OF_MEMORY, Memory, memory_that_ran_out

Status = Literal["planned", "running", "done", "failed", "skipped"]
#: A count that fits a column of 64-bit integers.
Count = Annotated[int, Field(ge=0, lt=2**63)]
Parallelism = Literal["none", "ddp", "fsdp", "deepspeed", "tensor", "pipeline"]
#: Verdicts on the energy of a window, from best to worst; a sum gets the worst of its parts.
#: Means leave out energies from ``partial`` on.
VERDICTS = ("ok", "suspect", "partial", "implausible", "unavailable")


def now() -> datetime:
    return datetime.now(UTC)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True)


class _FiniteModel(_Model):
    """JSON has no NaN and no infinity: a record with them could not be read again."""

    model_config = ConfigDict(allow_inf_nan=False)


class DeviceReport(_Model):
    id: str
    kind: str
    name: str
    facts: dict[str, str | float | bool | None] = Field(default_factory=dict)
    contains: tuple[str, ...] = ()  # kinds of devices of the host that its energy includes


class MeterReport(_FiniteModel):
    period_s: float
    reads: int


class SamplerReport(_FiniteModel):
    host: str
    samples: int
    duration_s: float
    cpu_s: float  # processor time while sampling, of all threads
    start_cpu_s: float  # processor time of the start
    devices: tuple[DeviceReport, ...]
    meters: dict[str, MeterReport] = Field(default_factory=dict)
    unavailable: dict[str, str] = Field(default_factory=dict)  # meter -> reason
    problems: tuple[str, ...] = ()


def device_facts(reports: Iterable[SamplerReport]) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (report.host, device.id): device.facts | {"kind": device.kind, "contains": device.contains}
        for report in reports
        for device in report.devices
    }


class LimitReport(_Model):
    host: str
    device: str
    limiter: str
    power_limit_w: float | None
    power_limit_enforced_w: float | None
    power_limit_before_w: float | None
    clock_limit_mhz: float | None
    power_profile: str | None = None
    note: str | None = None


class Facts(_FiniteModel):
    hosts: tuple[str, ...] = ()
    hardware: str | None = None
    device_ids: tuple[str, ...] = ()
    parameters: Count | None = None
    gradient_bytes: Count | None = None  # bytes that the ranks all-reduce in one step
    flops_per_sample: float | None = None
    loader_workers: Count | None = None  # loader processes of each rank
    metric: str | None = None
    threads_per_worker: Count | None = None
    software: dict[str, str] = Field(default_factory=dict)
    dataset_samples: Count | None = None  # of an epoch of the full data set
    world_size: Count | None = None  # processes of the process group
    backend: str | None = None  # of torch.distributed
    parallelism: Parallelism | None = None
    global_batch: Count | None = None  # that ran, where it is not that of the setting
    workers_cooperate: bool | None = None  # False: several trained without a process group
    instrumented: bool | None = None  # the steps of a command were counted in its processes
    # The layout that ran, as in the setting:
    tp: Count | None = None
    pp: Count | None = None
    cp: Count | None = None
    ep: Count | None = None
    dp: Count | None = None
    virtual_stages: Count | None = None
    sharding: Sharding | None = None
    checkpointing: Checkpointing | None = None
    gradient_accumulation: Count | None = None
    micro_batch: Count | None = None
    tokens_per_sample: float | None = None
    network: str | None = None  # sizes of the transformer, JSON of ``study.network.Network``
    gpu_memory_bytes: Count | None = None
    peak_memory_bytes: Count | None = None  # the largest of a rank, see ``columns.csv``


class Interruption(_Model):
    """An attempt that was ended from outside; another attempt continued the run."""

    attempt: int
    at: datetime
    reason: str
    job_id: str | None = None
    nodes: tuple[str, ...] = ()
    has_progress: bool = False  # its last checkpoint is later than its first


class Site(_Model):
    scheduler: str
    cluster: str | None = None
    job_id: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    nodes: tuple[str, ...] = ()
    submitted_at: datetime | None = None
    energy_j: float | None = None  # of the whole job, by the scheduler's accounting
    energy_source: str | None = None  # such as "sacct ConsumedEnergyRaw"
    energy_scope: str | None = None  # what that energy includes
    energy_start_at: datetime | None = None  # the period of that energy
    energy_end_at: datetime | None = None


class RunRecord(_Model):
    run_id: str
    study: str
    spec: RunSpec
    seed: int
    order_seed: int
    status: Status = "planned"
    reason: str | None = None
    interrupted: bool = False  # failed because its launcher was stopped
    notes: tuple[str, ...] = ()
    attempts: Count = 0
    git_commit: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    facts: Facts = Facts()
    samplers: tuple[SamplerReport, ...] = ()
    limits: tuple[LimitReport, ...] = ()
    interruptions: tuple[Interruption, ...] = ()
    site: Site | None = None

    @property
    def state(self) -> str:
        if self.status != "failed":
            return self.status
        if self.interrupted:
            return "interrupted"
        return OUT_OF_MEMORY if self.out_of_memory else "failed"

    @property
    def out_of_memory(self) -> Memory | None:
        is_own_end = self.status == "failed" and not self.interrupted
        return memory_that_ran_out(self.reason) if is_own_end else None
