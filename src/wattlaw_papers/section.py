"""Published claims of the two studies, tested on these data."""

from collections import Counter
from collections.abc import Iterator, Sequence

from wattlaw.analysis.findings import Findings
from wattlaw.report import tables
from wattlaw_papers.claims.verdicts import CONTRADICTED, NOT_DECIDABLE, SIMULATED, SUPPORTED, Claim
from wattlaw_papers.published import SOURCES

_COMMAND = "wattlaw claims STORE --json"
#: The summary names the supported claims if there are at most this number.
_MAX_NAMED = 4


def verdicts(claims: Sequence[Claim], study: str) -> tables.Table | None:
    """Return the claims of a study with verdict and evidence."""
    columns = [
        tables.text("claim", lambda claim: claim.claim),
        tables.text("verdict here", lambda claim: claim.verdict),
        tables.text("evidence", lambda claim: claim.evidence),
        tables.text("tested as", lambda claim: claim.criterion),
    ]
    return tables.build(
        f"claims-{study}",
        f"Claims of {SOURCES[study].name}, tested on these data",
        columns,
        [claim for claim in claims if claim.study == study],
        note="Supported: one-sided tests at 5 % show the effect inside the tested range. "
        "Contradicted: they show it outside. Not decidable: neither, or it was not measured. "
        "Simulated: only simulated runs could be tested, which show what the simulator assumes.",
        command=_COMMAND,
        max_open_rows=40,
    )


def by_workload(claims: Sequence[Claim]) -> tables.Table | None:
    """Return the verdict of each workload on each claim."""
    columns = [
        tables.text("claim", lambda row: row[0].claim),
        tables.text("runs of", lambda row: row[1].label),
        tables.text("verdict", lambda row: row[1].verdict),
        tables.text("evidence", lambda row: row[1].evidence),
    ]
    rows = [(claim, part) for claim in claims for part in claim.workloads]
    return tables.build("claims_by_workload", "Claims by workload", columns, rows, command=_COMMAND)


def claim_sentences(findings: Findings, claims: Sequence[Claim]) -> Iterator[str]:
    """Yield how many claims of each study have which verdict, and name some of them."""
    for study in dict.fromkeys(claim.study for claim in claims):
        in_study = [claim for claim in claims if claim.study == study]
        counts = Counter(claim.verdict for claim in in_study)
        text = (
            f"Of {len(in_study)} claims of {SOURCES[study].name}: {counts[SUPPORTED]} supported, "
            f"{counts[CONTRADICTED]} contradicted, {counts[NOT_DECIDABLE]} not decidable from "
            "these data."
        )
        if counts[SIMULATED]:
            text += f" {counts[SIMULATED]} were tested on simulated runs alone and are not scored."
        if "estimated" in (findings.energy or ""):
            text += " Energies are estimated, so claims about energy are not tested by measurement."
        for verdict, most in ((CONTRADICTED, len(in_study)), (SUPPORTED, _MAX_NAMED)):
            named = [claim.claim.rstrip(".") for claim in in_study if claim.verdict == verdict]
            if 0 < len(named) <= most:
                text += f" {verdict.capitalize()}: {'; '.join(named)}."
        yield text
