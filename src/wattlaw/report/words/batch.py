"""What the global batch does to quality, in words."""

from collections.abc import Iterator

from wattlaw.analysis.batch_effects import CANNOT_TELL, FALLS, NO_FALL
from wattlaw.analysis.findings import Findings
from wattlaw.report.format import ended, plural
from wattlaw.report.tables.batch import label


def quality(findings: Findings) -> Iterator[str]:
    """Say where quality falls with the global batch, and what a target takes."""
    judged = [row for row in findings.quality.rows if len(row.means)]
    for row in judged:
        if row.verdict == FALLS:
            yield f"{label(findings, row)}: {ended(row.sentence)}"
    holding = [row for row in judged if row.verdict == NO_FALL]
    if len(holding) == 1:
        yield f"{label(findings, holding[0])}: {ended(holding[0].sentence)}"
    elif holding:
        yield f"No fall of quality is seen in {len(holding)} of {len(judged)} groups of runs."
    undecided = sum(row.verdict == CANNOT_TELL for row in judged)
    if undecided:
        yield (
            f"Whether quality falls with the global batch cannot be told for {undecided} of "
            f"{plural(len(judged), 'group')} of runs; the table says why."
        )
    if findings.targets is not None:
        for group, found in findings.targets.critical:
            yield f"{group['workload']}: {ended(found.sentence)}"
