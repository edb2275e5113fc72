"""What the global batch does to quality, in words."""

from collections.abc import Iterator, Sequence

from wattlaw.analysis.batch_effects import CANNOT_TELL, FALLS, NO_FALL, BatchQuality
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import ended
from wattlaw.report.tables.batch import label

#: What B_crit is, told where a sentence first names it.
_CRITICAL = (
    "the critical batch B_crit (samples per step at which epochs to the target have doubled)"
)


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
        yield f"No fall of quality is seen in {_of(len(holding), judged)}."
    undecided = sum(row.verdict == CANNOT_TELL for row in judged)
    if undecided:
        yield (
            "Whether quality falls with the global batch cannot be told for "
            f"{_of(undecided, judged)}; the table says why."
        )
    if findings.targets is not None:
        told_of = _CRITICAL
        for group, found in findings.targets.critical:
            yield f"{group['workload']}: {ended(found.sentence.replace('B_crit', told_of, 1))}"
            told_of = "B_crit"


def _of(count: int, judged: Sequence[BatchQuality]) -> str:
    if len(judged) == 1:
        return "the one group of runs"
    return f"{count} of {len(judged)} groups of runs"
