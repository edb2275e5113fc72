"""Everything that a report says, found in the tables of one or more stores."""

import json
from dataclasses import dataclass

import pandas as pd

from wattlaw.analysis.metrics import cells, energy_words, run_metrics
from wattlaw.analysis.power_law import Fits
from wattlaw.analysis.series import fit_series, scaling_series, speedups, telling


@dataclass(frozen=True)
class Findings:
    """Tables and laws; frames have the columns of the functions that made them."""

    statuses: dict[str, int]
    not_done: pd.DataFrame  # of runs: failed, skipped, left; with reasons
    facts: dict[str, str]  # what ran on what, in words
    notes: tuple[str, ...]  # what runs noted, with how many said it
    runs: pd.DataFrame  # analysis.metrics.run_metrics
    cells: pd.DataFrame  # analysis.metrics.cells
    series: pd.DataFrame  # analysis.series.scaling_series
    fits: Fits
    speedups: pd.DataFrame
    energy: str | None  # "cpu, estimated": scope and source of all energies; None without any
    differing: tuple[str, ...]  # settings beside workers and batch in which the runs differ

    @property
    def has_quality(self) -> bool:
        """Say whether any run was evaluated."""
        return bool(self.runs["metric"].notna().any())


def find(runs: pd.DataFrame, epochs: pd.DataFrame) -> Findings:
    """Return what the tables ``runs`` and ``epochs`` (of ``store.schema``) say."""
    table = run_metrics(runs, epochs)
    series = scaling_series(table)
    columns = ["run_id", "workload", "gpus", "global_batch", "repeat", "status", "reason"]
    not_done = runs[runs["status"] != "done"].sort_values(["status", "reason", "run_id"])
    return Findings(
        statuses={str(key): int(count) for key, count in runs["status"].value_counts().items()},
        not_done=not_done[columns].reset_index(drop=True),
        facts=_facts(runs),
        notes=_notes(runs),
        runs=table,
        cells=cells(table),
        series=series,
        fits=fit_series(series),
        speedups=speedups(series),
        energy=energy_words(table.loc[table["energy_per_epoch_j"].notna(), "energy_is"]),
        differing=tuple(telling(table)),
    )


def _facts(runs: pd.DataFrame) -> dict[str, str]:
    done = runs[runs["status"] == "done"]
    versions: dict[str, set[str]] = {}
    for text in done["software"].dropna().unique():
        for package, version in json.loads(text).items():
            versions.setdefault(package, set()).add(version)
    begun, ended = done["started_at"].min(), done["finished_at"].max()
    facts = {
        "Studies": _listed(runs["study"]),
        "Workloads": _listed(done["workload"]),
        "Hardware": _listed(done["hardware"]),
        "Workers": _listed(done["gpus"]),
        "Launcher": _listed(done["launcher"]),
        "Measured": ""
        if pd.isna(begun)
        else f"{begun:%Y-%m-%d %H:%M} to {ended:%Y-%m-%d %H:%M} UTC",
        "Software": ", ".join(
            f"{name} {_listed(pd.Series(sorted(v)))}" for name, v in versions.items()
        ),
        "Git commit": _listed(done["git_commit"]),
    }
    return {name: words for name, words in facts.items() if words}


def _listed(values: pd.Series) -> str:
    return ", ".join(str(value) for value in sorted(values.dropna().unique()))


def _notes(runs: pd.DataFrame) -> tuple[str, ...]:
    counted = runs["notes"].explode().dropna().value_counts()
    return tuple(f"{note} ({count} runs)" for note, count in counted.items())
