"""Does a cap change the exponent, or only the offset? Analysis of covariance over limits.

The model is ``ln t = a_l - beta_l ln N`` with an offset and an exponent for each limit l and one
residual variance. Frey et al. 2022 find that caps and clocks move alpha and not beta. That two
exponents do not differ *significantly* is no evidence that they are equal, so there is a test of
equivalence in addition to the test of a difference: two one-sided tests (Schuirmann 1987, J.
Pharmacokinetics and Biopharmaceutics 15) against a margin that is stated.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.laws.limit_effects import Limit, at_limit, distinct_limits
from wattlaw.analysis.laws.observations import MIN_DISTINCT, POOLING_LEVEL
from wattlaw.analysis.laws.power_law import power_law_design
from wattlaw.analysis.metrics.estimates import ERROR, LEVEL, ROUNDING, LeastSquares, f_test_p
from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import Refused
from wattlaw.common.formatting import plural
from wattlaw.study.labels import limit_label
from wattlaw_papers.claims.effects import varying_only

TIME = "time_s"
#: Exponents that differ by less are equal: a factor of 1.2 in time over one of 40 in GPUs.
MARGIN = 0.05
RUNS, MEANS, BLOCKS = "runs", "means of each cell", "means of each cell, GPU counts as blocks"
SAME, DIFFERENT, UNKNOWN = "same beta", "different beta", "cannot tell"
_ROUNDING = 1e-8  # of residuals of exact data, relative to the spread of ln t


@dataclass(frozen=True)
class LimitComparison(Result):
    """The effect of the limits of a family on its law.

    ``difference_p`` is of the F test that all exponents are equal, None if the data are exact;
    ``equivalence_p`` the greatest of the limits' two one-sided tests against the reference: all
    must reject, so that no correction for their number is needed.
    """

    rows_field = "limits"
    properties = ("sentence",)

    limit: Limit
    verdict: str
    difference_p: float | None
    equivalence_p: float | None
    basis: str
    limits: pd.DataFrame

    @property
    def sentence(self) -> str:
        reference, others = limit_label(self.limit, self.limits["limit"].iloc[0]), self.limits[1:]
        row = others.iloc[int(others["beta_difference"].abs().argmax())]
        most = (
            f"at most {row['beta_difference']:+.3f} ({limit_label(self.limit, row['limit'])}; 90 % "
            f"interval {row['beta_difference_low']:+.3f} to {row['beta_difference_high']:+.3f})"
        )
        if self.verdict == SAME:
            within = f"within {MARGIN:g}: it differs by {most}"
            return f"The exponent is the same as {reference} {within}."
        start = "The exponents differ"
        if self.verdict == UNKNOWN:
            start = f"These data do not show whether the exponents differ by more than {MARGIN:g}"
        return f"{start}: from that of {reference} by {most}."


def compare_limits(series_rows: pd.DataFrame, limit: Limit = "power_limit_w") -> LimitComparison:
    """Compare the scaling laws of the time of one family of ``scaling_series`` under its limits.

    Limits with fewer than three GPU counts are left out; with fewer than two limits, the comparison
    is refused. ``limits`` of the result has a row per limit, the reference (no limit, else the
    highest) first: the ``limit``; ``beta`` of its own law; ``beta_difference`` to the reference
    with its 90 % interval (within the margin exactly where both one-sided tests reject at 5 %) and
    ``equivalence_p``. "same beta" needs equivalence; "different beta" a difference at 5 % without.

    Residuals are taken as independent and normal in ln t, with one variance. Where a GPU count
    deviates from the law (a lack-of-fit F test rejects at ``POOLING_LEVEL``), or repeats are all
    the same, they are averaged first, and every count has an effect of its own that all limits
    share (if they share enough counts); ``basis`` says so.
    """
    rows = _usable_rows(series_rows, limit)
    limits = distinct_limits(rows[limit])
    parts = [at_limit(rows, limit, value).assign(code=i) for i, value in enumerate(limits)]
    logs = pd.concat(parts, ignore_index=True)[["code", "gpus", TIME]]
    logs = logs.assign(x=np.log(logs["gpus"].astype(float)), y=np.log(logs[TIME].astype(float)))
    of_limits = [
        LeastSquares(power_law_design(part["gpus"].to_numpy(float)), part["y"].to_numpy())
        for _, part in logs.groupby("code")
    ]
    basis, model = _fitted(logs, len(limits))
    slopes = slice(len(limits) - 1, 2 * (len(limits) - 1))
    changes, errors = -model.params[slopes], model.errors[slopes]
    half = special.stdtrit(model.freedom, LEVEL) * errors
    with np.errstate(divide="ignore"):
        p_values = special.stdtr(model.freedom, -np.divide(MARGIN - np.abs(changes), errors))
    columns = {
        "limit": np.array(limits, dtype=float),
        "beta": [-fit.params[1] for fit in of_limits],
        "beta_difference": [0.0, *changes],
        "beta_difference_low": [0.0, *(changes - half)],
        "beta_difference_high": [0.0, *(changes + half)],
        "equivalence_p": [np.nan, *p_values],
    }
    difference_p = None  # of exact data, whose residuals are rounding
    if np.sqrt(model.variance) > _ROUNDING * float(logs["y"].std()):
        values, gram = model.params[slopes], model.gram[slopes, slopes]
        explained = float(values @ np.linalg.pinv(gram) @ values)
        difference_p = f_test_p(explained, len(values), model.squares, model.freedom)
    frame = pd.DataFrame(columns)
    equivalence_p, verdict = float(frame["equivalence_p"].max()), UNKNOWN
    if equivalence_p < ERROR:
        verdict = SAME
    elif difference_p is None or difference_p < ERROR:
        verdict = DIFFERENT
    return LimitComparison(limit, verdict, difference_p, equivalence_p, basis, frame)


def _usable_rows(rows: pd.DataFrame, limit: Limit) -> pd.DataFrame:
    rows = varying_only(rows, limit)
    counts = rows.groupby(limit, dropna=False)["gpus"].transform("nunique")
    usable, few = rows[counts >= MIN_DISTINCT], rows[counts < MIN_DISTINCT]
    if (number := usable[limit].nunique(dropna=False)) < 2:
        left_out = ", ".join(
            f"{limit_label(limit, at)}: {at_limit(few, limit, at)['gpus'].nunique()} GPU counts"
            for at in distinct_limits(few[limit])
        )
        details = f" ({left_out})" if left_out else ""
        raise Refused(
            f"{plural(number, 'limit')} with {MIN_DISTINCT} GPU counts{details}: a comparison "
            f"of exponents needs two; run the same {MIN_DISTINCT} counts under each limit"
        )
    return usable


def _fitted(logs: pd.DataFrame, limits: int) -> tuple[str, LeastSquares]:
    def fitted(rows: pd.DataFrame, *, blocks: bool = False) -> LeastSquares:
        # Columns: shifts of the limits, differences of slopes, and what limits share.
        x = rows["x"].to_numpy(float)
        shifts = [(rows["code"] == i).to_numpy(float) for i in range(1, limits)]
        shared = [np.ones_like(x), x]
        if blocks:
            counts = sorted(rows["gpus"].unique())
            shared = [(rows["gpus"] == count).to_numpy(float) for count in counts]
        design = np.column_stack([*shifts, *(shift * x for shift in shifts), *shared])
        return LeastSquares(design, rows["y"].to_numpy(float))

    model = fitted(logs)
    cells = logs.groupby(["code", "gpus"])["y"]
    pure_error = float(((logs["y"] - cells.transform("mean")) ** 2).sum())
    own_laws, repeats = len(cells) - 2 * limits, len(logs) - len(cells)
    if own_laws < 1 or repeats < 1:
        return RUNS, model
    lack = max(model.squares - pure_error, 0.0)
    is_identical = pure_error <= len(logs) * ROUNDING**2  # no information about the noise
    if not is_identical and f_test_p(lack, own_laws, pure_error, repeats) >= POOLING_LEVEL:
        return RUNS, model
    means = logs.groupby(["code", "gpus"], as_index=False)[["x", "y"]].mean()
    model = fitted(means, blocks=True)
    if 0 < model.freedom == len(means) - model.design.shape[1]:
        return BLOCKS, model
    return MEANS, fitted(means)
