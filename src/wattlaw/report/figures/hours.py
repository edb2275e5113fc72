"""Energy against GPU-hours, and what the factor between them depends on."""

from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.energy_laws import BY
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.metrics import HOUR_S
from wattlaw.formatting import joules, with_interval
from wattlaw.report.figures.energy import BARS, counted
from wattlaw.report.figures.facets import MOST_LINES, Arranged, arranged
from wattlaw.report.figures.parts import POINT, across, axis, compact, on, panel, picture
from wattlaw.report.tables.measured import worker
from wattlaw.report.theme import look

_WIDTH, _HEIGHT = 400, 290
#: More settings than this are thinned out.
_MOST_POINTS = 600


def gpu_hours(findings: Findings) -> alt.ConcatChart | None:
    """Energy against GPU-hours, both per epoch, with each group's line through the origin."""
    shown = _settings(findings)
    if shown is None:
        return None
    size, unit = joules(shown.rows["energy_per_epoch_j"])
    names = {"energy_per_epoch_j": "mean", "energy_per_epoch_j_sd": "sd",
             "gpu_hours_per_epoch": "at"}  # fmt: skip
    table = shown.rows.rename(columns=names)
    table = table.assign(mean=table["mean"] / size, sd=table["sd"] / size)
    table = table.assign(low=table["mean"] - table["sd"], high=table["mean"] + table["sd"])
    lines = _lines(findings, shown, size)
    looks = look(shown.lines, 600)
    heights = [*table[["mean", "low", "high"]].to_numpy(float).ravel(), *lines["mean"]]
    x = across("at", f"{worker(findings)}-hours per epoch (h)", table["at"], log=True)
    y = axis("mean", f"energy per epoch ({unit})", heights, log=True)
    layers = []
    if len(lines):
        base = alt.Chart(compact(lines, "at", "mean", "low", "high", "line"))
        base = base.encode(x=x, color=looks["color"])
        layers = [
            base.mark_area(opacity=0.2, clip=True).encode(y=on(y, "low"), y2="high:Q"),
            base.mark_line(strokeWidth=1.5).encode(y=y, strokeDash=looks["strokeDash"]),
        ]
    words = ["points: settings, means over repeats", BARS, counted(findings), shown.left_out]
    if len(lines):
        words.insert(2, f"lines: energy = mean power x {worker(findings)}-hours, with 95 % band")
    parts = [panel([*layers, *_points(table, x, y, looks)], "", 540, 340)]
    return picture(parts, 1, "Energy against GPU-hours", words, 600)


def factor(findings: Findings) -> alt.ConcatChart | None:
    """Mean power per GPU against samples and against gradient steps per GPU-hour."""
    shown = _settings(findings)
    if shown is None:
        return None
    names = {"energy_per_gpu_hour_j": "mean", "energy_per_gpu_hour_j_sd": "sd"}
    table = shown.rows.rename(columns=names)
    table = table.assign(mean=table["mean"] / HOUR_S, sd=table["sd"] / HOUR_S)
    table = table.assign(low=table["mean"] - table["sd"], high=table["mean"] + table["sd"])
    looks = look(shown.lines, 2 * _WIDTH)
    panels = []
    for rate in ("samples", "steps"):
        mine = table.rename(columns={f"{rate}_per_gpu_hour": "at"})
        mine = mine[mine["at"] > 0]
        if mine.empty:
            continue
        x = across("at", f"{rate} per {worker(findings)}-hour (1/h)", mine["at"], log=True)
        y = axis(
            "mean",
            f"mean power per {worker(findings)} (W)",
            mine[["mean", "low", "high"]].to_numpy().ravel(),
        )
        panels.append(panel(_points(mine, x, y, looks), "", _WIDTH, _HEIGHT))
    if not panels:
        return None
    words = ["points: settings, means over repeats", BARS, counted(findings), *_terms(findings)]
    title = "Power per GPU against samples and steps"
    return picture(panels, 2, title, [*words, shown.left_out], 2 * _WIDTH)


def _settings(findings: Findings) -> Arranged | None:
    """Return the settings with energy, uncapped ones where there are any, as the laws are."""
    cells = findings.settings
    cells = cells[cells["energy_per_epoch_j"].notna() & cells["energy_is"].notna()]
    free = cells[cells[list(LIMITS)].isna().all(axis=1)]
    rows = cells if free.empty else free
    if rows.empty:
        return None
    rows = rows.iloc[:: -(-len(rows) // _MOST_POINTS)]
    return arranged(rows, (), BY, most=2 * MOST_LINES)


def _points(table: pd.DataFrame, x: alt.X, y: alt.Y, looks: dict[str, Any]) -> list[alt.Chart]:
    base = alt.Chart(compact(table, "at", "mean", "low", "high", "line", "gpus", "global_batch"))
    base = base.encode(x=x, color=looks["color"])
    told = [alt.Tooltip("line:N"), alt.Tooltip("gpus:Q", title="workers"),
            alt.Tooltip("global_batch:Q", title="global batch")]  # fmt: skip
    points = base.mark_point(filled=True, size=POINT - 15, opacity=0.85)
    return [
        base.mark_rule(strokeWidth=1).encode(y=on(y, "low"), y2="high:Q"),
        points.encode(y=y, shape=looks["shape"], tooltip=told),
    ]


def _lines(findings: Findings, shown: Arranged, size: float) -> pd.DataFrame:
    """Return E = factor x 3600 h over the measured hours of each group that is shown."""
    laws = findings.energy_laws[findings.energy_laws["reason"].isna()]
    place = {_key(row): row["line"] for row in shown.rows.to_dict("records")}
    parts = []
    for law in laws.to_dict("records"):
        if _key(law) not in place:
            continue
        at = np.geomspace(law["hours_min"], law["hours_max"], 9)
        scale = HOUR_S * at / size
        ends = {name: law[f"factor_w{end}"] * scale
                for name, end in (("mean", ""), ("low", "_low"), ("high", "_high"))}  # fmt: skip
        parts.append(pd.DataFrame({"at": at, **ends, "line": place[_key(law)]}))
    return (
        pd.concat(parts) if parts else pd.DataFrame(columns=["at", "mean", "low", "high", "line"])
    )


def _key(row: dict[Any, Any]) -> tuple[str, ...]:
    return tuple("" if pd.isna(row[name]) else str(row[name]) for name in BY)


def _terms(findings: Findings) -> list[str]:
    """Return what the regression says of both rates."""
    if findings.factor_model is None:
        return []
    terms = findings.factor_model.terms.set_index("term")
    found = []
    for name, rate in (("log_samples", "samples"), ("log_steps", "steps")):
        if name in terms.index:
            term = terms.loc[name]
            value = with_interval(term["estimate"], term["low"], term["high"], 2)
            found.append(f"elasticity with {rate} {value}")
    return found
