"""The account of the rows of an imported file: read, left out with a reason, or rejected."""

from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattlaw.common.formatting import plural
from wattlaw.store.import_tables import RejectedRow

#: The states of a row; reasons why rows are left out are numbered from ``_FIRST_REASON``.
_NO_ROW, _PENDING, _HEADER, _READ, _REJECTED, _FIRST_REASON = range(6)
_MAX_REASONS = 256 - _FIRST_REASON


@dataclass(frozen=True)
class LeftOut:
    reason: str
    count: int
    first: int  # number of the first one, from 1
    unit: str  # what is counted: line, row, entry, job

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.unit} {self.first:,} left out: {self.reason}"
        counted = plural(self.count, self.unit)
        return f"{counted} left out, the first is {self.unit} {self.first:,}: {self.reason}"


class Account:
    """Counts the rows of a file that were read and those that were left out. The readers of
    ``Source`` add each row; the importer calls ``read``, ``leave_out`` or ``reject`` for it, and
    the last call counts. A row without a call is left out as not used: none is lost unnoticed."""

    def __init__(self) -> None:
        self.unit = "line"
        self.rejected: list[RejectedRow] = []
        self._states = array("B")
        self._reasons: dict[str, int] = {}

    def add(self, row: int) -> None:
        self._set(row, _PENDING)

    def header(self, row: int) -> None:
        self._set(row, _HEADER)

    def read(self, *rows: int) -> None:
        for row in rows:
            self._set(row, _READ)

    def leave_out(self, reason: str, *rows: int) -> None:
        """Count rows as left out; ``reason`` is one text for all rows of a kind, without values."""
        if reason not in self._reasons and len(self._reasons) >= _MAX_REASONS - 1:
            reason = "other reasons"
        state = self._reasons.setdefault(reason, _FIRST_REASON + len(self._reasons))
        for row in rows:
            self._set(row, state)

    def reject(self, row: int, reason: str) -> None:
        """Count a row as rejected: it should have become a run. The exit code is 1."""
        self._set(row, _REJECTED)
        self.rejected.append(RejectedRow(row, reason))

    def is_read(self, row: int) -> bool:
        return row < len(self._states) and self._states[row] == _READ

    @property
    def headers(self) -> list[int]:
        return [int(row) for row in np.flatnonzero(self._array() == _HEADER)]

    @property
    def rows_read(self) -> int:
        return int(np.count_nonzero(self._array() == _READ))

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        known, states = [], self._array()
        for reason, state in {"not used by this format": _PENDING, **self._reasons}.items():
            is_kind = states == state
            if is_kind.any():
                first, count = int(is_kind.argmax()), int(is_kind.sum())
                known.append(LeftOut(reason, count, first, self.unit))
        return tuple(sorted(known, key=lambda each: each.first))

    def texts(self) -> list[str]:
        """Return a line for each reason, for the notes of the runs; one for all rejected rows."""
        texts = [str(each) for each in self.left_out]
        if self.rejected:
            first = min(self.rejected, key=lambda row: row.line)
            count = len({row.line for row in self.rejected})
            texts.append(str(LeftOut(first.reason, count, first.line, self.unit)))
        return texts

    def _set(self, row: int, state: int) -> None:
        missing = row + 1 - len(self._states)
        if missing > 0:
            self._states.frombytes(bytes(missing + len(self._states) // 2))
        self._states[row] = state

    def _array(self) -> Any:
        return np.frombuffer(self._states or b"\0", np.uint8)
