"""Our energies beside those of a scheduler's accounting, by setting."""

from typing import Any

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import groups
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.analysis.scheduler_energy import ALIKE, spread
from wattlaw.formatting import joules, number, percent, with_interval
from wattlaw.report.tables.measured import in_words, limits_set, scaled, setting_columns
from wattlaw.report.tables.table import Column, Table, make, words

SAME_TIME, WINDOWS = "the same time", "windows only"
_NOTE = (
    "whole nodes as far as the site's energy plugin sees them, from the job's last start "
    "to its end: start-up, imports, idle parts, and whatever else ran there. Ours: the run's own "
    "devices that were metered, as counted; of the same time as far as there is telemetry, or of "
    "the windows in it, with warm-up and evaluation. So a ratio below 1 is to be expected. Far "
    "below 1, most of the energy went where we do not look: idle GPUs, other jobs, parts without a "
    "meter, time outside of windows. Above 1, one of the two is wrong or the plugin sees less than "
    "the nodes, such as their processors alone. Neither proves the other."
)


def energies(findings: Findings) -> Table | None:
    """Return both energies and their ratio by setting; None where the accounting has none."""
    found = findings.sites.energies
    if found.empty:
        return None
    told = in_words(found, findings.varying_settings)
    rows = [_of_setting(one) for _, one in groups(told, [*SETTINGS, *ALIKE])]
    size, unit = joules(row["site_energy_j"] for row in rows)
    sources = sorted(found["site_energy_source"].dropna().unique())
    columns = [
        *setting_columns(findings.varying_settings),
        Column("runs", lambda row: number(row["n"], 9)),
        words("ours counts", "ours_is"),
        Column("ours is of", lambda row: SAME_TIME if row["same_time"] else WINDOWS,
               numeric=False),
        Column("with telemetry", lambda row: percent(row["covered"])),
        Column(f"ours ({unit})", lambda row: scaled(row, "ours_j", size)),
        Column(f"scheduler's ({unit})", lambda row: scaled(row, "site_energy_j", size)),
        Column("ours / scheduler's", lambda row: with_interval(
            row["ratio"], row["ratio_low"], row["ratio_high"])),
        *([words("source", "site_energy_source")] if len(sources) > 1 else []),
    ]  # fmt: skip
    return make(
        "scheduler_energy",
        "Second opinion: energy by the scheduler's accounting (of a run, mean over repeats)",
        columns,
        rows,
        note=f"Theirs ({', '.join(sources)}): {_NOTE} Ratio: the median of the runs (least to "
        "greatest).",
        command="wattlaw export STORE runs -o runs.csv",
        rank=limits_set,
    )


def _of_setting(rows: Any) -> dict[str, Any]:
    """Return the means of a setting's runs, and the median and range of their ratios."""
    ratios = rows["ratio"].dropna()
    n, median, low, high = spread(ratios)[:4] if len(ratios) else (0, None, None, None)
    return {
        **rows.iloc[0].to_dict(),
        "n": len(rows),
        **rows[["ours_j", "site_energy_j", "covered"]].astype(float).mean().to_dict(),
        "ratio": median,
        "ratio_low": low if n > 1 else None,
        "ratio_high": high if n > 1 else None,
    }
