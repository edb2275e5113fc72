"""Tables of a report as LaTeX, for Markdown that becomes a PDF."""

from wattlaw.common.formatting import replace_invisible
from wattlaw.report.tables import Table

_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}", **{sign: f"\\{sign}" for sign in "&%$#_"}, "\u2212": "$-$",
        "\u00a0": "~", "\u2013": "--", "\u00b1": r"$\pm$",
    }
)  # fmt: skip


def escape(text: str) -> str:
    """Return text that LaTeX prints as it is."""
    return replace_invisible(text).translate(_ESCAPES)


def as_latex(table: Table | None) -> str:
    """Return a table with caption and note; empty text for None."""
    if table is None:
        return ""
    columns = "".join("r" if "n" in name.split() else "l" for name in table.classes)
    rows = [" & ".join(map(escape, row)) + r" \\" for row in (table.headings, *table.rows)]
    caption = ". ".join(filter(None, [table.title, table.note]))
    lines = [
        r"\begin{table}[htbp]", rf"\caption{{{escape(caption)}}}",
        rf"\begin{{tabular}}{{{columns}}}", r"\hline", rows[0],
        r"\hline", *rows[1:], r"\hline", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines)
