"""Figures, and the pictures that they give: in a page, as files, and interactive.

A page contains its pictures as SVG images (``data:`` addresses), drawn when the page is written. An
SVG in an ``<img>`` runs no script and loads nothing, whatever text is in it. So the page needs no
JavaScript and prints sharply. An SVG larger than ``MAX_SVG_BYTES`` becomes a PNG. The background is
transparent, so that a dark page can invert the colours. An interactive page draws its figures.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import vl_convert
from markupsafe import Markup

from wattlaw.common.files import replacing
from wattlaw.common.formatting import replace_invisible
from wattlaw.common.progress import track

if TYPE_CHECKING:
    from pathlib import Path

    from wattlaw.analysis.findings import Findings
    from wattlaw.report.charts import Spec

#: Largest size of an SVG's address in the page.
MAX_SVG_BYTES = 400_000
#: Figures that are also drawn for a phone, and the width of a panel there in pixels.
_FOR_PHONES, _PHONE_WIDTH = ("pareto", "layouts", "scaling"), 265
#: The width of a cell there.
_PHONE_STEP = 50
#: Characters that need no escape in an address, neither in HTML nor in a URL.
_UNESCAPED = " =:/'()[],;!*@$+?-._~|"
_DIGITS = re.compile(r"(\.\d\d)\d+")
_TAG = re.compile("<[^>]*>")
#: A point or cell with its description, and what else an SVG says to screen readers.
_MARK = re.compile(
    r'<path aria-label="([^"]*)" role="graphics-symbol" '
    r'aria-roledescription="(?:point|rect mark)"([^>]*?)/>'
)
_ROLES = re.compile(r' (?:role|aria-[a-z]+)="[^"]*"(?=[^<>]*>)')
#: Dragging moves a panel's axes and the wheel with the shift key zooms; else the page scrolls.
_ZOOM = {"type": "interval", "zoom": "wheel![event.shiftKey]"}
_FAINT = 0.08

#: Draws a figure; None without data.
Draw = Callable[["Findings"], "Spec | None"]


@dataclass(frozen=True)
class Figure:
    """What a picture shows, and the text around it; a title that is drawn replaces ``title``. The
    default page leaves out a figure with ``is_extra``: another one has the same data."""

    name: str
    title: str
    draw: Draw
    caption: str = ""
    is_extra: bool = False

    def picture(self, findings: Findings) -> Picture | None:
        spec = self.draw(findings)
        if spec is None:
            return None
        note = ""
        if findings.sources_label:  # a picture may be seen without its page
            note = f"{findings.sources_label.capitalize()} values: nothing was measured here."
        title = spec["title"]["text"] or self.title
        return Picture.of(self.name, title, spec, self.caption, note)


@dataclass(frozen=True)
class Picture:
    """A figure of findings; ``spec`` has no characters that XML forbids."""

    name: str
    title: str
    caption: str
    spec: Spec = field(repr=False)
    kind = "picture"

    @classmethod
    def of(cls, name: str, title: str, spec: Spec, caption: str = "", note: str = "") -> Picture:
        notes = [*spec["title"]["subtitle"], *([note] if note else [])]
        spec = spec | {"title": spec["title"] | {"text": title, "subtitle": notes}}
        spec = _without_invisible(spec)
        return cls(name, title, " ".join([caption, *spec["title"]["subtitle"]]).strip(), spec)

    @cached_property
    def in_page(self) -> Spec:
        """The chart without title and subtitle, which are in the page's caption."""
        spec = {name: part for name, part in self.spec.items() if name != "title"}
        return spec | {"config": {**spec["config"], "background": "transparent"}}

    @cached_property
    def svg(self) -> str:
        return _svg(self.in_page)

    @property
    def has_descriptions(self) -> bool:
        """Whether a pointer over a point shows what it is."""
        layers = (layer for panel in self.spec["concat"] for layer in panel["layer"])
        return any("description" in layer["encoding"] for layer in layers)

    @cached_property
    def inline_svg(self) -> Markup:
        """The SVG for the page itself, with what a pointer over a point shows; empty for a figure
        whose points have no descriptions. It has no script and no style; its texts are escaped.
        Narrow pages have ``narrow_address``."""
        if not self.has_descriptions:
            return Markup()
        svg = _MARK.sub(r"<path\2><title>\1</title></path>", _svg(self.in_page, aria=True))
        return Markup(_ROLES.sub("", svg))  # noqa: S704 - our own picture

    @property
    def size(self) -> tuple[int, int]:
        size = re.search(
            r'<svg[^>]*? width="(\d+)[^>]*? height="(\d+)', self.inline_svg or self.svg
        )
        return (int(size[1]), int(size[2])) if size else (0, 0)

    @cached_property
    def address(self) -> str:
        return _address(self.svg, self.in_page)

    @cached_property
    def narrow_address(self) -> str:
        """A picture for a phone, or empty: panels below each other, and a legend of two columns."""
        if self.name not in _FOR_PHONES:
            return ""
        panels = deepcopy(self.in_page["concat"])
        for panel in panels:
            has_cells = isinstance(panel["width"], dict)
            panel["width"] = {"step": _PHONE_STEP} if has_cells else _PHONE_WIDTH
            for channel in (part for each in panel["layer"] for part in each["encoding"].values()):
                if isinstance(channel, dict) and channel.get("legend"):
                    channel["legend"]["columns"] = 2
        spec = self.in_page | {"concat": panels, "columns": 1}
        return _address(_svg(spec), spec, "=:/")


