"""Templates that escape every value and replace control characters."""

from functools import cache
from typing import Any

import jinja2

from wattlaw.formatting import replace_invisible


@cache
def environment() -> jinja2.Environment:
    """Return the Jinja environment."""
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
