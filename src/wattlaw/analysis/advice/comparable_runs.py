"""Select runs that can be compared: one job, one kind of energy, measured before simulated."""

from dataclasses import dataclass

import pandas as pd

from wattlaw.analysis.groups import differing_options
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.errors import Refused
from wattlaw.formatting import group_label

TIME, ENERGY = "epoch_time_s", "energy_per_epoch_j"
#: Runs that differ in these columns are different jobs: their epochs cannot be compared.
_JOB = ("options", "train", "dataset_fraction")
SIMULATED = "simulated"


@dataclass(frozen=True)
class ComparableRuns:
    """Rows of ``run_metrics`` that can be compared, with one kind of energy or none."""

    rows: pd.DataFrame
    energy_is: str | None
    worker: str  # the noun for what "gpus" counts: GPU or worker
    warnings: tuple[str, ...]


def comparable_runs(table: pd.DataFrame, workload: str) -> ComparableRuns:
    """Return the runs of a workload that advice may compare.

    Simulated runs are excluded if there are measured ones. Of several variants of the job (options,
    training loop, share of the data set), the one with the largest share of the data is kept, then
    the one with the most runs. Of energies that count different devices, those of the most settings
    are kept; the other runs keep their times only. ``warnings`` names what is excluded.

    Raises
    ------
    Refused
        No run of this workload is done; the text lists the workloads that have runs.
    """
    rows = table[table["workload"] == workload]
    if rows.empty:
        workloads = sorted(str(name) for name in table["workload"].dropna().unique())
        hint = f"there are runs of: {', '.join(workloads)}" if workloads else "no run is done"
        raise Refused(f"no done runs of workload {workload!r}; {hint}")
    warnings: list[str] = []
    rows = _measured(rows, warnings)
    rows = _one_variant(rows, warnings)
    rows, energy_is = _one_energy(rows, warnings)
    has_gpu_data = rows[["sm_util_mean", "gpu_energy_per_epoch_j"]].notna().any(axis=None)
    return ComparableRuns(rows, energy_is, "GPU" if has_gpu_data else "worker", tuple(warnings))


def _measured(rows: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    simulated = rows["launcher"] == SIMULATED
    if simulated.all():
        warnings.append("All times and energies are simulated, not measured.")
        return rows
    if simulated.any():
        warnings.append(f"{simulated.sum()} simulated runs are excluded; only measured runs count.")
    return rows[~simulated]


def _one_variant(rows: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    variants = rows.groupby(list(_JOB), dropna=False).ngroup()
    if variants.nunique() < 2:
        if (share := rows["dataset_fraction"].iloc[0]) < 1:
            warnings.append(
                f"All runs trained on {share:g} of the data set; epochs refer to that share."
            )
        return rows
    ranked = pd.DataFrame(
        {
            "share": rows["dataset_fraction"].groupby(variants).first(),
            "runs": variants.value_counts(),
        }
    ).sort_values(["share", "runs"], ascending=False, kind="stable")
    kept_values: pd.DataFrame = rows[variants == ranked.index[0]]
    first = rows.groupby(variants)[list(_JOB)].first()
    text = {
        name: first[name].map(differing_options(first[name]))
        if name != "dataset_fraction"
        else first[name]
        for name in _JOB
        if first[name].nunique(dropna=False) > 1
    }
    labels = [
        group_label({name: values.loc[i] for name, values in text.items()}) or "defaults"
        for i in ranked.index
    ]
    others = "; ".join(labels[1:4]) + (f"; and {len(labels) - 4} more" if len(labels) > 4 else "")
    warnings.append(
        f"The runs are of {len(labels)} different jobs, whose epochs cannot be compared. This "
        f"advice is for: {labels[0]}. Left out: {others}."
    )
    return kept_values


def _one_energy(rows: pd.DataFrame, warnings: list[str]) -> tuple[pd.DataFrame, str | None]:
    labels = rows[rows[ENERGY].notna() & rows["energy_is"].notna()]
    if labels.empty:
        return rows.assign(**{ENERGY: float("nan")}), None
    kinds = {
        str(text): _settings(rows_of_kind) for text, rows_of_kind in labels.groupby("energy_is")
    }
    fullest = sorted(kinds, key=lambda text: (-kinds[text], -text.count("+"), text))
    chosen = fullest[0]
    if len(fullest) > 1:
        warnings.append(
            f"Energies measure different things. Compared: {chosen}. Excluded from comparisons "
            f"of energy: {'; '.join(fullest[1:])}."
        )
    kept_values = rows[ENERGY].where(rows["energy_is"] == chosen)
    for marker, text in _ENERGY_WARNINGS.items():
        if marker in chosen:
            warnings.append(text)
    return rows.assign(**{ENERGY: kept_values}), chosen


def _settings(rows: pd.DataFrame) -> int:
    return len(rows[[name for name in SETTINGS if name in rows]].drop_duplicates())


_ENERGY_WARNINGS = {
    "estimated": "Energies are estimated from CPU utilisation and an assumed power, not measured.",
    "simulated": "Energies are simulated by a device model, not measured.",
    "suspect": "The energies are marked suspect; see energy_reason in the store's epochs.",
    "mixed": "Energies come from different sources: windows were measured in different ways.",
}
