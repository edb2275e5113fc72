"""Charts as pictures: in a page as images that cannot run or load anything, and as files.

A page contains its figures as SVG images (``data:`` addresses), drawn when the page is written. An
SVG in an ``<img>`` runs no script and loads nothing, whatever text is in it. So the page needs no
JavaScript and prints sharply. An SVG larger than ``MAX_SVG_BYTES`` becomes a PNG. The background is
transparent, so that a dark page can invert the colours. An interactive page draws its figures.
"""

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import vl_convert

from wattlaw.analysis.findings import Findings
from wattlaw.common.errors import BadInput
from wattlaw.common.files import replacing
from wattlaw.common.formatting import replace_invisible
from wattlaw.report import figures
from wattlaw.report.charts import Spec
from wattlaw.report.figures import Figure
from wattlaw.report.rendering import render
from wattlaw.report.sections import Layout, Picture

KINDS = ("png", "svg", "html")
#: Largest size of an SVG's address in the page.
MAX_SVG_BYTES = 400_000
_PNG_SCALE = 2
#: Figures that are also drawn for a phone, and the width of a panel there in pixels.
_FOR_PHONES, _PHONE_WIDTH = ("pareto", "scaling"), 265
#: Characters that need no escape in an address, neither in HTML nor in a URL.
_UNESCAPED = " =:/'()[],;!*@$+?-._~|"
_DIGITS = re.compile(r"(\.\d\d)\d+")
_TAG = re.compile("<[^>]*>")


@dataclass(frozen=True)
class Chart:
    """A figure of findings; ``spec`` is Vega-Lite, without characters that XML forbids."""

    figure: Figure
    spec: dict[str, Any]


def make_charts(findings: Findings, layout: Layout | None = None) -> Iterator[Chart]:
    """Yield the figures of a layout that the findings have data for."""
    names = None if layout is None else layout.figures
    for figure in figures.GALLERY:
        is_shown = not figure.is_extra if names is None else figure.name in names
        if is_shown and (chart := chart_of(figure, findings)) is not None:
            yield chart


def chart_of(figure: Figure, findings: Findings) -> Chart | None:
    """Return a figure of the findings; None where they have no data for it."""
    spec = figure.chart(findings)
    if spec is None:
        return None
    spec = _replace_invisible(spec)
    if findings.sources_label:  # a figure may be seen without its page
        label = findings.sources_label.capitalize()
        spec["title"]["subtitle"].append(f"{label} values: nothing was measured here.")
    return Chart(figure, spec)


def lone_chart(name: str, title: str, spec: Spec) -> Chart:
    """Return a chart that is no figure of the gallery, with its title."""
    figure = Figure(name, title, name, lambda _: spec, "")
    return Chart(figure, _replace_invisible(spec | {"title": spec["title"] | {"text": title}}))


def draw_charts(charts: Iterable[Chart], *, interactive: bool = False) -> tuple[Picture, ...]:
    if interactive:
        return tuple(_picture(chart, _page_spec(chart)) for chart in charts)
    pictures = []
    for chart in charts:
        spec = _page_spec(chart)
        narrow = to_svg(_narrow(spec)) if chart.figure.name in _FOR_PHONES else ""
        pictures.append(_picture(chart, spec, to_svg(spec), narrow))
    return tuple(pictures)


def to_svg(spec: dict[str, Any]) -> str:
    """Return a chart as SVG, without the labels of single marks for screen readers."""
    plain = {**spec, "config": {**spec.get("config", {}), "aria": False}}
    svg: str = vl_convert.vegalite_to_svg(plain)
    return _TAG.sub(lambda tag: _DIGITS.sub(r"\1", tag[0]), svg)


def _page_spec(chart: Chart) -> dict[str, Any]:
    """Return a chart without title and subtitle, which are in the page's caption."""
    spec = {name: part for name, part in chart.spec.items() if name != "title"}
    spec["config"] = {**spec.get("config", {}), "background": "transparent"}
    return spec


def _narrow(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a figure for a phone: panels below each other, and a legend of two columns."""
    panels = deepcopy(spec["concat"])
    for panel in panels:
        panel["width"] = _PHONE_WIDTH
        for channel in (part for layer in panel["layer"] for part in layer["encoding"].values()):
            if isinstance(channel, dict) and channel.get("legend"):
                channel["legend"]["columns"] = 2
    return {**spec, "concat": panels, "columns": 1}


def _picture(chart: Chart, spec: dict[str, Any], svg: str = "", narrow: str = "") -> Picture:
    figure = chart.figure
    width, height = (
        int(match[1]) if (match := re.search(rf'<svg[^>]*\b{side}="(\d+)', svg)) else 0
        for side in ("width", "height")
    )
    caption = " ".join(filter(None, [figure.caption, *chart.spec["title"]["subtitle"]]))
    return Picture(
        figure.name, figure.title, caption, figure.section, spec,
        _address(svg, spec) if svg else "", _address(narrow, spec, "=:/") if narrow else "",
        width, height,
    )  # fmt: skip


def _address(svg: str, spec: dict[str, Any], unescaped: str = _UNESCAPED) -> str:
    address = f"data:image/svg+xml;charset=utf-8,{quote(svg, safe=unescaped)}"
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
    """Return the kinds of files of ``--kinds``; ``BadInput`` if one is unknown or there is none."""
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


def png(path: Path, spec: dict[str, Any]) -> None:
    path.write_bytes(vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE))


def _svg(path: Path, spec: dict[str, Any]) -> None:
    path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


def _html(path: Path, spec: dict[str, Any]) -> None:
    """Write a page with an interactive figure. Altair's own page would not escape names."""
    path.write_text(render("figure.html.j2", {"figure": spec}), encoding="utf-8")


_WRITERS: dict[str, Callable[[Path, Spec], None]] = {"png": png, "svg": _svg, "html": _html}
