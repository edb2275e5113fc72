"""The end of an attempt: its live streams become the run's tables, or its failure a reason."""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from wattlaw.devices.meter import Facts as DeviceFacts
from wattlaw.errors import one_line
from wattlaw.files import read_text, write_text
from wattlaw.launch.attempts import merged_windows, missing_windows
from wattlaw.limits.restore import LIMIT_TOLERANCE_W
from wattlaw.store.record import ClockReport, Facts, LimitReport, RunRecord, SamplerReport
from wattlaw.store.run_folder import RunFolder
from wattlaw.telemetry.sampler import report_path
from wattlaw.training import failures

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
#: What meters found out about devices, by host and device.
Devices = dict[tuple[str, str], DeviceFacts]
_SAMPLER, _FACTS = TypeAdapter(SamplerReport), TypeAdapter(Facts)
#: A locked clock is the nearest that the board supports; they are 15 MHz apart.
_CLOCK_STEP_MHZ = 30.0
_LIMITS, _CLOCKS = TypeAdapter(tuple[LimitReport, ...]), TypeAdapter(tuple[ClockReport, ...])


class _Stopped(BaseModel):
    """``stopped.json``."""

    epoch: int
    step: int
    reason: str


def finish(record: RunRecord, folder: RunFolder) -> RunRecord:
    """Write the finished tables of an attempt that ended well; return the record as done.

    A run is done only if every host has every window that was asked for; otherwise the record
    comes back as failed with what is missing. Any other file that is damaged is a note.
    """
    damage: list[str] = []
    missing = missing_windows(record, merged_windows(record, folder, damage)[0])
    if missing is not None and damage:
        missing = f"{missing} ({folder.live(record.attempts)}: {'; '.join(damage)})"
    missing = missing or _stop(record, folder)
    if missing is not None:
        return record.model_copy(update={"status": "failed", "reason": missing})
    return finalize_run(record, folder)


def finalize_run(record: RunRecord, folder: RunFolder) -> RunRecord:
    """Write the finished tables of an attempt from its live streams; return the record as done."""
    import pyarrow as pa

    from wattlaw.store.schema import EPOCHS, TELEMETRY

    notes = [*record.notes]
    windows, attempts = merged_windows(record, folder, notes)
    samples = pa.concat_tables([folder.samples(attempt, notes) for attempt in attempts])
    columns = [windows[name] for name in windows.schema.names]
    reports = tuple(one for number in attempts for one in _sampler_reports(folder, number, notes))
    live = folder.live(record.attempts)
    limits = tuple(
        one
        for found in _read(live.glob("limits.*.json"), _LIMITS, "its limits", notes)
        for one in found
    )
    notes += [limit.note for limit in limits if limit.note]
    clocks = tuple(
        one
        for number in attempts
        for found in _read(
            folder.live(number).glob("clocks.*.json"), _CLOCKS, "its clock's offset", notes
        )
        for one in found
    )
    facts = _with_gpus(_facts(live, notes), reports)
    try:
        notes += list(_not_enforced(limits, windows, samples))
    except Exception as error:  # as in _energy
        notes.append(f"cannot check whether the devices kept their limits: {one_line(error)}")
    energy = _energy(windows, samples, _facts_of_devices(reports), notes)
    columns += [energy[name] for name in energy.schema.names]
    folder.write_tables(
        pa.table([_ids(record, windows), *columns], schema=EPOCHS),
        pa.table([_ids(record, samples), *samples.columns], schema=TELEMETRY),
    )
    return record.model_copy(
        update={
            "status": "done",
            "reason": None,
            "notes": tuple(notes),
            "facts": facts,
            "samplers": reports,
            "limits": limits,
            "clocks": clocks,
        }
    )


def failure_reason(folder: RunFolder, attempt: int, exit_code: int) -> str:
    """Return why an attempt failed, from its agents' words or else from the exit code."""
    told = failures.first_failure(folder.live(attempt))
    return told or f"{failures.reason_of_agent(exit_code)}; see {folder.log_path}"


def _stop(record: RunRecord, folder: RunFolder) -> str | None:
    """Return where and why the last attempt stopped before the run's end; None if it did not."""
    path = folder.live(record.attempts) / "stopped.json"
    if not os.path.lexists(path):
        return None
    try:
        told = _Stopped.model_validate_json(read_text(path))
    except (OSError, ValueError):
        return f"stopped, but {path} cannot be read; start the run again to continue it"
    where = f"after step {told.step} of epoch {told.epoch}"
    return f"stopped {where}: {told.reason}; start the run again to continue from there"


def _read(paths: Iterable[Path], kind: TypeAdapter[T], what: str, notes: list[str]) -> Iterator[T]:
    """Yield what is in files of an attempt; of one that is damaged a note says what is missing."""
    for path in sorted(paths):
        try:
            yield kind.validate_json(read_text(path))
        except (OSError, ValueError) as error:
            notes.append(
                f"cannot read {path.name}: {_first(error)}; {what} is missing from the run"
            )


