"""Energy by the scheduler's accounting, next to the measured energy."""

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.metrics.groups import groups
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.scheduler_energy import COMPARED_BY, Agreement
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.topics.measured import limit_count, setting_columns, with_labels

SAME_TIME, WINDOWS = "the same time", "windows only"
_DEFINITION = (
    "entire nodes as far as the site's energy plugin sees them, from the job's last start to its "
    "end, with start-up, imports, idle parts and other jobs. Measured: the run's own devices that "
    "have a meter, over the same time if there is telemetry, else over the windows in it, with "
    "warm-up and evaluation. So a ratio below 1 is expected. Far below 1, most of the energy went "
    "to parts that are not measured: idle GPUs, other jobs, parts without a meter, time outside "
    "windows. Above 1, one of the two is wrong, or the plugin sees only a part of the nodes, such "
    "as the processors."
)


def energies(findings: Findings) -> tables.Table | None:
    """Return both energies and their ratio by setting; None where the accounting has none."""
    energies = findings.sites.energies
    if energies.empty:
        return None
    labelled = with_labels(energies, findings.varying_settings)
    rows = [_setting_row(runs) for _, runs in groups(labelled, [*SETTINGS, *COMPARED_BY])]
    size, unit = fmt.choose_unit([row["site_energy_j"] for row in rows], fmt.JOULE_UNITS)
    sources = sorted(energies["site_energy_source"].dropna().unique())
    columns = [
        *setting_columns(findings.varying_settings),
        tables.number("runs", "n", 9),
        tables.text("measured energy counts", "ours_is"),
        tables.text("over", lambda row: SAME_TIME if row["same_time"] else WINDOWS),
        tables.Column("with telemetry", lambda row: fmt.percent(row["covered"])),
        tables.scaled(f"measured ({unit})", "ours_j", size),
        tables.scaled(f"scheduler ({unit})", "site_energy_j", size),
        tables.estimate("measured / scheduler", "ratio"),
        *([tables.text("source", "site_energy_source")] if len(sources) > 1 else []),
    ]
    return tables.build(
        "scheduler_energy",
        "Energy by the scheduler's accounting (per run, mean over repeats)",
        columns,
        rows,
        note=f"Scheduler ({', '.join(sources)}): {_DEFINITION} Ratio: median of the runs "
        "(minimum to maximum).",
        command="wattlaw export STORE runs -o runs.csv",
        rank=limit_count,
    )


def _setting_row(runs: pd.DataFrame) -> dict[Any, Any]:
    """Return the means of a setting's runs, and the median and range of their ratios."""
    ratios = runs["ratio"].dropna()
    row: dict[Any, Any] = runs.iloc[0].to_dict()
    row |= runs[["ours_j", "site_energy_j", "covered"]].astype(float).mean().to_dict()
    ends = (ratios.min(), ratios.max()) if len(ratios) > 1 else (math.nan, math.nan)
    ratio = {"ratio": ratios.median(), "ratio_low": ends[0], "ratio_high": ends[1]}
    return row | {"n": len(runs)} | ratio


def agreement_sentences(findings: Findings) -> Iterator[str]:
    """Yield the ratio of each kind of energies, and its spread over runs."""
    for group, agreement in findings.sites.agreements:
        over = "over the same time" if group["same_time"] else "of the windows only"
        ratio = _ratio(agreement)
        yield f"{group['ours_is']}, {over}, against {group['site_energy_source']}: {ratio}."


def _ratio(agreement: Agreement) -> str:
    """Return the ratio with its spread: limits of agreement if there are enough runs."""
    if agreement.runs == 1:
        return f"the measured energy is {fmt.number(agreement.median)} of the scheduler's in 1 run"
    text = (
        f"the measured energy is {fmt.number(agreement.median)} of the scheduler's (median of "
        f"{agreement.runs:,} runs; {fmt.interval(agreement.low, agreement.high)})"
    )
    if agreement.limits is None:
        return text
    return (
        f"{text}; 95 % limits of agreement of a run's ratio {fmt.interval(*agreement.limits)} "
        "(log scale; Bland and Altman 1986, Lancet 327)"
    )
