"""What reaching a target quality takes: epochs by global batch, time and energy by setting."""

from typing import Any

from wattlaw.analysis.advice.formatting import ENERGY_UNITS, TIME_UNITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import group_label
from wattlaw.formatting import NONE, number, unit_of, with_interval
from wattlaw.report.tables.measured import in_words, scaled, setting_columns
from wattlaw.report.tables.table import Column, Table, make, words


def settings(findings: Findings) -> Table | None:
    """Return epochs, time and energy to the target of each setting."""
    targets = findings.targets
    if targets is None:
        return None
    rows = in_words(targets.settings, findings.varying_settings)
    seconds, time_unit = unit_of(rows["time_to_target_s"], TIME_UNITS)
    size, unit = unit_of(rows["energy_to_target_j"], ENERGY_UNITS)
    columns = [
        *setting_columns(findings.varying_settings),
        Column("reached by", lambda row: f"{number(row['runs_reached'])} of {number(row['runs'])}"),
        Column("epochs", lambda row: with_interval(
            row["epochs"], row["epochs_low"], row["epochs_high"])),
        Column("statistical efficiency", lambda row: number(row["statistical_efficiency"])),
        Column(f"time ({time_unit})", lambda row: scaled(row, "time_to_target_s", seconds)),
        Column(f"energy ({unit})", lambda row: scaled(row, "energy_to_target_j", size)),
        words("energy is", "energy_is"),
        words("why not", "why"),
    ]  # fmt: skip
    return make(
        "targets",
        f"Time and energy to {number(targets.target, 6)}",
        columns,
        rows.to_dict("records"),
        note="Epochs to the target (statistical efficiency) times seconds and joules per epoch "
        "(system efficiency); training alone.",
    )


def critical(findings: Findings) -> Table | None:
    """Return the critical batch of each group of runs that learn alike."""
    targets = findings.targets
    if targets is None:
        return None
    rows = [{"label": _label(group), "found": found} for group, found in targets.critical]
    rows += [{"label": _label(group), "found": None, "why": why} for group, why in targets.refusals]
    columns = [
        words("runs of", "label"),
        Column("least epochs", lambda row: _ends(row, "s_min")),
        Column("critical batch (samples per step)", lambda row: _ends(row, "b_crit")),
        Column("runs", lambda row: number(row["found"].n) if row["found"] else NONE),
        Column("best form", lambda row: row["found"].best_form if row["found"] else NONE,
               numeric=False),
        Column("in words", lambda row: row["found"].sentence if row["found"] else row["why"],
               numeric=False),
    ]  # fmt: skip
    return make(
        "critical",
        f"Epochs to {number(targets.target, 6)} against global batch: S = S_min (1 + B / B_crit)",
        columns,
        rows,
    )


def _label(group: dict[str, Any]) -> str:
    told_of = ("workload", "precision", "dataset_fraction")
    return group_label({name: group.get(name) for name in told_of})


def _ends(row: dict[str, Any], name: str) -> str:
    found = row["found"]
    if found is None:
        return NONE
    low, high = getattr(found, f"{name}_ci")
    return with_interval(getattr(found, name), low, high)
