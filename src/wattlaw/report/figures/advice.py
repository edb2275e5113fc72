"""What to run: every setting's time and energy, the Pareto front, and the one recommended."""

import math

import altair as alt
import pandas as pd

from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.comparable_runs import comparable_runs
from wattlaw.analysis.advice.option import Option
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import format_setting
from wattlaw.analysis.metrics import SETTINGS
from wattlaw.formatting import joules
from wattlaw.report.figures.facets import MOST_PANELS, size_of
from wattlaw.report.figures.labels import short_all
from wattlaw.report.figures.numbers import numbered
from wattlaw.report.figures.parts import across, axis, compact, panel, picture, told_apart
from wattlaw.report.figures.scaling import TIME
from wattlaw.report.theme import COLOURS, FAINT

_SETTING, _FRONT, _BEST = "a setting", "Pareto front", "recommended"
_BEST_IS = "recommended: N = "
_MOST_SETTINGS = 150


def pareto(findings: Findings) -> alt.ConcatChart | None:
    """Energy against time of all settings, with the Pareto front and the recommended one."""
    found = [one for one in findings.advice if _options(one)]
    if not found:
        return None
    shown = found[:MOST_PANELS]
    names = short_all([one.workload for one in shown], 36)
    size, unit = joules([q.energy_j.mean for one in shown for q in _options(one) if q.energy_j])
    width, height, columns = size_of(len(shown))
    panels = []
    for one in shown:
        table = _table(findings, one, size)
        layers = _layers(table, unit, width, height)
        best = _BEST_IS + _label(one.recommended) if one.recommended else "nothing recommended"
        panels.append(panel(layers, names[one.workload], width, height, best))
    hidden = len(found) - len(shown)
    words = [
        "lower left is better", "front: of those not left out for quality",
        "bars: 95 % interval",
        "numbers: workers, cap and clock, if there is room",
        f"not shown: {hidden} more workloads" if hidden else "",
    ]  # fmt: skip
    title = "Energy against time, and what to run"
    return picture(panels, columns, title, words, columns * (width + 60))


def _options(advice: Advice) -> list[Option]:
    return [one for one in advice.pareto if one.energy_j is not None]


def _table(findings: Findings, advice: Advice, size: float) -> pd.DataFrame:
    """Return time and energy of settings, in the order in which they are drawn."""
    runs = comparable_runs(findings.runs, advice.workload).rows
    runs = runs[runs["energy_per_epoch_j"].notna()]
    names = ["epoch_time_s", "energy_per_epoch_j"]
    cells = runs.groupby(list(SETTINGS), dropna=False)[names].mean().reset_index(drop=True)
    cells = cells.iloc[:: max(1, -(-len(cells) // _MOST_SETTINGS))]
    others = pd.DataFrame(
        {
            "time": cells["epoch_time_s"],
            "energy": cells["energy_per_epoch_j"] / size,
            "label": "",
            "line": _SETTING,
        }
    )
    front = sorted(_options(advice), key=lambda option: option.epoch_time_s.mean)
    rows = [_row(option, size, _FRONT) for option in front]
    best = advice.recommended
    if best is not None and best.energy_j is not None:
        row = _row(best, size, _BEST)
        rows = [other | ({"label": ""} if other["time"] == row["time"] else {}) for other in rows]
        rows.insert(0, row)
    return pd.concat([others, pd.DataFrame(rows)], ignore_index=True)


def _row(option: Option, size: float, line: str) -> dict[str, object]:
    row: dict[str, object] = {"label": _label(option), "line": line}
    for name, quantity, unit in (("time", option.epoch_time_s, 1.0),
                                 ("energy", option.energy_j, size)):  # fmt: skip
        for end, value in (("", "mean"), ("_low", "low"), ("_high", "high")):
            found = getattr(quantity, value, None)
            row[f"{name}{end}"] = math.nan if found is None else found / unit
    return row


def _label(option: Option) -> str:
    """Return workers, and cap and clock where there are any."""
    limits = [format_setting(name, option.setting[name]) for name in LIMITS if option.setting[name]]
    return ", ".join([str(option.gpus), *(word.replace(" ", "\u2009") for word in limits if word)])


def _layers(table: pd.DataFrame, unit: str, width: int, height: int) -> list[alt.Chart]:
    times, energies = (
        table[[name, f"{name}_low", f"{name}_high"]].to_numpy(float).ravel()
        for name in ("time", "energy")
    )
    x = across("time", TIME, times, log=True)
    y = axis("energy", f"energy per epoch ({unit})", energies, log=True)
    kinds = [_SETTING, _FRONT, _BEST]
    legend = alt.Legend(title=None, orient="bottom", columns=3)
    color = alt.Color(
        "line:N", legend=legend, scale=alt.Scale(domain=kinds, range=[FAINT, *COLOURS[:2]])
    )
    shape = alt.Shape(
        "line:N", legend=legend,
        scale=alt.Scale(domain=kinds, range=["circle", "square", "diamond"]),
    )  # fmt: skip
    front, best = table[table["line"] == _FRONT], table[table["line"] == _BEST]
    line = alt.Chart(compact(front, "time", "energy", "line")).mark_line(strokeWidth=1.4)
    layers = [line.encode(x=x, y=y, color=color)]
    layers += told_apart(front, x, y, {"color": color}, "energy", "time")
    settings = table[table["line"] == _SETTING]
    for rows, size in ((settings, 26), (best, 220), (front, 46)):
        if len(rows):
            base = alt.Chart(compact(rows, "time", "energy", "line", "label"))
            points = base.mark_point(filled=True, size=size, opacity=0.95)
            layers.append(points.encode(x=x, y=y, color=color, shape=shape))
    # Settings are points of their own; only the front is a line that labels keep clear of.
    alone = table["line"].where(table["line"] == _FRONT, table.index.astype(str))
    told = [i for i, label in enumerate(table["label"]) if label]
    return layers + numbered(
        table.assign(line=alone), x, y, (width, height), ("time", "energy", "label"), order=told
    )
