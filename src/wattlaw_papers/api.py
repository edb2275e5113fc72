"""The published findings, tested on the runs of a store."""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from wattlaw.analysis.metrics.result import Result
from wattlaw.api.questions import read_question
from wattlaw.api.results import Results
from wattlaw.api.store_tables import checked_scope
from wattlaw.common.errors import BadInput
from wattlaw.common.text import join_names, quote
from wattlaw.report.tables import as_html
from wattlaw_papers.claims import check_claims
from wattlaw_papers.claims.verdicts import Claim


@dataclass(frozen=True)
class Claims(Result):
    """Published claims with their verdicts; ``claims["name"]`` is a single claim."""

    claims: tuple[Claim, ...]

    def __iter__(self) -> Iterator[Claim]:
        return iter(self.claims)

    def __len__(self) -> int:
        return len(self.claims)

    def __getitem__(self, name: str) -> Claim:
        by_name = {claim.name: claim for claim in self.claims}
        if name not in by_name:
            raise BadInput(f"claim: given {quote(name)}; allowed: {join_names(list(by_name))}")
        return by_name[name]

    def to_frame(self) -> pd.DataFrame:
        """Return a row per claim: study, name, claim, verdict, evidence, criterion."""
        columns = ["study", "name", "claim", "verdict", "evidence", "criterion"]
        rows = [[getattr(claim, column) for column in columns] for claim in self.claims]
        return pd.DataFrame(rows, columns=columns)

    def _repr_html_(self) -> str:
        return as_html(self.to_frame()[["study", "claim", "verdict", "evidence"]])


def claims_of(
    results: Results,
    *,
    energy_scope: str | None = None,
    pue: float | None = None,
    grid: str | float | None = None,
) -> Claims:
    """Test the published findings of the two studies on the runs of ``wattlaw.open``.

    Parameters
    ----------
    results
        The runs.
    energy_scope
        As in ``Results.advise``. By default energies count what the study of a claim counted.
    pue, grid
        As in ``Results.advise``. The claims on carbon need them.
    """
    footprint = read_question({"pue": pue, "grid": grid}).footprint
    tables, scope = (results.runs, results.epochs), checked_scope(energy_scope)
    return Claims(check_claims(*tables, footprint=footprint, energy_scope=scope))
