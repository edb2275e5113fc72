"""``run.json``: what a run was asked to be, what became of it, and where it ran."""

from datetime import UTC, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from wattlaw.study.model import RunSpec

Status = Literal["planned", "running", "done", "failed", "skipped"]


def now() -> datetime:
    """Return the present moment, in UTC."""
    return datetime.now(UTC)


class SamplerReport(BaseModel):
    """How the sampler of one host fared."""

    model_config = ConfigDict(frozen=True)

    host: str
    samples: int
    duration_s: float
    cpu_s: float
    devices: tuple[str, ...]
    problems: tuple[str, ...] = ()


class Facts(BaseModel):
    """What a run found where it ran, told by its processes."""

    model_config = ConfigDict(frozen=True)

    hosts: tuple[str, ...] = ()
    hardware: str | None = None
    device_ids: tuple[str, ...] = ()
    parameters: int | None = None
    metric: str | None = None
    threads_per_worker: int | None = None
    software: dict[str, str] = Field(default_factory=dict)


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
    attempts: int = 0
    git_commit: str | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    facts: Facts = Facts()
    samplers: tuple[SamplerReport, ...] = ()
