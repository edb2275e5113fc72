"""The report: one HTML file that loads nothing and runs nothing."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path

from wattlaw import __version__
from wattlaw.analysis.claims.verdicts import Claim
from wattlaw.analysis.findings import Findings
from wattlaw.files import write_text
from wattlaw.reference.published import SOURCES
from wattlaw.report.blocks import Section
from wattlaw.report.layouts import Content, Layout, layout, sections
from wattlaw.report.pictures import Chart, draw_charts, make_charts
from wattlaw.report.summary import Sentence, summarise
from wattlaw.report.templating import environment


def write_report(
    findings: Findings,
    claims: Sequence[Claim],
    path: Path,
    template: str | None = None,
    title: str | None = None,
    written_at: datetime | None = None,
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
    title
        By default made from the names of the studies.
    written_at
        By default now.
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
            title=title or _title(findings),
            simulated=findings.facts.get("Launcher") == "simulated",
            lead=_lead(findings, chosen, written_at or datetime.now(UTC)),
            summary=_by_topic(summarise(findings, claims), shown),
            sections=shown,
            numbers=_numbers(shown),
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
    return f"{title} (simulated)" if findings.facts.get("Launcher") == "simulated" else title


def _lead(findings: Findings, layout: Layout, written_at: datetime) -> list[str]:
    """Return the lines below the title: date, version, number of runs, hardware, layout."""
    facts, runs = findings.facts, sum(findings.statuses.values())
    lines = [
        f"Written {written_at:%Y-%m-%d %H:%M} UTC by wattlaw {__version__} from {runs:,} runs."
    ]
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


def _numbers(shown: Sequence[Section]) -> dict[tuple[str, str], str]:
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
