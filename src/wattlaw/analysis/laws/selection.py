"""Select a law for a series by Akaike's criterion and by the error at the largest count."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.curves import LAWS, POWER, Curve, aicc, fit_curve, holdout_error
from wattlaw.analysis.laws.observations import Observations
from wattlaw.analysis.result import Result, plain
from wattlaw.errors import Refused

#: Laws this near to the lowest AICc are as good (Burnham & Anderson 2002, section 2.6).
AICC_TOLERANCE = 2.0
#: If even the best law lacks fit at this level, runs of a count are not observations of their own.
LACK_OF_FIT_LEVEL = 0.05


@dataclass(frozen=True)
class Selection(Result):
    """The laws that were tried on a series, and the one that was taken.

    ``table`` has a row per law: its name ``law``; ``k``, its constants and the noise; ``aicc``,
    Akaike's criterion corrected for few observations, and ``weight``, the law's share of the
    evidence, exp(-difference / 2) over the sum of it (both missing where ``n <= k + 1``);
    ``holdout_error`` of ``curves.holdout_error``; and ``reason``, why one of them is missing.

    ``observations`` says what the criterion counted: "runs", or "counts" where even the best law
    leaves deviations that a count's repeats share.
    """

    rows_field = "table"

    best: Curve
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


def selection(data: Observations) -> Selection:
    """Fit all laws of ``curves.LAWS`` to observations, and select one.

    Taken is the law with the lowest AICc; of laws within 2 of it, the one with fewest constants,
    then the lowest. Where the criterion is undefined for all (fewer than five observations), taken
    is the law with the lowest holdout error. With too few counts for that, the power law is taken.
    """
    fitted: dict[str, Curve] = {}
    errors: dict[str, float] = {}
    reasons: dict[str, list[str]] = {law.name: [] for law in LAWS}
    for law in LAWS:
        without = ""
        try:
            fitted[law.name] = fit_curve(law, data)
            without = "without the largest: "
            errors[law.name] = holdout_error(law, data)
        except Refused as refusal:
            reasons[law.name].append(f"{without}{refusal}")
    unit, n = "runs", data.n
    criteria = {name: curve.aicc for name, curve in fitted.items()}
    known = {name: value for name, value in criteria.items() if value is not None}
    lack_of_fit_p = None
    if known:
        lowest = fitted[min(known, key=known.__getitem__)]
        lack_of_fit_p = obs.lack_of_fit(data, lowest.between, lowest.k - 1)
    if lack_of_fit_p is not None and lack_of_fit_p < LACK_OF_FIT_LEVEL:
        unit, n = "counts", len(data.x)
        criteria = {
            name: aicc(curve.between * n / data.n, n, curve.k) for name, curve in fitted.items()
        }
    for name, curve in fitted.items():
        if criteria[name] is None:
            needs = f"{curve.k} constants with the noise need {curve.k + 2}"
            reasons[name].insert(0, f"AICc is undefined: {n} {unit}, {needs}")
    table = pd.DataFrame({"law": [law.name for law in LAWS]})
    table["k"] = [law.constants + 1 for law in LAWS]
    table["aicc"] = table["law"].map(criteria).astype(float)
    evidence = np.exp((table["aicc"].min() - table["aicc"]) / 2)
    table["weight"] = evidence / evidence.sum()
    table["holdout_error"] = table["law"].map(errors).astype(float)
    table["reason"] = pd.Series(
        ["; ".join(text) or None for text in reasons.values()], dtype=object
    )
    best, reason = _select_law(table)
    return Selection(fitted[best], table, unit, reason)


def _select_law(table: pd.DataFrame) -> tuple[str, str]:
    """Return the name of the law to take, and why."""
    near = table[table["aicc"] <= table["aicc"].min() + AICC_TOLERANCE]
    if near.empty:
        errors = table.set_index("law")["holdout_error"].abs().dropna()
        if errors.empty:
            return POWER.name, "too few worker counts to compare laws"
        return str(errors.idxmin()), "too few observations for AICc; lowest holdout error"
    names = near.sort_values(["k", "aicc"], kind="stable")["law"].tolist()
    lowest, others = near.sort_values("aicc")["law"].iloc[0], ", ".join(names[1:])
    if len(names) == 1:
        return names[0], "lowest AICc by more than 2"
    if names[0] != lowest:
        return names[0], f"AICc does not separate it from {others}; it has fewer constants"
    return names[0], f"lowest AICc; {others} within {AICC_TOLERANCE:g} of it"
