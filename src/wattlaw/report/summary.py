"""The summary at the top of the page: sentences that the data support, by importance."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wattlaw.analysis.claims.verdicts import Claim
from wattlaw.analysis.findings import Findings
from wattlaw.report.topics.advice import advice_sentences
from wattlaw.report.topics.batch import quality_sentences
from wattlaw.report.topics.claims import claim_sentences
from wattlaw.report.topics.data_quality import caveat_sentences
from wattlaw.report.topics.energy import energy_sentences
from wattlaw.report.topics.limits import limit_sentences
from wattlaw.report.topics.scaling import breakpoint_sentences, scaling_sentences

#: More sentences of a topic are left to the tables.
MAX_SENTENCES = 8


@dataclass(frozen=True)
class Sentence:
    """A sentence, its topic, and the section with the details."""

    topic: str
    text: str
    section: str


def summarise(findings: Findings, claims: Sequence[Claim] = ()) -> list[Sentence]:
    """Return the sentences of the summary."""
    if findings.runs.empty:
        return [Sentence("No results yet", "No run is done, so there is no result yet.", "data")]
    topics = (
        ("What to run", "advice", advice_sentences(findings)),
        ("Scaling", "scaling", scaling_sentences(findings)),
        ("Breakpoints", "scaling", breakpoint_sentences(findings)),
        ("Caps and clocks", "caps", limit_sentences(findings)),
        ("Energy", "energy", energy_sentences(findings)),
        ("Batch size", "batch", quality_sentences(findings)),
        ("Published claims", "claims", claim_sentences(findings, claims)),
        ("Caveats", "data", caveat_sentences(findings)),
    )
    return [
        Sentence(topic, text, section) for topic, section, texts in topics for text in _first(texts)
    ]


def _first(texts: Iterable[str]) -> list[str]:
    texts = list(texts)
    more = len(texts) - MAX_SENTENCES
    return [*texts[:MAX_SENTENCES], *([f"{more} more are in the tables."] if more > 0 else [])]
