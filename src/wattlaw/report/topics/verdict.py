"""The first screen: what to run in sentences, a table of it, and caveats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from wattlaw import formatting as fmt
from wattlaw.analysis.planning.question import Question
from wattlaw.report import tables
from wattlaw.report.topics import advice as text
from wattlaw.report.topics.data_quality import caveat_sentences

if TYPE_CHECKING:
    from wattlaw.analysis.advice.advice import Advice
    from wattlaw.analysis.advice.option import Option, Quantity
    from wattlaw.analysis.findings import Findings

#: Workloads of which the recommendation is a sentence, and rows of the table of one workload.
_MAX_LINES = 4
MAX_ROWS = 8
_COMMAND = "wattlaw advise STORE --workload W"


class _Row(NamedTuple):
    advice: Advice
    option: Option
    roles: tuple[str, ...]


def sentences(findings: Findings) -> Iterator[str]:
    """Yield the recommendation of a single workload; of several, what the table shows."""
    if findings.runs.empty:
        yield "No run is done, so there is no result yet."
    if len(findings.advice) == 1:
        yield from text.summary(findings.advice[0])
    elif findings.advice:
        count = len(findings.advice)
        if count <= _MAX_LINES:
            yield from (f"{text.brief(advice)}." for advice in findings.advice)
        else:
            yield f"The table has the recommended setting of each of {count} workloads."
        yield f"{_COMMAND} explains each."
    for workload, reason in findings.advice_refusals:
        yield f"{workload}: no advice, because {fmt.full_stop(reason)}"


def table(findings: Findings) -> tables.Table | None:
    """Return a row for each of several workloads; or the settings to compare, of a single one."""
    advices = findings.advice
    if len(advices) == 1:
        return settings(advices[0])
    rows = [_Row(advice, advice.recommended, ()) for advice in advices if advice.recommended]
    columns = [
        tables.text("workload", lambda row: row.advice.workload),
        tables.text("run on", lambda row: row.advice.label(row.option)),
        *_amounts(rows),
        tables.Column("energy against baseline", lambda row: _saving(row.advice, "energy")),
        tables.Column("time against baseline", lambda row: _saving(row.advice, "time")),
        tables.Column("sure", lambda row: _probability(row.advice)),
        tables.number("others as good", lambda row: len(row.advice.ties) or None),
        tables.text("measure next", _next),
        tables.text("known by", lambda row: _known_by(row.option)),
    ]
    note = (
        "The baseline is the fastest setting that may be recommended. Sure: the probability to be "
        f"within {fmt.percent(Question().tolerance, 2)} of the best setting."
    )
    return tables.build("recommended", "What to run, by workload", columns, rows, note=note,
                        command=_COMMAND)  # fmt: skip


def settings(advice: Advice) -> tables.Table | None:
    """Return the recommended setting, the baseline, what ties, and the Pareto front."""
    roles: dict[int, list[str]] = {}
    options: dict[int, Option] = {}
    named = (
        ("recommended", [advice.recommended]), ("baseline", [advice.baseline]),
        ("ties", [tie.option for tie in advice.ties]), ("Pareto front", advice.pareto),
    )  # fmt: skip
    for role, of_role in named:
        for option in of_role:
            if option is not None:
                key = next((i for i, other in options.items() if other == option), len(options))
                options[key] = option
                roles.setdefault(key, []).append(role)
    rows = [_Row(advice, option, tuple(roles[key])) for key, option in options.items()]
    columns = [
        tables.text("setting", lambda row: row.advice.label(row.option)),
        tables.text("is", lambda row: ", ".join(row.roles)),
        *_amounts(rows),
        tables.text("known by", lambda row: _known_by(row.option)),
    ]
    return tables.build("settings_compared", "The settings to compare", columns, rows,
                        max_rows=MAX_ROWS, command=f"{_COMMAND} --json")  # fmt: skip


def caveats(findings: Findings) -> list[str]:
    """Return the warnings of the advice and what limits the trust in the results."""
    warnings = [(a.workload, str(warning)) for a in findings.advice for warning in a.warnings]
    merged = text.merge_equal(warnings, len(findings.advice))
    return list(dict.fromkeys([*merged, *caveat_sentences(findings)]))


def _amounts(rows: list[_Row]) -> list[tables.Column]:
    units = {row.advice.unit for row in rows}
    unit = units.pop() if len(units) == 1 else ""
    of = {"epoch": " of training", "run": " of a run", "": ""}.get(unit, f" of a {unit}")
    noun = rows[0].advice.worker if rows else "worker"
    currency = next((row.advice.footprint.currency for row in rows if row.advice.footprint), None)

    def hours(row: _Row) -> Quantity:
        return row.option.gpu_hours

    return [
        tables.Column(f"time{of}", lambda row: fmt.duration_text(row.option.train_time_s)),
        tables.Column(f"energy{of}", lambda row: fmt.energy_text(row.option.train_energy_j)),
        tables.Column(f"{noun}-hours{of}", lambda row: fmt.number(hours(row).mean)),
        tables.Column(f"cost ({currency})" if currency else "cost",
                      lambda row: row.option.cost and fmt.number(row.option.cost.mean)),
        tables.Column("kg CO2e", lambda row: row.option.co2_kg
                      and fmt.number(row.option.co2_kg.mean)),
    ]  # fmt: skip


def _saving(advice: Advice, name: str) -> str | None:
    change: Quantity | None = getattr(advice.savings, name, None)
    if change is None:
        return None
    if advice.recommended == advice.baseline:
        return "is the baseline"
    text_of = fmt.change(1 + change.mean)
    if change.interval is None:
        return text_of
    return f"{text_of} ({' to '.join(fmt.change(1 + end) for end in change.interval)})"


def _probability(advice: Advice) -> str | None:
    share = advice.probability
    if share is None:
        return None
    return "> 99 %" if share > 0.99 else fmt.percent(share, 2)


def _next(row: _Row) -> str:
    run = row.advice.next_measurement
    if run is None:
        return "nothing: certain enough"
    again = run.option.setting == row.option.setting
    return "this setting again" if again else row.advice.label(run.option)


def _known_by(option: Option) -> str:
    if option.is_predicted:
        return "prediction" + (", beyond the runs" if option.extrapolates else "")
    source = "" if option.source == fmt.MEASURED else f"{option.source} "
    return fmt.plural(option.repeats, f"{source}run")
