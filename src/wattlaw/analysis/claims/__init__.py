"""The findings of the two studies as tests on other data, with criteria fixed in advance."""

from wattlaw.analysis.claims import batch, energy, limits, scaling
from wattlaw.analysis.claims.verdicts import MIT, Claim
from wattlaw.analysis.findings import Findings

CLAIMS = (*scaling.CLAIMS, *limits.CLAIMS, *energy.CLAIMS, *batch.CLAIMS)


def check_claims(findings: Findings) -> tuple[Claim, ...]:
    """Return every claim with its verdict, those of Frey et al. 2022 first.

    Claims on carbon need the ``footprint`` of the findings.
    """
    ordered = sorted(CLAIMS, key=lambda claim: claim.study != MIT)
    return tuple(claim.evaluate(findings) for claim in ordered)
