"""Exponents and speedups next to the published ones, in the layout of the MIT study.

The rows and columns of published values name their source.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from wattlaw.analysis.caps.limits import LIMITS, Limit, other_limit
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.formatting import (
    LIMIT_NAMES,
    MISSING,
    group_label,
    known,
    limit_label,
    number,
    with_interval,
)
from wattlaw.reference.published import Published, published
from wattlaw.report.topics.measured import worker_noun
from wattlaw.report.topics.scaling import gpu_range, main_fits, relative_rows
from wattlaw.report.topics.table import Column, Table, build_table, text_column


def exponents(findings: Findings) -> Table | None:
    """Return β, SE and R² of each workload without limits, and the published ones."""
    rows = [(fit, _published(fit, "beta")) for fit in main_fits(findings)]
    columns = [
        text_column("series", lambda row: group_label(row[0].group)),
        Column("β", lambda row: number(row[0].law.beta)),
        Column("SE", lambda row: number(row[0].law.beta_se, 2)),
        Column("R²", lambda row: number(row[0].law.r2, 4)),
        Column("N", lambda row: gpu_range(row[0].law)),
        Column("published β", lambda row: number(row[1].value) if row[1] else MISSING),
        Column("published SE", lambda row: number(row[1].se) if row[1] else MISSING),
        Column("published R²", lambda row: number(row[1].r2) if row[1] else MISSING),
        Column("published N", lambda row: _published_range(row[1]) if row[1] else MISSING),
        text_column("published by", lambda row: _source(row[1]) if row[1] else MISSING),
    ]
    has_published = any(value is not None for _, value in rows)
    return build_table(
        "exponents_published",
        "Exponents without caps and clocks" + (", and published ones" if has_published else ""),
        columns,
        rows,
        note="An exponent depends on the range of N of the fit, on hardware and on batch"
        + (": compare it with a published one only if these agree." if has_published else "."),
    )


def by_limit(findings: Findings, kind: Limit) -> Table | None:
    """Return exponents, a row per family and a column per limit; published ones below ours."""
    rows = list(_rows(findings, kind))
    limits = {limit for row in rows for limit in row["cells"]}
    order = sorted(limits, key=lambda limit: (limit is not None, -(limit or 0)))
    columns = [
        text_column("series", "label"),
        text_column("source", "source"),
        *(_limit_column(kind, limit) for limit in order),
        Column("N", lambda row: row["range"]),
    ]
    return build_table(
        f"exponents_by_{kind}", f"Exponents β by {LIMIT_NAMES[kind]}", columns, rows,
        max_open_rows=24,
    )  # fmt: skip


def _limit_column(kind: Limit, limit: float | None) -> Column:
    return Column(limit_label(kind, limit), lambda row: row["cells"].get(limit, MISSING))


def speedups(findings: Findings) -> Table | None:
    """Return the speedup at the largest count of each workload, and the published one."""
    rows = []
    for fit in main_fits(findings):
        table = relative_rows(findings, fit)
        if len(table):
            largest = table.iloc[int(table["gpus"].argmax())]
            rows.append((fit, largest, _published(fit, "speedup")))
    columns = [
        text_column("series", lambda row: group_label(row[0].group)),
        Column("N", lambda row: number(row[1]["gpus"])),
        Column("relative to", lambda row: number(row[1]["reference"])),
        Column("speedup", lambda row: with_interval(
            row[1]["speedup"], row[1]["speedup_low"], row[1]["speedup_high"])),
        Column("published", lambda row: _published_speedup(row[2]) if row[2] else MISSING),
        Column("published N", lambda row: _published_range(row[2]) if row[2] else MISSING),
        text_column("published by", lambda row: _source(row[2]) if row[2] else MISSING),
    ]  # fmt: skip
    has_published = any(row[2] is not None for row in rows)
    return build_table(
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
        if fit.law and not any(known(fit.group.get(name)) for name in (other, "fraction_per_gpu")):
            family = {name: value for name, value in fit.group.items() if name not in LIMITS}
            families.setdefault(group_label(family), []).append(fit)
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
    details = [f"SE {number(se, 2)}"] if known(se) else []
    details += [f"R² {number(r2, 4)}"] if known(r2) else []
    return f"{number(beta)} ({', '.join(details)})" if details else number(beta)


def _published_speedup(value: Published) -> str:
    high = "" if value.value_high is None else f" to {number(value.value_high)}"
    return f"{number(value.value)}{high}"


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
