"""Pages from templates: their style, and the scripts of an interactive one.

Scripts are in the page itself, and its policy names their hashes, so that no other script runs.
They are Vega, and the page's own, which draws the figures and sorts tables. Vega interprets the
expressions of a figure, because the policy does not allow ``eval``.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import vl_convert
from altair.utils._importers import vl_version_for_vl_convert

from wattlaw.common.formatting import replace_invisible

#: Dragging moves a panel's axes and the wheel with the shift key zooms; else the page scrolls.
_ZOOM = {"type": "interval", "zoom": "wheel![event.shiftKey]"}
_FAINT = 0.08


@cache
def environment(package: str = "wattlaw.report") -> jinja2.Environment:
    """Return the templates, which escape every value and replace control characters."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader(package),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: replace_invisible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, specs: Mapping[str, dict[str, Any]] | None = None, **values: Any) -> str:
    """Return a page; where there are ``specs`` by name, its scripts draw these figures."""
    style, scripts, data = _template_text("report.css"), [], ""
    if specs is not None:
        scripts = [_vega(), _template_text("report.js")]
        data = script_safe_json({name: explorable(spec) for name, spec in specs.items()})
    return environment().get_template(template).render(
        style=style, style_hash=_policy_hash(style), scripts=scripts, data=data,
        script_hashes=" ".join(f"'{_policy_hash(script)}'" for script in scripts), **values,
    )  # fmt: skip


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


def _policy_hash(text: str) -> str:
    """Return the hash by which a page's policy allows this style sheet or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _template_text(name: str) -> str:
    return resources.files("wattlaw.report").joinpath("templates", name).read_text("utf-8")


@cache
def _vega() -> str:
    """Return vega, vega-lite and vega-embed as one script that cannot end its own element."""
    bundle: str = vl_convert.javascript_bundle(vl_version=vl_version_for_vl_convert())  # type: ignore[call-arg]
    return bundle.replace("</script", "<\\/script")
