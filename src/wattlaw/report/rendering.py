"""Pages from templates: their style, and the scripts of an interactive one.

Scripts are in the page itself, and its policy names their hashes, so that no other script runs.
They are Vega, and the page's own, which draws the figures and sorts tables. Vega interprets the
expressions of a figure, because the policy does not allow ``eval``.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import jinja2
import vl_convert
from markupsafe import Markup

from wattlaw.common.formatting import replace_invisible


@cache
def environment(package: str = "wattlaw.report") -> jinja2.Environment:
    made = jinja2.Environment(
        # An add-on's pages have blocks of the report, such as the answer.
        loader=jinja2.ChoiceLoader([*map(jinja2.PackageLoader, (package, "wattlaw.report"))]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: replace_invisible(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["whole_options"] = _whole_options
    return made


def _whole_options(text: str) -> Markup:
    """Keep each option of the command line in text on one line: browsers break at hyphens."""
    parts = re.split(r"(--[a-z][a-z-]*(?:=[\w:.-]+)?)", replace_invisible(text))
    whole = [Markup('<span class="option">{}</span>').format(option) for option in parts[1::2]]
    return Markup("").join(
        part for pair in zip(parts[::2], [*whole, ""], strict=True) for part in pair
    )


def render(template: str, specs: Mapping[str, dict[str, Any]] | None = None, **values: Any) -> str:
    scripts, data = [], ""
    if specs is not None:
        from altair.utils._importers import vl_version_for_vl_convert  # slow to import

        bundle: str = vl_convert.javascript_bundle(vl_version=vl_version_for_vl_convert())  # type: ignore[call-arg]
        # No script can end its own element, and no text of the data ends or starts one.
        scripts = [bundle.replace("</script", "<\\/script"), _template_text("report.js")]
        data = json.dumps(specs, allow_nan=False).replace("<", "\\u003c")
    return environment().get_template(template).render(
        style=_template_text("report.css"), style_hash=style_hash(), scripts=scripts, data=data,
        script_hashes=" ".join(f"'{_policy_hash(script)}'" for script in scripts), **values,
    )  # fmt: skip


def style_hash() -> str:
    return _policy_hash(_template_text("report.css"))


def _policy_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _template_text(name: str) -> str:
    return resources.files("wattlaw.report").joinpath("templates", name).read_text("utf-8")
