"""The scripts of an interactive page: Vega, the figures, and tables that can be sorted.

They are in the page itself, and its policy names their hashes, so that no other script runs. Vega
interprets the expressions of a figure, because the policy does not allow ``eval``.
"""

import base64
import hashlib
import json
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import vl_convert
from altair.utils._importers import vl_version_for_vl_convert

#: Dragging moves a panel's axes and the wheel with the shift key zooms; else the page scrolls.
_ZOOM = {"type": "interval", "zoom": "wheel![event.shiftKey]"}
_FAINT = 0.08


@dataclass(frozen=True)
class Script:
    """A script of a page, or data as JSON, which do not run."""

    text: str
    name: str = ""
    runs: bool = True


def page_scripts(pictures: Iterable[Any]) -> tuple[Script, ...]:
    specs = {picture.name: explorable(picture.spec) for picture in pictures}
    return (
        Script(script_safe_json(specs), "figures", runs=False),
        Script(_vega()),
        Script(template_text("report.js")),
    )


def explorable(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a figure whose panels zoom, and whose lines a click on the legend selects."""
    spec = deepcopy(spec)
    spec["config"] = {**spec.get("config", {}), "aria": False}  # the page describes the figure
    picks = False
    for i, panel in enumerate(spec.get("concat", ())):
        layers: list[dict[str, Any]] = panel.get("layer", [panel])
        channels = [layer.get("encoding", {}) for layer in layers]
        for layer, encoding in zip(layers, channels, strict=True):
            if {encoding.get(name, {}).get("type") for name in ("x", "y")} == {"quantitative"}:
                layer["params"] = [{"name": f"zoom_{i}", "select": _ZOOM, "bind": "scales"}]
                break
        for layer, encoding in zip(layers, channels, strict=True):
            color = encoding.get("color", {})
            if color.get("field") == "line" and color.get("legend") is not None and not picks:
                select = {"type": "point", "fields": ["line"]}
                layer.setdefault("params", []).append(
                    {"name": "pick", "select": select, "bind": "legend"}
                )
                picks = True
    for panel in spec.get("concat", ()) if picks else ():
        for layer in panel.get("layer", [panel]):
            if layer.get("encoding", {}).get("color", {}).get("field") == "line":
                shown = {"param": "pick", "value": layer["mark"].get("opacity", 1)}
                layer["encoding"]["opacity"] = {"condition": shown, "value": _FAINT}
    return spec


def script_safe_json(value: Any) -> str:
    """Return JSON in which no text can end a script element or start another."""
    text = json.dumps(value, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def policy_hash(text: str) -> str:
    """Return the hash by which a page's policy allows this style sheet or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def template_text(name: str) -> str:
    return resources.files("wattlaw.report").joinpath("templates", name).read_text("utf-8")


@cache
def _vega() -> str:
    """Return vega, vega-lite and vega-embed as one script that cannot end its own element."""
    bundle: str = vl_convert.javascript_bundle(vl_version=vl_version_for_vl_convert())  # type: ignore[call-arg]
    return bundle.replace("</script", "<\\/script")
