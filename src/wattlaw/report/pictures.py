"""Charts as pictures: in a page as images that cannot run or load anything, and as files.

A page holds its figures as SVG images (``data:`` addresses), drawn when the page is written. An SVG
that is an image runs no script and loads nothing, whatever text is in it, so the page needs no
script at all, prints sharply, and is read where JavaScript is off. An SVG with so many marks that
it would weigh more than ``HEAVY`` is drawn as PNG.
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

import vl_convert
from altair.utils._importers import vl_version_for_vl_convert
from altair.utils.schemapi import debug_mode

from wattlaw.analysis.findings import Findings
from wattlaw.errors import BadInput
from wattlaw.formatting import clean, sentence
from wattlaw.report.drawing import Drawing
from wattlaw.report.figures import GALLERY
from wattlaw.report.figures.figure import Figure
from wattlaw.report.templating import environment
from wattlaw.store.files import replacing

KINDS = ("png", "svg", "html")
#: Bytes of a figure's address in the page.
HEAVY = 400_000
_SCALE = 2
#: Left as they are in an address: what neither HTML nor a URL takes for an end of it.
_SAFE = " =:/'()[],;!*@$+?-._~|"


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
    """A figure as made of findings; ``spec`` is Vega-Lite's, without what XML forbids."""

    figure: Figure
    spec: dict[str, Any]


def charts(findings: Findings, study: str | None = None) -> Iterator[Chart]:
    """Make the figures (of a study, or all) that the findings have something to show for."""
    for figure in GALLERY:
        if study is None or study in figure.studies:
            chart = chart_of(figure, findings)
            if chart is not None:
                yield chart


def chart_of(figure: Figure, findings: Findings) -> Chart | None:
    """Return a figure of the findings; None where they have nothing to show."""
    with debug_mode(False):  # checks every part by itself, a fifth of the time; tests do
        chart = figure.make(findings)
    if chart is None:
        return None
    spec = _cleaned(chart.to_dict(validate=False))
    if findings.facts.get("Launcher") == "simulated":
        spec["title"] = _said_simulated(spec.get("title", ""))
    return Chart(figure, spec)


def _said_simulated(title: Any) -> dict[str, Any]:
    """Return a chart's title with a line that says so: a figure may be seen without its page."""
    parts = dict(title) if isinstance(title, dict) else {"text": title}
    lines = parts.get("subtitle") or []
    lines = [lines] if isinstance(lines, str) else list(lines)
    return parts | {"subtitle": [*lines, "simulated: nothing was measured"]}


def pictures(made: Iterable[Chart]) -> tuple[Picture, ...]:
    """Return charts as a page has them; each is drawn while the next is made."""
    with Drawing() as drawing:
        begun = []
        for chart in made:
            # In a page title and subtitle are text beside it.
            spec = {name: part for name, part in chart.spec.items() if name != "title"}
            begun.append((chart, spec, drawing.svg(spec)))
        return tuple(_picture(chart, spec, drawn.result()) for chart, spec, drawn in begun)


def _text(chart: Chart) -> str:
    title = chart.spec.get("title") or {}
    told = title.get("subtitle", "") if isinstance(title, dict) else ""
    told = told if isinstance(told, str) else " ".join(told)
    return " ".join(sentence(words) for words in (chart.figure.caption, told) if words)


def _picture(chart: Chart, spec: dict[str, Any], svg: str) -> Picture:
    figure = chart.figure
    width, height = (
        int(found[1]) if (found := re.search(rf'<svg[^>]*\b{side}="(\d+)', svg)) else 0
        for side in ("width", "height")
    )
    return Picture(
        figure.name, figure.title, _text(chart), figure.section, _address(svg, spec), width, height
    )


def _address(svg: str, spec: dict[str, Any]) -> str:
    address = f"data:image/svg+xml;charset=utf-8,{quote(svg, safe=_SAFE)}"
    if len(address) <= HEAVY:
        return address
    png = vl_convert.vegalite_to_png(spec, scale=1.5)
    drawn = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return min(address, drawn, key=len)


def _cleaned(value: Any) -> Any:
    """Return a chart in which no text has a character that XML forbids."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    if isinstance(value, dict):
        return {clean(key): _cleaned(item) for key, item in value.items()}
    return value


def figure_kinds(text: str) -> tuple[str, ...]:
    """Return the kinds of files that ``--kinds png,svg`` asks for.

    Raises
    ------
    BadInput
        A kind that there is not, or none.
    """
    kinds = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for kind in kinds or ("",):
        if kind not in KINDS:
            raise BadInput(f"--kinds: given {kind!r}; allowed: {', '.join(KINDS)}")
    return kinds


def write_figures(
    made: Iterable[Chart], directory: Path, kinds: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Write each chart as files of these kinds; return them.

    ``html`` is one file that needs no network, in which a figure can be looked into.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in made:
        for kind in kinds:
            path = directory / f"{chart.figure.name}.{kind}"
            with replacing(path, durable=False) as temporary:
                _WRITERS[kind](temporary, chart.spec)
            written.append(path)
    return written


def _png(path: Path, spec: dict[str, Any]) -> None:
    path.write_bytes(vl_convert.vegalite_to_png(spec, scale=_SCALE))


def _svg(path: Path, spec: dict[str, Any]) -> None:
    path.write_text(vl_convert.vegalite_to_svg(spec), encoding="utf-8")


def _html(path: Path, spec: dict[str, Any]) -> None:
    """Write a page of one figure that can be looked into. Altair's own would let names in."""
    page = environment().get_template("figure.html.j2")
    path.write_text(page.render(spec=inert(spec), script=_script()), encoding="utf-8")


def inert(value: Any) -> str:
    """Return a value as JSON in which no text can end its script, or start another."""
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
