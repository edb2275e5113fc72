"""The power law t = alpha * N^-beta, fitted by ordinary least squares in logarithms.

Source of the model and of the estimator: Frey et al. 2022, "Benchmarking Resource Usage for
Efficient Distributed Deep Learning". A high R^2 is no proof of skill outside the measured range,
so every law carries its range of N.
"""

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import statsmodels.api as sm

from wattlaw.errors import BadInput, Refused

MIN_DISTINCT = 3
LEVEL = 0.95

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]
Group = dict[str, Any]


@dataclass(frozen=True)
class PowerLaw:
    """A fitted law. ``beta > 0`` means that more workers take less time.

    Intervals are at 95 %, from Student's t with ``n - 2`` degrees of freedom; None where the
    data leave none (a constant y has no R^2).
    """

    n: int
    alpha: float
    alpha_ci: Interval
    beta: float
    beta_se: float
    beta_ci: Interval
    r2: float | None
    p_value: float | None
    x_min: float
    x_max: float
    _result: Any = field(repr=False, compare=False)

    def predict(self, x: Sequence[float] | Floats) -> pd.DataFrame:
        """Return the fitted line and its 95 % confidence band at ``x``.

        Returns
        -------
        DataFrame
            Columns ``x``, ``mean``, ``low``, ``high``, in the units of y.
        """
        at = np.asarray(x, dtype=float)
        design = np.column_stack([np.ones_like(at), np.log(at)])
        found = self._result.get_prediction(design)
        low, high = np.exp(found.conf_int(alpha=1 - LEVEL)).T
        mean = np.exp(found.predicted_mean)
        return pd.DataFrame({"x": at, "mean": mean, "low": low, "high": high})

    def as_json(self) -> dict[str, Any]:
        """Return the law in the words of the command line's JSON."""
        return {
            "law": "power",
            "n": self.n,
            "alpha": _plain(self.alpha),
            "beta": _plain(self.beta),
            "beta_se": _plain(self.beta_se),
            "beta_ci": [_plain(bound) for bound in self.beta_ci],
            "r2": self.r2,
            "p_value": self.p_value,
            "x_min": self.x_min,
            "x_max": self.x_max,
        }


@dataclass(frozen=True)
class Fits:
    """The laws of the groups that allow one, and why the others do not."""

    laws: tuple[tuple[Group, PowerLaw], ...]
    refusals: tuple[tuple[Group, str], ...]

    def as_json(self) -> list[dict[str, Any]]:
        """Return the laws as the list that ``wattlaw fit --json`` prints."""
        return [{"group": group, **law.as_json()} for group, law in self.laws]


def fit_power_law(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> PowerLaw:
    """Fit ln y = ln alpha - beta ln x by ordinary least squares (statsmodels).

    Parameters
    ----------
    x, y
        Shape (n,): number of workers, and time. Pairs with a missing value are left out.

    Raises
    ------
    Refused
        A value is not above zero, or fewer than three distinct x are left.
    """
    pairs = np.column_stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)])
    pairs = pairs[~np.isnan(pairs).any(axis=1)]
    wrong = int((~(pairs > 0) | np.isinf(pairs)).any(axis=1).sum())
    if wrong:
        raise Refused(f"{wrong} of {len(pairs)} rows have a value that is not a number above 0")
    xs, ys = pairs.T
    distinct = len(np.unique(xs))
    if distinct < MIN_DISTINCT:
        raise Refused(
            f"{distinct} distinct worker counts; a law needs at least {MIN_DISTINCT}: "
            "measure more counts"
        )
    result = sm.OLS(np.log(ys), sm.add_constant(np.log(xs))).fit()
    with np.errstate(all="ignore"):  # an overflow or a zero spread becomes inf or nan, and is told
        return _law(xs, ys, result)


def _law(xs: Floats, ys: Floats, result: Any) -> PowerLaw:
    (intercept_low, intercept_high), (slope_low, slope_high) = result.conf_int(alpha=1 - LEVEL)
    constant = bool(np.ptp(ys) == 0)
    return PowerLaw(
        n=len(xs),
        alpha=float(np.exp(result.params[0])),
        alpha_ci=(float(np.exp(intercept_low)), float(np.exp(intercept_high))),
        beta=-float(result.params[1]),
        beta_se=float(result.bse[1]),
        beta_ci=(-float(slope_high), -float(slope_low)),
        r2=None if constant else _plain(result.rsquared),
        p_value=None if constant else _plain(result.pvalues[1]),
        x_min=float(xs.min()),
        x_max=float(xs.max()),
        _result=result,
    )


def fit_groups(frame: pd.DataFrame, x: str, y: str, by: Sequence[str]) -> Fits:
    """Fit one law per group of rows.

    Parameters
    ----------
    frame
        Any table.
    x, y
        Names of numeric columns.
    by
        Columns whose values tell the groups apart; a missing value is a group of its own.

    Raises
    ------
    BadInput
        A column is not there or not numeric; the line lists what there is.
    """
    if x == y:
        raise BadInput(f"x and y are both {x!r}; allowed: two different columns")
    for name in (x, y, *by):
        if name not in frame.columns:
            there = ", ".join(repr(str(column)) for column in frame.columns)
            raise BadInput(f"no column {name!r}; allowed: {there}")
    for name in (x, y):
        if len(frame) and not pd.api.types.is_numeric_dtype(frame[name]):
            first = _first_that_is_no_number(frame[name])
            raise BadInput(f"column {name!r} is not numeric{first}")
    laws, refusals = [], []
    for group, rows in groups(frame, by):
        try:
            laws.append((group, fit_power_law(rows[x].to_numpy(float), rows[y].to_numpy(float))))
        except Refused as refusal:
            refusals.append((group, str(refusal)))
    return Fits(tuple(laws), tuple(refusals))


def _first_that_is_no_number(column: pd.Series) -> str:
    wrong = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
    return f": row {wrong.index[0]} is {str(wrong.iloc[0])!r}" if len(wrong) else ""


def groups(frame: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[Group, pd.DataFrame]]:
    """Yield each group's values, as plain Python, and its rows."""
    if not by:
        if len(frame):
            yield {}, frame
        return
    for key, rows in frame.groupby(list(by), dropna=False, sort=True):
        values: tuple[Hashable, ...] = key if isinstance(key, tuple) else (key,)
        yield {name: _value(value) for name, value in zip(by, values, strict=True)}, rows


def _value(value: Any) -> Any:
    if pd.isna(value):
        return None
    if isinstance(value, date):
        return value.isoformat()
    return value.item() if isinstance(value, np.generic) else value


def _plain(value: float) -> float | None:
    """Return a number that JSON knows, None for one that is undefined."""
    return float(value) if math.isfinite(value) else None
