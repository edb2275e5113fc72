"""What to run, as text and tables: of one advice, and of all workloads of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from wattlaw import formatting as fmt
from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.option import Doubling, Option, Quantity
from wattlaw.analysis.caps.limits import LIMITS
from wattlaw.report import tables

if TYPE_CHECKING:
    from wattlaw.analysis.findings import Findings

_COMMAND = "wattlaw advise STORE --workload W --json"
_SETTINGS = ("hardware", "precision", "nodes", *LIMITS)
_MAX_OPTIONS = 20  # of one advice; its JSON has all


class _Row(NamedTuple):
    advice: Advice
    option: Option


def summary(advice: Advice) -> tuple[str, ...]:
    """Return the recommendation, its cost, the reason, the next doubling, and what is counted."""
    option = advice.recommended
    if option is None:
        lines = [f"Nothing to recommend for {advice.workload}: {advice.reason}"]
        if advice.nearest is not None:
            lines.append(f"Nearest: {_label(advice, advice.nearest)}.")
            lines.append(_cost(advice, advice.nearest))
    else:
        lines = [
            f"Run {advice.workload} on {_label(advice, option)}.",
            _cost(advice, option),
            advice.reason,
            _doubling(advice, advice.next_doubling),
        ]
    return (*lines, f"Counted: {advice.counted}.")


def options(advice: Advice) -> tables.Table | None:
    """Return the first options of the Pareto front; ``*`` marks the recommended one."""
    shown = list(advice.pareto[:_MAX_OPTIONS])
    if advice.recommended is not None and advice.recommended not in shown:
        shown.append(advice.recommended)
    differing = [name for name in _SETTINGS if len({option.setting[name] for option in shown}) > 1]
    kept = [name for name in differing if name != "nodes" or advice.several_nodes]
    per = "" if advice.unit == "epoch" else f" per {advice.unit}"  # else they are of the training
    columns = [
        tables.Column(f"{advice.worker}s", lambda row: f"{row.option.gpus}"
                      + " *" * (row.option == advice.recommended)),
        *_setting_columns(kept),
        tables.Column("batch", lambda row: row.option.setting["global_batch"]),
        tables.Column(f"time{per}", lambda row: _short(fmt.duration_text, row.option.train_time_s)),
        tables.Column(f"energy{per}",
                      lambda row: _short(fmt.energy_text, row.option.train_energy_j)),
        *_OUTCOME,
    ]  # fmt: skip
    spent = "energy" if any(option.energy_j for option in shown) else f"{advice.worker}-hours"
    title = f"Pareto front of time and {spent} (* recommended)"
    return tables.build("options", title, columns, [_Row(advice, option) for option in shown])


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


def rationale(findings: Findings) -> tuple[str, ...]:
    """Return why each setting is recommended, what was counted, and all warnings."""
    texts = [
        (advice.workload, fmt.sentence(text))
        for advice in findings.advice
        for text in (*summary(advice)[2 if advice.recommended else 0 :], *map(str, advice.warnings))
    ]
    texts += [(workload, f"no advice: {reason}") for workload, reason in findings.advice_refusals]
    return tuple(merge_equal(texts, len(findings.advice)))


def advice_sentences(findings: Findings) -> Iterator[str]:
    """Yield the recommendation of each workload with its cost, the reasons, and first warnings."""
    for advice in findings.advice:
        yield " ".join(summary(advice)[: 2 if advice.recommended else 1])
    chosen = [advice for advice in findings.advice if advice.recommended]
    for text in merge_equal([(advice.workload, advice.reason) for advice in chosen], len(chosen)):
        yield text.replace("It has ", "The recommended setting has ", 1)
    warnings = [(a.workload, str(warning)) for a in findings.advice for warning in a.warnings[:1]]
    yield from merge_equal(warnings, len(findings.advice))
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


def _label(advice: Advice, option: Option) -> str:
    nodes = ["nodes"] * advice.several_nodes
    return option.label(advice.worker, (*LIMITS, "precision", "hardware", *nodes))


def _cost(advice: Advice, option: Option) -> str:
    """Return time, energy, GPU-hours, cost and carbon of all epochs, or of one unit."""
    currency = (advice.footprint.currency if advice.footprint else None) or ""
    units = {"gpu_hours": f"{advice.worker}-hours", "cost": currency, "co2_kg": "kg CO2e"}
    amounts = [fmt.duration_text(option.train_time_s), fmt.energy_text(option.train_energy_j)]
    amounts += [fmt.estimate_text(getattr(option, name), unit) for name, unit in units.items()]
    interval = "95 % intervals in brackets" if option.train_time_s.interval else "no intervals"
    source = advice.origin
    if not option.measured:
        source = f"not {source}: predicted"
    count = option.amount.mean
    subject = f"{count:.4g} {option.unit}{' takes' if count == 1 else 's take'}"
    listed = ", ".join(amount for amount in amounts if amount != fmt.MISSING)
    return f"{subject} {listed} ({interval}; {source})."


def _doubling(advice: Advice, doubling: Doubling | None) -> str:
    """Return what twice as many GPUs change."""
    if doubling is None:
        return (
            f"The effect of twice as many {advice.worker}s is not known: it was not measured, "
            "and its prediction is too uncertain."
        )
    option, base = doubling.option, doubling.of
    saved_s = base.train_time_s.mean - option.train_time_s.mean
    text = (
        f"Twice as many {advice.worker}s ({option.gpus}, same {doubling.rule.replace('_', ' ')}, "
        f"{advice.origin if option.measured else 'predicted'}) take "
        f"{doubling.time_ratio:.2f} times the time "
        f"({fmt.duration_text(abs(saved_s))} {'less' if saved_s >= 0 else 'more'})"
    )
    if doubling.energy_ratio is not None and option.train_energy_j and base.train_energy_j:
        extra_j = option.train_energy_j.mean - base.train_energy_j.mean
        text += (
            f" and {doubling.energy_ratio:.2f} times the energy "
            f"({fmt.energy_text(abs(extra_j))} {'more' if extra_j >= 0 else 'less'})"
        )
    hours = option.gpu_hours.mean - base.gpu_hours.mean
    return f"{text}, {hours:+,.3g} {advice.worker}-hours."


def _columns(findings: Findings, rows: Sequence[_Row]) -> list[tables.Column]:
    units = {row.advice.unit for row in rows}
    of = units.pop() if len(units) == 1 else "unit"
    noun = rows[0].advice.worker if rows else "worker"
    hours = tables.number(f"{noun}-hours", lambda row: row.option.gpu_hours.mean)
    # The page is narrow: cost and carbon replace the GPU-hours.
    has_footprint = any(row.advice.footprint for row in rows)
    return [
        tables.text("workload", lambda row: row.advice.workload),
        *([tables.text("unit", lambda row: row.advice.unit)] if of == "unit" else []),
        tables.number("N", lambda row: row.option.gpus),
        *_setting_columns([name for name in _SETTINGS if name in findings.varying_settings]),
        tables.Column("batch", _batch),
        _amounts(f"{of} time", rows, "time_s", fmt.TIME_UNITS),
        _amounts(f"{of} energy", rows, "energy_j", fmt.ENERGY_UNITS),
        tables.Column("epochs", lambda row: fmt.estimate_text(row.option.epochs)),
        _amounts("training time", rows, "train_time_s", fmt.TIME_UNITS),
        _amounts("training energy", rows, "train_energy_j", fmt.ENERGY_UNITS),
        *([] if has_footprint else [hours]),
        *_OUTCOME,
    ]


def _setting_columns(names: Sequence[str]) -> list[tables.Column]:
    def column(name: str) -> tables.Column:
        def cell(row: _Row) -> object:
            value = row.option.setting[name]
            return fmt.limit_label(name, value) if name in LIMITS else value or None

        return tables.text(fmt.LIMIT_NAMES.get(name, name), cell)

    return [column(name) for name in names]


def _amounts(heading: str, rows: Sequence[_Row], name: str, units: fmt.Units) -> tables.Column:
    """Return a column; the interval of training is shown only if the number of epochs has one."""

    def amount(row: _Row) -> Quantity | None:
        quantity: Quantity | None = getattr(row.option, name)
        if quantity is None or not name.startswith("train_"):
            return quantity
        if row.option.unit in ("sample", "step"):
            return None
        epochs = row.option.amount
        return Quantity(quantity.mean) if epochs.low in (None, epochs.high) else quantity

    return tables.in_unit(heading, rows, amount, units)


def _batch(row: _Row) -> str:
    setting = row.option.setting
    return " / ".join(fmt.number(setting[name], 9) for name in ("local_batch", "global_batch"))


def _short(text_of: Callable[[Quantity | None], str], quantity: Quantity | None) -> str:
    return text_of(quantity).replace(" to ", "–")  # a terminal is narrow


def _money(row: _Row) -> str:
    cost, footprint = row.option.cost, row.advice.footprint
    if cost is None or footprint is None:
        return fmt.MISSING
    return f"{fmt.number(cost.mean)} {footprint.currency or ''}".rstrip()


def _known_by(row: _Row) -> str:
    option = row.option
    if option.measured:
        return fmt.plural(option.repeats, "run")
    return "prediction" + (", beyond the runs" if option.extrapolates else "")


_OUTCOME = (
    tables.Column("cost", _money),
    tables.number("kg CO2e", lambda row: row.option.co2_kg and row.option.co2_kg.mean),
    tables.text("known by", _known_by),
)
