"""The grid: rows from the north pole down, columns eastwards around the globe."""

import numpy as np
import numpy.typing as npt


def kept_rows(rows: int) -> int:
    """Return how many rows of a file are used: an odd number loses its last, the south pole.

    ERA5 has 721 rows from pole to pole, of which 720 make whole patches.
    """
    return rows - rows % 2


def latitudes(rows: int) -> npt.NDArray[np.float64]:
    """Return the rows' latitudes [degrees]: from +90 to -90 where the number of rows is odd.

    An even number is such a grid without its last row: 720 rows are the first of 721.
    """
    whole = rows + 1 - rows % 2
    return np.linspace(90.0, -90.0, whole)[:rows]
