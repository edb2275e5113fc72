"""Exponents and speedups next to the published ones, in the layout of the MIT study.

The rows and columns of published values name their source.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from wattlaw import formatting as fmt
from wattlaw.analysis.caps.limits import LIMITS, Limit, other_limit
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.reference.published import Published, published
from wattlaw.report import tables
from wattlaw.report.topics.measured import worker_noun
from wattlaw.report.topics.scaling import gpu_range, main_fits, relative_rows


def exponents(findings: Findings) -> tables.Table | None:
    """Return β, SE and R² of each workload without limits, and the published ones."""
    rows = [(fit, _published(fit, "beta")) for fit in main_fits(findings)]
    columns = [
        tables.text("series", lambda row: fmt.group_label(row[0].group)),
        tables.number("β", lambda row: row[0].law.beta),
        tables.number("SE", lambda row: row[0].law.beta_se, 2),
        tables.number("R²", lambda row: row[0].law.r2, 4),
        tables.Column("N", lambda row: gpu_range(row[0].law)),
        tables.number("published β", lambda row: row[1] and row[1].value),
        tables.number("published SE", lambda row: row[1] and row[1].se),
        tables.number("published R²", lambda row: row[1] and row[1].r2),
        tables.Column("published N", lambda row: row[1] and _published_range(row[1])),
        tables.text("published by", lambda row: row[1] and _source(row[1])),
    ]
    has_published = any(value is not None for _, value in rows)
    return tables.build(
        "exponents_published",
        "Exponents without caps and clocks" + (", and published ones" if has_published else ""),
        columns,
        rows,
        note="An exponent depends on the range of N of the fit, on hardware and on batch"
        + (": compare it with a published one only if these agree." if has_published else "."),
    )


def by_limit(findings: Findings, kind: Limit) -> tables.Table | None:
    """Return exponents, a row per family and a column per limit; published ones below ours."""
    rows = list(_rows(findings, kind))
    limits = {limit for row in rows for limit in row["cells"]}
    order = sorted(limits, key=lambda limit: (limit is not None, -(limit or 0)))
    columns = [
        tables.text("series", "label"),
        tables.text("source", "source"),
        *(_limit_column(kind, limit) for limit in order),
        tables.Column("N", "range"),
    ]
    return tables.build(
        f"exponents_by_{kind}", f"Exponents β by {fmt.LIMIT_NAMES[kind]}", columns, rows,
        max_open_rows=24,
    )  # fmt: skip


def _limit_column(kind: Limit, limit: float | None) -> tables.Column:
    return tables.Column(fmt.limit_label(kind, limit), lambda row: row["cells"].get(limit))


def speedups(findings: Findings) -> tables.Table | None:
    """Return the speedup at the largest count of each workload, and the published one."""
    rows = []
    for fit in main_fits(findings):
        table = relative_rows(findings, fit)
        if len(table):
            largest = table.iloc[int(table["gpus"].argmax())]
            rows.append((fit, largest, _published(fit, "speedup")))
    columns = [
        tables.text("series", lambda row: fmt.group_label(row[0].group)),
        tables.number("N", lambda row: row[1]["gpus"]),
        tables.number("relative to", lambda row: row[1]["reference"]),
        tables.Column("speedup", lambda row: tables.with_interval(row[1], "speedup")),
        tables.Column("published", lambda row: row[2] and _published_speedup(row[2])),
        tables.Column("published N", lambda row: row[2] and _published_range(row[2])),
        tables.text("published by", lambda row: row[2] and _source(row[2])),
    ]
    has_published = any(row[2] is not None for row in rows)
    return tables.build(
        "speedups_published",
        f"Speedup at the largest number of {worker_noun(findings)}s"
        + (", and published ones" if has_published else ""),
        columns,
        rows,
    )


def _rows(findings: Findings, kind: Limit) -> Iterator[dict[str, Any]]:
    other = other_limit(kind)
    families: dict[str, list[SeriesFit]] = {}
    for fit in findings.fits.rows:
        if fit.law and not any(
            fmt.known(fit.group.get(name)) for name in (other, "fraction_per_gpu")
        ):
            family = {name: value for name, value in fit.group.items() if name not in LIMITS}
            families.setdefault(fmt.group_label(family), []).append(fit)
    for label, fits in families.items():
        if len(fits) < 2:
            continue
        laws = {fit.group.get(kind): fit.law for fit in fits if fit.law}
        yield {
            "label": label, "source": "this store", "range": _ranges(fits),
            "cells": {limit: _exponent(law.beta, law.beta_se, law.r2)
                      for limit, law in laws.items()},
        }  # fmt: skip
        workload = fits[0].group.get("workload")
        limited = [
            value
            for value in published(quantity="beta", workload=workload)
            if getattr(value, other) is None and getattr(value, kind) is not None
        ]
        if limited:
            yield {
                "label": str(workload), "source": f"published: {_source(limited[0])}",
                "range": _published_range(limited[0]),
                "cells": {getattr(value, kind): _exponent(value.value, value.se, value.r2)
                          for value in limited},
            }  # fmt: skip


def _ranges(fits: Sequence[SeriesFit]) -> str:
    return "; ".join(dict.fromkeys(gpu_range(fit.law) for fit in fits if fit.law))


def _exponent(beta: float, se: float | None, r2: float | None) -> str:
    details = [f"SE {fmt.number(se, 2)}"] if fmt.known(se) else []
    details += [f"R² {fmt.number(r2, 4)}"] if fmt.known(r2) else []
    return f"{fmt.number(beta)} ({', '.join(details)})" if details else fmt.number(beta)


def _published_speedup(value: Published) -> str:
    high = "" if value.value_high is None else f" to {fmt.number(value.value_high)}"
    return f"{fmt.number(value.value)}{high}"


def _published(fit: SeriesFit, quantity: str) -> Published | None:
    """Return the published value of a fit's workload without caps and clocks."""
    workload = fit.group.get("workload")
    if not isinstance(workload, str):
        return None
    values = published(quantity=quantity, workload=workload)
    return next((v for v in values if v.power_limit_w is None and v.clock_limit_mhz is None), None)


def _published_range(value: Published) -> str:
    if value.gpus_min is not None and value.gpus_max is not None:
        return f"{value.gpus_min} to {value.gpus_max}"
    return f"within {value.source.gpus_min} to {value.source.gpus_max}"


def _source(value: Published) -> str:
    return f"{value.source.name}, {value.hardware}"
