"""Two pages for a compute-time proposal: scaling, what is planned, and how it was measured."""

from collections import Counter
from collections.abc import Sequence
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
from wattlaw.common.files import replacing, write_text
from wattlaw.report import charts, tables
from wattlaw.report.page import write_page
from wattlaw.report.pictures import Chart, draw_charts, lone_chart, png
from wattlaw.report.sections import Section
from wattlaw.report.topics.measured import worker_noun

_AXES = {"time_s": "time of a training (h)", "efficiency": "parallel efficiency (ratio)"}
_CAPTION = (
    "Points of runs are means with 95 % intervals. The line with its band is the prediction from "
    f"all runs, with {100 * LEVEL:.0f} % intervals of a run. The vertical line is at the largest "
    "count that ran. The other dashed line is ideal scaling from the smallest count."
)


_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}", **{sign: f"\\{sign}" for sign in "&%$#_"}, "\u2212": "$-$",
        "\u00a0": "~", "\u2013": "--", "\u00b1": r"$\pm$",
    }
)  # fmt: skip


def _title(proposal: Proposal) -> str:
    label = proposal.findings.sources_label
    nodes = fmt.plural(proposal.campaign.nodes, "node")
    return f"{proposal.job.workload} on {nodes}" + (f" ({label})" if label else "")


def lead(proposal: Proposal) -> str:
    """Return what is asked for and what it rests on, in a sentence."""
    point, job, runs = proposal.planned, proposal.job, proposal.campaign.runs
    noun = worker_noun(proposal.findings)
    ran = [item for item in proposal.points if item.runs]
    takes = fmt.estimate_text(_node_hours(proposal), "node-hours")
    runs_by_source = Counter[str]()
    for item in ran:
        runs_by_source[item.source] += item.runs
    counts = [fmt.plural(count, f"{source} run") for source, count in runs_by_source.items()]
    basis = f"{' and '.join(counts)} on up to {fmt.plural(ran[-1].setting.gpus, noun)}"
    return (
        f"{fmt.plural(runs, 'training')} of {job.workload}, {_training(proposal)}"
        f"{' each' if runs > 1 else ''}, on {fmt.plural(proposal.campaign.nodes, 'node')} "
        f"({fmt.plural(point.setting.gpus, noun)}): {takes}, "
        f"{'from' if point.runs else 'predicted from'} {basis}."
    )


def _node_hours(proposal: Proposal) -> Quantity:
    return proposal.planned.time_s.times(proposal.campaign.nodes * proposal.campaign.runs / HOUR_S)


def _batch(proposal: Proposal) -> str:
    first, last = (proposal.points[at].setting for at in (0, -1))
    if first.local_batch is None:
        return ""
    if first.local_batch == last.local_batch:
        return f", local batch {fmt.number(first.local_batch, 9)}"
    return f", global batch {fmt.number(first.global_batch, 9)}"


def scaling_table(proposal: Proposal) -> tables.Table | None:
    base, noun = proposal.base.setting.gpus, worker_noun(proposal.findings)
    columns = [
        tables.number("nodes", lambda point: point.setting.nodes, 9),
        tables.number(f"{noun}s", lambda point: point.setting.gpus, 9),
        tables.number("global batch", lambda point: point.setting.global_batch, 9),
        tables.in_unit("time", proposal.points, lambda point: point.time_s, fmt.TIME_UNITS),
        tables.number("speedup", lambda point: point.efficiency.mean * point.setting.gpus / base),
        tables.Column("efficiency", lambda point: fmt.estimate_text(point.efficiency)),
        tables.Column(f"{noun}-hours", lambda point: fmt.number(point.gpu_hours.mean)),
        tables.in_unit("energy", proposal.points, lambda point: point.energy_j, fmt.ENERGY_UNITS),
        tables.text("source", _source),
    ]
    note = (
        f"Values are of a training of {_training(proposal)}. Brackets are 95 % intervals of the "
        f"mean of runs, and {100 * LEVEL:.0f} % intervals of a predicted run. Speedup and "
        f"efficiency are relative to {fmt.plural(base, noun)}. At the counts that ran, the model "
        f"is at most {fmt.percent(proposal.misfit, 2)} off: predictions may leave their trend."
    )
    title = f"Scaling of {proposal.job.workload}{_batch(proposal)}"
    return tables.build("scaling", title, columns, proposal.points, note=note)


def _source(point: Point) -> str:
    return fmt.plural(point.runs, f"{point.source} run") if point.runs else point.source


def _training(proposal: Proposal) -> str:
    count = proposal.amount.mean
    return f"{count:g} {proposal.job.unit}{'s' * (count != 1)}"


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
    ]  # fmt: skip
    columns = [tables.text("planned", itemgetter(0)), tables.text("amount", itemgetter(1))]
    return tables.build(
        "campaign", "The planned campaign", columns, [row for row in rows if row[1] != fmt.MISSING],
        note=f"The energy counts {proposal.job.energy_is}, without evaluation, start-up and "
        "failed runs: add a margin." if energy else "Start-up, evaluation and failed runs are not "
        "included: add a margin.",
    )  # fmt: skip


