"""The report: one HTML file that loads nothing from a network and runs no script."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.common import formatting as fmt
from wattlaw.common.files import write_text
from wattlaw.report.core_sections import figures_of, layout, sections
from wattlaw.report.pictures import Picture, draw_pictures
from wattlaw.report.rendering import environment, style, style_hash
from wattlaw.report.sections import Content, Layout, PageSection
from wattlaw.report.topics.data_quality import not_needed


def write_report(
    findings: Findings,
    path: Path,
    shown: Layout | None = None,
    pictures: Iterable[Picture] | None = None,
    *,
    energy_scope: str | None = None,
) -> None:
    """``pictures`` may exist already; ``energy_scope`` is None unless the user asked for one."""
    shown = shown or layout(None)
    if pictures is None:
        pictures = draw_pictures(findings, figures_of(shown))
    content = Content(findings, tuple(pictures), shown, energy_scope)
    facts = findings.facts
    # Below the title: number of runs, hardware, dates, version, layout.
    spared = not_needed(findings)
    lead = [fmt.plural(sum(findings.statuses.values()) - spared, "run")]
    lead += [f"{spared:,} more were not needed"] if spared else []
    lead += [facts[name] for name in ("Hardware", "Ran") if name in facts]
    lead.append(f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by wattlaw {__version__}")
    lead += [shown.source] if shown.source else []
    origin = f" ({findings.sources_label})" if findings.sources_label else ""
    studies = f": {facts['Studies']}" if "Studies" in facts else ""
    write_page(
        path, f"Time and energy of training{studies}{origin}", sections(content),
        origin=origin, lead=f"{'; '.join(lead)}.",
    )  # fmt: skip


def write_page(
    path: Path,
    title: str,
    sections: Sequence[PageSection],
    *,
    origin: str = "",
    lead: str = "",
) -> None:
    """Write a page; ``origin`` follows the titles of tables, and ``lead`` that of the page."""
    blocks = [block for section in sections for block in section.blocks]
    numbers: dict[tuple[str, str], str] = {}
    for kind, word in (("picture", "Figure"), ("table", "Table")):
        names = [getattr(block, "name", "") for block in blocks if block.kind == kind]
        numbers |= {(kind, name): f"{word} {i}" for i, name in enumerate(names, start=1)}
    page = environment().get_template("report.html.j2").render(
        style=style(), style_hash=style_hash(), version=__version__, title=title, origin=origin,
        lead=lead, sections=sections, numbers=numbers,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page, durable=False)
