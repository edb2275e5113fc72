"""Laws of one column of a table against another."""

from collections.abc import Sequence
from os import PathLike

import pandas as pd

from wattlaw.analysis.laws.fitting import Fits, fit_groups
from wattlaw.api.arguments import path_of


def fit(
    frame: pd.DataFrame | str | PathLike[str],
    x: str = "gpus",
    y: str = "epoch_time_s",
    by: str | Sequence[str] = (),
) -> Fits:
    """Fit the power law y = alpha * x^-beta, and other laws, to each group of rows.

    Parameters
    ----------
    frame
        A table, or the path of a CSV or JSON-lines file.
    x
        The column of the number of workers, or of another quantity above 0.
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
    >>> round(fits[0].law.beta, 2)
    0.97
    """
    names = [by] if isinstance(by, str) else list(by)
    if not isinstance(frame, pd.DataFrame):
        from wattlaw.store.measurements import read_table

        others = [name for name in names if name not in (x, y)]
        frame = read_table(path_of("frame", frame), list(dict.fromkeys([x, y])), others)
    return fit_groups(frame, x, y, names)
