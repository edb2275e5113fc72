"""The findings of the two studies as tests on other data, with criteria fixed in advance."""

import pandas as pd

from wattlaw.study.footprint import Footprint
from wattlaw_papers.claims import cap_claims, energy_claims, quality_claims, scaling_claims
from wattlaw_papers.claims.verdicts import SCOPES, Claim, Measurements

CLAIMS = (*scaling_claims.CLAIMS, *cap_claims.CLAIMS, *energy_claims.CLAIMS, *quality_claims.CLAIMS)


def check_claims(
    runs: pd.DataFrame,
    epochs: pd.DataFrame,
    *,
    statistics: pd.DataFrame | None = None,
    footprint: Footprint | None = None,
    energy_scope: str | None = None,
) -> tuple[Claim, ...]:
    """Return every claim with its verdict, on tables of ``findings.analyse``. Energies count what
    the study of a claim counted, unless there is a scope; claims on carbon need the
    ``footprint``."""
    claims = []
    for study, scope in SCOPES.items():
        measured = Measurements.of(runs, epochs, energy_scope or scope, statistics, footprint)
        claims += [claim.evaluate(measured) for claim in CLAIMS if claim.study == study]
    return tuple(claims)
