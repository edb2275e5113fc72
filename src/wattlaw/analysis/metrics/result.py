"""The base of every result: a frozen dataclass that becomes a dictionary or a table."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import date
from functools import singledispatch
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import pandas as pd

from wattlaw.common.text import short_repr
from wattlaw.study.setting import Setting

Row = TypeVar("Row")


@singledispatch
def shown(result: object) -> str:
    """Return a result as text; ``report.renderers`` has those that are shown to users."""
    return repr(result)


@singledispatch
def shown_in_notebook(_: object) -> str | None:
    return None


class Result:
    """A frozen dataclass with ``to_dict`` and ``to_frame``; ``repr=False`` is internal."""

    #: Properties and class constants that ``to_dict`` adds to the fields.
    properties: ClassVar[tuple[str, ...]] = ()
    #: The field that holds the rows of ``to_frame``; None where the result is one row.
    rows_field: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__repr__ = short_repr  # type: ignore[method-assign]  # else it would be the dataclass's

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python values that JSON can represent.

        Numbers that are missing or infinite become None. Tables become lists of rows.
        """
        names = [item.name for item in fields(self) if item.repr]  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in (*names, *self.properties)}

    def to_frame(self) -> pd.DataFrame:
        """Return a table: the rows of the result or, of a single result, one row.

        The values of a nested result have columns such as ``breakpoint.at``.
        """
        rows = (self,) if self.rows_field is None else getattr(self, self.rows_field)
        if isinstance(rows, pd.DataFrame):
            return rows.copy()
        records = [row.to_dict() for row in rows]
        nested = {name for row in records for name, value in row.items() if isinstance(value, dict)}
        for row in records:
            for name in nested:
                if row.get(name, ...) is None:
                    del row[name]
        return pd.json_normalize(records)

    def __str__(self) -> str:
        return shown(self)

    def _repr_html_(self) -> str | None:
        return shown_in_notebook(self)


class Rows(Result, Generic[Row]):
    """A result that is a sequence of its ``rows``: it has a length, indices and slices."""

    rows_field = "rows"

    rows: tuple[Row, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]


@dataclass(frozen=True)
class Caution(Result):
    """What a reader of a result must know; ``code``, unlike ``text``, never changes."""

    code: str
    text: str

    def __str__(self) -> str:
        return self.text


def plain(value: Any) -> Any:  # noqa: PLR0911 (one line for each kind of value)
    """Return a value as JSON can represent it; a missing or infinite number becomes None."""
    if isinstance(value, Result | Setting):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, pd.DataFrame):
        return plain(value.to_dict("records"))
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is pd.NA or value is pd.NaT:
        return None
    return value.isoformat() if isinstance(value, date) else value
