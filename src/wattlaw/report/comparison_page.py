"""The page of a comparison; like the report, it loads nothing and runs no script."""

from pathlib import Path
from urllib.parse import quote

from wattlaw.analysis.comparison import Comparison
from wattlaw.files import write_text
from wattlaw.report.drawing import to_svg
from wattlaw.report.figures.comparison import changes
from wattlaw.report.pictures import environment
from wattlaw.report.topics.comparison import origin, sentences, table


def write_page(comparison: Comparison, path: Path) -> None:
    """Write the sentences, the figure, the table and the warnings of a comparison."""
    spec = changes(comparison).to_dict(validate=False)
    page = environment().get_template("comparison.html.j2").render(
        title=f"{comparison.b.name} relative to {comparison.a.name}{origin(comparison)}",
        lines=sentences(comparison), warnings=comparison.warnings, table=table(comparison),
        address=f"data:image/svg+xml;charset=utf-8,{quote(to_svg(spec))}",
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, page, durable=False)
