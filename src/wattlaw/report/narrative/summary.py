"""The summary in words: sentences made from findings, only such as the data support.

The most important comes first: what to run, how it scales, where that ends, what caps do, what
energy follows, what the batch does to quality, what the published findings are worth here, and what
to doubt.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wattlaw.analysis.claims.verdicts import CONTRADICTED, NOT_DECIDABLE, SUPPORTED, Claim
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import plural
from wattlaw.report.narrative.batch import quality
from wattlaw.report.narrative.energy import energy
from wattlaw.report.narrative.limits import limits
from wattlaw.report.narrative.running import recommended
from wattlaw.report.narrative.scaling import breakpoints, scaling
from wattlaw.report.tables.claims import STUDIES
from wattlaw.report.tables.measured import energy_reasons

#: Sentences of one kind; the rest is in the tables.
MOST = 8
#: So many supported findings are named.
_MOST_NAMED = 4


@dataclass(frozen=True)
class Sentence:
    """One sentence, what it is about, and the section that has the rest."""

    topic: str
    text: str
    section: str


def summary(findings: Findings, claims: Sequence[Claim] = ()) -> list[Sentence]:
    """Return the sentences at the top of a report."""
    if findings.runs.empty:
        return [Sentence("Nothing yet", "No run is done, so there is nothing to conclude yet.",
                         "data")]  # fmt: skip
    kinds = (
        ("What to run", "advice", recommended(findings)),
        ("Scaling", "scaling", scaling(findings)),
        ("Beyond the power law", "scaling", breakpoints(findings)),
        ("Caps and clocks", "caps", limits(findings)),
        ("Energy", "energy", energy(findings)),
        ("Batch size", "batch", quality(findings)),
        ("Published findings", "claims", _claims(findings, claims)),
        ("To doubt", "data", _doubts(findings)),
    )
    return [Sentence(topic, text, where) for topic, where, texts in kinds for text in _first(texts)]


def _first(texts: Iterable[str]) -> list[str]:
    found = list(texts)
    more = len(found) - MOST
    return [*found[:MOST], *([f"{more} more are in the tables."] if more > 0 else [])]


def _claims(findings: Findings, claims: Sequence[Claim]) -> Iterator[str]:
    for study in dict.fromkeys(claim.study for claim in claims):
        own = [claim for claim in claims if claim.study == study]
        tally = Counter(claim.verdict for claim in own)
        words = (
            f"Of {len(own)} findings of {STUDIES.get(study, study)}, "
            f"{_are(tally[SUPPORTED])} supported, {tally[CONTRADICTED]} contradicted, "
            f"and {tally[NOT_DECIDABLE]} cannot be decided from these data."
        )
        if "estimated" in (findings.energy or ""):
            words += " Energies are estimated, so what is about energy is no test by measurement."
        for verdict, most in ((CONTRADICTED, len(own)), (SUPPORTED, _MOST_NAMED)):
            named = [claim.claim.rstrip(".") for claim in own if claim.verdict == verdict]
            if 0 < len(named) <= most:
                words += f" {verdict.capitalize()}: {'; '.join(named)}."
        yield words


def _doubts(findings: Findings) -> Iterator[str]:
    left = {name: count for name, count in findings.statuses.items() if name != "done"}
    if left:
        words = ", ".join(f"{count} {name}" for name, count in sorted(left.items()))
        yield f"{words} of {plural(sum(findings.statuses.values()), 'run')}: not in any result."
    runs = findings.runs
    for verdict, found in _VERDICTS.items():
        count = int((runs["energy_verdict"] == verdict).sum())
        if count:
            yield f"The energy of {plural(count, 'run')} {found}{_reasons(findings, verdict)}."
    if findings.energy is not None and runs["energy_per_epoch_j"].isna().any():
        count = int(runs["energy_per_epoch_j"].isna().sum())
        has = "has" if count == 1 else "have"
        yield f"{count} of {plural(len(runs), 'run')} {has} no energy that counts."
    if runs["energy_is"].nunique() > 1:
        yield "Energies count different things and are kept apart: compare only what counts alike."
    once = int((findings.settings["n"] == 1).sum())
    if once:
        were = "was" if once == 1 else "were"
        yield (
            f"{once} of {plural(len(findings.settings), 'setting')} {were} run once: nothing says "
            "how sure their numbers are."
        )
    simulated = runs["launcher"] == "simulated"
    if simulated.any():
        which = "All" if simulated.all() else "Some"
        yield f"{which} runs are simulated: from a model of a cluster, not measured."
    yield from findings.notes[:2]


_VERDICTS = {
    "suspect": "is suspect",
    "partial": "covers only a part of their windows, and is left out",
    "implausible": "is physically impossible, and is left out",
}


def _are(count: int) -> str:
    return f"{count} is" if count == 1 else f"{count} are"


def _reasons(findings: Findings, verdict: str) -> str:
    """Return the reasons stored with a verdict, after a colon."""
    found = energy_reasons(findings, verdict)
    return f": {'; '.join(found)}" if found else ""
