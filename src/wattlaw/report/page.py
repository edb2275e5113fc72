"""The report: one HTML file without scripts and external resources."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path

from wattlaw import __version__
from wattlaw.analysis.claims.verdicts import Claim
from wattlaw.analysis.findings import Findings
from wattlaw.files import write_text
from wattlaw.reference.published import SOURCES
from wattlaw.report.layouts import Content, Layout, Section, layout, sections
from wattlaw.report.pictures import Chart, draw_charts, environment, make_charts
from wattlaw.report.topics.advice import advice_sentences
from wattlaw.report.topics.batch import quality_sentences
from wattlaw.report.topics.claims import claim_sentences
from wattlaw.report.topics.data_quality import caveat_sentences
from wattlaw.report.topics.decision import sentences as decision_sentences
from wattlaw.report.topics.energy import energy_sentences
from wattlaw.report.topics.limits import limit_sentences
from wattlaw.report.topics.prediction import sentences as prediction_sentences
from wattlaw.report.topics.scaling import breakpoint_sentences, scaling_sentences

#: The summary has at most this number of sentences per topic.
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
        ("Decision", "decision", decision_sentences(findings)),
        ("Scaling", "scaling", scaling_sentences(findings)),
        ("Breakpoints", "scaling", breakpoint_sentences(findings)),
        ("Predictions", "prediction", prediction_sentences(findings)),
        ("Caps and clocks", "caps", limit_sentences(findings)),
        ("Energy", "energy", energy_sentences(findings)),
        ("Batch size", "batch", quality_sentences(findings)),
        ("Published claims", "claims", claim_sentences(findings, claims)),
        ("Caveats", "data", caveat_sentences(findings)),
    )
    return [
        Sentence(topic, text, section)
        for topic, section, texts in topics
        for text in _limited(texts)
    ]


def _limited(texts: Iterable[str]) -> list[str]:
    texts = list(texts)
    more = len(texts) - MAX_SENTENCES
    return [*texts[:MAX_SENTENCES], *([f"{more} more are in the tables."] if more > 0 else [])]


def write_report(
    findings: Findings,
    claims: Sequence[Claim],
    path: Path,
    template: str | None = None,
    charts: Iterable[Chart] | None = None,
) -> None:
    """Write the page.

    Parameters
    ----------
    findings, claims
        The content of the page.
    path
        The file; its folder is created.
    template
        ``mit-2022`` or ``kit-2025`` for the layout, figures and claims of that study.
    charts
        ``make_charts`` of the findings and the template's study, if they exist already.

    Raises
    ------
    BadInput
        The template is unknown.
    """
    chosen = layout(template)
    claims = [claim for claim in claims if chosen.study in (None, claim.study)]
    if charts is None:
        charts = make_charts(findings, chosen.study)
    shown = sections(Content(findings, claims, draw_charts(charts)), chosen)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=_title(findings),
            origin=_origin(findings),
            lead=_subtitle_lines(findings, chosen),
            summary=_by_topic(summarise(findings, claims), shown),
            sections=shown,
            numbers=_block_numbers(shown),
            style=_style(),
            style_hash=_hash(_style()),
            version=__version__,
        )
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page, durable=False)


def _title(findings: Findings) -> str:
    studies = findings.facts.get("Studies", "")
    title = f"Time and energy of training: {studies}" if studies else "Time and energy of training"
    return f"{title}{_origin(findings)}"


def _origin(findings: Findings) -> str:
    """Return what follows a title if no run is measured: `` (simulated)``."""
    return f" ({findings.origins_label})" if findings.origins_label else ""


def _subtitle_lines(findings: Findings, layout: Layout) -> list[str]:
    """Return the lines below the title: date, version, number of runs, hardware, layout."""
    facts, runs = findings.facts, sum(findings.statuses.values())
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    lines = [f"Written {now} by wattlaw {__version__} from {runs:,} runs."]
    details = [facts[name] for name in ("Hardware", "Workloads") if name in facts]
    if "Ran" in facts:
        details.append(f"ran {facts['Ran']}")
    if details:
        lines.append("; ".join(details) + ".")
    if layout.study is not None:
        lines.append(f"Layout, figures and claims of {SOURCES[layout.study].name}.")
    return lines


def _by_topic(sentences: Sequence[Sentence], shown: Sequence[Section]) -> dict[str, list[str]]:
    """Return the sentences by topic, without those whose section is not shown."""
    names = {section.name for section in shown}
    topics: dict[str, list[str]] = {}
    for sentence in sentences:
        if sentence.section in names:
            topics.setdefault(sentence.topic, []).append(sentence.text)
    return topics


def _block_numbers(shown: Sequence[Section]) -> dict[tuple[str, str], str]:
    """Return ``Figure 1`` or ``Table 1`` by kind and name of each figure and table."""
    numbers: dict[tuple[str, str], str] = {}
    blocks = [block for section in shown for block in section.blocks]
    for kind, word in (("picture", "Figure"), ("table", "Table")):
        names = [getattr(block, "name", "") for block in blocks if block.kind == kind]
        numbers |= {(kind, name): f"{word} {i}" for i, name in enumerate(names, start=1)}
    return numbers


@cache
def _style() -> str:
    return resources.files("wattlaw.report").joinpath("templates/report.css").read_text("utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the page's policy allows its own style sheet and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
