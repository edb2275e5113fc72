"""Time and energy of settings: the Pareto front, predictions, the baseline, and what to run."""

import math
from typing import Any

import altair as alt
import pandas as pd

from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.advise.option import Option, Quantity
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.laws.limit_effects import LIMITS, POWER_SETTINGS
from wattlaw.analysis.metrics.comparable_runs import comparable_runs
from wattlaw.analysis.metrics.metrics import HOUR_S, SETTINGS
from wattlaw.common.formatting import JOULE_UNITS, choose_unit, group_label, setting_label
from wattlaw.report.figures import parts
from wattlaw.report.figures.facets import panel_size
from wattlaw.report.figures.labels import shorten_middle, unique_labels
from wattlaw.report.figures.point_labels import point_labels
from wattlaw.report.figures.scaling import TIME
from wattlaw.report.theme import COLOURS, FAINT, Spec
from wattlaw.report.topics.verdict import LARGER_BATCH, UNCLEAR

_LEFT_OUT, _SETTING, _FRONT, _PREDICTED, _BASE, _ANY, _BEST, _UNCLEAR = (
    "a batch left out", "a setting", "Pareto front", "predicted", "baseline",
    LARGER_BATCH, "recommended", UNCLEAR,
)  # fmt: skip
_Look = tuple[str, str, int]
#: Colour, shape and size of each kind of point, in the order in which they are drawn.
_KINDS: dict[str, _Look] = {
    _LEFT_OUT: (FAINT, "triangle-down", 26), _SETTING: (COLOURS[4], "circle", 26),
    _PREDICTED: (COLOURS[3], "cross", 46),
    _BASE: (COLOURS[2], "triangle-up", 200), _ANY: (COLOURS[5], "diamond", 160),
    _BEST: (COLOURS[1], "diamond", 220), _UNCLEAR: (COLOURS[1], "diamond", 220),
    _FRONT: (COLOURS[0], "square", 46),
}  # fmt: skip
_MAX_SETTINGS, _MAX_PANELS = 150, 6
_BOX = ("time_low", "time_high", "energy_low", "energy_high")


def pareto(findings: Findings) -> Spec | None:
    """Draw energy (without any, GPU-hours) against time of all settings, and what to run."""
    advices = [advice for advice in findings.advice if advice.pareto]
    if not advices:
        return None
    shown = advices[:_MAX_PANELS]
    names = unique_labels([advice.workload for advice in shown], 36)
    energies = [option.energy_j.mean for advice in shown for option in advice.pareto
                if option.energy_j]  # fmt: skip
    several = len({advice.unit for advice in shown}) > 1
    joules, unit = (1.0, "J") if several else choose_unit(energies, JOULE_UNITS)
    width, height, columns = (560, 330, 1) if len(shown) == 1 else panel_size(max(3, len(shown)))
    tables = [_table(findings, advice, joules) for advice in shown]
    present = set(pd.concat(tables)["line"])
    kinds = {kind: look for kind, look in _KINDS.items() if kind in present}
    panels = []
    for advice, table in zip(shown, tables, strict=True):
        spent = f"energy per {advice.unit} ({unit})"
        if not _has_energy(advice):
            hours = "hours per {} (h)" if _hour_s(advice) > 1 else "seconds per {} (s)"
            spent = f"{advice.worker}-{hours.format(advice.unit)}"
        layers = _layers(table, kinds, spent, advice.unit, (width, height))
        best = advice.recommended
        subtitle = shorten_middle(advice.label(best) if best else "nothing recommended")
        title = names[advice.workload] if len(shown) > 1 else ""
        panels.append(parts.panel(layers, title, width, height, subtitle if title else ""))
    notes = [
        "Bars and shaded boxes are 95 % intervals.",
        "Numbers are workers, cap and clock, where there is space.",
        parts.not_shown(len(advices) - len(shown), "workload"),
    ]
    return parts.concat(panels, columns, notes, columns * (width + 60))


def _has_energy(advice: Advice) -> bool:
    return any(option.energy_j for option in advice.pareto)


