"""What ``print`` and a notebook show of each result; the command line prints the same lines."""

from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd

from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.advise.comparison import Comparison
from wattlaw.analysis.advise.known_throughput import Placements
from wattlaw.analysis.laws.fitting import Fits
from wattlaw.analysis.metrics.result import shown, shown_in_notebook
from wattlaw.analysis.predict.workload_predictions import Predictions
from wattlaw.report.tables import Table, as_html
from wattlaw.report.topics import advice_text, comparisons, prediction, scaling, verdict
from wattlaw.study.labels import group_label


def _frame(table: Table | None) -> pd.DataFrame:
    return pd.DataFrame() if table is None else table.to_frame()


def _register(
    kind: type,
    lines: Callable[[Any], Iterable[str]],
    table: Callable[[Any], Table | None],
    *,
    prints_table: bool = False,
) -> None:
    """``print`` shows the lines, if ``prints_table`` below the table; a notebook shows both."""

    def text(result: Any) -> str:
        frame = _frame(table(result) if prints_table else None)
        rows = [] if frame.empty else frame.to_string(index=False).splitlines()
        return "\n".join([*rows, *lines(result)])

    shown.register(kind, text)
    shown_in_notebook.register(kind, lambda result: as_html(_frame(table(result)), lines(result)))


def prediction_lines(result: Predictions) -> list[str]:
    return [*prediction.notes(result), *(f"Warning: {item}" for item in result.warnings)]


def _titled_predictions(result: Predictions) -> list[str]:
    table = prediction.table(result)
    return [*([] if table is None else [f"{table.title}."]), *prediction_lines(result)]


def _comparison_lines(result: Comparison) -> list[str]:
    warnings = (f"Warning: {item}" for item in result.warnings)
    return [*comparisons.comparison_sentences(result), *warnings]


def _fit_lines(result: Fits) -> list[str]:
    refused = [f"{group_label(group)}: {reason}" for group, reason in result.refusals]
    return [result.formula, *refused, *scaling.breakpoints(result.rows)]


_register(
    Advice,
    lambda result: [*advice_text.summary(result), *advice_text.details(result)],
    verdict.settings,
)
_register(Predictions, _titled_predictions, prediction.table, prints_table=True)
_register(Comparison, _comparison_lines, comparisons.comparison_table)
_register(Fits, _fit_lines, scaling.laws, prints_table=True)


def _placement_lines(item: Any) -> list[str]:
    return [comparisons.headline(item), *comparisons.placement_sentences(item)]


@shown.register
def _placements(result: Placements) -> str:
    return "\n".join(line for item in result for line in _placement_lines(item))


@shown_in_notebook.register
def _placements_html(result: Placements) -> str:
    tables = ((comparisons.placement_table(item), _placement_lines(item)) for item in result)
    return "".join(as_html(_frame(table), lines) for table, lines in tables)
