"""Two pages for a compute-time proposal: scaling, what is planned, and how it was measured."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from wattlaw import __version__
from wattlaw.analysis.advise.option import PREDICTED, Quantity
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.analysis.planned_campaign import Point, Proposal, Scaling
from wattlaw.analysis.predict.intervals import LEVEL
from wattlaw.analysis.predict.workload_predictions import check_largest
from wattlaw.common import formatting as fmt
from wattlaw.common.files import write_text
from wattlaw.report import charts, tables
from wattlaw.report.page import write_page
from wattlaw.report.pictures import Picture, write_figures
from wattlaw.report.rendering import environment
from wattlaw.report.sections import PageSection
from wattlaw.report.topics.measured import worker_noun
from wattlaw.study.labels import layout_label
from wattlaw.study.setting import Setting

_AXES = {"time_s": "time of a training (h)", "efficiency": "parallel efficiency (ratio)"}
#: Characters that Markdown interprets.
_MARKDOWN = re.compile(r"([\\`*_\[\]<>#|~$])")


def text(proposal: Proposal, name: str) -> str:
    ran = [point for point in proposal.points if point.runs]
    runs_by_source = Counter[str]()
    for point in ran:
        runs_by_source[point.source] += point.runs
    values = {
        **vars(proposal), "points": proposal.points, "ran": ran,
        "facts": proposal.findings.facts, "fmt": fmt,
        "misfit": max(scaling.misfit for scaling in proposal.scalings),
        "label": proposal.findings.sources_label, "layout": layout_label(proposal.planned.setting),
        "advised": _advised(proposal),
        "noun": worker_noun(proposal.findings), "node_hours": _node_hours(proposal),
        "counts": [fmt.plural(count, f"{source} run") for source, count in runs_by_source.items()],
        "level": f"{100 * LEVEL:.0f}", "version": __version__,
        "largest_errors": lambda: [abs(check.error) for check in check_largest(proposal.job)],
    }  # fmt: skip
    template = environment().overlay(autoescape=False).get_template("proposal.j2")
    lines: str = getattr(template.make_module(values), name)()
    return re.sub("[ \n]+", " ", lines).strip()


def _advised(proposal: Proposal) -> str | None:
    """Return the recommended setting; None where it is what is planned."""
    for advice in proposal.findings.advice:
        best = advice.recommended
        if advice.workload == proposal.job.workload and best is not None:
            return None if best.is_at(proposal.planned.setting) else best.label
    return None


def _node_hours(proposal: Proposal) -> Quantity:
    return proposal.planned.time_s.times(proposal.nodes * proposal.campaign.runs / HOUR_S)


def _source(point: Point) -> str:
    return fmt.plural(point.runs, f"{point.source} run") if point.runs else point.source


def _title(scaling: Scaling) -> str:
    first = scaling.points[0].setting
    name = "global batch" if scaling.kind == "strong" else "local batch"
    batch = first.global_batch if scaling.kind == "strong" else first.local_batch
    return f"{scaling.kind} scaling ({name} {fmt.number(batch, 9) if batch else 'not known'})"


def scaling_table(proposal: Proposal) -> tables.Table | None:
    by_count: dict[int, dict[str, Point]] = {}
    for scaling in proposal.scalings:
        for point in scaling.points:
            by_count.setdefault(point.setting.gpus, {})[scaling.kind] = point
    rows = [by_count[count] for count in sorted(by_count)]

    def setting(row: dict[str, Point]) -> Setting:
        return next(iter(row.values())).setting

    columns = [
        tables.number("nodes", lambda row: setting(row).nodes, 9),
        tables.number(f"{worker_noun(proposal.findings)}s", lambda row: setting(row).gpus, 9),
    ]
    for scaling in proposal.scalings:
        own = _columns(scaling, rows, proposal.campaign.rule)
        kind = f"{scaling.kind}: " if len(proposal.scalings) > 1 else ""
        columns += [replace(column, heading=kind + column.heading) for column in own]
    title = f"{proposal.job.workload}: {' and '.join(map(_title, proposal.scalings))}"
    note, most = text(proposal, "scaling_note"), tables.MAX_ROWS
    return tables.build("scaling", title, columns, rows, note=note, max_open_rows=most)


def _columns(
    scaling: Scaling, rows: Sequence[dict[str, Point]], rule: float | None
) -> list[tables.Column]:
    kind, base = scaling.kind, scaling.base.setting.gpus

    def shown(of: Callable[[Point], Any]) -> Callable[[dict[str, Point]], Any]:
        return lambda row: of(row[kind]) if kind in row else None

    def speedup(point: Point) -> float | None:
        efficiency = point.efficiency
        return None if efficiency is None else efficiency.mean * point.setting.gpus / base

    def doubling(point: Point) -> str:
        below = rule is not None and point.doubling is not None and point.doubling.mean < rule
        return fmt.estimate_text(point.doubling) + (f", below {rule:g}" if below else "")

    return [
        tables.in_unit("time", rows, shown(lambda point: point.time_s), fmt.TIME_UNITS),
        tables.number("speedup", shown(speedup)),
        tables.Column("speedup per doubling", shown(doubling)),
        tables.Column("efficiency", shown(lambda point: fmt.estimate_text(point.efficiency))),
        tables.text("known by", shown(_source)),
    ]


def campaign_table(proposal: Proposal) -> tables.Table | None:
    point, campaign = proposal.planned, proposal.campaign
    noun = worker_noun(proposal.findings)
    hours = point.gpu_hours.times(campaign.runs)
    energy = point.energy_j and point.energy_j.times(campaign.runs)
    footprint = proposal.findings.footprint
    cost, currency = None, (footprint.currency if footprint else None) or ""
    if footprint is not None:
        cost = footprint.of(energy.mean if energy else None, hours.mean, proposal.job.energy_is)
    rows = [
        ("trainings", f"{campaign.runs:,}, of {proposal.training} each"),
        ("nodes of a training", f"{proposal.nodes:,} ({fmt.plural(point.setting.gpus, noun)})"),
        ("time of a training, without start-up", fmt.duration_text(point.time_s)),
        (f"{noun} time of all", fmt.work_text(hours, noun)),
        ("node time of all", fmt.work_text(_node_hours(proposal), "node")),
        ("energy of all", fmt.energy_text(energy)),
        ("carbon of all", fmt.estimate_text(cost.co2_kg if cost else None, "kg CO2e")),
        ("cost of all", fmt.estimate_text(cost.cost if cost else None, currency)),
        ("parallel efficiency", fmt.estimate_text(point.efficiency)),
        ("speedup of the last doubling", fmt.estimate_text(point.doubling)),
        (f"quality at global batch {fmt.number(point.setting.global_batch, 9)}", proposal.quality),
        ("source", _source(point)),
    ]
    return tables.build(
        "campaign",
        "The planned campaign",
        [tables.text("planned", itemgetter(0)), tables.text("amount", itemgetter(1))],
        [row for row in rows if row[1] != fmt.MISSING],
        note=text(proposal, "campaign_note"),
    )


def _rows(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    for point in points:
        for name, factor in (("time_s", 1 / HOUR_S), ("efficiency", 1.0)):
            quantity = getattr(point, name).times(factor)
            values = quantity.mean, quantity.low, quantity.high
            rows.append((name, point.setting.gpus, *values, point.source))
    table = pd.DataFrame(rows, columns=["name", "at", "mean", "low", "high", "line"])
    return table.astype({"low": float, "high": float}).assign(gpus=table["at"])


def picture(proposal: Proposal) -> Picture:
    panels, several = [], len(proposal.scalings) > 1
    sources = {f"{point.source} runs" for scaling in proposal.scalings
               for point in scaling.points if point.runs}  # fmt: skip
    styles = charts.line_styles([PREDICTED, *sorted(sources)])
    for name, title in _AXES.items():
        panels += [
            charts.panel(_layers(proposal, scaling, name, title, styles),
                         _title(scaling) if several else "", 400, 260)
            for scaling in proposal.scalings
        ]  # fmt: skip
    spec = charts.figure(panels, 2, [text(proposal, "caption")], 900)
    return Picture.of("scaling", f"Scaling of {proposal.job.workload}", spec)


def _layers(
    proposal: Proposal, scaling: Scaling, name: str, title: str, styles: charts.Styles
) -> list[charts.Spec]:
    ran, curve = _rows([point for point in scaling.points if point.runs]), _rows(scaling.curve)
    ran["line"] += " runs"
    base, is_time = scaling.base, name == "time_s"
    of_runs, predicted = (table[table["name"] == name] for table in (ran, curve))
    ideal = pd.DataFrame({"at": predicted["at"], "mean": 1.0})
    if is_time:
        ideal["mean"] = base.time_s.mean / HOUR_S * base.setting.gpus / ideal["at"]
    x = charts.counts_axis(predicted["at"], f"{worker_noun(proposal.findings)}s (count)")
    heights = [*charts.y_values(predicted), *charts.y_values(of_runs, *ideal["mean"])]
    y = charts.y_axis("mean", title, heights, log=is_time, zero=not is_time)
    layers = [
        charts.layer(ideal, "line", {"x": x, "y": y}, strokeDash=[5, 4], color=charts.FAINT),
        charts.reference_line(max(ran["at"]), "x"),
        charts.band(predicted, x, y, styles),
        charts.line(predicted, x, y, styles),
    ]
    for table in (predicted[~predicted["at"].isin(of_runs["at"])], of_runs):
        if len(table):
            layers += charts.curve(table, x, y, styles, title, joined=False)
    return layers


def write_proposal(proposal: Proposal, path: Path) -> list[Path]:
    """Write a page or, for a name in ``.md``, Markdown with pipe tables and a picture."""
    title, lead, method = (text(proposal, name) for name in ("title", "lead", "method"))
    scaling, campaign, drawn = scaling_table(proposal), campaign_table(proposal), picture(proposal)
    if path.suffix.lower() != ".md":
        sections = (
            PageSection.of("summary", "What is asked for", "screen", [lead]),
            PageSection.of("scaling", "Scaling", "plain", [scaling, drawn]),
            PageSection.of("campaign", "Planned campaign", "page", [campaign]),
            PageSection.of("method", "Method", "plain", [method]),
        )
        write_page(path, title, sections)
        return [path]
    named = replace(drawn, name=f"{path.stem}-scaling")
    (file,) = write_figures([named], path.parent, ["png"])
    content = [
        f"# {_escape(title)}", _escape(lead), as_markdown(scaling),
        f"![{_escape(drawn.caption)}]({file.name})",
        as_markdown(campaign), "## Method", _escape(method),
    ]  # fmt: skip
    write_text(path, "\n\n".join(content) + "\n", durable=False)
    return [path, file]


def as_markdown(table: tables.Table | None) -> str:
    """Return a pipe table with its title above and its note below; "" for None."""
    if table is None:
        return ""
    marks = ["--:" if "n" in name.split() else ":--" for name in table.classes]
    rows = [map(_escape, table.headings), marks, *(map(_escape, row) for row in table.plain_rows)]
    lines = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return "\n\n".join(filter(None, [f"**{_escape(table.title)}**", lines, _escape(table.note)]))


def _escape(text: str) -> str:
    return _MARKDOWN.sub(r"\\\1", fmt.replace_invisible(text))
