"""Measurements by setting: repeats as mean with interval; and the columns that name a setting."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pandas as pd

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics import comparable_runs
from wattlaw.analysis.metrics.groups import JSON_COLUMNS, differing_options
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.facets import unit_name
from wattlaw.study.labels import LIMIT_UNITS, run_layout, setting_label
from wattlaw.study.sources import TRAINING

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings

_MAX_REASONS = 3


def joule_scale(rows: pd.DataFrame) -> tuple[float, str]:
    one_unit = rows["unit"].nunique() < 2
    return fmt.choose_unit(rows["energy_j"], fmt.ENERGY_UNITS) if one_unit else (1.0, "J")


def settings(findings: Findings) -> tables.Table | None:
    cells = findings.settings
    (size, unit), of = joule_scale(cells), unit_name(cells)
    seconds, time_unit = fmt.choose_unit(cells["time_s"], fmt.TIME_UNITS)
    if of == "unit":
        seconds, time_unit = 1.0, "s"
    columns = [
        *setting_columns(cells, findings.varying_settings),
        tables.number("local batch", "local_batch", 9),
        tables.number("runs", "n"),
        tables.scaled(f"{time_unit} per {of}", "time_s", seconds),
        tables.interval("95 % interval", "time_s", size=seconds),
        tables.text("interval from", "interval_from"),
        tables.number("samples/s", "samples_per_s"),
        tables.scaled(f"{unit} per {of}", "energy_j", size),
        tables.text("energy is", lambda row: row["energy_is"] or "not available"),
        tables.number("metric", "metric", 4),
    ]
    return tables.build(
        "settings",
        "Measurements by setting (mean over repeats)",
        columns,
        cells.to_dict("records"),
        note="N counts GPUs, or CPU processes where there is no GPU. Times are of training after "
        "warm-up, without evaluation. An interval is where the mean would be on other days and "
        f"nodes.{_spread_note(cells)}{interruption_note(findings)}",
        command="wattlaw export STORE settings -o settings.csv",
        rank=lambda row: sum(fmt.known(row[name]) for name in LIMITS),
    )


def _spread_note(cells: pd.DataFrame) -> str:
    """Return what shows how sessions and nodes vary, which repeats in one place cannot."""
    by_origin: dict[str, list[str]] = {}
    for what, name in (("days", "sessions_from"), ("sets of nodes", "nodes_from")):
        for origin in sorted(set(cells[name].dropna())):
            by_origin.setdefault(origin, []).append(what)
    sources = {"repeats": "repeats", "public data": "public data, not from these runs"}
    return "".join(f" How much {' and '.join(differing)} differ comes from {sources[origin]}."
                   for origin, differing in by_origin.items())  # fmt: skip


def facts(findings: Findings) -> tables.Table | None:
    columns = [tables.text("item", itemgetter(0)), tables.text("value", itemgetter(1))]
    return tables.build("facts", "Environment", columns, findings.facts.items())


def interruption_note(findings: Findings) -> str:
    epochs = findings.epochs[findings.epochs["run_id"].isin(findings.runs["run_id"])]
    count = int((epochs["interrupted"].astype(bool) & epochs["phase"].isin(list(TRAINING))).sum())
    if not count:
        return ""
    return f" Left out: {fmt.plural(count, 'training window')} during or after an interruption."


def setting_columns(rows: pd.DataFrame, differing: Sequence[str]) -> list[tables.Column]:
    """Return columns of what differs between settings: caps with unit, options cut short."""
    options = {name: differing_options(rows[name]) for name in {*JSON_COLUMNS} & {*differing}}

    def label(row: dict[str, Any], name: str) -> str:
        if name == "layout":
            return run_layout(row) or fmt.MISSING
        value = row[name]
        if name in options:
            known = options[name]
            return setting_label("options", known[value]) if value in known else fmt.MISSING
        if name in LIMITS:
            return f"{value:g} {LIMIT_UNITS[name]}" if fmt.known(value) else "none"
        return value if isinstance(value, str) else fmt.number(value)

    others = {
        name.removesuffix("_w").removesuffix("_mhz").replace("_", " "): name
        for name in differing
        if name != "workload"
    }
    return [
        tables.text("workload", "workload"),
        *(tables.text(heading, partial(label, name=name)) for heading, name in others.items()),
        tables.number("N", "gpus"),
        tables.number("global batch", "global_batch", 9),
    ]


def worker_noun(findings: Findings) -> str:
    return comparable_runs.worker_noun(findings.runs)


def energy_reasons(findings: Findings, verdict: str) -> list[str]:
    epochs = findings.epochs
    if "energy_reason" not in epochs:
        return []
    run_ids = findings.runs.loc[findings.runs["energy_verdict"] == verdict, "run_id"]
    rows = epochs[
        epochs["run_id"].isin(run_ids)
        & epochs["phase"].isin(list(TRAINING))
        & (epochs[["energy_verdict", "node_energy_verdict"]] == verdict).any(axis=1)
        & epochs["energy_reason"].notna()
    ]
    by_run = rows[["run_id", "energy_reason"]].drop_duplicates()
    return [str(reason) for reason in by_run["energy_reason"].value_counts().index[:_MAX_REASONS]]


def suspect_note(findings: Findings) -> str:
    reasons = energy_reasons(findings, "suspect")
    return f" Suspect energies: {'; '.join(reasons)}." if reasons else ""
