"""Tests of a claim on each workload: on all its runs, on its main series, or on every series."""

from collections.abc import Callable, Iterable
from functools import partial

import pandas as pd

from wattlaw.analysis.caps.limits import Limit
from wattlaw.analysis.claims.jobs import Job, counted, jobs
from wattlaw.analysis.claims.verdicts import Case, Check
from wattlaw.analysis.findings import Findings
from wattlaw.errors import Refused

Kept = Callable[[pd.DataFrame], pd.DataFrame]
Checks = Callable[[pd.DataFrame], Iterable[Check]]


def on_runs(
    found: Iterable[Job], kept: Kept, checks: Checks, *, energy: bool = False
) -> list[Case]:
    """Test those runs of each job that ``kept`` keeps."""
    return [
        case(job.workload, job.label, partial(kept, job.runs), checks, energy=energy)
        for job in found
    ]


def on_main(
    findings: Findings, rule: str, checks: Checks, *names: str, energy: bool = False
) -> list[Case]:
    """Test the series that speaks for each job, by preference of the batch rule ``rule``."""
    return [
        case(job.workload, job.label, partial(job.main, rule), checks, energy=energy)
        for job in jobs(findings, *names)
    ]


def on_family(findings: Findings, rule: str, limit: Limit, checks: Checks) -> list[Case]:
    """Test that series of each job with those that differ from it in one limit alone."""
    return [
        case(job.workload, job.label, partial(job.family, rule, limit), checks)
        for job in jobs(findings)
    ]


def on_series(
    findings: Findings, rule: str, checks: Checks, *names: str, grows: bool = False
) -> list[Case]:
    """Test every series of a batch rule that has no limits, with or without growing data."""
    return [
        case(job.workload, label, rows, checks)
        for job in jobs(findings, *names)
        for label, rows in job.unlimited(rule, grows=grows)
    ]


def case(
    workload: str,
    label: str,
    rows: pd.DataFrame | Callable[[], pd.DataFrame],
    checks: Checks,
    *,
    energy: bool = False,
) -> Case:
    """Return the case with its tests, or with the words of the analysis that refused."""
    try:
        there = rows() if callable(rows) else rows
        if energy and there["energy_is"].str.contains("estimated", na=False).any():
            raise Refused("the energies were estimated from an assumed power: that tests no claim")
        return Case(workload, label, tuple(checks(there)), counted(there, energy=energy))
    except Refused as refused:
        return Case(workload, label, refusal=str(refused))
