"""The report: one HTML file that loads nothing from a network, without scripts unless asked."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.common.files import write_text
from wattlaw.report.charts import Spec
from wattlaw.report.layouts import layout, sections
from wattlaw.report.pictures import Chart, draw_charts, make_charts
from wattlaw.report.rendering import render
from wattlaw.report.sections import Content, Layout, Picture, Section


def write_report(
    findings: Findings,
    path: Path,
    shown: Layout | None = None,
    charts: Iterable[Chart] | None = None,
    *,
    energy_scope: str | None = None,
    interactive: bool = False,
) -> None:
    """Write the page in a layout, by default the default one.

    ``charts`` are ``make_charts`` of the findings and the layout, if they exist already.
    ``energy_scope`` is that which the user asked for, and ``interactive`` figures have scripts.
    """
    shown = shown or layout(None)
    if charts is None:
        charts = make_charts(findings, shown)
    pictures = draw_charts(charts, interactive=interactive)
    content = Content(findings, pictures, shown, energy_scope)
    facts = findings.facts
    # Below the title: number of runs, hardware, dates, version, layout.
    lead = [f"{sum(findings.statuses.values()):,} runs"]
    lead += [facts[name] for name in ("Hardware", "Ran") if name in facts]
    lead.append(f"written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by wattlaw {__version__}")
    lead += [shown.source] if shown.source else []
    origin = f" ({findings.sources_label})" if findings.sources_label else ""
    studies = f": {facts['Studies']}" if "Studies" in facts else ""
    parts = sections(content)
    # Those of the sections: an add-on's pictures are not in the gallery.
    blocks = (block for section in parts for block in section.blocks)
    specs = {block.name: block.spec for block in blocks if isinstance(block, Picture)}
    write_page(
        path, f"Time and energy of training{studies}{origin}", parts,
        specs if interactive else None,
        origin=origin, lead=f"{'; '.join(lead)}.",
    )  # fmt: skip


def write_page(
    path: Path, title: str, sections: Sequence[Section], specs: Mapping[str, Spec] | None = None, *,
    origin: str = "", lead: str = "",
) -> None:  # fmt: skip
    """Write sections as a page that loads nothing and runs no script but those of ``specs``.

    ``origin`` follows the titles of tables, and ``lead`` that of the page.
    """
    page = render(
        "report.html.j2", specs, version=__version__, title=title, origin=origin, lead=lead,
        sections=sections, numbers=_block_numbers(sections), interactive=specs is not None,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page, durable=False)


def _block_numbers(shown: Sequence[Section]) -> dict[tuple[str, str], str]:
    """Return ``Figure 1`` or ``Table 1`` by kind and name of each figure and table."""
    numbers: dict[tuple[str, str], str] = {}
    blocks = [block for section in shown for block in section.blocks]
    for kind, word in (("picture", "Figure"), ("table", "Table")):
        names = [getattr(block, "name", "") for block in blocks if block.kind == kind]
        numbers |= {(kind, name): f"{word} {i}" for i, name in enumerate(names, start=1)}
    return numbers
