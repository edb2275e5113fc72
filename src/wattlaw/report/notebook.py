"""How tables and lines are shown in a notebook."""

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def as_html(frame: "pd.DataFrame", lines: Iterable[str] = ()) -> str:
    """Return lines of text and a table as HTML. All text from data is escaped."""
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    table = "" if frame.empty else frame.to_html(
        index=False, na_rep="-", border=0, float_format=lambda value: f"{value:.4g}", max_rows=60
    )  # fmt: skip
    return text + str(table)
