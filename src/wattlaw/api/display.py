"""How results are shown in a notebook, and the files of a report."""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


def as_html(frame: "pd.DataFrame", lines: Iterable[str] = ()) -> str:
    """Return lines of text and a table as HTML. All text from data is escaped."""
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    table = "" if frame.empty else frame.to_html(
        index=False, na_rep="-", border=0, float_format=lambda value: f"{value:.4g}", max_rows=60
    )  # fmt: skip
    return text + str(table)


@dataclass(frozen=True)
class Report:
    """The files of a report: the page, and the figures where a folder for them was named."""

    page: Path
    figures: tuple[Path, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain Python."""
        return {"page": str(self.page), "figures": [str(path) for path in self.figures]}

    def to_frame(self) -> "pd.DataFrame":
        """Return a row per file."""
        import pandas as pd

        files = [self.page, *self.figures]
        return pd.DataFrame({"file": map(str, files), "bytes": [f.stat().st_size for f in files]})

    def _repr_html_(self) -> str:
        return as_html(self.to_frame())
