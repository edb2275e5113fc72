"""What to run: the recommendation of each workload, and what else is worth considering."""

from typing import NamedTuple

from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.doubling import Doubling
from wattlaw.analysis.advice.option import Option, Quantity
from wattlaw.analysis.advice.words import ENERGY, TIME, Units, amount, told
from wattlaw.analysis.caps.limits import LIMITS, Limit, limit_words
from wattlaw.analysis.findings import Findings
from wattlaw.report.format import NONE, number, percent
from wattlaw.report.tables.limits import KIND
from wattlaw.report.tables.table import Column, Table, make

_COMMAND = "wattlaw advise STORE --workload W --json"


class Offer(NamedTuple):
    """An option of an advice."""

    advice: Advice
    option: Option


def recommended(findings: Findings) -> Table | None:
    """Return the recommended setting of each workload."""
    offers = [Offer(one, one.recommended) for one in findings.advice if one.recommended]
    return make(
        "recommended",
        "What to run, by workload",
        _columns(findings),
        offers,
        note="Asked without a deadline or a budget. Quantities with 95 % intervals; training is "
        "all epochs, without evaluation.",
        command=_COMMAND,
    )


def front(findings: Findings) -> Table | None:
    """Return the Pareto front of time and energy of each workload."""
    return make(
        "pareto",
        "Settings that no other beats in both time and energy",
        _columns(findings),
        [Offer(one, option) for one in findings.advice for option in one.pareto],
        command=_COMMAND,
    )


def doublings(findings: Findings) -> Table | None:
    """Return what twice the recommended GPUs cost and give."""
    columns = [
        Column("workload", lambda one: one.advice.workload, numeric=False),
        Column("from N", lambda one: number(one.doubling.of.gpus)),
        Column("to N", lambda one: number(one.doubling.option.gpus)),
        Column("time", lambda one: percent(one.doubling.time_ratio)),
        Column("energy", lambda one: percent(one.doubling.energy_ratio)),
        Column("training", lambda one: _told(one.doubling.option.train_time_s, TIME)),
        Column("energy of it", lambda one: _told(one.doubling.option.train_energy_j, ENERGY)),
        Column("known by", lambda one: _known_by(one.doubling.option), numeric=False),
    ]
    rows = [_Doubled(one, one.next_doubling) for one in findings.advice if one.next_doubling]
    return make(
        "doublings",
        "What the next doubling of GPUs costs and gives (100 %: as before)",
        columns,
        rows,
        command=_COMMAND,
    )


class _Doubled(NamedTuple):
    advice: Advice
    doubling: Doubling


def _columns(findings: Findings) -> list[Column]:
    differ = [name for name in ("hardware", "precision") if name in findings.differing]
    return [
        Column("workload", lambda one: one.advice.workload, numeric=False),
        *(_setting(name) for name in differ),
        Column("N", lambda one: number(one.option.gpus)),
        *(_limit(kind) for kind in LIMITS if kind in findings.differing),
        Column("local batch", lambda one: number(one.option.setting["local_batch"], 9)),
        Column("global batch", lambda one: number(one.option.setting["global_batch"], 9)),
        Column("one epoch", lambda one: _told(one.option.epoch_time_s, TIME)),
        Column("its energy", lambda one: _told(one.option.energy_j, ENERGY)),
        Column("epochs", lambda one: _count(one.option.epochs)),
        Column("training", lambda one: _told(one.option.train_time_s, TIME)),
        Column("its energy ", lambda one: _told(one.option.train_energy_j, ENERGY)),
        Column("GPU-hours", lambda one: number(one.option.gpu_hours.mean)),
        Column("cost", lambda one: _footprint(one, "cost")),
        Column("kg CO2e", lambda one: _footprint(one, "co2_kg")),
        Column("known by", lambda one: _known_by(one.option), numeric=False),
    ]  # fmt: skip


def _setting(name: str) -> Column:
    return Column(name, lambda one: one.option.setting[name] or NONE, numeric=False)


def _limit(kind: Limit) -> Column:
    return Column(
        KIND[kind], lambda one: limit_words(kind, one.option.setting[kind]), numeric=False
    )


def _told(quantity: Quantity | None, units: Units) -> str:
    return NONE if quantity is None else told(quantity, units)


def _count(quantity: Quantity) -> str:
    return amount(quantity, "").replace("  ", " ").strip()


def _known_by(option: Option) -> str:
    if option.measured:
        return "measured" if option.repeats != 1 else "measured once"
    return f"{option.law} law" + (", beyond its range" if option.extrapolates else "")


def _footprint(one: Offer, name: str) -> str:
    found = one.option.footprint(one.advice.footprint, name)
    if found is None:
        return NONE
    currency = one.advice.footprint.currency if one.advice.footprint else None
    unit = f" {currency}" if name == "cost" and currency else ""
    return f"{number(found.mean)}{unit}"
