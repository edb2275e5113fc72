"""Select a law for a series by Akaike's criterion and by the prediction of the largest count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.curves import LAWS, POWER, Curve, aicc, fit_curve
from wattlaw.analysis.laws.observations import Observations
from wattlaw.analysis.result import Result, plain
from wattlaw.analysis.statistics import Floats
from wattlaw.errors import Refused

#: Laws this near to the lowest AICc are as good (Burnham & Anderson 2002, section 2.6).
AICC_TOLERANCE = 2.0
#: If even the best law lacks fit at this level, runs of a count are not observations of their own.
LACK_OF_FIT_LEVEL = 0.05


@dataclass(frozen=True)
class Selection(Result):
    """The laws that were tried on a series, and the one that was taken.

    ``table`` has a row per law:

    ``law, k``
        Its name; its constants and the noise.
    ``aicc, weight``
        Akaike's criterion corrected for few observations, and the law's share of the evidence,
        exp(-difference / 2) over the sum of it. Missing where it is undefined (``n <= k + 1``).
    ``holdout_error``
        The law is fitted without the largest count and predicts it: predicted / measured - 1
        (geometric mean of repeats). Below zero, the predicted time is too short.
    ``reason``
        Why one of these values is missing; None if none is.

    ``observations`` says what the criterion counted: "runs", or "counts" where even the best law
    leaves deviations that a count's repeats share.
    """

    rows_field = "table"

    best: Curve
    curves: tuple[Curve, ...]
    table: pd.DataFrame = field(compare=False)
    observations: str
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Return the values of the best law, how it was selected, and ``laws``, the table."""
        laws = plain(self.table)
        best = next(row for row in laws if row["law"] == self.best.law)
        return {
            **self.best.to_dict(),
            **{name: best[name] for name in ("aicc", "weight", "holdout_error")},
            "observations": self.observations,
            "reason": self.reason,
            "laws": laws,
        }


def select(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Selection:
    """Fit all laws of ``curves.LAWS`` and select one.

    Taken is the law with the lowest AICc; of laws within 2 of it, the one with fewest constants,
    then the lowest. Where the criterion is undefined for all (fewer than five observations), taken
    is the law with the lowest prediction error at the largest count. With too few counts for that,
    the power law is taken.

    Raises
    ------
    Refused
        A value is not above zero, or fewer than three distinct x are left.
    """
    return selection(obs.observe(x, y))


def selection(data: Observations) -> Selection:
    """Take a law for observations."""
    fitted: dict[str, Curve] = {}
    refused: dict[str, str] = {}
    for law in LAWS:
        try:
            fitted[law.name] = fit_curve(law, data)
        except Refused as refusal:
            refused[law.name] = str(refusal)
    criteria = {name: curve.aicc for name, curve in fitted.items()}
    unit, n = "runs", data.n
    if (lowest := _lowest(criteria)) and _has_lack_of_fit(fitted[lowest], data):
        unit, n = "counts", len(data.x)
        criteria = {
            name: aicc(curve.between * n / data.n, n, curve.k) for name, curve in fitted.items()
        }
    errors, not_predicted = _holdout_errors(fitted, data)
    best, reason = _select_law(fitted, criteria, errors)
    weights = _weights(criteria)
    rows = []
    for law in LAWS:
        name, k = law.name, law.constants + 1
        undefined = None
        if name in fitted and criteria[name] is None:
            needs = f"{k} constants with the noise need {k + 2}"
            undefined = f"AICc is undefined: {n} {unit}, {needs}"
        reasons = (refused.get(name), undefined, not_predicted.get(name))
        reason_text = "; ".join(filter(None, reasons)) or None
        rows.append((name, k, criteria.get(name), weights.get(name), errors.get(name), reason_text))
    columns = ["law", "k", "aicc", "weight", "holdout_error", "reason"]
    table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[2:5], float))
    return Selection(fitted[best], tuple(fitted.values()), table, unit, reason)


def _has_lack_of_fit(curve: Curve, data: Observations) -> bool:
    p_value = obs.lack_of_fit(data, curve.between, curve.k - 1)
    return p_value is not None and p_value < LACK_OF_FIT_LEVEL


def _known(criteria: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in criteria.items() if value is not None}


def _lowest(criteria: dict[str, float | None]) -> str | None:
    known = _known(criteria)
    return min(known, key=known.__getitem__, default=None)


def _select_law(
    fitted: dict[str, Curve], criteria: dict[str, float | None], errors: dict[str, float]
) -> tuple[str, str]:
    """Return the name of the law to take, and why."""
    known, lowest = _known(criteria), _lowest(criteria)
    if lowest is not None:
        limit = known[lowest] + AICC_TOLERANCE
        near = [name for name, value in known.items() if value <= limit]
        best = min(near, key=lambda name: (fitted[name].k, known[name]))
        if len(near) == 1:
            return best, "lowest AICc by more than 2"
        others = ", ".join(name for name in near if name != best)
        if best != lowest:
            return best, f"AICc does not separate it from {others}; it has fewer constants"
        return best, f"lowest AICc; {others} within {AICC_TOLERANCE:g} of it"
    if errors:
        best = min(errors, key=lambda name: abs(errors[name]))
        return best, "too few observations for AICc; lowest prediction error at the largest count"
    return POWER.name, "too few worker counts to compare laws"


def _holdout_errors(
    fitted: dict[str, Curve], data: Observations
) -> tuple[dict[str, float], dict[str, str]]:
    """Return each law's error at the largest count when fitted without it, or why there is none."""
    smaller, largest = data.without_largest(), data.x[-1:]
    errors, reasons = {}, {}
    for law in LAWS:
        if law.name not in fitted:
            continue
        try:
            predicted = fit_curve(law, smaller).log_mean(largest)[0]
        except Refused as refusal:
            reasons[law.name] = f"without the largest: {refusal}"
            continue
        with np.errstate(over="ignore"):
            error = float(np.expm1(predicted - data.means[-1]))
        if math.isfinite(error):
            errors[law.name] = error
        else:
            reasons[law.name] = "without the largest: its prediction there overflows"
    return errors, reasons


def _weights(criteria: dict[str, float | None]) -> dict[str, float]:
    known = _known(criteria)
    least = min(known.values(), default=0.0)
    evidence = {name: math.exp((least - value) / 2) for name, value in known.items()}
    return {name: value / sum(evidence.values()) for name, value in evidence.items()}
