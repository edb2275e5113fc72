"""Two pages for a compute-time proposal: scaling, what is planned, and how it was measured."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

import pandas as pd

from wattlaw import __version__
from wattlaw.analysis.advise.option import PREDICTED, Quantity
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.analysis.predict.intervals import LEVEL
from wattlaw.analysis.predict.overview import check_largest
from wattlaw.analysis.proposal import Point, Proposal
from wattlaw.common import formatting as fmt
from wattlaw.common.files import write_text
from wattlaw.report import charts, tables
from wattlaw.report.page import write_page
from wattlaw.report.pictures import Picture, write_figures
from wattlaw.report.rendering import environment
from wattlaw.report.sections import PageSection
from wattlaw.report.topics.measured import worker_noun

_AXES = {"time_s": "time of a training (h)", "efficiency": "parallel efficiency (ratio)"}
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}", **{sign: f"\\{sign}" for sign in "&%$#_"}, "\u2212": "$-$",
        "\u00a0": "~", "\u2013": "--", "\u00b1": r"$\pm$",
    }
)  # fmt: skip


def text(proposal: Proposal, name: str) -> str:
    ran = [point for point in proposal.points if point.runs]
    runs_by_source = Counter[str]()
    for point in ran:
        runs_by_source[point.source] += point.runs
    values = {
        **vars(proposal), "planned": proposal.planned, "base": proposal.base, "ran": ran,
        "misfit": proposal.misfit, "facts": proposal.findings.facts, "fmt": fmt,
        "label": proposal.findings.sources_label, "training": _training(proposal),
        "noun": worker_noun(proposal.findings), "node_hours": _node_hours(proposal),
        "counts": [fmt.plural(count, f"{source} run") for source, count in runs_by_source.items()],
        "level": f"{100 * LEVEL:.0f}", "version": __version__,
        "largest_errors": lambda: [abs(check.error) for check in check_largest(proposal.job)],
    }  # fmt: skip
    template = environment().overlay(autoescape=False).get_template("proposal.j2")
    lines: str = getattr(template.make_module(values), name)()
    return re.sub("[ \n]+", " ", lines).strip()


def _training(proposal: Proposal) -> str:
    count = proposal.amount.mean
    return f"{count:g} {proposal.job.unit}{'s' * (count != 1)}"


def _node_hours(proposal: Proposal) -> Quantity:
    return proposal.planned.time_s.times(proposal.campaign.nodes * proposal.campaign.runs / HOUR_S)


def _source(point: Point) -> str:
    return fmt.plural(point.runs, f"{point.source} run") if point.runs else point.source


def scaling_table(proposal: Proposal) -> tables.Table | None:
    points, noun = proposal.points, worker_noun(proposal.findings)
    base = proposal.base.setting.gpus
    columns = [
        tables.number("nodes", lambda point: point.setting.nodes, 9),
        tables.number(f"{noun}s", lambda point: point.setting.gpus, 9),
        tables.number("global batch", lambda point: point.setting.global_batch, 9),
        tables.in_unit("time", points, lambda point: point.time_s, fmt.TIME_UNITS),
        tables.number("speedup", lambda point: point.efficiency.mean * point.setting.gpus / base),
        tables.Column("efficiency", lambda point: fmt.estimate_text(point.efficiency)),
        tables.Column(f"{noun}-hours", lambda point: fmt.number(point.gpu_hours.mean)),
        tables.in_unit("energy", points, lambda point: point.energy_j, fmt.ENERGY_UNITS),
        tables.text("source", _source),
    ]
    title = f"Scaling of {proposal.job.workload}"
    first, last = points[0].setting, points[-1].setting
    if first.local_batch is not None and first.local_batch == last.local_batch:
        title += f", local batch {fmt.number(first.local_batch, 9)}"
    elif first.local_batch is not None:
        title += f", global batch {fmt.number(first.global_batch, 9)}"
    return tables.build("scaling", title, columns, points, note=text(proposal, "scaling_note"))


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
        ("trainings", f"{campaign.runs:,}, of {_training(proposal)} each"),
        ("nodes of a training", f"{campaign.nodes:,} ({fmt.plural(point.setting.gpus, noun)})"),
        ("time of a training", fmt.duration_text(point.time_s)),
        (f"{noun}-hours of all", fmt.estimate_text(hours)),
        ("node-hours of all", fmt.estimate_text(_node_hours(proposal))),
        ("energy of all", fmt.energy_text(energy)),
        ("carbon of all", fmt.estimate_text(cost.co2_kg if cost else None, "kg CO2e")),
        ("cost of all", fmt.estimate_text(cost.cost if cost else None, currency)),
        ("parallel efficiency", fmt.estimate_text(point.efficiency)),
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
    ran, curve = _rows([point for point in proposal.points if point.runs]), _rows(proposal.curve)
    ran["line"] += " runs"
    base, noun = proposal.base, worker_noun(proposal.findings)
    styles = charts.line_styles([PREDICTED, *dict.fromkeys(ran["line"])])
    panels = []
    for name, title in _AXES.items():
        of_runs, predicted = (table[table["name"] == name] for table in (ran, curve))
        ideal, is_time = pd.DataFrame({"at": predicted["at"], "mean": 1.0}), name == "time_s"
        if is_time:
            ideal["mean"] = base.time_s.mean / HOUR_S * base.setting.gpus / ideal["at"]
        x = charts.counts_axis(predicted["at"], f"{noun}s (count)")
        heights = [*charts.y_values(predicted), *charts.y_values(of_runs, *ideal["mean"])]
        y = charts.y_axis("mean", title, heights, log=is_time, zero=not is_time)
        axes = {"x": x, "y": y}
        layers = [
            charts.layer(ideal, "line", axes, strokeDash=[5, 4], color=charts.FAINT),
            charts.reference_line(max(ran["at"]), "x"),
            charts.band(predicted, x, y, styles),
            charts.line(predicted, x, y, styles),
        ]
        for table in (predicted[~predicted["at"].isin(of_runs["at"])], of_runs):
            if len(table):
                layers += charts.curve(table, x, y, styles, title, joined=False)
        panels.append(charts.panel(layers, "", 400, 260))
    spec = charts.figure(panels, 2, [text(proposal, "caption")], 900)
    return Picture.of("scaling", f"Scaling of {proposal.job.workload}", spec)


def write_proposal(proposal: Proposal, path: Path) -> list[Path]:
    """Write a page or, for a name in ``.md``, Markdown with LaTeX tables and a picture."""
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
        f"# {title}", lead, as_latex(scaling),
        f"![{drawn.title}. {text(proposal, 'caption')}]({file.name})",
        as_latex(campaign), "## Method", method,
    ]  # fmt: skip
    write_text(path, "\n\n".join(content) + "\n", durable=False)
    return [path, file]


def as_latex(table: tables.Table | None) -> str:
    """Return a table with caption and note, for Markdown that becomes a PDF; "" for None."""
    if table is None:
        return ""

    def escape(text: str) -> str:
        return fmt.replace_invisible(text).translate(_LATEX)

    columns = "".join("r" if "n" in name.split() else "l" for name in table.classes)
    rows = [" & ".join(map(escape, row)) + r" \\" for row in (table.headings, *table.rows)]
    caption = ". ".join(filter(None, [table.title, table.note]))
    lines = [
        r"\begin{table}[htbp]", rf"\caption{{{escape(caption)}}}",
        rf"\begin{{tabular}}{{{columns}}}", r"\hline", rows[0],
        r"\hline", *rows[1:], r"\hline", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines)
