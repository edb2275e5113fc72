"""``advise``: what to run, from the runs of one or more stores."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from wattlaw.analysis.advice import advice
from wattlaw.analysis.advice.doubling import Doubling
from wattlaw.analysis.advice.formatting import (
    ENERGY_UNITS,
    TIME_UNITS,
    describe_setting,
    format_number,
    format_quantity,
    with_unit,
)
from wattlaw.analysis.advice.option import Option
from wattlaw.analysis.caps.limits import format_limit
from wattlaw.analysis.metrics import run_metrics
from wattlaw.cli.console import Console
from wattlaw.cli.footprints import footprint_of
from wattlaw.cli.quantities import duration_s, energy_j, finite, share
from wattlaw.store.tables import read_stores

_MOST = 20  # options of the front that are shown; the JSON has all


def advise(
    stores: Sequence[Path],
    workload: str,
    *,
    deadline: str | None = None,
    max_slowdown: str | None = None,
    energy_budget: str | None = None,
    max_gpus: int | None = None,
    epochs: int | None = None,
    target: float | None = None,
    pue: float | None = None,
    grid: str | None = None,
    price: str | None = None,
    price_per_gpu_hour: str | None = None,
    as_json: bool = False,
) -> int:
    """Print what to run: words, the Pareto front as a table, warnings; or all as JSON."""
    deadline_s = None if deadline is None else duration_s("--deadline", deadline)
    slowdown = None if max_slowdown is None else share("--max-slowdown", max_slowdown)
    budget_j = None if energy_budget is None else energy_j("--energy-budget", energy_budget)
    footprint = footprint_of(pue, grid, price, price_per_gpu_hour)
    runs, windows = read_stores(stores)
    found = advice.advise(
        run_metrics(runs, windows), windows, workload, deadline_s=deadline_s,
        max_slowdown=slowdown, energy_budget_j=budget_j, max_gpus=max_gpus,
        epochs_to_train=epochs, target=finite("--target", target), footprint=footprint,
    )  # fmt: skip
    if as_json:
        print(json.dumps(found.to_dict(), allow_nan=False))
        return 0
    console = Console()
    for line in _words(found):
        console.print(line)
    if found.pareto:
        console.print(_front(found))
    for warning in found.warnings:
        console.print(f"Warning: {warning}")
    return 0


def _words(found: advice.Advice) -> list[str]:
    option = found.recommended
    if option is None:
        lines = [f"Nothing to recommend for {found.workload}: {found.reason}"]
        if found.nearest is not None:
            lines.append(f"Nearest: {describe_setting(found.nearest, found.worker)}.")
            lines.append(_takes(found, found.nearest))
        return [*lines, f"Counted: {found.counted}."]
    return [
        f"Run {found.workload} on {describe_setting(option, found.worker)}.",
        _takes(found, option),
        found.reason,
        _doubling(found.next_doubling, found),
        f"Counted: {found.counted}.",
    ]


def _takes(found: advice.Advice, option: Option) -> str:
    many = option.epochs.mean != 1
    words = [with_unit(option.train_time_s, TIME_UNITS)]
    if option.train_energy_j is not None:
        words.append(with_unit(option.train_energy_j, ENERGY_UNITS))
    words.append(format_quantity(option.gpu_hours, f"{found.worker}-hours"))
    words += [text for text in _spent(found, option).values() if text]
    interval = "95 % intervals in brackets" if option.train_time_s.interval else "no intervals"
    by = _by(found)
    how = by if option.measured else f"not {by}: by the law ({option.law})"
    return (
        f"{option.epochs.mean:.4g} epoch{'s' * many} take{'s' * (not many)} {', '.join(words)} "
        f"({interval}; {how})."
    )


def _by(found: advice.Advice) -> str:
    return "simulated" if found.simulated else "measured"


def _spent(found: advice.Advice, option: Option) -> dict[str, str]:
    """Return cost and carbon of an option in words; empty where not known."""
    currency = (found.footprint.currency if found.footprint else None) or ""
    said = {"cost": currency, "co2_kg": "kg CO2e"}
    amounts = {name: getattr(option, name) for name in said}
    return {
        name: "" if spent is None else format_quantity(spent, said[name])
        for name, spent in amounts.items()
    }


def _doubling(doubling: Doubling | None, found: advice.Advice) -> str:
    if doubling is None:
        return (
            f"What twice as many {found.worker}s would give is not known: not measured, and no law "
            "reaches so far."
        )
    option, base = doubling.option, doubling.of
    saved = base.train_time_s.mean - option.train_time_s.mean
    words = (
        f"Twice as many {found.worker}s ({option.gpus}, same {doubling.rule.replace('_', ' ')}, "
        f"{_by(found) if option.measured else 'by the law'}) take {doubling.time_ratio:.2f} times "
        f"the time ({with_unit(abs(saved), TIME_UNITS)} {'less' if saved >= 0 else 'more'})"
    )
    if doubling.energy_ratio is not None and option.train_energy_j and base.train_energy_j:
        more = option.train_energy_j.mean - base.train_energy_j.mean
        words += (
            f" and {doubling.energy_ratio:.2f} times the energy "
            f"({with_unit(abs(more), ENERGY_UNITS)} {'more' if more >= 0 else 'less'})"
        )
    hours = option.gpu_hours.mean - base.gpu_hours.mean
    return f"{words}, {hours:+,.3g} {found.worker}-hours."


def _front(found: advice.Advice) -> Table:
    """Return the front; settings that are the same throughout are left to the words above."""
    options = list(found.pareto[:_MOST])
    if found.recommended is not None and found.recommended not in options:
        options.append(found.recommended)
    spent = "energy" if any(one.energy_j for one in options) else f"{found.worker}-hours"
    table = Table(
        title=f"Pareto front of time and {spent} (* recommended)",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    texts = {name: [cell(one) for one in options] for name, cell in _columns(found).items()}
    told_by = {
        name: column
        for name, column in texts.items()
        if name in _ALWAYS or len({*column}) > 1 or (name not in _SETTINGS and {*column} != {"-"})
    }
    for name in told_by:
        table.add_column(name, justify="left" if name in _LEFT else "right")
    table.columns[0].header = f"{found.worker}s"
    for row in zip(*told_by.values(), strict=True):
        table.add_row(*row)
    if len(found.pareto) > _MOST:
        table.caption = f"{len(found.pareto) - _MOST} slower ones are in the JSON"
    return table


_SETTINGS = ("cap", "clock", "batch", "precision", "hardware")
_ALWAYS = ("gpus", "batch", "time", "known by")
_LEFT = ("precision", "hardware", "known by")


def _tight(words: str) -> str:
    return words.replace(" to ", "–")


def _columns(found: advice.Advice) -> dict[str, Callable[[Option], str]]:
    """Return what each column says of an option; ``-`` for nothing."""

    def gpus(one: Option) -> str:
        return f"{one.gpus} *" if one == found.recommended else str(one.gpus)

    def mean(name: str) -> Callable[[Option], str]:
        def cell(one: Option) -> str:
            quantity = getattr(one, name)
            return "-" if quantity is None else format_number(quantity.mean)

        return cell

    return {
        "gpus": gpus,
        "cap": lambda one: format_limit("power_limit_w", one.setting["power_limit_w"]),
        "clock": lambda one: format_limit("clock_limit_mhz", one.setting["clock_limit_mhz"]),
        "batch": lambda one: str(one.setting["global_batch"] or "-"),
        "precision": lambda one: str(one.setting["precision"] or "-"),
        "hardware": lambda one: str(one.setting["hardware"] or "-"),
        "time": lambda one: _tight(with_unit(one.train_time_s, TIME_UNITS)),
        "energy": lambda one: (
            _tight(with_unit(one.train_energy_j, ENERGY_UNITS)) if one.train_energy_j else "-"
        ),
        "cost": mean("cost"),
        "kg CO2e": mean("co2_kg"),
        "known by": lambda one: (
            f"{one.repeats} run{'s' * (one.repeats > 1)}" if one.measured else f"law ({one.law})"
        ),
    }
