"""The unit of work that times and energies are of: an epoch, a sample, a step or a run."""

import pandas as pd

from wattlaw.formatting import JOULE_UNITS, choose_unit


def unit_name(rows: pd.DataFrame) -> str:
    """Return the unit of rows with a column ``unit``; ``unit`` where they have several."""
    names = rows["unit"].dropna().unique()
    return str(names[0]) if len(names) == 1 else "unit"


def joule_scale(rows: pd.DataFrame, column: str = "energy_j") -> tuple[float, str]:
    """Return size and name of the unit of energy that suits rows; J for several units of work."""
    return choose_unit(rows[column], JOULE_UNITS) if rows["unit"].nunique() < 2 else (1.0, "J")
