"""The first screen: what to run, what changes that, and a figure and a table of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from wattlaw.analysis.laws.limit_effects import LIMITS
from wattlaw.analysis.metrics.comparable_runs import NO_SCOPE, comparable_runs
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.common import formatting as fmt
from wattlaw.report import charts, tables
from wattlaw.report.charts import COLOURS, FAINT
from wattlaw.report.facets import panel_size, shorten_middle, unique_labels
from wattlaw.report.sections import Answer, BulletList, Content, Parts
from wattlaw.report.topics import advice_text
from wattlaw.report.topics.measured import caveat_sentences
from wattlaw.study.labels import group_label
from wattlaw.study.sources import MEASURED

if TYPE_CHECKING:
    from wattlaw.analysis.advise.advice import Advice
    from wattlaw.analysis.advise.option import Option
    from wattlaw.analysis.findings import Findings
    from wattlaw.report.charts import Spec

#: Workloads whose answers are shown in large, and rows of the table of one workload.
_MAX_ANSWERS = 4
#: Caveats beside the answer; others are in the section on data.
MAX_CAVEATS = 5
MAX_ROWS = 8
#: Warnings that a caveat on the data says, with the number of runs.
_IN_DATA = ("energy-suspect", "energy-reason", NO_SCOPE)
#: The role of a setting that is recommended only if the quality at its batch is acceptable.
LARGER_BATCH = "larger batch, quality unknown"
#: The role of the recommended setting where it is only one of several candidates.
UNCLEAR = "lowest mean, not clearly best"
_COMMAND = "wattlaw advise STORE --workload W"
_BEST, _BASE, _TIE, _FRONT, _PREDICTED, _SETTING, _LEFT_OUT = (
    "recommended", "baseline", "tie", "Pareto front", "predicted", "a setting", "a batch left out",
)  # fmt: skip
_BEST_IS_BASE = f"{_BEST}, and the {_BASE}"
#: Colour, shape and size of each kind of point, in the order of the legend; the last is below.
KINDS: dict[str, tuple[str, str, int]] = {
    **dict.fromkeys((_BEST, _BEST_IS_BASE, UNCLEAR), (COLOURS[1], "diamond", 260)),
    _BASE: (COLOURS[2], "triangle-up", 200), _TIE: (COLOURS[3], "square", 110),
    LARGER_BATCH: (COLOURS[5], "triangle-right", 200), _FRONT: (COLOURS[0], "circle", 50),
    _PREDICTED: (COLOURS[6], "cross", 46), _SETTING: (COLOURS[4], "circle", 26),
    _LEFT_OUT: (FAINT, "triangle-down", 26),
}  # fmt: skip
#: Settings that are drawn of a workload, and workloads.
_MAX_SETTINGS, _MAX_PANELS = 150, 6


def build(content: Content) -> Parts:
    advices = content.findings.advice
    yield from answers(advices, content.findings.advice_refusals)
    compared, changing = table(advices), what_changes(content.findings)
    several = len(advices) > 1
    yield from (compared, *content.pictures, changing) if several else (changing, *content.pictures)
    yield None if several else compared


def answers(
    advices: Sequence[Advice], refusals: Sequence[tuple[str, str]]
) -> Iterator[Answer | str]:
    if not advices and not refusals:
        yield "No run is done, so there is no result yet."
    if len(advices) <= _MAX_ANSWERS:
        yield from map(advice_text.answer, advices)
    else:
        yield f"The table has the recommended setting of each of {len(advices)} workloads."
    for workload, reason in refusals:
        yield f"{workload}: no advice, because {fmt.full_stop(reason)}"


def what_changes(findings: Findings) -> BulletList | None:
    """What the advice of a single workload depends on, and caveats, each once."""
    (advice,) = findings.advice if len(findings.advice) == 1 else (None,)
    lines = [] if advice is None else [*advice_text.what_changes(advice)]
    shown = caveats(findings)[:MAX_CAVEATS]
    lines += [line for line in shown if not any(own.startswith(line) for own in lines)]
    return BulletList("What changes the answer", tuple(lines)) if lines else None


def table(advices: Sequence[Advice]) -> tables.Table | None:
    return settings(advices[0]) if len(advices) == 1 else recommended(advices)


def recommended(advices: Sequence[Advice]) -> tables.Table | None:
    rows = [(advice, advice.recommended) for advice in advices if advice.recommended]

    def change(advice: Advice) -> str:
        changes = fmt.no_breaks(advice_text.changes(advice))
        return changes.replace(",\u00a0", ", ") or "is the baseline"

    def probability(advice: Advice) -> str | None:
        if advice.probability is None:
            return None
        ties = sum(not tie.is_better for tie in advice.ties)
        tied = f" ({fmt.plural(ties, 'tie')})" if ties else ""
        sure = advice_text.percent(advice.probability)
        return f"{sure} within {fmt.percent(advice.tolerance, 2)}{tied}"

    columns = [
        tables.text("workload", lambda row: row[0].workload),
        tables.text(
            "run on", lambda row: row[1].label + ("" if row[0].clearly_best else f" ({UNCLEAR})")
        ),
        tables.text(LARGER_BATCH, lambda row: row[0].any_batch and row[0].any_batch.label),
        *_amounts(rows),
        tables.text("against the baseline", lambda row: change(row[0])),
        tables.Column("sure", lambda row: probability(row[0])),
        tables.text("known by", lambda row: _known_by(row[1])),
    ]
    note = (
        "The baseline is what the study says is run, else the fastest setting that may be "
        "recommended. Sure: the probability to be within the named share of the best. "
        f"{_COMMAND} explains each."
    )
    return tables.build(
        "recommended", "What to run, by workload", columns, rows, note=note, command=_COMMAND
    )


def settings(advice: Advice) -> tables.Table | None:
    named = [
        ("recommended" if advice.clearly_best else UNCLEAR, advice.recommended),
        ("fastest" if advice.baseline_is == "fastest" else "baseline", advice.baseline),
        (LARGER_BATCH, advice.any_batch),
        *(("ties", tie.option) for tie in advice.ties if not tie.is_better),
        *(("probably better", tie.option) for tie in advice.ties if tie.is_better),
        *(("Pareto front", option) for option in advice.pareto),
    ]
    options: list[Option] = []
    for _, option in named:
        if option is not None and option not in options:
            options.append(option)
    rows = [(advice, option) for option in options]
    columns = [
        tables.text("setting", lambda row: row[1].label),
        tables.text("is", lambda row: ", ".join(role for role, of in named if of == row[1])),
        *_amounts(rows),
        tables.text("known by", lambda row: _known_by(row[1])),
    ]
    note, command = " ".join(advice_text.basis(advice)), f"{_COMMAND} --json"
    return tables.build("settings_compared", "The settings to compare", columns, rows, note=note,
                        max_rows=MAX_ROWS, max_open_rows=0, command=command)  # fmt: skip


def caveats(findings: Findings) -> list[str]:
    merged = merge_warnings(findings.advice)
    return list(dict.fromkeys([*merged, *caveat_sentences(findings)]))


def _amounts(rows: Sequence[tuple[Advice, Option]]) -> list[tables.Column]:
    units = {"job" if option.is_whole_job else advice.unit for advice, option in rows}
    unit = units.pop() if len(units) == 1 else ""
    of = {"epoch": " of training", "": ""}.get(unit, f" of a {unit}")
    footprints = [item.question.footprint for item, _ in rows if item.question.footprint]
    cost = f"cost ({footprints[0].currency})" if footprints else "cost"

    def amount(noun: str, units: fmt.Units, name: str) -> tables.Column:
        return tables.in_unit(f"{noun}{of}", rows, lambda row: getattr(row[1], name), units)

    columns = [amount("time", fmt.TIME_UNITS, "job_time_s")]
    if any(option.energy_j for _, option in rows):
        columns.append(amount("energy", fmt.ENERGY_UNITS, "job_energy_j"))
    size, unit = fmt.choose_unit([option.gpu_hours.mean for _, option in rows], fmt.WORK_UNITS)
    worker = rows[0][0].worker if rows else ""
    return [
        *columns,
        tables.number(f"{worker}-{unit}{of}", lambda row: row[1].gpu_hours.mean, size=size),
        tables.number(cost, lambda row: row[1].cost and row[1].cost.mean),
        tables.number("kg CO2e", lambda row: row[1].co2_kg and row[1].co2_kg.mean),
    ]


def _known_by(option: Option) -> str:
    if option.is_predicted:
        return "prediction" + (", beyond the runs" if option.extrapolates else "")
    source = "" if option.source == MEASURED else f"{option.source} "
    return fmt.plural(option.repeats, f"{source}run")


def pareto(findings: Findings) -> Spec | None:
    advices = [advice for advice in findings.advice if advice.pareto]
    if not advices:
        return None
    shown = advices[:_MAX_PANELS]
    names = unique_labels([advice.workload for advice in shown], 36)
    width, height, columns = (560, 330, 1) if len(shown) == 1 else panel_size(max(3, len(shown)))
    of_workloads = [_points(findings, advice) for advice in shown]
    present = set(pd.concat(of_workloads)["line"])
    kinds = {kind: look for kind, look in KINDS.items() if kind in present}
    panels = []
    for advice, points in zip(shown, of_workloads, strict=True):
        best = advice.recommended
        subtitle = shorten_middle(best.label if best else "nothing recommended")
        title = names[advice.workload] if len(shown) > 1 else ""
        layers = _layers(advice, points, kinds)
        panels.append(charts.panel(layers, title, width, height, subtitle if title else ""))
    is_without_energy = not any(map(_has_energy, shown))
    notes = [
        f"Energy is not known; {shown[0].worker} time replaces it." if is_without_energy else "",
        "Bars and shaded boxes are 95 % intervals.",
        charts.not_shown(len(advices) - len(shown), "workload"),
    ]
    spec = charts.figure(panels, columns, notes, columns * (width + 60))
    if is_without_energy:
        spec["title"]["text"] = "Settings by time"
    return spec


def _has_energy(advice: Advice) -> bool:
    return any(option.energy_j for option in advice.pareto)


def _points(findings: Findings, advice: Advice) -> pd.DataFrame:
    """Return times in seconds, and energies in joules or else GPU-time in seconds."""
    runs = comparable_runs(findings.runs, advice.workload).rows
    has_energy = _has_energy(advice)
    spent = runs["energy_j"] if has_energy else runs["time_s"] * runs["gpus"]
    runs = runs.assign(time=runs["time_s"], energy=spent).dropna(subset="energy")
    means = runs.groupby(list(SETTINGS), dropna=False)[["time", "energy"]].mean().reset_index()
    means = means.iloc[:: max(1, -(-len(means) // _MAX_SETTINGS))]
    settings: Any = means[["gpus", "global_batch", *LIMITS]].to_dict("records")
    is_left_out = means["global_batch"].isin(advice.batches_left_out)
    means = means[["time", "energy"]].assign(
        setting=[group_label(setting) for setting in settings],
        line=is_left_out.map({True: _LEFT_OUT, False: _SETTING}),
    )
    chosen = roles(advice)
    front = sorted(advice.pareto, key=lambda option: option.time_s.mean)
    chosen += [(option, _PREDICTED if option.is_predicted else _FRONT) for option in front]
    rows = []
    for option, kind in chosen:
        amount = option.energy_j if has_energy else option.time_s.times(option.gpus)
        if amount is None:
            continue
        row: dict[str, Any] = {"line": kind, "setting": option.label}
        for name, value in (("time", option.time_s), ("energy", amount)):
            low, high = (math.nan if end is None else end for end in (value.low, value.high))
            row |= {name: value.mean, f"{name}_low": low, f"{name}_high": high}
        rows.append(row)
    return pd.concat([means, pd.DataFrame(rows)], ignore_index=True)


def roles(advice: Advice) -> list[tuple[Option, str]]:
    """Return the recommended option, the baseline, ties and the larger batch with their kinds."""
    best, base = advice.recommended, advice.baseline
    # Without a name, the baseline is the fastest setting: that says nothing of the recommended one.
    is_named_base = best == base and advice.baseline_is != "fastest"
    kind = (_BEST_IS_BASE if is_named_base else _BEST) if advice.clearly_best else UNCLEAR
    chosen = [(best, kind)] if best else []
    chosen += [(base, _BASE)] if base and base != best else []
    chosen += [(tie.option, _TIE) for tie in advice.ties]
    return chosen + ([(advice.any_batch, LARGER_BATCH)] if advice.any_batch else [])


def _layers(
    advice: Advice, table: pd.DataFrame, kinds: dict[str, tuple[str, str, int]]
) -> list[Spec]:
    has_energy, units = _has_energy(advice), {}
    for name in ("time", "energy"):
        is_energy = has_energy and name == "energy"
        size, units[name] = fmt.choose_unit(
            table[name], fmt.ENERGY_UNITS if is_energy else fmt.TIME_UNITS
        )
        table[[name, f"{name}_low", f"{name}_high"]] /= size
    time = f"time per {advice.unit} ({units['time']})"
    spent = "energy" if has_energy else f"{advice.worker} time"
    spent += f" per {advice.unit} ({units['energy']})"
    x = charts.x_axis("time", time, table.filter(regex="^time").to_numpy().ravel(), log=True)
    y = charts.y_axis("energy", spent, table.filter(regex="^energy").to_numpy().ravel(), log=True)
    styles = charts.look_styles(kinds, 4)
    front = table[table["line"].isin([_FRONT, _PREDICTED])].sort_values("time")
    predicted = table[table["line"] == _PREDICTED]
    certain = table[table["line"].isin([_FRONT, _TIE, _BASE, LARGER_BATCH])]
    tooltip = {"line": "is", "setting": "setting", "time": time, "energy": spent}
    # What a pointer over a point shows in a page without scripts.
    table["tip"] = [
        f"{row.line}: {row.setting}; {fmt.number(row.time)} {units['time']}, "
        f"{fmt.number(row.energy)} {units['energy']}"
        for row in table.itertuples()
    ]
    layers = []
    if len(predicted):
        box = {
            "x": x | {"field": "time_low"}, "x2": {"field": "time_high"},
            "y": y | {"field": "energy_low"}, "y2": {"field": "energy_high"},
            "color": styles["color"],
        }  # fmt: skip
        layers.append(charts.layer(predicted, "rect", box, opacity=0.1))
    joined = {"x": x, "y": y, "color": styles["color"]}
    return [
        *layers,
        charts.layer(front.assign(line=_FRONT), "line", joined, strokeWidth=1.4),
        *charts.error_bars(certain, x, y, styles, "energy_low", "energy_high"),
        *charts.error_bars(certain, x, y, styles, "time_low", "time_high", horizontal=True),
        *(
            charts.points(rows, x, y, styles, tooltip, size, "tip")
            for kind, (_, _, size) in reversed(KINDS.items())
            if len(rows := table[table["line"] == kind])
        ),
    ]


def merge_warnings(advices: Sequence[Advice]) -> list[str]:
    """Of a kind whose texts differ, those of the first workload are returned."""
    texts: dict[str, dict[str, list[str]]] = {}
    for advice in advices:
        codes = {warning.code for warning in advice.warnings}
        for warning in advice.warnings:
            if warning.code not in _IN_DATA and advice_text.IMPLIED.get(warning.code) not in codes:
                of_code = texts.setdefault(warning.code, {})
                of_code.setdefault(advice.workload, []).append(str(warning))
    lines: list[str] = []
    for of_code in texts.values():
        (first, shown), *others = of_code.items()
        if len(of_code) == len(advices) and all(text == shown for _, text in others):
            lines += shown
        else:
            more = f" So too for {fmt.plural(len(others), 'other workload')}." if others else ""
            lines += [f"{first}: {text}{more}" for text in shown]
    return lines