def draw_pictures(findings: Findings, figures: Iterable[Figure]) -> Iterator[Picture]:
    chosen = list(figures)
    for figure in track(chosen, "Drawing figures", len(chosen)):
        if (picture := figure.picture(findings)) is not None:
            yield picture


def _svg(spec: Spec, *, aria: bool = False) -> str:
    """Return a chart as SVG; without ``aria``, marks have no labels for screen readers."""
    svg = vl_convert.vegalite_to_svg(spec | {"config": spec["config"] | {"aria": aria}})
    return _TAG.sub(lambda tag: _DIGITS.sub(r"\1", tag[0]), svg)


def _address(svg: str, spec: Spec, unescaped: str = _UNESCAPED) -> str:
    address = f"data:image/svg+xml;charset=utf-8,{quote(svg, safe=unescaped)}"
    if len(address) <= MAX_SVG_BYTES:
        return address
    png = vl_convert.vegalite_to_png(spec, scale=1.5)
    png_address = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return min(address, png_address, key=len)


def _without_invisible(value: Any) -> Any:
    if isinstance(value, str):
        return replace_invisible(value)
    if isinstance(value, list):
        return [_without_invisible(item) for item in value]
    if isinstance(value, dict):
        return {replace_invisible(key): _without_invisible(item) for key, item in value.items()}
    return value


def explorable(spec: Spec) -> Spec:
    """Return a chart whose panels zoom, and whose lines a click on the legend selects."""
    spec = deepcopy(spec)
    spec["config"]["aria"] = False  # the page describes the figure
    lines = []
    for i, panel in enumerate(spec["concat"]):
        for layer in panel["layer"]:
            encoding = layer["encoding"]
            if {encoding.get(name, {}).get("type") for name in ("x", "y")} == {"quantitative"}:
                layer["params"] = [{"name": f"zoom_{i}", "select": _ZOOM, "bind": "scales"}]
                break
        for layer in panel["layer"]:
            colour = layer["encoding"].get("color", {})
            if colour.get("field") == "line" and colour.get("legend") is not None:
                lines.append(layer)
    for layer in lines:
        shown = {"param": "pick", "value": layer["mark"].get("opacity", 1)}
        layer["encoding"]["opacity"] = {"condition": shown, "value": _FAINT}
    if lines:
        pick = {"type": "point", "fields": ["line"]}
        params = lines[0].setdefault("params", [])
        params.append({"name": "pick", "select": pick, "bind": "legend"})
    return spec


def write_figures(
    pictures: Iterable[Picture], folder: Path, kinds: Sequence[str] = ("png", "svg")
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for picture in pictures:
        for kind in kinds:
            path = folder / f"{picture.name}.{kind}"
            with replacing(path, durable=False) as temporary:
                if kind == "png":
                    temporary.write_bytes(vl_convert.vegalite_to_png(picture.spec, scale=2))
                else:
                    temporary.write_text(vl_convert.vegalite_to_svg(picture.spec), "utf-8")
            written.append(path)
    return written
