"""The report: one HTML file that loads nothing from a network, without scripts unless asked."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.common.files import write_text
from wattlaw.report import layouts
from wattlaw.report.layouts import Content, Layout, Section, layout
from wattlaw.report.pictures import Chart, draw_charts, environment, make_charts
from wattlaw.report.scripts import Script, page_scripts, policy_hash, template_text
from wattlaw_papers.claims.verdicts import Claim
from wattlaw_papers.published import SOURCES


def write_report(
    findings: Findings,
    claims: Sequence[Claim],
    path: Path,
    charts: Iterable[Chart] | None = None,
    *,
    template: str | None = None,
    all_claims: bool = False,
    interactive: bool = False,
) -> None:
    """Write the page; raise ``BadInput`` if the template is unknown.

    ``charts`` are ``make_charts`` of the findings and the template's study, if they exist already.
    ``all_claims`` shows claims even if none is decided, ``interactive`` figures have scripts.
    """
    chosen = layout(template)
    claims = [claim for claim in claims if chosen.study in (None, claim.study)]
    if charts is None:
        charts = make_charts(findings, chosen.study)
    pictures = draw_charts(charts, interactive=interactive)
    content = Content(findings, claims, pictures, all_claims or chosen.study is not None)
    origin = f" ({findings.sources_label})" if findings.sources_label else ""
    studies = findings.facts.get("Studies", "")
    title = f"Time and energy of training{f': {studies}' if studies else ''}{origin}"
    write_page(
        path, title, layouts.sections(content, chosen),
        page_scripts(pictures) if interactive else (), origin=origin,
        lead=_subtitle(findings, chosen),
    )  # fmt: skip


def write_page(
    path: Path, title: str, sections: Sequence[Section], scripts: Sequence[Script] = (), *,
    origin: str = "", lead: str = "",
) -> None:  # fmt: skip
    """Write sections as a page that loads nothing and runs no script but these.

    ``origin`` follows the titles of tables, and ``lead`` that of the page.
    """
    style = template_text("report.css")
    sources = " ".join(f"'{policy_hash(script.text)}'" for script in scripts if script.runs)
    page = environment().get_template("report.html.j2").render(
        style=style, style_hash=policy_hash(style), scripts=scripts, version=__version__,
        script_policy=f"script-src {sources}; " if sources else "", title=title, origin=origin,
        lead=lead, sections=sections, numbers=_block_numbers(sections), interactive=bool(scripts),
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page, durable=False)


def _subtitle(findings: Findings, layout: Layout) -> str:
    """Return the line below the title: number of runs, hardware, dates, version, layout."""
    facts, runs = findings.facts, sum(findings.statuses.values())
    parts = [f"{runs:,} runs", *(facts[name] for name in ("Hardware", "Ran") if name in facts)]
    parts.append(f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by wattlaw {__version__}")
    if layout.study is not None:
        parts.append(f"layout, figures and claims of {SOURCES[layout.study].name}")
    return f"{'; '.join(parts)}."


def _block_numbers(shown: Sequence[Section]) -> dict[tuple[str, str], str]:
    """Return ``Figure 1`` or ``Table 1`` by kind and name of each figure and table."""
    numbers: dict[tuple[str, str], str] = {}
    blocks = [block for section in shown for block in section.blocks]
    for kind, word in (("picture", "Figure"), ("table", "Table")):
        names = [getattr(block, "name", "") for block in blocks if block.kind == kind]
        numbers |= {(kind, name): f"{word} {i}" for i, name in enumerate(names, start=1)}
    return numbers
