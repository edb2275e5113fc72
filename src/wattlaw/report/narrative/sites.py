"""What clusters did to runs, and how far their accounting agrees, in words."""

from collections.abc import Iterator

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.scheduler_energy import Agreement
from wattlaw.formatting import interval, number, plural
from wattlaw.report.tables import measured


def agreement(findings: Findings) -> Iterator[str]:
    """Say of each kind of energies what their ratio is, and its spread over runs."""
    for one in findings.sites.agreements:
        yield f"{_compared(one)}: {_ratio(one)}."


def interruptions(findings: Findings) -> Iterator[str]:
    """Say how many runs were interrupted, and what was left out for it."""
    sites = findings.sites
    if not sites.interrupted_runs:
        return
    were = "was" if sites.interrupted_runs == 1 else "were"
    yield (
        f"{plural(sites.interrupted_runs, 'run')} {were} interrupted "
        f"({plural(sites.interruptions, 'time')} in all) and went on afterwards."
        f"{measured.interruptions(findings)}"
    )


def clocks(findings: Findings) -> Iterator[str]:
    """Say how far the clocks of a run's hosts were from each other."""
    sites = findings.sites
    if sites.clock_offset_max_s is None:
        return
    yield (
        f"The clocks of hosts were compared in {plural(sites.clock_runs, 'run')}: at most "
        f"{number(1e3 * sites.clock_offset_max_s)} ms apart, uncertainty included. Each host's "
        "windows and samples are on its own clock, so that no window's time or energy depends on "
        "it."
    )


def _compared(one: Agreement) -> str:
    over = "over the same time" if one.group["same_time"] else "of the windows only"
    return f"{one.group['ours_is']}, {over}, against {one.group['site_energy_source']}"


def _ratio(one: Agreement) -> str:
    """Return the ratio with its spread: limits of agreement where runs are enough, else a range."""
    if one.runs == 1:
        return f"ours is {number(one.median)} of theirs in the one run"
    told = (
        f"ours is {number(one.median)} of theirs (median of {one.runs:,} runs; "
        f"{interval(one.low, one.high)})"
    )
    if one.limits is None:
        return told
    return (
        f"{told}; 95 % limits of agreement of a run's ratio {interval(*one.limits)} "
        "(log scale; Bland and Altman 1986, Lancet 327)"
    )
