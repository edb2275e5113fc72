"""Measurements by setting, the columns that name a setting, and the quality of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from wattlaw.study.sources import MEASURED, TRAINING, source_of

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings

_MAX_REASONS = 3
_NOT_TIMED = "done, not timed"
_MAX_RUN_IDS = 3
_VERDICTS = {
    "suspect": "is suspect",
    "partial": "covers only a part of their windows, and is left out",
    "implausible": "is physically impossible, and is left out",
}


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
        tables.number(f"{time_unit} per {of}", "time_s", size=seconds),
        tables.interval("95 % interval", "time_s", size=seconds),
        tables.text("interval from", "interval_from"),
        tables.number("samples/s", "samples_per_s"),
        tables.number(f"{unit} per {of}", "energy_j", size=size),
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


def reasons(findings: Findings) -> tables.Table | None:
    """Those that are not done, or done without a training window that counts."""
    not_timed = findings.not_timed.assign(status=_NOT_TIMED)
    if findings.not_done.empty and not_timed.empty:
        return None
    columns = ["run_id", "status", "reason"]
    runs = pd.concat([findings.not_done[columns], not_timed[columns]], ignore_index=True)
    unknown = runs["status"].map({"planned": "not run yet"}).fillna("unknown")
    by_reason = runs.assign(reason=runs["reason"].fillna(unknown)).groupby(["status", "reason"])
    counts = by_reason["run_id"].agg(size="size", run_ids=_first_ids).reset_index()
    counts = counts.sort_values("size", ascending=False, kind="stable")
    return tables.build(
        "reasons",
        "Runs without a result, and why",
        [
            tables.text("status", "status"),
            tables.text("reason", "reason"),
            tables.number("runs", "size"),
            tables.text("run ids", "run_ids"),
        ],
        counts.to_dict("records"),
        max_rows=20,
        rank=lambda row: row["status"] != _NOT_TIMED,
        command="wattlaw status STORE --json",
    )


def _first_ids(run_ids: pd.Series) -> str:
    return ", ".join(run_ids.iloc[:_MAX_RUN_IDS]) + (", …" if len(run_ids) > _MAX_RUN_IDS else "")


def verdicts(findings: Findings) -> tables.Table | None:
    runs = findings.runs
    if runs.empty:
        return None
    missing = {
        "hardware": "unknown", "energy_scope": "nothing", "energy_source": "none",
        "energy_verdict": "unavailable",
    }  # fmt: skip
    counts = runs[[*missing]].fillna(missing).value_counts().reset_index()
    return tables.build(
        "verdicts",
        "Energy: what was counted, from which source, with which verdict",
        [
            tables.text("hardware", "hardware"),
            tables.text("counted", "energy_scope"),
            tables.text("source", "energy_source"),
            tables.text("verdict", "energy_verdict"),
            tables.number("runs", "count"),
        ],
        counts.to_dict("records"),
        note="Counted is the most that was measured: the whole node, else the module (a board with "
        "processors and GPUs), else the devices. Verdicts: ok: the checks passed. suspect: a check "
        f"failed; the energy is used and marked.{suspect_note(findings)} partial, implausible or "
        "unavailable: the energy is not used, the times are. Energies that count different things "
        "are never mixed.",
    )


def status_sentences(findings: Findings) -> Iterator[str]:
    total = sum(findings.statuses.values())
    counts = ", ".join(f"{count:,} {status}" for status, count in sorted(findings.statuses.items()))
    yield f"{total:,} runs: {counts}." if total else "There is no run."
    interruptions = findings.stored["interruptions"].fillna(0)
    if interrupted := int((interruptions > 0).sum()):
        was = "was" if interrupted == 1 else "were"
        yield (
            f"{fmt.plural(interrupted, 'run')} {was} interrupted "
            f"({fmt.plural(int(interruptions.sum()), 'time')} in total) and continued later."
            f"{interruption_note(findings)}"
        )


def not_needed(findings: Findings) -> int:
    """Return the number of planned runs that a decision, which is made, does without."""
    is_made = bool(findings.decisions) and all(item.stopped_because for item in findings.decisions)
    return findings.statuses.get("planned", 0) if is_made else 0


def caveat_sentences(findings: Findings) -> Iterator[str]:
    others = {name: count for name, count in findings.statuses.items() if name != "done"}
    if not_needed(findings):
        others.pop("planned")
    if others:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(others.items()))
        runs_text = fmt.plural(findings.statuses.get("done", 0) + sum(others.values()), "run")
        yield f"{sum(others.values()):,} of {runs_text} have no result ({counts})."
    runs = findings.runs
    for verdict, text in _VERDICTS.items():
        count = int((runs["energy_verdict"] == verdict).sum())
        if count:
            reasons = "; ".join(energy_reasons(findings, verdict))
            details = f": {reasons}" if reasons else ""
            yield f"The energy of {fmt.plural(count, 'run')} {text}{details}."
    if findings.energy is not None and runs["energy_j"].isna().any():
        count = int(runs["energy_j"].isna().sum())
        has = "has" if count == 1 else "have"
        yield f"{count} of {fmt.plural(len(runs), 'run')} {has} no energy that counts."
    if runs["energy_is"].nunique() > 1:
        yield "Energies count different things: compare only those that count the same."
    ran = findings.settings
    if len(once := ran[ran["n"] == 1]):
        sources = once["interval_from"].dropna().unique().tolist()
        has = f"intervals from {fmt.names_text(sources)}" if sources else "no intervals"
        yield f"Settings that ran once have {has}."
    if not findings.sources_label:  # else a title says it
        origins = sorted({*runs["launcher"].map(source_of)} - {MEASURED})
        yield from (f"Some runs are {origin}: they were not measured here." for origin in origins)
    yield from (caution.text for caution in findings.cautions)
    if not findings.origins_label:  # a title says that nothing was measured
        yield from findings.notes[:2]
