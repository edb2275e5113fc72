"""The report: one HTML file that loads nothing from a network, without scripts unless asked.

Scripts are in the page itself, and its policy names their hashes, so that no other script runs.
They are Vega, and the page's own, which draws the figures and sorts tables. Vega interprets the
expressions of a figure, because the policy does not allow ``eval``.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import vl_convert

from wattlaw import __version__
from wattlaw.analysis.findings import Findings
from wattlaw.common import formatting as fmt
from wattlaw.common.files import write_text
from wattlaw.report.core_sections import figures_of, layout, sections
from wattlaw.report.pictures import Picture, draw_pictures, explorable
from wattlaw.report.rendering import environment, policy_hash, style_hash, template_text
from wattlaw.report.sections import Content, Layout, PageSection
from wattlaw.report.topics.measured import not_needed


def write_report(
    findings: Findings,
    path: Path,
    shown: Layout | None = None,
    pictures: Iterable[Picture] | None = None,
    *,
    energy_scope: str | None = None,
    interactive: bool = False,
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
        origin=origin, lead=f"{'; '.join(lead)}.", interactive=interactive,
    )  # fmt: skip


def write_page(
    path: Path,
    title: str,
    sections: Sequence[PageSection],
    *,
    origin: str = "",
    lead: str = "",
    interactive: bool = False,
) -> None:
    """Write a page that loads nothing, and runs a script only if ``interactive``. ``origin``
    follows the titles of tables, and ``lead`` that of the page."""
    blocks = [block for section in sections for block in section.blocks]
    numbers: dict[tuple[str, str], str] = {}
    for kind, word in (("picture", "Figure"), ("table", "Table")):
        names = [getattr(block, "name", "") for block in blocks if block.kind == kind]
        numbers |= {(kind, name): f"{word} {i}" for i, name in enumerate(names, start=1)}
    scripts, data = [], ""
    if interactive:
        from altair.utils._importers import vl_version_for_vl_convert  # slow to import

        bundle: str = vl_convert.javascript_bundle(vl_version=vl_version_for_vl_convert())  # type: ignore[call-arg]
        # No script can end its own element, and no text of the data ends or starts one.
        scripts = [bundle.replace("</script", "<\\/script"), template_text("report.js")]
        specs = {block.name: explorable(block.in_page) for block in blocks
                 if isinstance(block, Picture)}  # fmt: skip
        data = json.dumps(specs, allow_nan=False).replace("<", "\\u003c")
    page = environment().get_template("report.html.j2").render(
        style=template_text("report.css"), style_hash=style_hash(), scripts=scripts, data=data,
        script_hashes=" ".join(f"'{policy_hash(script)}'" for script in scripts),
        version=__version__, title=title, origin=origin, lead=lead, sections=sections,
        numbers=numbers, interactive=interactive,
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page, durable=False)
