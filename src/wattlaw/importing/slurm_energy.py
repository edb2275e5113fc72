"""The energy of a job in Slurm's accounting, and when it is unknown."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC

from wattlaw.common.formatting import plural
from wattlaw.common.text import quote, shorten
from wattlaw.importing.reading import MISSING, moment_ns, number
from wattlaw.importing.slurm_jobs import (
    INFINITE,
    LEAST_NO_VAL64,
    NO_VAL,
    RAW,
    ROUNDED,
    Job,
    Row,
    duration_of,
    id_of,
    nodes_of,
    resources,
)

_SUFFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_JOULES = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([KMGTP]?)")
#: A node with eight GPUs of 1.4 kW and its processors draws 16 kW; a single board draws 5 W.
_LEAST_NODE_W, _MOST_NODE_W = 5.0, 25_000.0
#: Share of a step at its start and end in which another may run: its start and its clean-up.
_EDGE = 0.005


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
    return str(dict(resources(row.get(column, ""))).get("energy", ""))


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
    if value == INFINITE or abs(value) >= LEAST_NO_VAL64 or value % NO_VAL == 0:
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
        started += id_of(row).rpartition(".")[2].isdecimal()
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
