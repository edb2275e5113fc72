"""The end of an attempt: conversion of its live files to tables, or the reason of its failure."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, TypeAdapter

from wattlaw.common.errors import one_line
from wattlaw.common.files import read_text, write_text
from wattlaw.measure.limits.restore import LIMIT_TOLERANCE_W
from wattlaw.measure.telemetry.sampler import report_path
from wattlaw.running.training import failures
from wattlaw.store.record import (
    Facts,
    LimitReport,
    RunRecord,
    SamplerReport,
    Status,
    device_facts,
    now,
)
from wattlaw.store.run_folder import RunFolder

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_NOTES, _LIMITS = TypeAdapter(tuple[str, ...]), TypeAdapter(tuple[LimitReport, ...])
_SAMPLER, _FACTS = TypeAdapter(SamplerReport), TypeAdapter(Facts)
#: A board locks the nearest clock that it supports; supported clocks are 15 MHz apart.
_CLOCK_STEP_MHZ = 30.0


class _Stopped(BaseModel):
    epoch: int
    step: int
    reason: str


def failed(
    record: RunRecord, reason: str, status: Status = "failed", **changes: object
) -> RunRecord:
    return record.model_copy(update={"status": status, "reason": reason, **changes})


def failure_reason(folder: RunFolder, attempt: int, exit_code: int) -> str:
    failure = failures.first_failure(folder.live(attempt))
    if failure is not None:
        return failure.reason
    return f"{failures.reason_of_agent(exit_code)}; see {folder.log_path}"


def finish(record: RunRecord, folder: RunFolder, reason: str | None = None) -> RunRecord:
    """Return the record of an attempt that has ended now; ``reason`` says why its processes failed.

    An attempt without its windows has failed, too. One that was out of memory is a measurement and
    keeps what it has measured.
    """
    record = record.model_copy(update={"finished_at": now()})
    if reason is not None:
        ended = failed(record, reason)
        if ended.out_of_memory is None:
            return ended
        try:
            return failed(finalize_run(record, folder), reason)
        except Exception as error:
            note = f"its measurements cannot be used: {one_line(error)}"
            return ended.model_copy(update={"notes": (*record.notes, note)})
    damage: list[str] = []
    try:
        missing = missing_windows(record, merged_windows(record, folder, damage)[0])
        if missing is not None and damage:
            missing = f"{missing} ({folder.live(record.attempts)}: {'; '.join(damage)})"
        missing = missing or _stop(record, folder)
        return failed(record, missing) if missing is not None else finalize_run(record, folder)
    except Exception as error:  # it must not end a campaign or a job
        return failed(record, f"could not be finished: {failures.reason_of(error)}")


def merged_windows(
    record: RunRecord, folder: RunFolder, damage: list[str] | None = None
) -> tuple["pa.Table", list[int]]:
    """Return a run's windows and the numbers of the attempts that they come from, in order.

    An attempt that starts from a checkpoint contributes the windows after it; those before come
    from earlier attempts. For a command, and where steps are measured, only the last attempt
    counts. ``damage`` gets a sentence for each file that cannot be read.
    """
    import pyarrow as pa

    tables, attempts = [folder.windows(record.attempts, damage)], [record.attempts]
    is_whole = record.spec.workload.command is not None or record.spec.measure.is_by_steps
    if is_whole or record.attempts == 1:  # windows of a recording may have no epoch
        return tables[0], attempts
    begin = min(_positions(tables[0]), default=None)
    for attempt in range(record.attempts - 1, 0, -1):
        older = folder.windows(attempt, damage)
        positions = _positions(older)
        kept = [begin is None or position < begin for position in positions]
        if any(kept):
            tables.insert(0, older.filter(pa.array(kept)))
            attempts.insert(0, attempt)
            begin = min(positions if begin is None else [*positions, begin])
    return pa.concat_tables(tables), attempts


def _positions(windows: "pa.Table") -> list[tuple[int, bool, int]]:
    rows = windows.select(["epoch", "phase", "from_step"]).to_pylist()
    return [(row["epoch"], row["phase"] == "evaluate", row["from_step"] or 0) for row in rows]


def missing_windows(record: RunRecord, windows: "pa.Table") -> str | None:
    """Return how many windows of a run are missing, as a message; None if it has all.

    The training of an epoch is complete if its parts cover all steps without a gap, on every host.
    Every epoch has as many steps as the longest one.
    """
    measure, nodes = record.spec.measure, record.spec.nodes
    if record.spec.workload.command is not None:
        return None if len(windows) else "there is no window"
    rows: dict[tuple[int | None, str], list[dict[str, Any]]] = defaultdict(list)
    for row in windows.select(["host", "epoch", "phase", "from_step", "steps"]).to_pylist():
        rows[row["epoch"], row["phase"]].append(row)
    if measure.is_by_steps:
        parts = chain(*(part for (_, phase), part in rows.items() if phase == "steps"))
        missing = measure.warmup_steps + (measure.steps or 1) - (_covered_steps(parts, nodes) or 0)
        return f"{missing:,} steps are missing" if missing > 0 else None
    phases = ("train", "evaluate") if measure.evaluate else ("train",)
    steps = {
        (epoch, phase): _covered_steps(rows[epoch, phase], nodes)
        for epoch in range(measure.epoch_count)
        for phase in phases
    }
    most = max((count or 0 for (_, phase), count in steps.items() if phase == "train"), default=0)
    missing = sum(
        count is None or (phase == "train" and count < most) for (_, phase), count in steps.items()
    )
    if not missing:
        return None
    message = f"{missing} of {len(steps)} windows are missing"
    return f"{message} on some of {nodes} hosts" if nodes > 1 else message


def _covered_steps(rows: Iterable[Mapping[str, Any]], nodes: int) -> int | None:
    """Return how many steps the parts of a window cover; None if a part is missing on a host."""
    parts: dict[tuple[int, int], set[str]] = defaultdict(set)
    for row in rows:
        parts[row["from_step"] or 0, row["steps"] or 0].add(row["host"])
    reached = 0
    for (begin, count), hosts in sorted(parts.items()):
        if begin != reached or len(hosts) != nodes:
            return None
        reached = begin + count
    return reached if parts else None


def _stop(record: RunRecord, folder: RunFolder) -> str | None:
    path = folder.live(record.attempts) / "stopped.json"
    if not os.path.lexists(path):
        return None
    try:
        stopped = _Stopped.model_validate_json(read_text(path))
    except (OSError, ValueError):
        return f"stopped, but {path} cannot be read; start the run again to continue it"
    where = f"after step {stopped.step} of epoch {stopped.epoch}"
    again = "measure it again" if record.spec.measure.is_by_steps else "continue from there"
    return f"stopped {where}: {stopped.reason}; start the run again to {again}"


def finalize_run(record: RunRecord, folder: RunFolder) -> RunRecord:
    import pyarrow as pa

    from wattlaw.store.schema import EPOCHS, TELEMETRY

    notes, live = [*record.notes], folder.live(record.attempts)
    windows, attempts = merged_windows(record, folder, notes)
    samples = pa.concat_tables([folder.samples(attempt, notes) for attempt in attempts])
    reports = tuple(chain(*(_sampler_reports(folder, number, notes) for number in attempts)))
    limits = tuple(chain(*_read(live.glob("limits.*.json"), _LIMITS, "its limits", notes)))
    notes += [limit.note for limit in limits if limit.note]
    notes += chain(*_read(live.glob("notes.*.json"), _NOTES, "its content", notes))
    facts = _facts(live, notes)
    gpus = [device for report in reports for device in report.devices if device.kind == "gpu"]
    if gpus and not facts.device_ids:  # the workers have not named theirs
        device_ids = tuple(dict.fromkeys(gpu.id for gpu in gpus))
        facts = facts.model_copy(update={"hardware": gpus[0].name, "device_ids": device_ids})
    # The run is done even if its samples are damaged.
    try:
        notes += list(_not_enforced(limits, windows, samples))
    except Exception as error:
        notes.append(f"cannot check whether the devices kept their limits: {one_line(error)}")
    energy = _energy(windows, samples, reports, notes)
    epochs = [pa.repeat(record.run_id, len(windows)), *windows.columns, *energy.columns]
    telemetry = [pa.repeat(record.run_id, len(samples)), *samples.columns]
    folder.write_tables(pa.table(epochs, schema=EPOCHS), pa.table(telemetry, schema=TELEMETRY))
    changes: dict[str, object] = {"status": "done", "reason": None, "notes": tuple(notes)}
    return record.model_copy(
        update=changes | {"facts": facts, "samplers": reports, "limits": limits}
    )


def _read(paths: Iterable[Path], kind: TypeAdapter[T], what: str, notes: list[str]) -> Iterator[T]:
    for path in sorted(paths):
        try:
            yield kind.validate_json(read_text(path))
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or one_line(error)[:200]
            notes.append(f"cannot read {path.name}: {problem}; {what} is missing from the run")


def _sampler_reports(folder: RunFolder, attempt: int, notes: list[str]) -> list[SamplerReport]:
    live, reports = folder.live(attempt), list[SamplerReport]()
    for windows_path in sorted(live.glob("windows.*.csv")):
        host = windows_path.name.removeprefix("windows.").removesuffix(".csv")
        path = report_path(live, host)
        if not os.path.lexists(path):
            notes.append(f"the sampler of {host} ended without a report; telemetry ends early")
            continue
        reports += _read([path], _SAMPLER, "its report", notes)
    notes += [f"{r.host}: {problem}" for r in reports for problem in r.problems]
    return reports


def _facts(live: Path, notes: list[str]) -> Facts:
    what, by_host = "the host's facts (hardware, software, model)", list[Facts]()
    for path in sorted(live.glob("facts.*.json")):
        for facts in _read([path], _FACTS, what, notes):
            if facts.hosts:
                by_host.append(facts)
            else:
                notes.append(f"{path.name} does not name its host, and {what} is missing")
    if not by_host:
        return Facts()
    hosts = tuple(host for facts in by_host for host in facts.hosts)
    device_ids = tuple(device for facts in by_host for device in facts.device_ids)
    return by_host[0].model_copy(update={"hosts": hosts, "device_ids": device_ids})


def _energy(
    windows: "pa.Table", samples: "pa.Table", reports: Iterable[SamplerReport], notes: list[str]
) -> "pa.Table":
    from wattlaw.measure.telemetry.window_energy import energy_of_windows

    try:
        return energy_of_windows(windows, samples, device_facts(reports))
    except Exception as error:
        notes.append(f"no energy: the samples cannot be used: {one_line(error)}")
        return energy_of_windows(windows, samples.schema.empty_table())


def write_limits(live: Path, host: str, applied: Iterable[LimitReport]) -> None:
    write_text(live / f"limits.{host}.json", _LIMITS.dump_json(tuple(applied)).decode())


def _not_enforced(
    limits: Iterable[LimitReport], windows: "pa.Table", samples: "pa.Table"
) -> Iterator[str]:
    import numpy as np
    import pyarrow.compute as pc

    for limit in limits:
        of_host = pc.field("host") == limit.host
        edges = windows.filter(of_host).select(["start_ns", "duration_s"])
        edges = edges.drop_null().sort_by("start_ns")
        if not len(edges):
            continue
        of_device = samples.filter(of_host & (pc.field("device") == limit.device)).sort_by("t_ns")
        start_ns, t_ns = edges["start_ns"].to_numpy(), of_device["t_ns"].to_numpy()
        end_ns = start_ns + edges["duration_s"].to_numpy() * 1e9
        window = np.searchsorted(start_ns, t_ns, side="right") - 1
        is_inside = (window >= 0) & (t_ns <= end_ns[window])
        if limit.power_limit_w is not None:
            enforced_w = of_device["power_limit_w"].to_numpy()[is_inside]
            known_w = [limit.power_limit_w, limit.power_limit_enforced_w or limit.power_limit_w]
            off = np.abs(np.subtract.outer(enforced_w, known_w)).min(axis=1) > LIMIT_TOLERANCE_W
            if off.any():
                actual = f"{limit.device} enforced {enforced_w[off].max():g} W at times"
                yield f"{actual} instead of {limit.power_limit_w:g} W"
        if limit.clock_limit_mhz is not None:
            clock_mhz = of_device["sm_clock_mhz"].to_numpy()[is_inside]
            if (off := clock_mhz > limit.clock_limit_mhz + _CLOCK_STEP_MHZ).any():
                actual = f"{limit.device} ran at {clock_mhz[off].max():g} MHz at times"
                yield f"{actual}, above its lock of {limit.clock_limit_mhz:g} MHz"
