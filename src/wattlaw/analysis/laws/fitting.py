"""Fit all laws of y against x to groups of rows, and select one law for each."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.laws import observations as obs
from wattlaw.analysis.laws.curves import LAWS, POWER, Curve, fit_curve, holdout_error
from wattlaw.analysis.laws.observations import Observations, observe
from wattlaw.analysis.laws.power_law import (
    SIGNIFICANT,
    Breakpoint,
    PowerLaw,
    fit_breakpoint,
    power_law,
)
from wattlaw.analysis.metrics.estimates import ERROR, aicc, deviance
from wattlaw.analysis.metrics.groups import Group, groups
from wattlaw.analysis.metrics.result import Result, Rows, plain
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.text import join_names, nearest

#: Laws this near to the lowest AICc are as good (Burnham & Anderson 2002, section 2.6).
AICC_TOLERANCE = 2.0


@dataclass(frozen=True)
class Selection(Result):
    """The laws that were tried on a series, and the one that was taken.

    ``table`` has a row per law: its name ``law``; ``k``, its constants and the noise; ``aicc``,
    Akaike's criterion corrected for few observations, and ``weight``, the law's share of the
    evidence, exp(-difference / 2) over the sum of it (both missing where ``n <= k + 1``);
    ``holdout_error`` of ``curves.holdout_error``; and ``reason``, why one of them is missing.

    ``observations`` is what the criterion counts: "runs", or "counts" where even the best law
    leaves deviations that the repeats of an x share.
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
    if known := {name: value for name, value in criteria.items() if value is not None}:
        lowest = fitted[min(known, key=known.__getitem__)]
        lack_of_fit_p = obs.lack_of_fit(data, lowest.between, lowest.k - 1)
        if lack_of_fit_p is not None and lack_of_fit_p < ERROR:
            # Runs of one x are not observations of their own.
            unit, n = "counts", len(data.x)
            criteria = {
                name: aicc(deviance(curve.between * n / data.n, n), n, curve.k)
                for name, curve in fitted.items()
            }
    for name, curve in fitted.items():
        if criteria[name] is None:
            needs = f"{curve.k} constants with the noise need {curve.k + 2}"
            reasons[name].insert(0, f"AICc is undefined: {n} {unit}, {needs}")
    names = pd.Series([law.name for law in LAWS])
    values = names.map(criteria).astype(float)
    evidence = np.exp((values.min() - values) / 2)
    table = pd.DataFrame(
        {
            "law": names,
            "k": [law.constants + 1 for law in LAWS],
            "aicc": values,
            "weight": evidence / evidence.sum(),
            "holdout_error": names.map(errors).astype(float),
            "reason": pd.Series(
                ["; ".join(text) or None for text in reasons.values()], dtype=object
            ),
        }
    )
    best, reason = _select_law(table, data.noun)
    return Selection(fitted[best], table, unit, reason)


def _select_law(table: pd.DataFrame, noun: str) -> tuple[str, str]:
    near = table[table["aicc"] <= table["aicc"].min() + AICC_TOLERANCE]
    if near.empty:
        errors = table.set_index("law")["holdout_error"].abs().dropna()
        if errors.empty:
            return POWER.name, f"too few {noun} to compare laws"
        return str(errors.idxmin()), "too few observations for AICc; lowest holdout error"
    names = near.sort_values(["k", "aicc"], kind="stable")["law"].tolist()
    lowest, others = near.sort_values("aicc")["law"].iloc[0], ", ".join(names[1:])
    if len(names) == 1:
        return names[0], "lowest AICc by more than 2"
    if names[0] != lowest:
        return names[0], f"AICc does not separate it from {others}; it has fewer constants"
    return names[0], f"lowest AICc; {others} within {AICC_TOLERANCE:g} of it"


