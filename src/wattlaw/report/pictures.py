"""Charts as pictures: in a page as images that cannot run or load anything, and as files.

A page contains its figures as SVG images (``data:`` addresses), drawn when the page is written. An
SVG in an ``<img>`` runs no script and loads nothing, whatever text is in it. So the page needs no
JavaScript and prints sharply. An SVG larger than ``MAX_SVG_BYTES`` becomes a PNG.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import vl_convert
from altair.utils._importers import vl_version_for_vl_convert
from altair.utils.schemapi import debug_mode

from wattlaw.analysis.findings import Findings
from wattlaw.errors import BadInput
from wattlaw.files import replacing
from wattlaw.formatting import replace_invisible, sentence
from wattlaw.report.drawing import Drawing
from wattlaw.report.figures import GALLERY, Figure

KINDS = ("png", "svg", "html")
#: Largest size of an SVG's address in the page.
MAX_SVG_BYTES = 400_000
_PNG_SCALE = 2
#: Characters that need no escape in an address, neither in HTML nor in a URL.
_UNESCAPED = " =:/'()[],;!*@$+?-._~|"


@dataclass(frozen=True)
class Picture:
    """A figure of a page."""

    name: str
    title: str
    caption: str
    section: str
    address: str
    width: int
    height: int

    kind = "picture"


@dataclass(frozen=True)
class Chart:
    """A figure of findings; ``spec`` is Vega-Lite, without characters that XML forbids."""

    figure: Figure
    spec: dict[str, Any]


def make_charts(findings: Findings, study: str | None = None) -> Iterator[Chart]:
    """Yield the figures (of a study, or all) that the findings have data for."""
    for figure in GALLERY:
        if study is None or study in figure.studies:
            chart = chart_of(figure, findings)
            if chart is not None:
                yield chart


def chart_of(figure: Figure, findings: Findings) -> Chart | None:
    """Return a figure of the findings; None where they have no data for it."""
    with debug_mode(False):  # checking each part takes a fifth of the time; tests do it
        chart = figure.chart(findings)
    if chart is None:
        return None
    spec = _replace_invisible(chart.to_dict(validate=False))
    if findings.origins_label:  # a figure may be seen without its page
        spec["title"]["subtitle"].append(f"({findings.origins_label}: nothing was measured)")
    return Chart(figure, spec)


def draw_charts(charts: Iterable[Chart]) -> tuple[Picture, ...]:
    """Return charts as pictures; each is drawn while the next chart is made."""
    with Drawing() as drawing:
        started = []
        for chart in charts:
            # In a page, title and subtitle are in the caption.
            spec = {name: part for name, part in chart.spec.items() if name != "title"}
            started.append((chart, spec, drawing.svg(spec)))
        return tuple(_picture(chart, spec, svg.result()) for chart, spec, svg in started)


def _caption(chart: Chart) -> str:
    subtitle = " ".join(chart.spec["title"]["subtitle"])
    return " ".join(sentence(text) for text in (chart.figure.caption, subtitle) if text)


def _picture(chart: Chart, spec: dict[str, Any], svg: str) -> Picture:
    figure = chart.figure
    width, height = (
        int(match[1]) if (match := re.search(rf'<svg[^>]*\b{side}="(\d+)', svg)) else 0
        for side in ("width", "height")
    )
    return Picture(
        figure.name,
        figure.title,
        _caption(chart),
        figure.section,
        _address(svg, spec),
        width,
        height,
    )


def _address(svg: str, spec: dict[str, Any]) -> str:
    address = f"data:image/svg+xml;charset=utf-8,{quote(svg, safe=_UNESCAPED)}"
    if len(address) <= MAX_SVG_BYTES:
        return address
    png = vl_convert.vegalite_to_png(spec, scale=1.5)
    png_address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return min(address, png_address, key=len)


def _replace_invisible(value: Any) -> Any:
    """Return a chart without characters that XML forbids."""
    if isinstance(value, str):
        return replace_invisible(value)
    if isinstance(value, list):
        return [_replace_invisible(item) for item in value]
    if isinstance(value, dict):
        return {replace_invisible(key): _replace_invisible(item) for key, item in value.items()}
    return value


def figure_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of files of ``--kinds png,svg``.

    Raises
    ------
    BadInput
        A kind is unknown, or there is none.
    """
    kinds = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for kind in kinds or ("",):
        if kind not in KINDS:
            raise BadInput(f"--kinds: unknown {kind!r}; allowed: {', '.join(KINDS)}")
    return kinds


def write_figures(
    charts: Iterable[Chart], directory: Path, kinds: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Write each chart as files of these kinds, and return their paths.

    ``html`` is an interactive figure in one file that needs no network.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in charts:
        for kind in kinds:
            path = directory / f"{chart.figure.name}.{kind}"
            with replacing(path, durable=False) as temporary:
                _WRITERS[kind](temporary, chart.spec)
            written.append(path)
    return written


def _png(path: Path, spec: dict[str, Any]) -> None:
    path.write_bytes(vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE))


def _svg(path: Path, spec: dict[str, Any]) -> None:
    path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


def _html(path: Path, spec: dict[str, Any]) -> None:
    """Write a page with an interactive figure. Altair's own page would not escape names."""
    page = environment().get_template("figure.html.j2")
    path.write_text(page.render(spec=script_safe_json(spec), script=_script()), encoding="utf-8")


@cache
def environment() -> jinja2.Environment:
    """Return the templates, which escape every value and replace control characters."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("wattlaw.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: Any) -> Any:
    return replace_invisible(value) if type(value) is str else value


def script_safe_json(value: Any) -> str:
    """Return JSON in which no text can end a script element or start another."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _script() -> str:
    """Return vega, vega-lite and vega-embed as one script that cannot end its own element."""
    bundle: str = vl_convert.javascript_bundle(vl_version=vl_version_for_vl_convert())  # type: ignore[call-arg]
    return bundle.replace("</script", "<\\/script")


_WRITERS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "png": _png,
    "svg": _svg,
    "html": _html,
}
