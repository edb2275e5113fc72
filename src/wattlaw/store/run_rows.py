"""The row of a run in the table ``runs``, from its record."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from wattlaw.store.record import Facts, RunRecord, Site
from wattlaw.store.schema import RUNS
from wattlaw.study.setting import RECORDED

_OF_RECORD = tuple(
    name for name in RUNS.names if name in RunRecord.model_fields and name != "interruptions"
)
_OF_FACTS = tuple(name for name in RUNS.names if name in Facts.model_fields)
_OF_SETTING = RECORDED
_OF_SITE = tuple(name for name in Site.model_fields if f"site_{name}" in RUNS.names)


def rows_table(rows: Sequence[Mapping[str, Any]], schema: pa.Schema = RUNS) -> pa.Table:
    """Return rows as a table; raise ArrowException or OverflowError if one does not fit."""
    used = set[str]().union(*rows)
    columns = [
        pa.array([row.get(field.name) for row in rows], field.type)
        if field.name in used
        else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def row_of(record: RunRecord, status: str, reason: str | None = None) -> dict[str, Any]:
    """Return the columns of ``RUNS`` that are known of a run with this status."""
    spec, facts, measure = record.spec, record.facts, record.spec.measure
    setting, site = spec.setting, record.site
    command = spec.workload.command
    row = {name: getattr(record, name) for name in _OF_RECORD}
    row |= {name: getattr(facts, name) for name in _OF_FACTS}
    row |= {name: getattr(setting, name) for name in _OF_SETTING}
    if facts.global_batch:  # analyses use the batch that ran
        local_batch, rest = divmod(facts.global_batch, setting.gpus)
        row |= {
            "global_batch": facts.global_batch,
            "local_batch": None if rest else local_batch,
            "global_batch_declared": setting.global_batch,
        }
    row |= {
        "status": status,
        "reason": record.reason if reason is None else reason,
        "epochs": measure.epochs,
        "sample_hz": measure.sample_hz,
        "assume_cpu_w": measure.assume_cpu_w,
        "warmup_epochs": None if measure.is_by_steps else measure.warmup_epochs,
        "measure_steps": measure.steps,
        "measure_seconds": measure.seconds,
        "warmup_steps": measure.warmup_steps if measure.is_by_steps else None,
        "dataset_samples": spec.workload.dataset_samples or facts.dataset_samples,
        "workload": spec.workload.name,
        "options": json.dumps(
            spec.workload.options if command is None else {"command": command}, sort_keys=True
        ),
        "metric_name": facts.metric,
        "train": spec.train.model_dump_json(),
        "nodes": spec.nodes,
        "repeat": spec.repeat,
        "launcher": spec.launch_kind,
        "hardware": spec.hardware or facts.hardware,
        "power_limit_enforced_w": min(
            (r.power_limit_enforced_w for r in record.limits if r.power_limit_enforced_w),
            default=None,
        ),
        "sampler_cpu_share": max(
            (r.cpu_s / r.duration_s for r in record.samplers if r.duration_s), default=None
        ),
        "software": json.dumps(facts.software, sort_keys=True),
        "interruptions": len(record.interruptions) if record.attempts else None,
        "clock_offset_max_s": max(
            (abs(r.offset_s) + r.uncertainty_s for r in record.clocks), default=None
        ),
    }
    if site is not None:
        row |= {"job_id": site.job_id, "partition": site.partition}
        row["node_names"] = site.nodes or None
        row |= {f"site_{name}": getattr(site, name) for name in _OF_SITE}
    return row
