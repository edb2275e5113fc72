"""Predictions of settings that were not measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from wattlaw.analysis.predict import job
from wattlaw.analysis.predict.grid import BASELINE
from wattlaw.api.display import as_html
from wattlaw.common.errors import BadInput
from wattlaw.common.text import quote
from wattlaw.report.tables import Table
from wattlaw.report.topics import prediction as text
from wattlaw.study.base import POWER_PROFILES


@dataclass(frozen=True)
class Predictions(job.Predictions):
    """Predictions, one for each setting and kind of hardware, with 90 % intervals.

    ``print(predictions)`` shows them with what they rest on.
    """

    @property
    def table(self) -> Table | None:
        """The predictions as a table of text."""
        return text.table(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the predictions rest on, and the measurement that would narrow them most."""
        return text.notes(self)

    def __str__(self) -> str:
        return "\n".join([*self._frame().to_string(index=False).splitlines(), *self._lines()])

    def _repr_html_(self) -> str:
        return as_html(self._frame(), self._lines())

    def _frame(self) -> pd.DataFrame:
        return pd.DataFrame() if self.table is None else self.table.to_frame()

    def _lines(self) -> list[str]:
        title = [] if self.table is None else [f"{self.table.title}."]
        return [*title, *self.notes, *(f"Warning: {warning}" for warning in self.warnings)]


def baseline_setting(value: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the settings of a baseline such as ``"gpus=4,global_batch=256"``.

    Raises
    ------
    BadInput
        The text is not a list of settings with numbers above 0 or a power profile.

    Examples
    --------
    >>> baseline_setting("gpus=4, global_batch=256")
    {'gpus': 4, 'global_batch': 256}
    """
    if not isinstance(value, str):
        return value
    values: dict[str, Any] = {}
    for part in value.split(","):
        name, _, text_of_number = (word.strip() for word in part.partition("="))
        if name == "power_profile" and text_of_number in POWER_PROFILES and name not in values:
            values[name] = text_of_number
            continue
        try:
            read = float(text_of_number)
        except ValueError:
            read = float("nan")
        if name not in BASELINE or not 0 < read < float("inf") or name in values:
            raise BadInput(
                f"baseline: given {quote(part)}; allowed: such as gpus=4,global_batch=256, with "
                f"{', '.join(BASELINE)}"
            )
        values[name] = int(read) if read.is_integer() else read
    return values
