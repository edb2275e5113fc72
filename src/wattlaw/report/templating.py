"""The templates, in which every value is text: escaped, and without control characters."""

from functools import cache
from typing import Any

import jinja2

from wattlaw.formatting import clean


@cache
def environment() -> jinja2.Environment:
    """Return the environment of the templates."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("wattlaw.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalize(value: Any) -> Any:
    return clean(value) if type(value) is str else value
