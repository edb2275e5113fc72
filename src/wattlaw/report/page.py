"""The report: one HTML file that opens with no network, and its figures as files."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import vl_convert
from altair.utils._importers import vl_version_for_vl_convert

from wattlaw.analysis.findings import Findings
from wattlaw.analysis.series import group_label
from wattlaw.report.figures import FIGURES
from wattlaw.report.words import summary
from wattlaw.store.files import write_text

_SCALE = 2


def write_report(findings: Findings, path: Path, title: str = "wattlaw report") -> None:
    """Write the page. Every name in it is escaped; nothing in it is loaded from elsewhere."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("wattlaw.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "number": number,
        "group": group_label,
        "words": lambda name: name.replace("_", " "),
    }
    charts = {name: chart.to_dict() for name, make in FIGURES.items() if (chart := make(findings))}
    page = environment.get_template("report.html.j2").render(
        title=title,
        findings=findings,
        summary=summary(findings),
        charts=charts,
        specs=_inert(charts),
        script=_script() if charts else "",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page, durable=False)


def write_figures(findings: Findings, directory: Path) -> list[Path]:
    """Write each figure as PNG and as SVG; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, make in FIGURES.items():
        chart = make(findings)
        if chart is not None:
            for kind in ("png", "svg"):
                path = directory / f"{name}.{kind}"
                chart.save(str(path), scale_factor=_SCALE)
                written.append(path)
    return written


def number(value: Any, digits: int = 3) -> str:
    """Return a number for a table, or a dash where there is none."""
    if value is None or value != value:  # noqa: PLR0124 - NaN is the one value unlike itself
        return "–"
    if isinstance(value, float) and not value.is_integer() and abs(value) < 10**digits:
        return f"{value:.{digits}g}"
    return f"{value:,.0f}"


@cache
def _script() -> str:
    """Return vega, vega-lite and vega-embed as one script that cannot end its own element."""
    bundle: str = vl_convert.javascript_bundle(vl_version=vl_version_for_vl_convert())  # type: ignore[call-arg]
    return bundle.replace("</script", "<\\/script")


def _inert(charts: dict[str, Any]) -> str:
    """Return charts as JSON in which no name can end the script or start another."""
    text = json.dumps(charts, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
