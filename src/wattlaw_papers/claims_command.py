"""``wattlaw claims``."""

import json
from collections import Counter
from operator import attrgetter
from typing import Any

from wattlaw.api import results
from wattlaw.cli.common import options as opts
from wattlaw.cli.common.console import Console
from wattlaw.report import tables
from wattlaw_papers.api import claims_of
from wattlaw_papers.published import SOURCES


@opts.asks(("pue", "grid"))
def claims(
    stores: opts.StoreArguments,
    energy_scope: opts.EnergyScopeOption = None,
    as_json: opts.JsonOption = False,
    strict: opts.StrictOption = False,
    **asked: Any,
) -> int:
    """Test published findings on your own runs."""
    tested = claims_of(results.open(*stores, strict=strict), energy_scope=energy_scope, **asked)
    if as_json:
        print(json.dumps(tested.to_dict()["claims"], allow_nan=False))
        return 0
    console = Console()
    for study, source in SOURCES.items():
        console.print(f"{study}: {source.citation}")
        names = ("claim", "verdict", "evidence")
        columns = [tables.text(name, attrgetter(name)) for name in names]
        of_study = [claim for claim in tested if claim.study == study]
        console.show(tables.build("claims", "", columns, of_study))
        counts = Counter(claim.verdict for claim in of_study)
        shown = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        console.print(f"{len(of_study)} claims: {shown}\n")
    console.print("Criteria: docs/papers.md, or --json.")
    return 0
