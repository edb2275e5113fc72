"""Two pages for a compute-time proposal: scaling, what is planned, and how it was measured."""

from pathlib import Path

import altair as alt
import pandas as pd

from wattlaw import __version__
from wattlaw import formatting as fmt
from wattlaw.analysis.metrics import HOUR_S
from wattlaw.analysis.prediction.overview import check_largest
from wattlaw.analysis.prediction.results import LEVEL
from wattlaw.analysis.proposal import Point, Proposal
from wattlaw.files import replacing, write_text
from wattlaw.report import tables
from wattlaw.report.figures import Figure, parts
from wattlaw.report.latex import as_latex
from wattlaw.report.page import write_page
from wattlaw.report.pictures import Chart, draw_charts, png
from wattlaw.report.theme import FAINT, line_styles
from wattlaw.report.topics.measured import worker_noun

_AXES = {"time_s": "time of a training (h)", "efficiency": "parallel efficiency (ratio)"}
_CAPTION = (
    "Points are runs or predictions. Bars are 95 % intervals of means of runs, and "
    f"{100 * LEVEL:.0f} % intervals of a predicted run. The dashed line is ideal scaling."
)


def _title(proposal: Proposal) -> str:
    label = proposal.findings.sources_label
    nodes = fmt.plural(proposal.campaign.nodes, "node")
    return f"{proposal.job.workload} on {nodes}" + (f" ({label})" if label else "")


def scaling_table(proposal: Proposal) -> tables.Table | None:
    """Return a row for each GPU count."""
    base, noun = proposal.base.setting.gpus, worker_noun(proposal.findings)
    columns = [
        tables.number("nodes", lambda point: point.setting.nodes, 9),
        tables.number(f"{noun}s", lambda point: point.setting.gpus, 9),
        tables.number(f"batch of a {noun}", lambda point: point.setting.local_batch, 9),
        tables.Column("time of a training", lambda point: fmt.duration_text(point.time_s)),
        tables.number("speedup", lambda point: point.efficiency.mean * point.setting.gpus / base),
        tables.Column("efficiency", lambda point: fmt.estimate_text(point.efficiency)),
        tables.Column(f"{noun}-hours", lambda point: fmt.number(point.gpu_hours.mean)),
        tables.Column("energy", lambda point: fmt.energy_text(point.energy_j)),
        tables.text("source", _source),
    ]
    note = (
        f"A training is {_training(proposal)}. Brackets are 95 % intervals of the mean of runs, "
        f"and {100 * LEVEL:.0f} % intervals of a predicted run. Speedup and efficiency are "
        f"relative to {fmt.plural(base, noun)}."
    )
    return tables.build("scaling", f"Scaling of {proposal.job.workload}", columns, proposal.points,
                        note=note)  # fmt: skip


def _source(point: Point) -> str:
    return fmt.plural(point.runs, f"{point.source} run") if point.runs else point.source


def _training(proposal: Proposal) -> str:
    count = proposal.amount.mean
    return f"{count:g} {proposal.job.unit}{'s' * (count != 1)}"


def campaign_table(proposal: Proposal) -> tables.Table | None:
    """Return what the planned trainings take."""
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
        ("node-hours of all", fmt.estimate_text(hours.times(campaign.nodes / point.setting.gpus))),
        ("energy of all", fmt.energy_text(energy)),
        ("carbon of all", fmt.estimate_text(cost.co2_kg if cost else None, "kg CO2e")),
        ("cost of all", fmt.estimate_text(cost.cost if cost else None, currency)),
        ("parallel efficiency", fmt.estimate_text(point.efficiency)),
        ("source", _source(point)),
    ]  # fmt: skip
    columns = [
        tables.text("planned", lambda row: row[0]),
        tables.text("amount", lambda row: row[1]),
    ]
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


def chart(proposal: Proposal) -> Chart:
    """Return the figure: time and parallel efficiency against nodes."""
    rows = []
    for point in proposal.points:
        for name, factor in (("time_s", 1 / HOUR_S), ("efficiency", 1.0)):
            quantity = getattr(point, name)
            low, high = (None if v is None else v * factor for v in (quantity.low, quantity.high))
            rows.append((name, point.setting.gpus, quantity.mean * factor, low, high, point.source))
    table = pd.DataFrame(rows, columns=["name", "at", "mean", "low", "high", "line"])
    table = table.astype({"low": float, "high": float}).assign(gpus=table["at"])
    base = proposal.base
    styles = line_styles(list(dict.fromkeys(table["line"])))
    panels = []
    for name, title in _AXES.items():
        shown, is_time = table[table["name"] == name], name == "time_s"
        ideal = pd.DataFrame({"at": shown["at"], "mean": 1.0})
        if is_time:
            ideal["mean"] = base.time_s.mean / HOUR_S * base.setting.gpus / shown["at"]
        x = parts.counts_axis(shown["at"], f"{worker_noun(proposal.findings)}s (count)")
        y = parts.y_axis("mean", title, parts.y_values(shown, *ideal["mean"]), log=is_time,
                         zero=not is_time)  # fmt: skip
        dashed = alt.Chart(ideal).mark_line(strokeDash=[5, 4], color=FAINT).encode(x=x, y=y)
        layers = [dashed, *parts.curve(shown, x, y, styles, title)]
        panels.append(parts.panel(layers, "", 400, 260))
    figure = parts.concat(panels, 2, [_CAPTION], 900)
    title = f"Scaling of {proposal.job.workload}"
    spec = figure.to_dict(validate=False)
    spec["title"]["text"] = title
    shell = Figure("scaling", title, "proposal", frozenset(), lambda _: figure, "")
    return Chart(shell, spec)


def write_proposal(proposal: Proposal, path: Path) -> list[Path]:
    """Write a page or, where the name ends in ``.md``, Markdown with LaTeX tables and a picture.

    Returns the files.
    """
    scaling, campaign = scaling_table(proposal), campaign_table(proposal)
    drawn, text = chart(proposal), method(proposal)
    if path.suffix.lower() != ".md":
        write_page(path, "proposal.html.j2", title=_title(proposal), scaling=scaling,
                   campaign=campaign, picture=draw_charts([drawn])[0], method=text)  # fmt: skip
        return [path]
    picture = path.with_name(f"{path.stem}-scaling.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(picture, durable=False) as temporary:
        png(temporary, drawn.spec)
    content = [
        f"# {_title(proposal)}", as_latex(scaling),
        f"![{drawn.figure.title}. {_CAPTION}]({picture.name})",
        as_latex(campaign), "## Method", fmt.replace_invisible(text),
    ]  # fmt: skip
    write_text(path, "\n\n".join(content) + "\n", durable=False)
    return [path, picture]
