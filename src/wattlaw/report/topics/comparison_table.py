"""A comparison of two sides: its sentences, and its table."""

from functools import partial

from wattlaw.analysis.advise.comparison import OVER_SETTINGS, Change, Comparison
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.study.labels import group_label
from wattlaw.study.sources import MEASURED

#: At equal GPUs, GPU-hours change as the time does.
_SHOWN = ("time", "energy", "power", "metric")
_UNITS = {"s": fmt.TIME_UNITS, "J": fmt.ENERGY_UNITS}


def sentences(comparison: Comparison) -> tuple[str, ...]:
    sides = [
        f"{name} = {side.name}: {fmt.plural(side.runs, 'run')}, {side.source}"
        for name, side in (("A", comparison.a), ("B", comparison.b))
    ]
    over = fmt.plural(comparison.settings, "common setting")
    found = [f"{item.quantity} {item}" for item in _shown(comparison) if item.setting is None]
    return (*sides, f"B relative to A over {over}: {'; '.join(found)}.")


def table(comparison: Comparison) -> tables.Table | None:
    def quantity(item: Change) -> str:
        per = item.unit.partition(" per ")[2]
        return f"{item.quantity} per {per}" if per else item.quantity

    def amount(item: Change, value: float | None) -> str:
        if value is None:
            return fmt.MISSING
        base = item.unit.partition(" per ")[0]
        size, unit = fmt.choose_unit([value], _UNITS.get(base, ((base, 1.0, 0.0),)))
        return f"{fmt.number(value / size)} {unit}"

    a, b = comparison.a.source, comparison.b.source
    origin = "" if a == b == MEASURED else f" ({a})" if a == b else f" (A {a}, B {b})"
    pooled = comparison.pooled.values()
    scatter = "settings" if OVER_SETTINGS in {item.interval for item in pooled} else "repeats"
    return tables.build(
        "comparison",
        f"B relative to A{origin}",
        [
            tables.text("setting", partial(_label, comparison)),
            tables.text("quantity", quantity),
            tables.Column("A", lambda item: amount(item, item.a)),
            tables.Column("B", lambda item: amount(item, item.b)),
            tables.Column("B relative to A", str),
            tables.text("runs", lambda item: f"{item.n_a}, {item.n_b}"),
        ],
        [item for item in _shown(comparison) if item.setting or comparison.settings > 1],
        note="A, B: geometric means. In brackets: 95 % intervals on logarithms, by the noise "
        f"of repeats, pooled over settings; those of all settings over {scatter}. Other days and "
        "nodes are included, unless both sides ran there alike.",
        command="wattlaw compare --json",
    )


def _shown(comparison: Comparison) -> list[Change]:
    return [item for item in comparison.changes if item.quantity in _SHOWN]


def _label(comparison: Comparison, item: Change) -> str:
    if item.setting is None:
        return "all settings"
    settings = [other.setting for other in comparison.changes if other.setting]
    differing = {
        name: value
        for name, value in item.setting.items()
        if any(other.get(name) != value for other in settings)
    }
    return fmt.printable(group_label(differing or item.setting), 80)
