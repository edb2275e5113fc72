"""The report: one HTML file that a centre can hand out. It loads nothing and runs nothing."""

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
from wattlaw.report.blocks import Section
from wattlaw.report.layouts import Content, Layout, layout, sections
from wattlaw.report.narrative.summary import Sentence, summary
from wattlaw.report.pictures import Chart, Picture, charts, pictures
from wattlaw.report.tables.claims import STUDIES
from wattlaw.report.tables.table import Table
from wattlaw.report.templating import environment


def write_report(
    findings: Findings,
    claims: Sequence[Claim],
    path: Path,
    template: str | None = None,
    title: str | None = None,
    written: datetime | None = None,
    made: Iterable[Chart] | None = None,
) -> None:
    """Write the page.

    Parameters
    ----------
    findings, claims
        What the page says.
    path
        The file; its folder is made.
    template
        ``mit-2022`` or ``kit-2025`` keeps to that study's layout, figures and claims.
    title
        By default made from the names of the studies.
    written
        When; by default now.
    made
        ``pictures.charts`` of the findings and the template's study, where others need them too.

    Raises
    ------
    BadInput
        There is no such template.
    """
    chosen = layout(template)
    claims = [claim for claim in claims if chosen.study in (None, claim.study)]
    if made is None:
        made = charts(findings, chosen.study)
    content = Content(findings, claims, pictures(made))
    shown = sections(content, chosen)
    page = (
        environment()
        .get_template("report.html.j2")
        .render(
            title=title or _title(findings),
            simulated=findings.facts.get("Launcher") == "simulated",
            lead=_lead(findings, chosen, written or datetime.now(UTC)),
            summary=_by_topic(summary(findings, claims), shown),
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


def _lead(findings: Findings, chosen: Layout, written: datetime) -> list[str]:
    """Return when, what, and with which version."""
    facts, runs = findings.facts, sum(findings.statuses.values())
    lines = [f"Written {written:%Y-%m-%d %H:%M} UTC by wattlaw {__version__} from {runs:,} runs."]
    where = [facts[name] for name in ("Hardware", "Workloads") if name in facts]
    if "Ran" in facts:
        where.append(f"ran {facts['Ran']}")
    if where:
        lines.append("; ".join(where) + ".")
    if chosen.study is not None:
        lines.append(f"In the layout of {STUDIES[chosen.study]}: its figures and claims only.")
    return lines


def _by_topic(sentences: Sequence[Sentence], shown: Sequence[Section]) -> dict[str, list[str]]:
    """Return the sentences that a shown section has more on, by their topic."""
    there = {section.name for section in shown}
    topics: dict[str, list[str]] = {}
    for one in sentences:
        if one.section in there:
            topics.setdefault(one.topic, []).append(one.text)
    return topics


def _numbers(shown: Sequence[Section]) -> dict[tuple[str, str], str]:
    """Return what each figure and table is called, by kind and name, numbered in their order."""
    blocks = [block for section in shown for block in section.blocks]
    numbers: dict[tuple[str, str], str] = {}
    for kind, word in (("picture", "Figure"), ("table", "Table")):
        names = [block.name for block in blocks if isinstance(block, _NUMBERED[kind])]
        numbers |= {(kind, name): f"{word} {i}" for i, name in enumerate(names, start=1)}
    return numbers


_NUMBERED: dict[str, type[Picture | Table]] = {"picture": Picture, "table": Table}


@cache
def _style() -> str:
    return resources.files("wattlaw.report").joinpath("templates/report.css").read_text("utf-8")


def _hash(text: str) -> str:
    """Return what a page's policy has to name so that its own style, and no other, is taken."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
