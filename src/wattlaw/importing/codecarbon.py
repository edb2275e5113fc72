"""CodeCarbon's ``emissions.csv``, of all versions: energies in kWh, times in s.

A row is a tracker's process from start to end. CodeCarbon counts the devices of the machine, not
of the process, so that the trackers of several ranks on one node count the same energy.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattlaw.formatting import plural
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, count, headers_in, moment_ns, positive, text_in
from wattlaw.importing.runs import RunMaker, checked_energy
from wattlaw.store.fields import InvalidCell
from wattlaw.store.imports import ImportedRun
from wattlaw.store.record import Facts, Site

_REQUIRED = ("timestamp", "project_name", "duration", "emissions", "energy_consumed")
_J_PER_KWH = 3.6e6
_PARTS = {"gpu_energy": "gpu_energy_j", "cpu_energy": "cpu_energy_j", "ram_energy": "dram_energy_j"}
_REASON = (
    "computed by CodeCarbon, which models memory and, without RAPL, processors; not checked here"
)
#: Trackers of one job on one machine agree in these columns.
_MACHINE = (
    "project_name", "experiment_id", "os", "cpu_model", "cpu_count", "gpu_model", "gpu_count",
)  # fmt: skip
#: Trackers of one job start within so many seconds.
_START_S = 10.0
Line = tuple[int, dict[str, str], int, float]  # number, cells, start in ns, duration in s


class CodeCarbonImporter:
    """Time and energy of processes, from ``emissions.csv``."""

    name = "codecarbon"
    description = "emissions.csv of CodeCarbon"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether the header has the columns that all versions write."""
        return any({*_REQUIRED} <= names for names in headers_in(head))

    def read(self, source: Source, options: Options) -> Imported:
        """Return a run for each process, or for the processes of one job."""
        lines: list[Line] = []
        account = source.account
        for line, row in source.rows(_REQUIRED):
            end_ns = moment_ns(row["timestamp"], options.timezone)
            duration_s = positive(row["duration"])
            start_ns = (
                -1 if end_ns is None or duration_s is None else end_ns - int(duration_s * 1e9)
            )
            if start_ns < 0 or duration_s is None:
                account.reject(line, "timestamp or duration is missing or invalid")
            else:
                lines.append((line, row, start_ns, duration_s))
        kept = _last_of_each(lines)
        updates = {line for line, *_ in lines} - {line for line, *_ in kept}
        account.leave_out("an earlier line of a process with more than one", *updates)
        lines = kept
        nodes = options.constants.get("nodes", 1)
        maker, runs, notes = RunMaker(source.path, options), [], []
        for group in _groups(lines):
            try:
                runs.append(_run(maker, group, nodes, options))
            except InvalidCell as error:
                for line, *_ in group:
                    account.reject(line, str(error))
                continue
            account.read(*(line for line, *_ in group))
            if len(group) > nodes:
                places = ", ".join(str(line) for line, *_ in group[:8])
                notes.append(
                    f"lines {places}: {len(group)} processes at the same time on "
                    f"{plural(nodes, 'node')}; each counts all of its node, so a node counts once"
                )
        text = f"CodeCarbon: {len(lines):,} processes in {len(runs):,} runs, times in "
        return Imported(text + options.zone_note, runs, notes=notes)


def _last_of_each(lines: Sequence[Line]) -> list[Line]:
    """Return the last line of each process, which adds up the ones before."""
    last: dict[str, Line] = {}
    for item in lines:
        key = item[1].get("run_id") or f"line {item[0]}"
        if key not in last or item[3] >= last[key][3]:
            last[key] = item
    return list(last.values())


def _groups(lines: Sequence[Line]) -> list[list[Line]]:
    """Return the processes of each job: those of one machine that start together and overlap."""
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


def _run(maker: RunMaker, group: Sequence[Line], nodes: int, options: Options) -> ImportedRun:
    line, row, *_ = min(group, key=lambda item: item[0])
    if nodes > 1 and len(group) % nodes:
        raise InvalidCell(f"{len(group)} processes cannot be divided by {nodes} nodes")
    duration_s = max(item[3] for item in group)
    # Each process counts a complete node: the longest ones have all of its energy.
    longest = sorted(group, key=lambda item: -item[3])[:nodes]
    energy_j = {name: _sum_j(longest, column) for column, name in _PARTS.items()}
    gpus = count(row.get("gpu_count"), least=1)
    values: dict[str, Any] = {"workload": text_in(row, "project_name") or options.study}
    values |= {"gpus": gpus * nodes} if gpus is not None else {}
    hardware = text_in(row, "gpu_model") or text_in(row, "cpu_model")
    values |= {"hardware": hardware} if hardware else {}
    experiment = text_in(row, "experiment_id") or ""
    is_default = len(experiment) == 36 and experiment.count("-") == 4
    if experiment and not is_default:
        values["options.experiment_id"] = experiment
    window: dict[str, Any] = {
        "phase": "run",
        "start_ns": min(item[2] for item in group),
        "duration_s": duration_s,
        **checked_energy(energy_j, "estimated", _REASON),
    }
    total_j, site = _sum_j(longest, "energy_consumed"), None
    if not any(energy_j.values()) and total_j:
        # The first version does not divide the energy among devices.
        site = Site(scheduler="none", energy_j=total_j, energy_source="CodeCarbon energy_consumed")
    if "gpu_energy_j" in window:
        known = options.constants.get("gpus", values.get("gpus", 1))
        window["gpu_power_mean_w"] = window["gpu_energy_j"] / duration_s / known
    software = {"codecarbon": version} if (version := text_in(row, "codecarbon_version")) else {}
    return maker.run(values, [window], line=line, facts=Facts(software=software), site=site)


def _sum_j(lines: Sequence[Line], column: str) -> float:
    """Return the energy of a column in joules; 0 where it is not known or was not measured."""
    return sum(positive(row.get(column)) or 0.0 for _, row, *_ in lines) * _J_PER_KWH


IMPORTER = CodeCarbonImporter()
