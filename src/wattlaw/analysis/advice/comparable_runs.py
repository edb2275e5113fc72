"""Which runs advice may compare: one job, one kind of energy, measurements before simulations."""

from dataclasses import dataclass

import pandas as pd

from wattlaw.analysis.groups import differing_options, group_label
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.errors import Refused

TIME, ENERGY = "epoch_time_s", "energy_per_epoch_j"
#: What makes two runs different jobs, whose epochs do not compare.
_JOB = ("options", "train", "dataset_fraction")
SIMULATED = "simulated"


@dataclass(frozen=True)
class ComparableRuns:
    """Rows of ``run_metrics`` that compare, with one kind of energy or none."""

    rows: pd.DataFrame
    energy_is: str | None
    worker: str  # what "gpus" counts, in words
    warnings: tuple[str, ...]


def comparable_runs(table: pd.DataFrame, workload: str) -> ComparableRuns:
    """Return the runs of a workload that advice may compare.

    Measured runs before simulated ones; of several variants of the job (options, training loop,
    share of the data set) the one with the largest share of the data, then with the most runs; of
    energies that count different things those of the most settings (the others' times stay, their
    energies do not). All that is left out is said in ``warnings``.

    Raises
    ------
    Refused
        No run of this workload is done; the text lists those that there are.
    """
    rows = table[table["workload"] == workload]
    if rows.empty:
        there = sorted(str(name) for name in table["workload"].dropna().unique())
        said = f"there are runs of: {', '.join(there)}" if there else "no run is done"
        raise Refused(f"no done runs of workload {workload!r}; {said}")
    warnings: list[str] = []
    rows = _measured(rows, warnings)
    rows = _one_variant(rows, warnings)
    rows, energy_is = _one_energy(rows, warnings)
    seen = rows[["sm_util_mean", "gpu_energy_per_epoch_j"]].notna().any(axis=None)
    return ComparableRuns(rows, energy_is, "GPU" if seen else "worker", tuple(warnings))


def _measured(rows: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    simulated = rows["launcher"] == SIMULATED
    if simulated.all():
        warnings.append("All times and energies are simulated: from models, not measured.")
        return rows
    if simulated.any():
        warnings.append(f"{simulated.sum()} simulated runs are left out: measured ones count.")
    return rows[~simulated]


def _one_variant(rows: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    variants = rows.groupby(list(_JOB), dropna=False).ngroup()
    if variants.nunique() < 2:
        if (share := rows["dataset_fraction"].iloc[0]) < 1:
            warnings.append(f"All runs trained on {share:g} of the data set; so count the epochs.")
        return rows
    ranked = pd.DataFrame(
        {
            "share": rows["dataset_fraction"].groupby(variants).first(),
            "runs": variants.value_counts(),
        }
    ).sort_values(["share", "runs"], ascending=False, kind="stable")
    kept: pd.DataFrame = rows[variants == ranked.index[0]]
    first = rows.groupby(variants)[list(_JOB)].first()
    words = {
        name: first[name].map(differing_options(first[name]))
        if name != "dataset_fraction"
        else first[name]
        for name in _JOB
        if first[name].nunique(dropna=False) > 1
    }
    told = [
        group_label({name: values.loc[i] for name, values in words.items()}) or "defaults"
        for i in ranked.index
    ]
    others = "; ".join(told[1:4]) + (f"; and {len(told) - 4} more" if len(told) > 4 else "")
    warnings.append(
        f"The runs are of {len(told)} jobs, whose epochs do not compare. This is about: {told[0]}. "
        f"Left out: {others}."
    )
    return kept


def _one_energy(rows: pd.DataFrame, warnings: list[str]) -> tuple[pd.DataFrame, str | None]:
    told = rows[rows[ENERGY].notna() & rows["energy_is"].notna()]
    if told.empty:
        return rows.assign(**{ENERGY: float("nan")}), None
    kinds = {str(words): _settings(one) for words, one in told.groupby("energy_is")}
    fullest = sorted(kinds, key=lambda words: (-kinds[words], -words.count("+"), words))
    chosen = fullest[0]
    if len(fullest) > 1:
        warnings.append(
            f"Energies count different things. Those compared: {chosen}. Left out of every "
            f"comparison by energy: {'; '.join(fullest[1:])}."
        )
    kept = rows[ENERGY].where(rows["energy_is"] == chosen)
    for doubt, words in _DOUBTS.items():
        if doubt in chosen:
            warnings.append(words)
    return rows.assign(**{ENERGY: kept}), chosen


def _settings(rows: pd.DataFrame) -> int:
    return len(rows[[name for name in SETTINGS if name in rows]].drop_duplicates())


_DOUBTS = {
    "estimated": "Energies are estimated from busy cores and assumed watts: not a measurement.",
    "simulated": "Energies are simulated, from a model of a device: not a measurement.",
    "suspect": "The energies' verdict is suspect; energy_reason in the store's epochs says why.",
    "mixed": "Energies are of mixed source: windows differ in how they were measured.",
}
