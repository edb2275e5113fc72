"""The throughput of the runs of a store among known measurements."""

from dataclasses import replace
from os import PathLike
from typing import Any

from wattlaw.analysis.metrics.result import shown, shown_in_notebook
from wattlaw.api.arguments import path_of
from wattlaw.api.results import Results
from wattlaw.report.tables import as_html
from wattlaw_throughput import throughput_text
from wattlaw_throughput.known_measurements import read_known
from wattlaw_throughput.known_throughput import OBSERVED, Placements, place


def throughput_of(
    results: Results, reference: str | PathLike[str], map: str | None = None
) -> Placements:
    """Return how the fastest setting of each workload and hardware compares with measurements.

    Parameters
    ----------
    results
        The runs.
    reference
        A table of measurements that ``import_files`` reads, with the sizes of the models
        (``docs/report.md``).
    map
        Which column of the table each field takes, as of ``import_files``.

    Raises
    ------
    wattlaw.common.errors.Refused
        The runs do not say what network they train.
    wattlaw.common.errors.BadInput
        The table cannot be read.
    """
    known, unread = read_known(path_of("reference", reference), map)
    placed = place(results.metrics, results.runs[[*OBSERVED]], known)
    return Placements(tuple(replace(row, left_out={**row.left_out, **unread}) for row in placed))


def _lines(item: Any) -> list[str]:
    return [throughput_text.headline(item), *throughput_text.sentences(item)]


@shown.register
def _placements(result: Placements) -> str:
    return "\n".join(line for item in result for line in _lines(item))


@shown_in_notebook.register
def _placements_html(result: Placements) -> str:
    tables = ((throughput_text.table(item), _lines(item)) for item in result)
    return "".join(as_html(table.to_frame(), lines) for table, lines in tables if table)