@dataclass(frozen=True)
class Fit(Result):
    """The laws of y against x for one group of rows: power law, selected law and breakpoint.

    ``refusal`` says why there is no law; ``no_breakpoint_reason`` why there is no ``breakpoint``:
    none was found, or the data cannot tell. ``breakpoint_p`` is the test's p value, None if the
    data do not allow the test. ``unit`` is the work that y refers to: an epoch, a sample, a step or
    a run; None if unknown. ``nodes`` has the least and the most nodes of the runs, None if unknown:
    between nodes, communication takes another network, so a law of runs on one node does not hold
    on several.
    """

    group: Group
    law: PowerLaw | None = None
    refusal: str | None = None
    selection: Selection | None = None
    breakpoint: Breakpoint | None = None
    breakpoint_p: float | None = None
    no_breakpoint_reason: str | None = None
    unit: str | None = None
    nodes: tuple[int, int] | None = None

    @classmethod
    def of(cls, group: Group, x: pd.Series, y: pd.Series) -> "Fit":
        noun = obs.WORKERS if x.name == "gpus" else f"values of {x.name}"
        try:
            at, values = (column.to_numpy(float, na_value=np.nan) for column in (x, y))
            data = observe(at, values, noun)
            law, selected = power_law(data), selection(data)
        except Refused as refusal:
            return cls(group, refusal=str(refusal))
        bend, p_value, reason = None, None, None
        try:
            bend, p_value = fit_breakpoint(data)
            if bend is None:
                reason = f"no breakpoint detected (p = {p_value:.2g}, above {SIGNIFICANT:g})"
        except Refused as refusal:
            reason = str(refusal)
        return cls(group, law, None, selected, bend, p_value, reason)

    def to_dict(self) -> dict[str, Any]:
        """Return the row of ``wattlaw fit --json``; all rows have the same keys."""
        return {
            "group": plain(self.group),
            "unit": self.unit,
            "nodes": plain(self.nodes),
            **(self.law.to_dict() if self.law else dict.fromkeys(_LAW_KEYS)),
            "selected": plain(self.selection),
            "breakpoint": plain(self.breakpoint),
            "breakpoint_p": self.breakpoint_p,
            "no_breakpoint_reason": self.no_breakpoint_reason,
            "reason": self.refusal,
        }


_LAW_KEYS = (*(item.name for item in fields(PowerLaw) if item.repr), *PowerLaw.properties)


@dataclass(frozen=True)
class Fits(Rows[Fit]):
    """One fit of y against x per group; ``left_out`` counts the rows without a value of these."""

    rows: tuple[Fit, ...]
    x: str
    y: str
    left_out: int = 0

    @property
    def formula(self) -> str:
        x = "N" if self.x == "gpus" else self.x
        y = "t" if self.y.endswith("time_s") else self.y
        return f"{y} = α {x}^−β"

    @property
    def laws(self) -> tuple[tuple[Group, PowerLaw], ...]:
        return tuple((row.group, row.law) for row in self.rows if row.law is not None)

    @property
    def refusals(self) -> tuple[tuple[Group, str], ...]:
        return tuple((row.group, row.refusal) for row in self.rows if row.refusal is not None)

    def to_frame(self) -> pd.DataFrame:
        frame = super().to_frame()
        return frame.astype({"n": "Int64"}) if self.rows else frame


def fit_groups(frame: pd.DataFrame, x: str, y: str, by: Sequence[str]) -> Fits:
    """Fit all laws of two numeric columns to each group of rows; a missing value is a group.

    ``BadInput`` if a column is not there or not numeric.
    """
    if x == y:
        raise BadInput(f"x and y: both given {x!r}; allowed: two different columns")
    named = [("x", x), ("y", y), *(("by", name) for name in by)]
    for argument, name in named:
        if name not in frame.columns:
            available = join_names([str(column) for column in frame.columns])
            near = nearest(name, map(str, frame.columns))
            raise BadInput(f"{argument}: no column {name!r}{near}; allowed: {available}")
    for argument, name in named[:2]:
        column = frame[name]
        if len(frame) and not pd.api.types.is_numeric_dtype(column):
            wrong = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
            first = f": row {wrong.index[0]} is {str(wrong.iloc[0])!r}" if len(wrong) else ""
            raise BadInput(f"{argument}: column {name!r} is not numeric{first}")
    fits = tuple(Fit.of(group, rows[x], rows[y]) for group, rows in groups(frame, by))
    return Fits(fits, x, y, int(frame[[x, y]].isna().any(axis=1).sum()))
