"""What did not go well: runs that are not done, and energies that are in doubt."""

import pandas as pd

from wattlaw.analysis.findings import Findings
from wattlaw.formatting import number, percent
from wattlaw.report.tables.measured import suspicion
from wattlaw.report.tables.table import Column, Table, make, words

_NOT_TIMED = "done, not timed"
_FEW = 3


def not_done(findings: Findings) -> Table | None:
    """Return the runs that failed, were skipped or interrupted, or are left, with reasons."""
    columns = [
        words("run", "run_id"),
        words("status", "status"),
        words("workload", "workload"),
        Column("N", lambda row: number(row["gpus"])),
        Column("global batch", lambda row: number(row["global_batch"], 9)),
        Column("repeat", lambda row: number(row["repeat"])),
        words("reason", "reason"),
    ]
    order = {"failed": 0, "interrupted": 1, "skipped": 2}
    return make(
        "not_done",
        "Runs that are not done",
        columns,
        findings.not_done.to_dict("records"),
        command="wattlaw status STORE --json",
        rank=lambda row: order.get(row["status"], 3),
    )


def reasons(findings: Findings) -> Table | None:
    """Return how many runs are in no result for which reason, with the first few of each.

    They are not done, or done without a training window that counts.
    """
    not_timed = findings.not_timed.assign(status=_NOT_TIMED)
    if len(findings.not_done) <= 1 and not_timed.empty:
        return None
    told = ["run_id", "status", "reason"]
    runs = pd.concat([findings.not_done[told], not_timed[told]], ignore_index=True)
    counted = (
        runs.assign(reason=runs["reason"].fillna("no reason told"))
        .groupby(["status", "reason"], as_index=False)
        .agg(size=("run_id", "size"), which=("run_id", _first))
        .sort_values("size", ascending=False, kind="stable")
    )
    columns = [
        words("status", "status"),
        words("reason", "reason"),
        Column("runs", lambda row: number(row["size"])),
        words("which", "which"),
    ]
    return make("reasons", "Why runs are in no result", columns, counted.to_dict("records"),
                most=20, rank=lambda row: row["status"] != _NOT_TIMED,
                command="wattlaw status STORE --json")  # fmt: skip


def _first(run_ids: pd.Series) -> str:
    """Return up to three of the runs."""
    return ", ".join(run_ids.iloc[:_FEW]) + (", …" if len(run_ids) > _FEW else "")


def verdicts(findings: Findings) -> Table | None:
    """Return what was counted as energy, from which source, with which verdict."""
    runs = findings.runs
    if runs.empty:
        return None
    told = pd.DataFrame(
        {
            "hardware": runs["hardware"].fillna("not told"),
            "scope": runs["energy_scope"].fillna("nothing"),
            "source": runs["energy_source"].fillna("none"),
            "verdict": runs["energy_verdict"].fillna("unavailable"),
        }
    )
    counted = told.groupby([*told.columns], as_index=False).size()
    counted = counted.sort_values("size", ascending=False, kind="stable")
    columns = [
        words("hardware", "hardware"),
        words("counted", "scope"),
        words("source", "source"),
        words("verdict", "verdict"),
        Column("runs", lambda row: number(row["size"])),
        Column("of all", lambda row: percent(row["size"] / len(runs))),
    ]
    return make(
        "verdicts",
        "Energy: what was counted, from which source, with which verdict",
        columns,
        counted.to_dict("records"),
        note="ok: counter and power samples agree where both are there. suspect: something "
        f"speaks against them; used, and marked.{suspicion(findings)} partial, implausible "
        "(physically impossible) and unavailable: not used, so the run has times and no energy. "
        "Energies that count different things are never averaged, compared or fitted together.",
    )


def repeats(findings: Findings) -> Table | None:
    """Return how often settings were repeated."""
    cells = findings.settings
    counted = cells.groupby(["workload", "n"], as_index=False).size()
    columns = [
        words("workload", "workload"),
        Column("repeats of a setting", lambda row: number(row["n"])),
        Column("settings", lambda row: number(row["size"])),
    ]
    return make(
        "repeats",
        "Repeats",
        columns,
        counted.to_dict("records"),
        note="A setting that was run once has no interval of its own.",
    )
