"""A series against one of its GPU counts: speedup, parallel efficiency, normalised energy."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from wattlaw.analysis.metrics.variation import Variation, variations

_COLUMNS = [
    "series", "unit", "gpus", "reference", "speedup", "speedup_low", "speedup_high", "efficiency",
    "energy_ratio", "energy_ratio_low", "energy_ratio_high", "energy_is",
]  # fmt: skip


def speedups(series: pd.DataFrame, reference: int | None = None) -> pd.DataFrame:
    """Return each series of ``scaling_series`` relative to one of its GPU counts R.

    R is ``reference`` where a series has it (2 in Frey et al. 2022), else the smallest. One row per
    series and GPU count N: ``speedup`` = T(R) / T(N); ``efficiency`` = speedup R / N, or T(R) /
    T(N) where the data set grows with N and each GPU has as much to do; ``energy_ratio`` = E(N) /
    E(R) of the unit or, where the data set grows, of a sample. All
    are of geometric means over repeats, with the 95 % intervals of ``Variation.ratio``. A series in
    steps has none: how much work a step is at another count is not known. Energy ratios are missing
    where energies count different things.
    """
    runs = series.drop_duplicates("run_id").set_index("run_id")
    of_runs = dict(variations(runs, ("time_s", "energy_j", "energy_per_sample_j")))
    rows = [
        row
        for label, rows_of_series in series[series["unit"] != "step"].groupby("series", sort=False)
        for row in _of_series(
            str(label), rows_of_series, reference, of_runs[rows_of_series["run_id"].iloc[0]]
        )
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _of_series(
    label: str, series: pd.DataFrame, wanted: int | None, varied: Mapping[str, Variation]
) -> Iterator[tuple[object, ...]]:
    counts = sorted(int(count) for count in series["gpus"].unique())
    reference = wanted if wanted in counts else counts[0]
    runs = {gpus: pd.Index(series.loc[series["gpus"] == gpus, "run_id"]) for gpus in counts}
    # Of a growing data set an epoch or a run is more work, a sample is not.
    grows = bool((series["fraction_per_gpu"].notna() & (series["unit"] != "sample")).any())
    energy_j = "energy_per_sample_j" if grows else "energy_j"
    kinds = series.loc[series[energy_j].notna(), "energy_is"].dropna().unique()
    unit = series["unit"].iloc[0]
    for gpus in counts:
        time, high, low = (1 / end for end in varied["time_s"].ratio(runs[gpus], runs[reference]))
        energy = energy_low = energy_high = np.nan
        if len(kinds) == 1:
            pair = runs[gpus], runs[reference]
            energy, energy_low, energy_high = varied[energy_j].ratio(*pair)
        yield (
            label, unit, gpus, reference, time, low, high,
            time * (1.0 if grows else reference / gpus), energy, energy_low, energy_high,
            kinds[0] if len(kinds) == 1 else None,
        )  # fmt: skip
