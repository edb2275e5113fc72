"""``claims``: the published findings, tested on the user's own runs."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from wattlaw.analysis.claims import CONTRADICTED, NOT_DECIDABLE, SUPPORTED, Claim, check_claims
from wattlaw.analysis.findings import analyse
from wattlaw.cli.console import Console
from wattlaw.cli.footprints import footprint_of
from wattlaw.reference.published import SOURCES
from wattlaw.store.tables import read_stores

_STYLES = {SUPPORTED: "green", CONTRADICTED: "red", NOT_DECIDABLE: "dim"}


def claims(
    stores: Sequence[Path], *, pue: float | None = None, grid: str | None = None, as_json: bool
) -> int:
    """Print each claim with its verdict and evidence.

    ``pue`` and ``grid`` (g CO2e per kWh, or a region) are what the claim on carbon needs.
    """
    footprint = footprint_of(pue, grid, None, None)
    found = check_claims(analyse(*read_stores(stores), footprint=footprint))
    if as_json:
        print(json.dumps([claim.to_dict() for claim in found], allow_nan=False))
    else:
        _show(found)
    return 0


def _show(found: Sequence[Claim]) -> None:
    console = Console()
    for study, source in SOURCES.items():
        of_study = [claim for claim in found if claim.study == study]
        table = Table(title=f"{study}: {source.citation}", title_justify="left")
        table.add_column("claim", ratio=2, overflow="fold")
        table.add_column("verdict", min_width=len(NOT_DECIDABLE), overflow="fold")
        table.add_column("evidence", ratio=4, overflow="fold")
        for claim in of_study:
            verdict = Text(claim.verdict, _STYLES[claim.verdict])
            table.add_row(claim.claim, verdict, claim.evidence)
        console.print(table)
        counts = Counter(claim.verdict for claim in of_study)
        words = ", ".join(f"{counts[verdict]} {verdict}" for verdict in _STYLES)
        console.print(f"{len(of_study)} claims: {words}\n")
    console.print("Criteria: docs/claims.md, or --json.")
