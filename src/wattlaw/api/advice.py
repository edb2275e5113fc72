"""What to run: the recommended setting, its alternatives, and the text that explains them."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from wattlaw.analysis.advise import advice as analysis
from wattlaw.api.display import as_html
from wattlaw.report.tables import Table
from wattlaw.report.topics import advice as text


@dataclass(frozen=True)
class Advice(analysis.Advice):
    """What to run.

    ``recommended`` is None where no setting meets the constraints; ``nearest`` is
    then the option that exceeds them least. ``print(advice)`` shows the explanation.
    """

    @classmethod
    def of(cls, advice: analysis.Advice) -> "Advice":
        """Return an advice of the analysis with the methods of the API."""
        return cls(**vars(advice))

    def to_frame(self) -> pd.DataFrame:
        """Return the Pareto front of time and energy: a row per option.

        ``recommended`` marks the recommended option. The 95 % interval of a quantity is in
        ``<quantity>_low`` and ``<quantity>_high``.
        """
        plain = self.to_dict()
        options = list(plain["pareto"])
        if plain["recommended"] is not None and plain["recommended"] not in options:
            options.append(plain["recommended"])
        return pd.DataFrame(
            [
                {**_flatten(option), "recommended": option == plain["recommended"]}
                for option in options
            ]
        )

    @property
    def options(self) -> Table | None:
        """The recommended setting, the baseline, ties and the Pareto front as a table of text."""
        from wattlaw.report.topics.verdict import settings

        return settings(self)

    @property
    def summary(self) -> tuple[str, ...]:
        """What to run, what it saves, how sure that is, and what to measure next."""
        return text.summary(self)

    @property
    def line(self) -> str:
        """The summary as one line, for stores of several workloads."""
        return text.brief(self)

    @property
    def details(self) -> tuple[str, ...]:
        """The reason, what the energy counts, and all warnings."""
        return text.details(self)

    def __str__(self) -> str:
        return "\n".join([*self.summary, *self.details])

    def _repr_html_(self) -> str:
        table = self.options
        frame = pd.DataFrame() if table is None else table.to_frame()
        return as_html(frame, [*str(self).splitlines(), *([] if table is None else [table.title])])


def _flatten(option: dict[str, Any]) -> dict[str, Any]:
    """Return an option with each interval as two columns."""
    row: dict[str, Any] = {}
    for name, value in option.items():
        if name.endswith("_ci"):
            row[f"{name[:-3]}_low"], row[f"{name[:-3]}_high"] = value or (None, None)
        else:
            row[name] = value
    return row
