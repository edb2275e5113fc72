"""What to run: the recommendation of each workload, and what else is worth considering."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.doubling import Doubling
from wattlaw.analysis.advice.formatting import ENERGY_UNITS, TIME_UNITS, Units, format_quantity
from wattlaw.analysis.advice.option import Option, Quantity
from wattlaw.analysis.caps.limits import LIMITS, Limit, format_limit
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import NONE, number, percent, unit_of
from wattlaw.report.tables.limits import KIND
from wattlaw.report.tables.measured import worker
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
        _columns(findings, offers),
        offers,
        note="Asked without a deadline or a budget. Batch: of a worker / of all. An epoch's time "
        "and energy have 95 % intervals; training is all epochs, without evaluation.",
        command=_COMMAND,
    )


def front(findings: Findings) -> Table | None:
    """Return the Pareto front of time and energy of each workload."""
    offers = [Offer(one, option) for one in findings.advice for option in one.pareto]
    return make(
        "pareto",
        "Settings that no other beats in both time and energy",
        _columns(findings, offers),
        offers,
        note="Among the settings not left out for quality.",
        command=_COMMAND,
    )


def doublings(findings: Findings) -> Table | None:
    """Return what twice the recommended GPUs cost and give."""
    rows = [_Doubled(one, one.next_doubling) for one in findings.advice if one.next_doubling]
    options = [row.doubling.option for row in rows]
    doubled = [
        _amounts("training", options, "train_time_s", TIME_UNITS),
        _amounts("energy of it", options, "train_energy_j", ENERGY_UNITS),
    ]
    columns = [
        Column("workload", lambda one: one.advice.workload, numeric=False),
        Column("from N", lambda one: number(one.doubling.of.gpus)),
        Column("to N", lambda one: number(one.doubling.option.gpus)),
        Column("time", lambda one: percent(one.doubling.time_ratio)),
        Column("energy", lambda one: percent(one.doubling.energy_ratio)),
        *doubled,
        Column("known by", lambda one: _known_by(one.doubling.option), numeric=False),
    ]
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

    @property
    def option(self) -> Option:
        """Return the option with twice the workers."""
        return self.doubling.option


def _columns(findings: Findings, offers: Sequence[Offer]) -> list[Column]:
    differ = [name for name in ("hardware", "precision") if name in findings.varying_settings]
    hours = Column(f"{worker(findings)}-hours", lambda one: number(one.option.gpu_hours.mean))
    # The page is narrow: where money and carbon are told, the hours behind them are not.
    footprint = any(one.advice.footprint for one in offers)
    return [
        Column("workload", lambda one: one.advice.workload, numeric=False),
        *(_setting(name) for name in differ),
        Column("N", lambda one: number(one.option.gpus)),
        *(_limit(kind) for kind in LIMITS if kind in findings.varying_settings),
        Column("batch", _batch),
        _amounts("epoch", [one.option for one in offers], "epoch_time_s", TIME_UNITS),
        _amounts("its energy", [one.option for one in offers], "energy_j", ENERGY_UNITS),
        Column("epochs", lambda one: _count(one.option.epochs)),
        _amounts("training", [one.option for one in offers], "train_time_s", TIME_UNITS),
        _amounts("energy of it", [one.option for one in offers], "train_energy_j", ENERGY_UNITS),
        *([] if footprint else [hours]),
        Column("cost", lambda one: _footprint(one, "cost")),
        Column("kg CO2e", lambda one: _footprint(one, "co2_kg")),
        Column("known by", lambda one: _known_by(one.option), numeric=False),
    ]


def _amounts(heading: str, options: Sequence[Option], name: str, units: Units) -> Column:
    """Return a column in the unit of its median.

    The interval of training is told only where that of its epochs widens it.
    """
    found = [getattr(option, name) for option in options]
    size, unit = unit_of([one.mean for one in found if one is not None], units)

    def cell(one: Any) -> str:
        quantity = getattr(one.option, name)
        if quantity is None:
            return NONE
        epochs = one.option.epochs
        if name.startswith("train_") and epochs.low in (None, epochs.high):
            return format_quantity(Quantity(quantity.mean / size), "").strip()
        return format_quantity(quantity.times(1 / size), "").replace("  ", " ").strip()

    return Column(f"{heading} ({unit})", cell)


def _batch(one: Any) -> str:
    setting = one.option.setting
    local, whole = (number(setting[name], 9) for name in ("local_batch", "global_batch"))
    return f"{local} / {whole}"


def _setting(name: str) -> Column:
    return Column(name, lambda one: one.option.setting[name] or NONE, numeric=False)


def _limit(kind: Limit) -> Column:
    return Column(
        KIND[kind], lambda one: format_limit(kind, one.option.setting[kind]), numeric=False
    )


def _count(quantity: Quantity) -> str:
    return format_quantity(quantity, "").replace("  ", " ").strip()


def _known_by(option: Option) -> str:
    if option.measured:
        return "measured" if option.repeats != 1 else "measured once"
    return f"{option.law} law" + (", beyond its range" if option.extrapolates else "")


def _footprint(one: Offer, name: str) -> str:
    found = getattr(one.option, name)
    if found is None:
        return NONE
    currency = one.advice.footprint.currency if one.advice.footprint else None
    unit = f" {currency}" if name == "cost" and currency else ""
    return f"{number(found.mean)}{unit}"
