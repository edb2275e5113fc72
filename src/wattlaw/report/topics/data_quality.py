"""Data quality: runs that are not done, interruptions, and verdicts on energies."""

from collections.abc import Iterator

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.topics.measured import energy_reasons, interruption_note, suspect_note
from wattlaw.study.sources import source_of

_NOT_TIMED = "done, not timed"
_MAX_RUN_IDS = 3
_COMMAND = "wattlaw status STORE --json"
_VERDICTS = {
    "suspect": "is suspect",
    "partial": "covers only a part of their windows, and is left out",
    "implausible": "is physically impossible, and is left out",
}

_ORIGINS = {
    "imported": "files of other tools",
    "replayed": "a table of measurements",
    "simulated": "a model of a cluster",
}


def reasons(findings: Findings) -> tables.Table | None:
    """Those that are not done, or done without a training window that counts."""
    not_timed = findings.not_timed.assign(status=_NOT_TIMED)
    if findings.not_done.empty and not_timed.empty:
        return None
    columns = ["run_id", "status", "reason"]
    runs = pd.concat([findings.not_done[columns], not_timed[columns]], ignore_index=True)
    counts = (
        runs.assign(
            reason=runs["reason"]
            .fillna(runs["status"].map({"planned": "not run yet"}))
            .fillna("unknown")
        )
        .groupby(["status", "reason"], as_index=False)
        .agg(size=("run_id", "size"), run_ids=("run_id", _first_ids))
        .sort_values("size", ascending=False, kind="stable")
    )
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
        command=_COMMAND,
    )


def _first_ids(run_ids: pd.Series) -> str:
    return ", ".join(run_ids.iloc[:_MAX_RUN_IDS]) + (", …" if len(run_ids) > _MAX_RUN_IDS else "")


def verdicts(findings: Findings) -> tables.Table | None:
    runs = findings.runs
    if runs.empty:
        return None
    table = pd.DataFrame(
        {
            "hardware": runs["hardware"].fillna("unknown"),
            "scope": runs["energy_scope"].fillna("nothing"),
            "source": runs["energy_source"].fillna("none"),
            "verdict": runs["energy_verdict"].fillna("unavailable"),
        }
    )
    rest_w = runs["energy_per_node_without_gpu_j"] / runs["time_s"]
    counts = (
        table.assign(rest_w=rest_w)
        .groupby([*table.columns], as_index=False)
        .agg(size=("scope", "size"), rest_w=("rest_w", "mean"))
    )
    counts = counts.sort_values("size", ascending=False, kind="stable")
    columns = [
        tables.text("hardware", "hardware"),
        tables.text("counted", "scope"),
        tables.text("source", "source"),
        tables.text("verdict", "verdict"),
        tables.number("runs", "size"),
        tables.Column("share of runs", lambda row: fmt.percent(row["size"] / len(runs))),
    ]
    if rest_w.notna().any():
        columns.append(tables.number("node without GPUs (W)", "rest_w"))
    return tables.build(
        "verdicts",
        "Energy: what was counted, from which source, with which verdict",
        columns,
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
    once = int((findings.settings["n"] == 1).sum())
    if once:
        settings = fmt.plural(len(findings.settings), "setting")
        was = "was" if once == 1 else "were"
        ran = findings.settings
        sources = ran["interval_from"][ran["n"] == 1].dropna().unique().tolist()
        known = (
            f"intervals are from {fmt.names_text(sources)}" if sources else "they have no intervals"
        )
        yield f"{once} of {settings} {was} run once: {known}."
    origins = runs["launcher"].map(source_of)
    for origin, source in _ORIGINS.items():
        if (origins == origin).any() and not findings.sources_label:
            yield f"Some runs are {origin}: from {source}, not measured here."
    yield from (caution.text for caution in findings.cautions)
    if not findings.origins_label:  # a title says that nothing was measured
        yield from findings.notes[:2]