def _table(findings: Findings, advice: Advice, size: float) -> pd.DataFrame:
    """Return time and energy (or GPU-hours) of settings, in the order of their importance."""
    joules = size if _has_energy(advice) else None
    runs = comparable_runs(findings.runs, advice.workload).rows
    runs = runs.assign(spent=runs["time_s"] * runs["gpus"] / _hour_s(advice))
    if joules is not None:
        runs = runs.assign(spent=runs["energy_j"] / joules)
    runs = runs[runs["spent"].notna()]
    by = runs.groupby(list(SETTINGS), dropna=False)[["time_s", "spent"]]
    means = by.mean().reset_index()
    means = means.iloc[:: max(1, -(-len(means) // _MAX_SETTINGS))]
    named: Any = means[["gpus", "global_batch", *LIMITS]].to_dict("records")
    settings = means[["time_s", "spent"]].set_axis(["time", "energy"], axis=1)
    settings = settings.assign(setting=[group_label(group) for group in named])
    is_left_out = means["global_batch"].isin(advice.batches_left_out)
    settings["line"] = is_left_out.map({True: _LEFT_OUT, False: _SETTING})
    best, base = advice.recommended, advice.baseline
    chosen = [(best, _BEST if advice.clearly_best else _UNCLEAR)] if best else []
    chosen += [(base, _BASE)] if base and base != best else []
    chosen += [(advice.any_batch, _ANY)] if advice.any_batch else []
    front = sorted(advice.pareto, key=lambda option: option.time_s.mean)
    chosen += [(option, _PREDICTED if option.is_predicted else _FRONT) for option in front]
    rows: list[dict[str, Any]] = []
    for option, kind in chosen:
        energy = option.energy_j and option.energy_j.times(1 / (joules or 1.0))
        hours = option.time_s.times(option.gpus / _hour_s(advice))
        spent = hours if joules is None else energy
        if spent is not None:
            row = _row(option, spent, kind) | {"setting": advice.label(option)}
            if any(other["time"] == row["time"] for other in rows):
                row["label"] = ""
            rows.append(row)
    return pd.concat([settings.assign(label=""), pd.DataFrame(rows)],
                     ignore_index=True)  # fmt: skip


def _hour_s(advice: Advice) -> float:
    """Return the seconds in the unit of GPU-time: an hour, or a second of samples and steps."""
    return 1.0 if advice.unit in ("sample", "step") else HOUR_S


def _row(option: Option, spent: Quantity, kind: str) -> dict[str, Any]:
    """Return a point, whose label has workers, and cap and clock if there are any."""
    limits = [
        setting_label(name, option.setting[name]) for name in POWER_SETTINGS if option.setting[name]
    ]
    label = ", ".join([str(option.gpus), *(limit.replace(" ", "\u2009") for limit in limits)])
    row: dict[str, Any] = {"label": label, "line": kind}
    for name, quantity in (("time", option.time_s), ("energy", spent)):
        for column, end in ((name, "mean"), (f"{name}_low", "low"), (f"{name}_high", "high")):
            value = getattr(quantity, end)
            row[column] = math.nan if value is None else value
    return row


def _layers(
    table: pd.DataFrame, kinds: dict[str, _Look], spent: str, of: str, size: tuple[int, int]
) -> list[alt.Chart]:
    """Return the layers of a panel; ``kinds`` are those of the legend."""
    times, energies = (
        table[[name, f"{name}_low", f"{name}_high"]].to_numpy(float).ravel()
        for name in ("time", "energy")
    )
    x = parts.x_axis("time", TIME.format(unit=of), times, log=True)
    y = parts.y_axis("energy", spent, energies, log=True)
    legend = alt.Legend(title=None, orient="bottom", columns=5)
    colours, shapes = (
        alt.Scale(domain=list(kinds), range=[look[at] for look in kinds.values()]) for at in (0, 1)
    )
    styles = {
        "color": alt.Color("line:N", legend=legend, scale=colours),
        "shape": alt.Shape("line:N", legend=legend, scale=shapes),
    }
    rows_of = {kind: table[table["line"] == kind] for kind in _KINDS}
    front = pd.concat([rows_of[_FRONT], rows_of[_PREDICTED]]).sort_values("time")
    joined = alt.Chart(parts.compact(front.assign(line=_FRONT), "time", "energy", "line"))
    predicted = rows_of[_PREDICTED]
    boxes = alt.Chart(parts.compact(predicted, *_BOX, "line")).mark_rect(opacity=0.1)
    certain = table[table["line"].isin([_FRONT, _BASE, _ANY])]
    tooltip = {"line": "is", "setting": "setting", "time": "time (s)", "energy": spent}
    layers = [
        *([boxes.encode(
            x=parts.with_column(x, "time_low"), x2="time_high:Q",
            y=parts.with_column(y, "energy_low"), y2="energy_high:Q", color=styles["color"],
        )] if len(predicted) else []),
        joined.mark_line(strokeWidth=1.4).encode(x=x, y=y, color=styles["color"]),
        *parts.error_bars(certain, x, y, styles, "energy_low", "energy_high"),
        *parts.error_bars(certain, x, y, styles, "time_low", "time_high", horizontal=True),
        *(
            parts.points(rows_of[kind], x, y, styles, tooltip, area)
            for kind, (_, _, area) in _KINDS.items()
            if len(rows_of[kind])
        ),
    ]  # fmt: skip
    # Labels keep clear of the front's line; settings are points without a line.
    is_front = table["line"].isin([_FRONT, _PREDICTED])
    alone = table["line"].where(is_front, table.index.astype(str)).mask(is_front, _FRONT)
    bars = ("energy_low", "energy_high")
    labelled = [i for i, label in enumerate(table["label"]) if label]
    return layers + point_labels(table.assign(line=alone), x, y, size, "label", bars, labelled)
