"""What to run: the recommendation of each workload, the Pareto front, and the next doubling."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from wattlaw import formatting as fmt
from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.comparable_runs import VARIANTS
from wattlaw.analysis.advice.option import Doubling, Option, Quantity
from wattlaw.analysis.caps.limits import LIMITS, Limit
from wattlaw.analysis.findings import Findings
from wattlaw.report import tables
from wattlaw.report.topics.measured import worker_noun

_COMMAND = "wattlaw advise STORE --workload W --json"


class _Row(NamedTuple):
    advice: Advice
    option: Option


class _Doubled(NamedTuple):
    advice: Advice
    option: Option  # with twice the GPUs
    doubling: Doubling


def recommended(findings: Findings) -> tables.Table | None:
    """Return the recommended setting of each workload."""
    rows = [_Row(advice, advice.recommended) for advice in findings.advice if advice.recommended]
    return tables.build(
        "recommended",
        "What to run, by workload",
        _columns(findings, rows),
        rows,
        note="Without a deadline or a budget. Batch: of a worker / of all. Time and energy of an "
        "epoch (or other unit) have 95 % intervals; training is all epochs, or a run, without "
        "evaluation.",
        command=_COMMAND,
    )


def front(findings: Findings) -> tables.Table | None:
    """Return the Pareto front of time and energy of each workload."""
    rows = [_Row(advice, option) for advice in findings.advice for option in advice.pareto]
    return tables.build(
        "pareto",
        "Pareto front of time and energy",
        _columns(findings, rows),
        rows,
        note="No other setting is both faster and uses less energy. Settings that were left out "
        "for their quality do not count.",
        command=_COMMAND,
    )


def doublings(findings: Findings) -> tables.Table | None:
    """Return the effect of twice the recommended GPUs on time and energy."""
    pairs = [(advice, advice.next_doubling) for advice in findings.advice if advice.next_doubling]
    rows = [_Doubled(advice, doubling.option, doubling) for advice, doubling in pairs]
    options = [doubling.option for _, doubling in pairs]
    columns = [
        tables.text("workload", lambda row: row.advice.workload),
        tables.number("from N", lambda row: row.doubling.of.gpus),
        tables.number("to N", lambda row: row.option.gpus),
        tables.Column("time", lambda row: fmt.percent(row.doubling.time_ratio)),
        tables.Column("energy", lambda row: fmt.percent(row.doubling.energy_ratio)),
        _amounts("training time", options, "train_time_s", fmt.TIME_UNITS),
        _amounts("training energy", options, "train_energy_j", fmt.ENERGY_UNITS),
        tables.text("known by", _known_by),
    ]
    return tables.build(
        "doublings",
        "Effect of the next doubling of GPUs (100 %: no change)",
        columns,
        rows,
        command=_COMMAND,
    )


def rationale(findings: Findings) -> tuple[str, ...]:
    """Return why each setting is recommended, what was counted, and all warnings."""
    texts = [
        (advice.workload, fmt.sentence(text))
        for advice in findings.advice
        for text in (advice.reason, f"Counted: {advice.counted}", *map(str, advice.warnings))
    ]
    texts += [(workload, f"no advice: {reason}") for workload, reason in findings.advice_refusals]
    return tuple(merge_equal(texts, len(findings.advice)))


def advice_sentences(findings: Findings) -> Iterator[str]:
    """Yield the recommendation of each workload, its reason, and the first warning."""
    for advice in findings.advice:
        option = advice.recommended
        if option is None:
            yield f"{advice.workload}: nothing is recommended. {advice.reason}"
            continue
        text = f"{advice.workload}: {option.label(advice.worker, findings.varying_settings)}: "
        text += fmt.duration_text(option.time_s)
        if option.energy_j is not None:
            text += f" and {fmt.energy_text(option.energy_j)}"
        text += f" per {advice.unit}" + (" (measured once)" if option.repeats == 1 else "")
        variants = any(warning.code == VARIANTS for warning in advice.warnings)
        yield f"{text}.{' Runs of other variants of this job were left out.' if variants else ''}"
    workloads = len(findings.advice)
    chosen = [advice for advice in findings.advice if advice.recommended]
    subject = "This setting has " if len(chosen) == 1 else "Each recommended setting has "
    for text in merge_equal([(advice.workload, advice.reason) for advice in chosen], workloads):
        of_all = text.startswith("It has ")
        yield text.replace("It has ", subject if of_all else "the recommended setting has ", 1)
    warnings = [
        (advice.workload, warning.text)
        for advice in findings.advice
        for warning in [w for w in advice.warnings if w.code != VARIANTS][:1]
    ]
    yield from merge_equal(warnings, workloads)
    for workload, reason in findings.advice_refusals:
        yield f"{workload}: no advice: {reason}."


def merge_equal(texts: Sequence[tuple[str, str]], count: int) -> list[str]:
    """Return each text of (name, text) once, after its names unless these are all ``count``."""
    names: dict[str, dict[str, None]] = {}
    for name, text in texts:
        names.setdefault(text, {})[name] = None
    return [
        text if len(of_text) == count else f"{', '.join(of_text)}: {text}"
        for text, of_text in names.items()
    ]


def _columns(findings: Findings, rows: Sequence[_Row]) -> list[tables.Column]:
    differing = [name for name in ("hardware", "precision") if name in findings.varying_settings]
    options = [row.option for row in rows]
    noun = worker_noun(findings)
    hours = tables.number(f"{noun}-hours", lambda row: row.option.gpu_hours.mean)
    # The page is narrow: cost and carbon replace the GPU-hours.
    has_footprint = any(row.advice.footprint for row in rows)
    units = {row.advice.unit for row in rows}
    of = units.pop() if len(units) == 1 else "unit"
    unit = [tables.text("unit", lambda row: row.advice.unit)] if of == "unit" else []
    return [
        tables.text("workload", lambda row: row.advice.workload),
        *unit,
        *(_setting_column(name) for name in differing),
        tables.number("N", lambda row: row.option.gpus),
        *(_limit_column(kind) for kind in LIMITS if kind in findings.varying_settings),
        tables.Column("batch", _batch),
        _amounts(f"{of} time", options, "time_s", fmt.TIME_UNITS),
        _amounts(f"{of} energy", options, "energy_j", fmt.ENERGY_UNITS),
        tables.Column("epochs", lambda row: fmt.estimate_text(row.option.epochs)),
        _amounts("training time", options, "train_time_s", fmt.TIME_UNITS),
        _amounts("training energy", options, "train_energy_j", fmt.ENERGY_UNITS),
        *([] if has_footprint else [hours]),
        tables.Column("cost", lambda row: _footprint(row, "cost")),
        tables.Column("kg CO2e", lambda row: _footprint(row, "co2_kg")),
        tables.text("known by", _known_by),
    ]


def _amounts(heading: str, options: Sequence[Option], name: str, units: fmt.Units) -> tables.Column:
    """Return a column in the unit of its median.

    The interval of training is shown only if the number of epochs has one.
    """
    quantities = [getattr(option, name) for option in options]
    size, unit = fmt.choose_unit([q.mean for q in quantities if q is not None], units)

    def cell(row: _Row | _Doubled) -> str:
        quantity = getattr(row.option, name)
        amount = row.option.amount
        of_training = quantity is not None and name.startswith("train_")
        if of_training and row.option.unit in ("sample", "step"):
            return fmt.MISSING
        if of_training and amount.low in (None, amount.high):
            quantity = Quantity(quantity.mean)
        return fmt.estimate_text(quantity, size=size)

    return tables.Column(f"{heading} ({unit})", cell)


def _batch(row: _Row) -> str:
    setting = row.option.setting
    return " / ".join(fmt.number(setting[name], 9) for name in ("local_batch", "global_batch"))


def _setting_column(name: str) -> tables.Column:
    return tables.text(name, lambda row: row.option.setting[name] or None)


def _limit_column(kind: Limit) -> tables.Column:
    return tables.text(
        fmt.LIMIT_NAMES[kind], lambda row: fmt.limit_label(kind, row.option.setting[kind])
    )


def _known_by(row: _Row | _Doubled) -> str:
    option = row.option
    if option.measured:
        return "measured" if option.repeats != 1 else "measured once"
    return f"{option.law} law" + (", beyond its range" if option.extrapolates else "")


def _footprint(row: _Row, name: str) -> str:
    quantity: Any = getattr(row.option, name)
    if quantity is None:
        return fmt.MISSING
    currency = row.advice.footprint.currency if row.advice.footprint else None
    unit = f" {currency}" if name == "cost" and currency else ""
    return f"{fmt.number(quantity.mean)}{unit}"
