"""CodeCarbon's ``emissions.csv``, of all versions: energies in kWh, times in s.

A row is a tracker's process from start to end, or one of its tasks where it has a name. CodeCarbon
counts the devices of the machine, not of the process, so that the trackers of several ranks on one
node count the same energy.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattlaw.common.formatting import plural
from wattlaw.importing import reading
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.runs import RunMaker, checked_energy
from wattlaw.store.fields import InvalidCell
from wattlaw.store.import_tables import ImportedRun
from wattlaw.store.record import Facts, Site

_REQUIRED = ("timestamp", "project_name", "duration", "emissions", "energy_consumed")
_J_PER_KWH = 3.6e6
_PARTS = {"gpu_energy": "gpu_energy_j", "cpu_energy": "cpu_energy_j", "ram_energy": "dram_energy_j"}
_ENERGIES = (*_PARTS, "energy_consumed")
_REASON = (
    "computed by CodeCarbon, which models memory and, without RAPL, processors; not checked here"
)
#: Trackers of one job on one machine agree in these columns.
_MACHINE = (
    "project_name", "experiment_id", "os", "cpu_model", "cpu_count", "gpu_model", "gpu_count",
)  # fmt: skip
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: Trackers of one job start within so many seconds.
_START_S = 10.0
Line = tuple[int, dict[str, str], int, float]  # number, cells, start in ns, duration in s


class CodeCarbonImporter:
    name = "codecarbon"
    description = "emissions.csv of CodeCarbon"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return any({*_REQUIRED} <= names for names in reading.headers_in(head))

    def read(self, source: reading.Source, options: Options) -> Imported:
        lines: list[Line] = []
        tasks: dict[str, list[Line]] = {}
        account = source.account
        for line, row in source.rows(_REQUIRED):
            end_ns = reading.moment_ns(row["timestamp"], options.timezone)
            duration_s = reading.positive(row["duration"])
            if end_ns is None or duration_s is None or end_ns < int(duration_s * 1e9):
                account.reject(line, "timestamp or duration is missing or invalid")
            elif wrong := [name for name in _ENERGIES if _is_wrong(row.get(name) or "")]:
                account.reject(line, f"{wrong[0]} is not a number of at least 0, such as 0.0125")
            else:
                is_task = (row.get("task_name") or "").lower() not in reading.MISSING
                own = tasks.setdefault(_process(row), []) if is_task else lines
                own.append((line, row, end_ns - int(duration_s * 1e9), duration_s))
        kept = _last_of_each(lines)
        updates = {line for line, *_ in lines} - {line for line, *_ in kept}
        account.leave_out("an earlier line of a process with several lines", *updates)
        for item in kept:
            own = tasks.get(_process(item[1]), [])
            inside = [task for task in own if _contains(item, task)]
            account.leave_out(
                "a task of a process whose total is on another line", *(line for line, *_ in inside)
            )
            own[:] = [task for task in own if task not in inside]
        nodes = options.constants.get("nodes", 1)
        maker, runs, notes = RunMaker(source.path, options), [], []
        of_tasks = [own for own in tasks.values() if own]
        groups = _groups(kept)
        for place, group in enumerate([*groups, *of_tasks]):
            is_tasks, numbers = place >= len(groups), [line for line, *_ in group]
            try:
                runs.append(_run(maker, group, nodes, options, is_tasks))
            except InvalidCell as error:
                for line in numbers:
                    account.reject(line, str(error))
                continue
            account.read(*numbers)
            if is_tasks:
                notes.append(f"line {numbers[0]}: {plural(len(group), 'task')} of one process")
            elif len(group) > nodes:
                notes.append(
                    f"lines {', '.join(map(str, numbers[:8]))}: {len(group)} processes at the same "
                    f"time on {plural(nodes, 'node')}; each counts all of its node, so a node "
                    "counts once"
                )
        trackers = plural(len(kept) + len(of_tasks), "tracker")
        counts = f"{trackers} in {plural(len(runs), 'run')}"
        text = f"CodeCarbon: {counts}, times in {options.zone_note}"
        return Imported(text, runs, notes=notes)


def _is_wrong(energy: str) -> bool:
    known = reading.number(energy)
    return energy.lower() not in reading.MISSING and (known is None or known < 0)


def _process(row: dict[str, str]) -> str:
    return reading.text_in(row, "run_id") or reading.text_in(row, "project_name") or ""


def _contains(total: Line, task: Line) -> bool:
    begin_s, end_s = ((task[2] - total[2]) * 1e-9 + more for more in (0.0, task[3]))
    return begin_s >= -2.0 and end_s <= total[3] + 2.0


def _last_of_each(lines: Sequence[Line]) -> list[Line]:
    """Return the last line of each process, which adds up the ones before. Lines of one ``run_id``
    are of one process if they begin at the same time (a ``run_id`` may be the project's name or 0),
    or if they overlap and the id is a UUID. Lines of a UUID that follow each other are parts."""
    kept: list[Line] = []
    last: dict[str, list[int]] = {}  # by id, places in ``kept``
    for item in lines:
        _, row, start_ns, duration_s = item
        run_id = reading.text_in(row, "run_id") or ""
        own = last.setdefault(run_id, [])
        for place in reversed(own) if run_id else ():
            before = kept[place]
            after_s = (start_ns - before[2]) * 1e-9
            least_s = min(_START_S, 0.5 * duration_s, 0.5 * before[3])
            overlaps = -duration_s + 2.0 < after_s < before[3] - 2.0  # times are whole seconds
            if abs(after_s) <= least_s or (overlaps and _UUID.fullmatch(run_id)):
                if duration_s >= before[3]:
                    kept[place] = item
                break
        else:
            own.append(len(kept))
            kept.append(item)
    return kept


def _groups(lines: Sequence[Line]) -> list[list[Line]]:
    groups: list[list[Line]] = []
    open_groups: dict[tuple[str, ...], list[Line]] = {}
    for item in sorted(lines, key=lambda item: item[2]):
        _, row, start_ns, duration_s = item
        key = tuple(row.get(name, "") for name in _MACHINE)
        if (group := open_groups.get(key)) is not None:
            after_s = (start_ns - group[0][2]) * 1e-9
            if after_s <= min(_START_S, 0.5 * duration_s, 0.5 * group[0][3]):
                group.append(item)
                continue
        open_groups[key] = [item]
        groups.append(open_groups[key])
    return sorted(groups, key=lambda group: min(item[0] for item in group))


def _run(
    maker: RunMaker, group: Sequence[Line], nodes: int, options: Options, is_tasks: bool
) -> ImportedRun:
    """Return the run of one process by its tasks, or of the processes of a job, as one window."""
    line, row, *_ = min(group, key=lambda item: item[0])
    if nodes > 1 and not is_tasks and len(group) % nodes:
        raise InvalidCell(f"{len(group)} processes cannot be divided by {nodes} nodes")
    gpus = reading.count(row.get("gpu_count"), least=1)
    hardware = reading.text_in(row, "gpu_model") or reading.text_in(row, "cpu_model")
    experiment = reading.text_in(row, "experiment_id")
    named: dict[str, Any] = {
        "workload": reading.text_in(row, "project_name") or options.study,
        "gpus": None if gpus is None else gpus * nodes,
        "hardware": hardware,
        "options.experiment_id": None if experiment and _UUID.fullmatch(experiment) else experiment,
    }
    values = {name: value for name, value in named.items() if value is not None}
    known = options.constants.get("gpus", values.get("gpus", 1))
    windows, total_j, site = [], 0.0, None
    for part in [[item] for item in group] if is_tasks else [group]:
        # Each process counts a complete node: the longest ones have all of its energy.
        longest = sorted(part, key=lambda item: -item[3])[:nodes]
        energy_j = {name: _sum_j(longest, column) for column, name in _PARTS.items()}
        total_j += _sum_j(longest, "energy_consumed")
        window: dict[str, Any] = {
            "phase": "run",
            "start_ns": min(item[2] for item in part),
            "duration_s": longest[0][3],
            **checked_energy(energy_j, "estimated", _REASON),
        }
        if "gpu_energy_j" in window:
            window["gpu_power_mean_w"] = window["gpu_energy_j"] / longest[0][3] / known
        windows.append(window)
    if total_j and all(window["energy_source"] == "none" for window in windows):
        # The first version does not divide the energy among devices.
        site = Site(scheduler="none", energy_j=total_j, energy_source="CodeCarbon energy_consumed")
    version = reading.text_in(row, "codecarbon_version")
    facts = Facts(software={"codecarbon": version} if version else {})
    return maker.run(values, windows, line=line, facts=facts, site=site)


def _sum_j(lines: Sequence[Line], column: str) -> float:
    """Return the energy of a column in joules; 0 where it is not known or was not measured."""
    return sum(reading.positive(row.get(column)) or 0.0 for _, row, *_ in lines) * _J_PER_KWH


IMPORTER = CodeCarbonImporter()