def _first(error: Exception) -> str:
    """Return the first thing that is wrong with a file."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else first["msg"]
    return getattr(error, "strerror", None) or one_line(error)[:200]


def _energy(
    windows: "pa.Table", samples: "pa.Table", facts: Devices, notes: list[str]
) -> "pa.Table":
    """Return the energy of windows; without any, and with a note, if samples make no sense."""
    from wattlaw.telemetry.energy import energy_of_windows

    try:
        return energy_of_windows(windows, samples, facts)
    except Exception as error:  # the training is done, whatever the samples are
        notes.append(f"no energy: the samples cannot be used: {one_line(error)}")
        return energy_of_windows(windows, samples.schema.empty_table())


def _ids(record: RunRecord, table: "pa.Table") -> "pa.Array":
    import pyarrow as pa

    return pa.array([record.run_id] * len(table), pa.string())


def _sampler_reports(folder: RunFolder, attempt: int, notes: list[str]) -> list[SamplerReport]:
    """Return the reports of the samplers that ended in good order, and a note for each other."""
    live = folder.live(attempt)
    reports = []
    for path in sorted(live.glob("windows.*.csv")):
        host = path.name.removeprefix("windows.").removesuffix(".csv")
        told = report_path(live, host)
        if not os.path.lexists(told):
            notes.append(f"the sampler of {host} was lost; telemetry ends early")
            continue
        for report in _read([told], _SAMPLER, "its report", notes):
            if report.host == host:
                reports.append(report)
            else:
                wrong = f"{told.name} names host {report.host!a}"
                notes.append(f"{wrong}, not the host of its file name; it is ignored")
    notes += [f"{r.host}: {problem}" for r in reports for problem in r.problems]
    return reports


def _facts_of_devices(reports: Iterable[SamplerReport]) -> Devices:
    """Return what the meters found out about each device, by host and device."""
    return {(report.host, one.id): one.facts for report in reports for one in report.devices}


def limits_path(live: Path, host: str) -> Path:
    """Return where a host's limits of an attempt are told."""
    return live / f"limits.{host}.json"


def write_limits(live: Path, host: str, applied: Iterable[LimitReport]) -> None:
    """Tell what was limited on a host."""
    told = [one.model_dump() for one in applied]
    write_text(limits_path(live, host), json.dumps(told))


def _not_enforced(
    limits: Iterable[LimitReport], windows: "pa.Table", samples: "pa.Table"
) -> Iterator[str]:
    """Yield which devices left their limit within a window; a read-back sees only its moment."""
    import numpy as np
    import pyarrow.compute as pc

    for limit in limits:
        edges = windows.filter(pc.field("host") == limit.host).select(["start_ns", "duration_s"])
        edges = edges.drop_null().sort_by("start_ns")
        own = samples.filter(
            (pc.field("host") == limit.host) & (pc.field("device") == limit.device)
        ).sort_by("t_ns")
        if not len(edges):
            continue
        start_ns, t_ns = edges["start_ns"].to_numpy(), own["t_ns"].to_numpy()
        end_ns = start_ns + edges["duration_s"].to_numpy() * 1e9
        window = np.searchsorted(start_ns, t_ns, side="right") - 1
        is_inside = (window >= 0) & (t_ns <= end_ns[window])
        enforced_w = own["power_limit_w"].to_numpy()[is_inside]
        clock_mhz = own["sm_clock_mhz"].to_numpy()[is_inside]
        if limit.power_limit_w is not None:
            known_w = [limit.power_limit_w, limit.power_limit_enforced_w or limit.power_limit_w]
            off = np.abs(np.subtract.outer(enforced_w, known_w)).min(axis=1) > LIMIT_TOLERANCE_W
            if off.any():
                told = f"enforced {enforced_w[off].max():g} W at times"
                yield f"{limit.device} {told} instead of {limit.power_limit_w:g} W"
        if limit.clock_limit_mhz is not None:
            off = clock_mhz > limit.clock_limit_mhz + _CLOCK_STEP_MHZ
            if off.any():
                told = f"ran at {clock_mhz[off].max():g} MHz at times, above its lock of"
                yield f"{limit.device} {told} {limit.clock_limit_mhz:g} MHz"


def _with_gpus(facts: Facts, reports: Iterable[SamplerReport]) -> Facts:
    """Return facts that name the GPUs that were metered, where the workers have named none."""
    gpus = [one for report in reports for one in report.devices if one.kind == "gpu"]
    if facts.device_ids or not gpus:
        return facts
    which = {"hardware": gpus[0].name, "device_ids": tuple(dict.fromkeys(one.id for one in gpus))}
    return facts.model_copy(update=which)


def _facts(live: Path, notes: list[str]) -> Facts:
    """Return the facts of all hosts of an attempt as one; hosts in order of name."""
    what = "the host's facts (hardware, software, model)"
    found = []
    for path in sorted(live.glob("facts.*.json")):
        host = path.name.removeprefix("facts.").removesuffix(".json")
        for facts in _read([path], _FACTS, what, notes):
            if host in facts.hosts:
                found.append(facts)
            else:
                notes.append(f"{path.name} does not name its host, and {what} is missing")
    if not found:
        return Facts()
    return found[0].model_copy(
        update={
            "hosts": tuple(host for facts in found for host in facts.hosts),
            "device_ids": tuple(device for facts in found for device in facts.device_ids),
        }
    )
