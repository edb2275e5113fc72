"""Exponents and speedups as the MIT study lays them out, with the published values beside ours.

Published values are never measured here: their rows and columns say whose they are.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from wattlaw.analysis.caps.limits import LIMITS, Limit, format_limit, other_limit
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import group_label
from wattlaw.analysis.laws.fits import SeriesFit
from wattlaw.formatting import NONE, known, number, with_interval
from wattlaw.reference.published import Published, published
from wattlaw.report.tables.claims import STUDIES
from wattlaw.report.tables.limits import KIND
from wattlaw.report.tables.measured import worker
from wattlaw.report.tables.scaling import main_fits, range_of, relative_rows
from wattlaw.report.tables.table import Column, Table, make

Cells = dict[float | None, str]


def exponents(findings: Findings) -> Table | None:
    """Return β, SE and R² of each workload without limits, and the published ones."""
    columns = [
        Column("series", lambda row: group_label(row[0].group), numeric=False),
        Column("β", lambda row: number(row[0].law.beta)),
        Column("SE", lambda row: number(row[0].law.beta_se, 2)),
        Column("R²", lambda row: number(row[0].law.r2, 4)),
        Column("N", lambda row: range_of(row[0].law)),
        Column("published β", lambda row: number(row[1].value) if row[1] else NONE),
        Column("its SE", lambda row: number(row[1].se) if row[1] else NONE),
        Column("its R²", lambda row: number(row[1].r2) if row[1] else NONE),
        Column("its N", lambda row: _published_range(row[1]) if row[1] else NONE),
        Column("published by", lambda row: _by(row[1]) if row[1] else NONE, numeric=False),
    ]
    rows = [
        (fit, _one(fit.group.get("workload"), "beta", None, None)) for fit in main_fits(findings)
    ]
    has_theirs = any(one is not None for _, one in rows)
    return make(
        "exponents_published",
        "Exponents without caps and clocks" + (", beside published ones" if has_theirs else ""),
        columns,
        rows,
        note="An exponent depends on the range of N that it is fitted over, on hardware and on "
        "batch"
        + (": compare it with a published one only where these are alike." if has_theirs else "."),
    )


def by_limit(findings: Findings, kind: Limit) -> Table | None:
    """Return a row of exponents per family, a column per limit; published ones below ours."""
    rows = list(_rows(findings, kind))
    limits = {limit for row in rows for limit in row["cells"]}
    order = sorted(limits, key=lambda limit: (limit is not None, -(limit or 0)))
    columns = [
        Column("series", lambda row: row["label"], numeric=False),
        Column("whose", lambda row: row["whose"], numeric=False),
        *(_limit_column(kind, limit) for limit in order),
        Column("N", lambda row: row["range"]),
    ]
    return make(
        f"exponents_by_{kind}",
        f"Exponents β by {KIND[kind]}",
        columns,
        rows,
        most_open=24,
    )


def _limit_column(kind: Limit, limit: float | None) -> Column:
    return Column(format_limit(kind, limit), lambda row: row["cells"].get(limit, NONE))


def speedups(findings: Findings) -> Table | None:
    """Return the speedup at the largest count of each workload, and the published one."""
    rows = []
    for fit in main_fits(findings):
        found = relative_rows(findings, fit)
        if len(found):
            last = found.iloc[int(found["gpus"].argmax())]
            rows.append((fit, last, _one(fit.group.get("workload"), "speedup", None, None)))
    columns = [
        Column("series", lambda row: group_label(row[0].group), numeric=False),
        Column("N", lambda row: number(row[1]["gpus"])),
        Column("against", lambda row: number(row[1]["reference"])),
        Column("speedup", lambda row: with_interval(
            row[1]["speedup"], row[1]["speedup_low"], row[1]["speedup_high"])),
        Column("published", lambda row: _speedup(row[2]) if row[2] else NONE),
        Column("its N", lambda row: _published_range(row[2]) if row[2] else NONE),
        Column("published by", lambda row: _by(row[2]) if row[2] else NONE, numeric=False),
    ]  # fmt: skip
    return make(
        "speedups_published",
        f"Speedup at the largest number of {worker(findings)}s"
        + (", beside published ones" if any(row[2] is not None for row in rows) else ""),
        columns,
        rows,
    )


def _rows(findings: Findings, kind: Limit) -> Iterator[dict[str, Any]]:
    families: dict[str, list[SeriesFit]] = {}
    for fit in findings.fits.rows:
        free = not known(fit.group.get(other_limit(kind)))
        if fit.law and free and not known(fit.group.get("fraction_per_gpu")):
            shared = {name: one for name, one in fit.group.items() if name not in LIMITS}
            families.setdefault(group_label(shared), []).append(fit)
    for label, fits in families.items():
        if len(fits) < 2:
            continue
        cells = {fit.group.get(kind): _exponent(fit.law) for fit in fits}
        yield {"label": label, "whose": "here", "cells": cells, "range": _ranges(fits)}
        workload = fits[0].group.get("workload")
        theirs = [
            one
            for one in published(quantity="beta", workload=workload)
            if getattr(one, other_limit(kind)) is None
        ]
        limited = [one for one in theirs if getattr(one, kind) is not None]
        if limited:
            told: Cells = {getattr(one, kind): _exponent_of(one) for one in limited}
            yield {
                "label": str(workload), "whose": f"published: {_by(limited[0])}", "cells": told,
                "range": _published_range(limited[0]),
            }  # fmt: skip


def _ranges(fits: Sequence[SeriesFit]) -> str:
    """Return the counts that the laws of a family speak for."""
    return "; ".join(dict.fromkeys(range_of(fit.law) for fit in fits if fit.law))


def _exponent(law: Any) -> str:
    return _told(law.beta, law.beta_se, law.r2)


def _exponent_of(one: Published) -> str:
    return _told(one.value, one.se, one.r2)


def _told(beta: float, se: float | None, r2: float | None) -> str:
    known_of = [f"SE {number(se, 2)}"] if known(se) else []
    known_of += [f"R² {number(r2, 4)}"] if known(r2) else []
    return f"{number(beta)} ({', '.join(known_of)})" if known_of else number(beta)


def _speedup(one: Published) -> str:
    high = "" if one.value_high is None else f" to {number(one.value_high)}"
    return f"{number(one.value)}{high}"


def _one(
    workload: Any, quantity: str, power_limit_w: float | None, clock_limit_mhz: float | None
) -> Published | None:
    if not isinstance(workload, str):
        return None
    limits = (power_limit_w, clock_limit_mhz)
    found = published(quantity=quantity, workload=workload)
    alike = (one for one in found if (one.power_limit_w, one.clock_limit_mhz) == limits)
    return next(alike, None)


def _published_range(one: Published) -> str:
    if one.gpus_min is not None and one.gpus_max is not None:
        return f"{one.gpus_min} to {one.gpus_max}"
    return f"within {one.source.gpus_min} to {one.source.gpus_max}"


def _by(one: Published) -> str:
    return f"{STUDIES[one.study]}, {one.hardware}"
