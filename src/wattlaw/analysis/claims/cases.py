"""Tests of a claim on each workload: on all its runs, on its main series, or on every series."""

from collections.abc import Callable, Iterable
from functools import partial

import pandas as pd

from wattlaw.analysis.caps.limits import Limit
from wattlaw.analysis.claims.run_groups import RunGroup, describe_runs, run_groups
from wattlaw.analysis.claims.verdicts import Case, Check
from wattlaw.analysis.findings import Findings
from wattlaw.errors import Refused

RowFilter = Callable[[pd.DataFrame], pd.DataFrame]
Checks = Callable[[pd.DataFrame], Iterable[Check]]


def cases_of_runs(
    selected_groups: Iterable[RunGroup],
    row_filter: RowFilter,
    checks: Checks,
    *,
    energy: bool = False,
) -> list[Case]:
    """Test those runs of each group that ``row_filter`` keeps."""
    return [
        make_case(
            group.workload, group.label, partial(row_filter, group.runs), checks, energy=energy
        )
        for group in selected_groups
    ]


def cases_of_main_series(
    findings: Findings, rule: str, checks: Checks, *names: str, energy: bool = False
) -> list[Case]:
    """Test the series that speaks for each group, by preference of the batch rule ``rule``."""
    return [
        make_case(
            group.workload, group.label, partial(group.main_series, rule), checks, energy=energy
        )
        for group in run_groups(findings, *names)
    ]


def cases_of_limit_series(
    findings: Findings, rule: str, limit: Limit, checks: Checks
) -> list[Case]:
    """Test that series of each group with those that differ from it in one limit alone."""
    return [
        make_case(group.workload, group.label, partial(group.limit_series, rule, limit), checks)
        for group in run_groups(findings)
    ]


def cases_of_every_series(
    findings: Findings, rule: str, checks: Checks, *names: str, grows: bool = False
) -> list[Case]:
    """Test every series of a batch rule that has no limits, with or without growing data."""
    return [
        make_case(group.workload, label, rows, checks)
        for group in run_groups(findings, *names)
        for label, rows in group.unlimited_series(rule, grows=grows)
    ]


def make_case(
    workload: str,
    label: str,
    rows: pd.DataFrame | Callable[[], pd.DataFrame],
    checks: Checks,
    *,
    energy: bool = False,
) -> Case:
    """Return the case with its tests, or with the words of the analysis that refused."""
    try:
        selected = rows() if callable(rows) else rows
        if energy and selected["energy_is"].str.contains("estimated", na=False).any():
            raise Refused("the energies were estimated from an assumed power: that tests no claim")
        return Case(
            workload, label, tuple(checks(selected)), describe_runs(selected, energy=energy)
        )
    except Refused as refused:
        return Case(workload, label, refusal=str(refused))
