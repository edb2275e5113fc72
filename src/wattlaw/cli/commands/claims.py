"""``wattlaw claims``."""

import json
from collections import Counter

from rich.table import Table
from rich.text import Text

from wattlaw.analysis.claims import CONTRADICTED, NOT_DECIDABLE, SIMULATED, SUPPORTED
from wattlaw.api import results
from wattlaw.api.claims import Claims
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.reference.published import SOURCES

_VERDICT_STYLES = {
    SUPPORTED: "green", CONTRADICTED: "red", SIMULATED: "yellow", NOT_DECIDABLE: "dim",
}  # fmt: skip


def claims(
    stores: opts.StoreArguments,
    pue: opts.PueOption = None,
    grid: opts.GridOption = None,
    as_json: opts.JsonOption = False,
    strict: opts.StrictOption = False,
) -> int:
    """Test published findings on your own runs."""
    tested = results.open(*stores, strict=strict).claims(pue=pue, grid=grid)
    if as_json:
        print(json.dumps(tested.to_dict()["claims"], allow_nan=False))
    else:
        _show_claims(tested)
    return 0


def _show_claims(claims: Claims) -> None:
    console = Console()
    for study, source in SOURCES.items():
        claims_of_study = [claim for claim in claims if claim.study == study]
        table = Table(title=f"{study}: {source.citation}", title_justify="left")
        table.add_column("claim", ratio=2, overflow="fold")
        table.add_column("verdict", min_width=len(NOT_DECIDABLE), overflow="fold")
        table.add_column("evidence", ratio=4, overflow="fold")
        for claim in claims_of_study:
            verdict = Text(claim.verdict, _VERDICT_STYLES[claim.verdict])
            table.add_row(claim.claim, verdict, claim.evidence)
        console.print(table)
        counts = Counter(claim.verdict for claim in claims_of_study)
        shown = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _VERDICT_STYLES)
        console.print(f"{len(claims_of_study)} claims: {shown}\n")
    console.print("Criteria: docs/claims.md, or --json.")
