"""The first screen: what to run in sentences, a table of it, and caveats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.report.topics import advice as text
from wattlaw.report.topics.data_quality import caveat_sentences
from wattlaw.study.question import Question
from wattlaw.study.sources import MEASURED

if TYPE_CHECKING:
    from wattlaw.analysis.advise.advice import Advice
    from wattlaw.analysis.advise.option import Option
    from wattlaw.analysis.findings import Findings

#: Workloads of which the recommendation is a sentence, and rows of the table of one workload.
_MAX_LINES = 4
MAX_ROWS = 8
#: The role of a setting that is recommended only if the quality at its batch is acceptable.
LARGER_BATCH = "larger batch, quality unknown"
_COMMAND = "wattlaw advise STORE --workload W"


#: The role of the recommended setting where it is only one of several candidates.
UNCLEAR = "lowest mean, not clearly best"


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
        tables.text("run on", _run_on),
        tables.text(LARGER_BATCH, _any_batch),
        *_amounts(rows),
        tables.text("against the baseline", _change),
        tables.Column("sure", _probability),
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
        ("recommended" if advice.clearly_best else UNCLEAR, [advice.recommended]),
        ("baseline", [advice.baseline]),
        (LARGER_BATCH, [advice.any_batch]),
        ("ties", [tie.option for tie in advice.ties if not tie.is_better]),
        ("probably better", [tie.option for tie in advice.ties if tie.is_better]),
        ("Pareto front", advice.pareto),
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
    merged = text.merge_warnings(findings.advice)
    return list(dict.fromkeys([*merged, *caveat_sentences(findings)]))


def _amounts(rows: list[_Row]) -> list[tables.Column]:
    units = {row.advice.unit for row in rows}
    unit = units.pop() if len(units) == 1 else ""
    of = {"epoch": " of training", "run": " of a run", "": ""}.get(unit, f" of a {unit}")
    currency = next((row.advice.footprint.currency for row in rows if row.advice.footprint), None)

    def amount(noun: str, units: fmt.Units, name: str) -> tables.Column:
        return tables.in_unit(f"{noun}{of}", rows, lambda row: getattr(row.option, name), units)

    columns = [amount("time", fmt.TIME_UNITS, "train_time_s")]
    if any(row.option.energy_j for row in rows):
        columns.append(amount("energy", fmt.ENERGY_UNITS, "train_energy_j"))
    noun = text.hours(rows[0].advice, rows[0].option)[1] if rows else ""
    return [
        *columns,
        tables.number(f"{noun}{of}", lambda row: text.hours(row.advice, row.option)[0]),
        tables.Column(f"cost ({currency})" if currency else "cost",
                      lambda row: row.option.cost and fmt.number(row.option.cost.mean)),
        tables.Column("kg CO2e", lambda row: row.option.co2_kg
                      and fmt.number(row.option.co2_kg.mean)),
    ]  # fmt: skip


def _run_on(row: _Row) -> str:
    label = row.advice.label(row.option)
    return label if row.advice.clearly_best else f"{label} ({UNCLEAR})"


def _any_batch(row: _Row) -> str | None:
    option = row.advice.any_batch
    return None if option is None else row.advice.label(option)


def _change(row: _Row) -> str:
    changes = fmt.no_breaks(text.changes(row.advice, ("energy", "time")))
    return changes.replace(",\u00a0", ", ") or "is the baseline"


def _probability(row: _Row) -> str | None:
    if row.advice.probability is None:
        return None
    ties = sum(not tie.is_better for tie in row.advice.ties)
    return text.percent(row.advice.probability) + (f" ({fmt.plural(ties, 'tie')})" if ties else "")


def _next(row: _Row) -> str:
    run = row.advice.next_measurement
    if run is None:
        return "nothing: certain enough"
    is_same = run.option.setting == row.option.setting
    what = "this setting" if is_same else row.advice.label(run.option)
    return f"{what} again" if run.is_repeat else what


def _known_by(option: Option) -> str:
    if option.is_predicted:
        return "prediction" + (", beyond the runs" if option.extrapolates else "")
    source = "" if option.source == MEASURED else f"{option.source} "
    return fmt.plural(option.repeats, f"{source}run")
