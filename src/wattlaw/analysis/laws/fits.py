"""Fit all laws to many series, with the reasons where a series has none."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import pandas as pd

from wattlaw.analysis.groups import Group, groups
from wattlaw.analysis.laws.breakpoint import SIGNIFICANT, Breakpoint, fit_breakpoint
from wattlaw.analysis.laws.observations import observe
from wattlaw.analysis.laws.power_law import PowerLaw, power_law
from wattlaw.analysis.laws.selection import Selection, selection
from wattlaw.analysis.result import Result, plain
from wattlaw.errors import BadInput, Refused


@dataclass(frozen=True)
class SeriesFit(Result):
    """The laws of one series: its power law, the selected law, and its breakpoint.

    ``refusal`` says why there is no law; ``no_breakpoint_reason`` says why there is no
    ``breakpoint``: none was found, or the data cannot tell. ``breakpoint_p`` is the
    test's p value, None if the data do not allow the test. ``unit`` is the work that y refers to:
    an epoch, a sample, a step or a run; None if unknown. ``nodes`` has the least and the most nodes
    of the runs, None if unknown: between nodes, communication takes another network, so a law of
    runs on one node does not hold on several.
    """

    group: Group
    law: PowerLaw | None
    refusal: str | None
    selection: Selection | None
    breakpoint: Breakpoint | None
    breakpoint_p: float | None
    no_breakpoint_reason: str | None
    unit: str | None = None
    nodes: tuple[int, int] | None = None

    @classmethod
    def refused(cls, group: Group, reason: str) -> "SeriesFit":
        """Return a series without a law."""
        return cls(group, None, reason, None, None, None, None)

    def to_dict(self) -> dict[str, Any]:
        """Return the row that ``wattlaw fit --json`` prints; all rows have the same keys."""
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
class SeriesFits(Result):
    """One fit per series."""

    rows_field = "rows"

    rows: tuple[SeriesFit, ...]

    @property
    def laws(self) -> tuple[tuple[Group, PowerLaw], ...]:
        """Return the groups that have a law, and the law."""
        return tuple((row.group, row.law) for row in self.rows if row.law is not None)

    @property
    def refusals(self) -> tuple[tuple[Group, str], ...]:
        """Return the groups that have none, and the reason."""
        return tuple((row.group, row.refusal) for row in self.rows if row.refusal is not None)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per series; a series without a law has a ``reason``."""
        frame = super().to_frame()
        return frame.astype({"n": "Int64"}) if self.rows else frame


def fit_groups(frame: pd.DataFrame, x: str, y: str, by: Sequence[str]) -> SeriesFits:
    """Fit all laws of two numeric columns to each group of rows, by the columns ``by``.

    A missing value is a group of its own.

    Raises
    ------
    BadInput
        A column is not there or not numeric; the line lists what there is.
    """
    if x == y:
        raise BadInput(f"x and y are both {x!r}; allowed: two different columns")
    for name in (x, y, *by):
        if name not in frame.columns:
            available = ", ".join(repr(str(column)) for column in frame.columns)
            raise BadInput(f"no column {name!r}; allowed: {available}")
    for name in (x, y):
        column = frame[name]
        if len(frame) and not pd.api.types.is_numeric_dtype(column):
            wrong = column[pd.to_numeric(column, errors="coerce").isna() & column.notna()]
            first = f": row {wrong.index[0]} is {str(wrong.iloc[0])!r}" if len(wrong) else ""
            raise BadInput(f"column {name!r} is not numeric{first}")
    return SeriesFits(tuple(_fit(group, rows[x], rows[y]) for group, rows in groups(frame, by)))


def _fit(group: Group, x: pd.Series, y: pd.Series) -> SeriesFit:
    try:
        data = observe(*(values.to_numpy(float, na_value=float("nan")) for values in (x, y)))
        law, selected = power_law(data), selection(data)
    except Refused as refusal:
        return SeriesFit.refused(group, str(refusal))
    try:
        bend, p_value = fit_breakpoint(data)
    except Refused as refusal:
        return SeriesFit(group, law, None, selected, None, None, str(refusal))
    no_breakpoint_reason = (
        None if bend else f"no breakpoint detected (p = {p_value:.2g}, above {SIGNIFICANT:g})"
    )
    return SeriesFit(group, law, None, selected, bend, p_value, no_breakpoint_reason)
