"""Time and energy of all settings, the Pareto front, and the recommended setting."""

import math
from typing import Any

import altair as alt
import pandas as pd

from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.option import Option
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.comparable_runs import comparable_runs
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.formatting import JOULE_UNITS, choose_unit, setting_label
from wattlaw.report.figures import parts
from wattlaw.report.figures.facets import MAX_PANELS, panel_size
from wattlaw.report.figures.labels import unique_labels
from wattlaw.report.figures.point_labels import point_labels
from wattlaw.report.figures.scaling import TIME
from wattlaw.report.theme import COLOURS, FAINT

_SETTING, _FRONT, _RECOMMENDED = "a setting", "Pareto front", "recommended"
_MAX_SETTINGS = 150


def pareto(findings: Findings) -> alt.ConcatChart | None:
    """Draw energy against time of all settings, with the Pareto front and the recommendation."""
    advices = [advice for advice in findings.advice if _options(advice)]
    if not advices:
        return None
    shown = advices[:MAX_PANELS]
    names = unique_labels([advice.workload for advice in shown], 36)
    energies = [option.energy_j.mean for advice in shown for option in _options(advice)
                if option.energy_j]  # fmt: skip
    several = len({advice.unit for advice in shown}) > 1
    joules, unit = (1.0, "J") if several else choose_unit(energies, JOULE_UNITS)
    width, height, columns = panel_size(len(shown))
    panels = []
    for advice in shown:
        layers = _layers(_table(findings, advice, joules), unit, advice.unit, (width, height))
        best = advice.recommended
        subtitle = f"recommended: N = {_label(best)}" if best else "nothing recommended"
        panels.append(parts.panel(layers, names[advice.workload], width, height, subtitle))
    hidden = len(advices) - len(shown)
    notes = [
        "The front has no settings that are left out for their quality.", parts.CI_BARS,
        "Numbers are workers, cap and clock, where there is space.",
        parts.not_shown(hidden, "workload"),
    ]  # fmt: skip
    return parts.concat(panels, columns, notes, columns * (width + 60))


def _options(advice: Advice) -> list[Option]:
    return [option for option in advice.pareto if option.energy_j is not None]


def _table(findings: Findings, advice: Advice, joules: float) -> pd.DataFrame:
    """Return time and energy of settings, in the order in which they are drawn."""
    runs = comparable_runs(findings.runs, advice.workload).rows
    runs = runs[runs["energy_j"].notna()]
    names = ["time_s", "energy_j"]
    means = runs.groupby(list(SETTINGS), dropna=False)[names].mean().reset_index(drop=True)
    means = means.iloc[:: max(1, -(-len(means) // _MAX_SETTINGS))]
    settings = pd.DataFrame({"time": means["time_s"], "energy": means["energy_j"] / joules})
    front = sorted(_options(advice), key=lambda option: option.time_s.mean)
    rows = [_row(option, joules, _FRONT) for option in front]
    best = advice.recommended
    if best is not None and best.energy_j is not None:
        row = _row(best, joules, _RECOMMENDED)
        for other in rows:
            if other["time"] == row["time"]:
                other["label"] = ""
        rows.insert(0, row)
    settings = settings.assign(label="", line=_SETTING)
    return pd.concat([settings, pd.DataFrame(rows)], ignore_index=True)


def _row(option: Option, joules: float, line: str) -> dict[str, Any]:
    row: dict[str, Any] = {"label": _label(option), "line": line}
    for name, quantity, size in (("time", option.time_s, 1.0),
                                 ("energy", option.energy_j, joules)):  # fmt: skip
        for column, end in ((name, "mean"), (f"{name}_low", "low"), (f"{name}_high", "high")):
            value = getattr(quantity, end, None)
            row[column] = math.nan if value is None else value / size
    return row


def _label(option: Option) -> str:
    """Return workers, and cap and clock if there are any."""
    limits = [setting_label(name, option.setting[name]) for name in LIMITS if option.setting[name]]
    return ", ".join([str(option.gpus), *(limit.replace(" ", "\u2009") for limit in limits)])


def _layers(table: pd.DataFrame, unit: str, of: str, size: tuple[int, int]) -> list[alt.Chart]:
    times, energies = (
        table[[name, f"{name}_low", f"{name}_high"]].to_numpy(float).ravel()
        for name in ("time", "energy")
    )
    x = parts.x_axis("time", TIME.format(unit=of), times, log=True)
    y = parts.y_axis("energy", f"energy per {of} ({unit})", energies, log=True)
    kinds = [_SETTING, _FRONT, _RECOMMENDED]
    legend = alt.Legend(title=None, orient="bottom", columns=3)
    colours = alt.Scale(domain=kinds, range=[FAINT, *COLOURS[:2]])
    shapes = alt.Scale(domain=kinds, range=["circle", "square", "diamond"])
    styles = {
        "color": alt.Color("line:N", legend=legend, scale=colours),
        "shape": alt.Shape("line:N", legend=legend, scale=shapes),
    }
    front, best, settings = (
        table[table["line"] == kind] for kind in (_FRONT, _RECOMMENDED, _SETTING)
    )
    joined = alt.Chart(parts.compact(front, "time", "energy", "line")).mark_line(strokeWidth=1.4)
    layers = [
        joined.encode(x=x, y=y, color=styles["color"]),
        *parts.error_bars(front, x, y, styles, "energy_low", "energy_high"),
        *parts.error_bars(front, x, y, styles, "time_low", "time_high", horizontal=True),
        *(
            parts.points(rows, x, y, styles, {"label": "setting"}, area)
            for rows, area in ((settings, 26), (best, 220), (front, 46))
            if len(rows)
        ),
    ]
    # Labels keep clear of the front's line; settings are points without a line.
    alone = table["line"].where(table["line"] == _FRONT, table.index.astype(str))
    labelled = [i for i, label in enumerate(table["label"]) if label]
    return layers + point_labels(table.assign(line=alone), x, y, size, "label", order=labelled)
