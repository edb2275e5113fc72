"""What ``print`` and a notebook show of each result; the command line prints the same lines."""

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.advise.comparison import Comparison
from wattlaw.analysis.advise.known_throughput import Placements
from wattlaw.analysis.laws.fitting import Fits
from wattlaw.analysis.metrics.result import shown, shown_in_notebook, write_page
from wattlaw.analysis.predict.workload_predictions import Predictions
from wattlaw.report.tables import Table, as_html
from wattlaw.report.topics import (
    advice_text,
    comparison_table,
    prediction,
    scaling,
    throughput_text,
    verdict,
)
from wattlaw.study.labels import group_label


def _html(table: Table | None, lines: Iterable[str]) -> str:
    return as_html(pd.DataFrame() if table is None else table.to_frame(), lines)


def _titled(table: Table | None, end: str = "") -> list[str]:
    return [] if table is None else [table.title + end]


@shown.register
def _advice(result: Advice) -> str:
    return "\n".join([*advice_text.summary(result), *advice_text.details(result)])


@shown_in_notebook.register
def _advice_html(result: Advice) -> str:
    table = verdict.settings(result)
    return _html(table, [*str(result).splitlines(), *_titled(table)])


def prediction_lines(result: Predictions) -> list[str]:
    return [*prediction.notes(result), *(f"Warning: {item}" for item in result.warnings)]


@shown.register
def _predictions(result: Predictions) -> str:
    table = prediction.table(result)
    frame = pd.DataFrame() if table is None else table.to_frame()
    lines = [*_titled(table, "."), *prediction_lines(result)]
    return "\n".join([*frame.to_string(index=False).splitlines(), *lines])


@shown_in_notebook.register
def _predictions_html(result: Predictions) -> str:
    table = prediction.table(result)
    return _html(table, [*_titled(table, "."), *prediction_lines(result)])


@shown.register
def _comparison(result: Comparison) -> str:
    warnings = (f"Warning: {item}" for item in result.warnings)
    return "\n".join([*comparison_table.sentences(result), *warnings])


@shown_in_notebook.register
def _comparison_html(result: Comparison) -> str:
    return _html(comparison_table.table(result), str(result).splitlines())


@write_page.register
def _comparison_page(result: Comparison, path: Path) -> None:
    from wattlaw.report.comparison_page import write_comparison

    write_comparison(result, path)


@shown.register
def _placements(result: Placements) -> str:
    lines: list[str] = []
    for item in result:
        lines += [throughput_text.headline(item), *throughput_text.sentences(item)]
    return "\n".join(lines)


@shown_in_notebook.register
def _placements_html(result: Placements) -> str:
    return "".join(
        _html(
            throughput_text.table(item),
            [throughput_text.headline(item), *throughput_text.sentences(item)],
        )
        for item in result
    )


def _fit_lines(result: Fits) -> list[str]:
    refused = [f"{group_label(group)}: {reason}" for group, reason in result.refusals]
    return [result.formula, *refused, *scaling.breakpoints(result.rows)]


@shown.register
def _fits(result: Fits) -> str:
    table = scaling.laws(result)
    rows = [] if table is None else table.to_frame().to_string(index=False).splitlines()
    return "\n".join([*rows, *_fit_lines(result)])


@shown_in_notebook.register
def _fits_html(result: Fits) -> str:
    return _html(scaling.laws(result), _fit_lines(result))
