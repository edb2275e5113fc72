"""The findings of the two studies, as tested on these data."""

from collections.abc import Sequence

from wattlaw.analysis.claims.verdicts import Claim
from wattlaw.report.tables.table import Column, Table, make

STUDIES = {"mit-2022": "Frey et al. 2022", "kit-2025": "Huber et al. 2025"}


def verdicts(claims: Sequence[Claim], study: str) -> Table | None:
    """Return the claims of a study with verdict and evidence."""
    columns = [
        Column("finding", lambda claim: claim.claim, numeric=False),
        Column("verdict here", lambda claim: claim.verdict, numeric=False),
        Column("evidence", lambda claim: claim.evidence, numeric=False),
        Column("tested as", lambda claim: claim.criterion, numeric=False),
    ]
    return make(
        f"claims-{study}",
        f"Findings of {STUDIES[study]}, tested on these data",
        columns,
        [claim for claim in claims if claim.study == study],
        note="Supported: one-sided tests at 5 % put the effect inside what it is tested as. "
        "Contradicted: they put it outside. Not decidable: neither, or it was not measured.",
        command="wattlaw claims STORE --json",
        most_open=40,
    )


def by_workload(claims: Sequence[Claim]) -> Table | None:
    """Return what each workload says to each claim."""
    columns = [
        Column("finding", lambda one: one[0].claim, numeric=False),
        Column("runs of", lambda one: one[1].label, numeric=False),
        Column("verdict", lambda one: one[1].verdict, numeric=False),
        Column("evidence", lambda one: one[1].evidence, numeric=False),
    ]
    return make(
        "claims_by_workload",
        "Findings by workload",
        columns,
        [(claim, part) for claim in claims for part in claim.workloads],
        command="wattlaw claims STORE --json",
    )
