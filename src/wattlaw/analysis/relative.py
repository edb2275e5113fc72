"""A series against one of its GPU counts: speedup, parallel efficiency, normalised energy."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

from wattlaw.analysis.cells import LEVEL

Floats = npt.NDArray[np.float64]
Ratio = tuple[float, float, float]
_COLUMNS = [
    "series", "gpus", "reference", "speedup", "speedup_low", "speedup_high", "efficiency",
    "efficiency_low", "efficiency_high", "energy_ratio", "energy_ratio_low", "energy_ratio_high",
    "energy_delay_ratio", "energy_is",
]  # fmt: skip


def relative(series: pd.DataFrame, reference: int | None = None) -> pd.DataFrame:
    """Return each series of ``scaling_series`` relative to one of its GPU counts.

    Parameters
    ----------
    series
        Rows of ``analysis.series.scaling_series``.
    reference
        The GPU count to compare with, where a series has it (2 in Frey et al. 2022); otherwise,
        and by default, the smallest of the series.

    Returns
    -------
    DataFrame
        One row per series and GPU count N, with R the reference: ``speedup`` = T(R) / T(N),
        ``efficiency`` = speedup R / N, or T(R) / T(N) where the data set grows with N and each GPU
        has as much to do; ``energy_ratio`` = E(N) / E(R), of geometric means over repeats;
        ``energy_delay_ratio`` = energy_ratio / speedup. The 95 % intervals are t intervals of log
        ratios with the variance pooled over the series' counts, and missing without repeats. Energy
        ratios are missing where energies count different things.
    """
    rows = [
        row
        for label, one in series.groupby("series", sort=False)
        for row in _of_series(str(label), one, reference)
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _of_series(label: str, series: pd.DataFrame, asked: int | None) -> Iterator[dict[str, object]]:
    counts = sorted(int(count) for count in series["gpus"].unique())
    reference = asked if asked in counts else counts[0]
    slower = ratios(_logs(series, "epoch_time_s"), reference)
    measured = series[series["energy_per_epoch_j"].notna()]
    words = measured["energy_is"].dropna().unique()
    grows = bool(series["fraction_per_gpu"].notna().any())
    energies = ratios(_logs(series, "energy_per_epoch_j"), reference) if len(words) == 1 else {}
    for gpus in counts:
        time, high, low = (1 / value for value in slower[gpus])
        energy, energy_low, energy_high = energies.get(gpus, (np.nan,) * 3)
        share = 1.0 if grows else reference / gpus
        yield dict(
            zip(
                _COLUMNS,
                (
                    label, gpus, reference, time, low, high, time * share, low * share,
                    high * share, energy, energy_low, energy_high, energy / time,
                    words[0] if len(words) == 1 else None,
                ),
                strict=True,
            )
        )  # fmt: skip


def ratios(logs: Mapping[int, Floats], reference: int) -> dict[int, Ratio]:
    """Return exp of the difference of means to the reference, with its 95 % interval.

    Parameters
    ----------
    logs
        Logarithms of the repeats, by GPU count. The variance is pooled over all counts, with as
        many degrees of freedom as there are repeats beyond the first of each.
    reference
        The count to compare with; where it has no values there is nothing to return.
    """
    there = {gpus: values[np.isfinite(values)] for gpus, values in logs.items()}
    there = {gpus: values for gpus, values in there.items() if len(values)}
    if reference not in there:
        return {}
    freedom = sum(len(values) - 1 for values in there.values())
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in there.values())
    base = there[reference]
    quantile = stats.t.ppf((1 + LEVEL) / 2, freedom) if freedom else np.nan
    found = {}
    for gpus, values in there.items():
        change = float(values.mean() - base.mean())
        half = 0.0
        if gpus != reference:
            spread = squares / freedom * (1 / len(values) + 1 / len(base)) if freedom else np.nan
            half = float(quantile * np.sqrt(spread))
        low, high = np.exp([change - half, change + half])
        found[gpus] = (float(np.exp(change)), float(low), float(high))
    return found


def _logs(series: pd.DataFrame, column: str) -> dict[int, Floats]:
    values = series[column].where(series[column] > 0)
    logs = np.log(values)
    return {int(gpus): rows.to_numpy(float) for gpus, rows in logs.groupby(series["gpus"])}
