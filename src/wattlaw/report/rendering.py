"""Templates of pages, and the hashes of styles and scripts, which the policy of a page names."""

import base64
import hashlib
import re
from functools import cache
from importlib import resources

import jinja2
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


def style_hash() -> str:
    return policy_hash(template_text("report.css"))


def policy_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def template_text(name: str) -> str:
    return resources.files("wattlaw.report").joinpath("templates", name).read_text("utf-8")