def method(proposal: Proposal) -> str:
    """Return the paragraph on how the numbers were obtained."""
    facts, job = proposal.findings.facts, proposal.job
    noun = worker_noun(proposal.findings)
    runs = [point for point in proposal.points if point.runs]
    sources = " and ".join(sorted({point.source for point in runs}))
    when = f" ({facts['Ran']})" if "Ran" in facts else ""
    counted = sum(point.runs for point in runs)
    text = (
        f"Times are {sources}: {fmt.plural(counted, 'run')} on "
        f"{fmt.number(runs[0].setting.gpus)} to {fmt.plural(runs[-1].setting.gpus, noun)} of "
        f"{job.hardware or 'unknown hardware'}{when}, evaluated with wattlaw {__version__}. They "
        "are of training windows after warm-up, without evaluation. "
    )
    if job.energy_is is not None:
        text += f"Energies count {job.energy_is}. "
    if any(not point.runs for point in proposal.points):
        text += (
            "Counts that did not run are predicted by a Bayesian model of a training step "
            "(compute, communication in and between nodes, input, waiting), fitted to all runs. "
        )
        checks = check_largest(job)
        if checks:
            worst = max(abs(check.error) for check in checks)
            text += (
                f"Fitted without the largest count, it predicts the time there with an error of at "
                f"most {fmt.percent(worst, 2)}. "
            )
    if (software := facts.get("Software")) is not None:
        text += f"Software: {software}. "
    if (commit := facts.get("Git commit")) is not None:
        text += f"Code at {commit}. "
    return text.strip()


def _rows(points: Sequence[Point]) -> pd.DataFrame:
    rows = []
    for point in points:
        for name, factor in (("time_s", 1 / HOUR_S), ("efficiency", 1.0)):
            quantity = getattr(point, name)
            low, high = (None if v is None else v * factor for v in (quantity.low, quantity.high))
            rows.append((name, point.setting.gpus, quantity.mean * factor, low, high, point.source))
    table = pd.DataFrame(rows, columns=["name", "at", "mean", "low", "high", "line"])
    return table.astype({"low": float, "high": float}).assign(gpus=table["at"])


def chart(proposal: Proposal) -> Chart:
    """Return the figure: time and parallel efficiency, of runs and predicted."""
    ran = _rows([point for point in proposal.points if point.runs])
    curve = _rows(proposal.curve)
    base, noun = proposal.base, worker_noun(proposal.findings)
    ran["line"] += " runs"
    styles = charts.line_styles([PREDICTED, *dict.fromkeys(ran["line"])])
    most = max(ran["at"])
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
        dashed = charts.layer(ideal, "line", axes, strokeDash=[5, 4], color=charts.FAINT)
        beyond = predicted[~predicted["at"].isin(of_runs["at"])]
        layers = [
            dashed, charts.reference_line(most, "x"), charts.band(predicted, x, y, styles),
            charts.line(predicted, x, y, styles),
            *(layer for table in (beyond, of_runs) if len(table)
              for layer in charts.curve(table, x, y, styles, title, joined=False)),
        ]  # fmt: skip
        panels.append(charts.panel(layers, "", 400, 260))
    title = f"Scaling of {proposal.job.workload}"
    return lone_chart("scaling", title, charts.figure(panels, 2, [_CAPTION], 900))


def write_proposal(proposal: Proposal, path: Path) -> list[Path]:
    """Write a page or, where the name ends in ``.md``, Markdown with LaTeX tables and a picture.

    Returns the files.
    """
    scaling, campaign = scaling_table(proposal), campaign_table(proposal)
    drawn, text = chart(proposal), method(proposal)
    if path.suffix.lower() != ".md":
        pictures = draw_charts([drawn])
        sections = (
            Section.of("summary", "What is asked for", "screen", [lead(proposal)]),
            Section.of("scaling", "Scaling", "plain", [scaling, *pictures]),
            Section.of("campaign", "Planned campaign", "page", [campaign]),
            Section.of("method", "Method", "plain", [text]),
        )
        write_page(path, _title(proposal), sections)
        return [path]
    picture = path.with_name(f"{path.stem}-scaling.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(picture, durable=False) as temporary:
        png(temporary, drawn.spec)
    content = [
        f"# {_title(proposal)}", fmt.replace_invisible(lead(proposal)), as_latex(scaling),
        f"![{drawn.figure.title}. {_CAPTION}]({picture.name})",
        as_latex(campaign), "## Method", fmt.replace_invisible(text),
    ]  # fmt: skip
    write_text(path, "\n\n".join(content) + "\n", durable=False)
    return [path, picture]


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
