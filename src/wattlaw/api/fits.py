"""Laws of time or energy against the number of workers."""

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

import pandas as pd

from wattlaw.analysis.laws.series import FIXED, fit_table, without_estimated
from wattlaw.analysis.laws.series_fits import SeriesFit, SeriesFits, fit_groups
from wattlaw.analysis.metrics.groups import ENERGIES
from wattlaw.analysis.metrics.metrics import missing_energy, unit_of


def fit(
    frame: pd.DataFrame | str | PathLike[str],
    x: str = "gpus",
    y: str = "epoch_time_s",
    by: str | Sequence[str] = (),
) -> SeriesFits:
    """Fit the power law y = alpha * x^-beta, and other laws, to each group of rows.

    Parameters
    ----------
    frame
        A table, or the path of a CSV, Parquet or JSON-lines file.
    x
        The column of the number of workers.
    y
        The column of the time, or of any quantity above 0.
    by
        The column or columns that distinguish the series.

    Raises
    ------
    wattlaw.common.errors.BadInput
        A column does not exist or is not numeric.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"gpus": [1, 2, 4, 8], "epoch_time_s": [80.0, 41.0, 20.5, 10.8]})
    >>> fits = wattlaw.fit(table)
    >>> round(fits.rows[0].law.beta, 2)
    0.97
    """
    names = [by] if isinstance(by, str) else list(by)
    if not isinstance(frame, pd.DataFrame):
        from wattlaw.store.measurements import read_table

        others = [name for name in names if name not in (x, y)]
        frame = read_table(Path(frame), list(dict.fromkeys([x, y])), others)
    fitted = fit_groups(frame, x, y, names)
    return SeriesFits(fitted.rows, int(frame[[x, y]].isna().any(axis=1).sum()))


def fit_metrics(table: pd.DataFrame, x: str, y: str, by: str | Sequence[str] | None) -> SeriesFits:
    """Fit the metrics of runs: by default their scaling series, else groups of the columns ``by``.

    Groups never mix energies that count different things, or quantities of different units.
    """
    refused = []
    if y in ENERGIES:
        without = ((name, missing_energy(rows)) for name, rows in table.groupby("workload"))
        refused = [SeriesFit.refused({"workload": name}, why) for name, why in without if why]
    if refused:  # and not once more as series of no worker counts
        table = table[table[y].notna()]
    if by is None and x == "gpus" and y in table.columns:
        return SeriesFits((*fit_table(table, y).rows, *refused))
    names = [by] if isinstance(by, str) else list(by or ())
    if by is None:  # one group for each job: what else varies than x and the batches
        others = (name for name in (*FIXED, "gpus", "nodes") if name != x and name in table)
        names = [name for name in others if table[name].nunique(dropna=False) > 1]
    names += ["energy_is"] if y in ENERGIES else []
    units = {unit: unit_of(y, unit) for unit in table["unit"].dropna().unique()}
    if len({*units.values()}) > 1:
        names.append("unit")
    fits = fit(table, x, y, names)
    rows = [replace(row, unit=units.get(row.group.get("unit", table["unit"].iloc[0])))
            for row in map(without_estimated, fits.rows)]  # fmt: skip
    return SeriesFits((*rows, *refused), fits.left_out)
