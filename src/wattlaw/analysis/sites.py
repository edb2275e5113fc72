"""What a site did to runs and tells of them: its accounting, interruptions, clocks."""

from dataclasses import dataclass

import pandas as pd

from wattlaw.analysis.scheduler_energy import Agreement, agreements, scheduler_energy


@dataclass(frozen=True)
class Sites:
    """Facts of clusters, over all runs of all statuses but for the energies."""

    energies: pd.DataFrame  # analysis.scheduler_energy.scheduler_energy
    agreements: tuple[Agreement, ...]
    interrupted_runs: int
    interruptions: int
    clock_runs: int  # runs whose hosts' clocks were compared
    clock_offset_max_s: float | None  # largest |offset| + uncertainty among them


def summarise_sites(
    table: pd.DataFrame,
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    accounting_windows: pd.DataFrame | None,
) -> Sites:
    """Return what the tables say; parameters as for ``scheduler_energy``."""
    energies = scheduler_energy(table, runs, epochs, accounting_windows)
    count = runs["interruptions"].fillna(0)
    offsets = runs["clock_offset_max_s"].dropna()
    return Sites(
        energies=energies,
        agreements=agreements(energies),
        interrupted_runs=int((count > 0).sum()),
        interruptions=int(count.sum()),
        clock_runs=len(offsets),
        clock_offset_max_s=None if offsets.empty else float(offsets.max()),
    )
