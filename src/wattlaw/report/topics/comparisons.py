"""Comparisons: of two sides, and of a job with known measurements, as sentences and tables."""

from functools import partial

from wattlaw.analysis.advise.comparison import OVER_SETTINGS, Change, Comparison
from wattlaw.analysis.advise.known_throughput import BEYOND, NORMAL, SETTING, KnownRun, Placement
from wattlaw.analysis.advise.layout_effects import LEAST, Cause
from wattlaw.common import formatting as fmt
from wattlaw.report import tables
from wattlaw.study.labels import group_label, layout_label
from wattlaw.study.setting import Setting
from wattlaw.study.sources import MEASURED

#: At equal GPUs, GPU-hours change as the time does.
_SHOWN = ("time", "energy", "power", "metric")
_UNITS = {"s": fmt.TIME_UNITS, "J": fmt.ENERGY_UNITS}
#: A smaller distance to the best is none.
_EQUAL = 0.001
_NAMES = {
    "micro_batch": "micro-batches of",
    "tp": "tensor parallel",
    "pp": "pipeline stages",
    "cp": "context parallel",
    "virtual_stages": "virtual stages",
}


def comparison_sentences(comparison: Comparison) -> tuple[str, ...]:
    sides = [
        f"{name} = {side.name}: {fmt.plural(side.runs, 'run')}, {side.source}"
        for name, side in (("A", comparison.a), ("B", comparison.b))
    ]
    over = fmt.plural(comparison.settings, "common setting")
    found = [f"{item.quantity} {item}" for item in _shown(comparison) if item.setting is None]
    return (*sides, f"B relative to A over {over}: {'; '.join(found)}.")


def comparison_table(comparison: Comparison) -> tables.Table | None:
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


def headline(item: Placement) -> str:
    if item.best is None or item.below_best is None:
        found = fmt.plural(item.comparable, "measurement")
        return f"Too few measurements to say: {found} {_what(item)} near {item.setting.gpus} GPUs"
    share = fmt.percent(abs(item.below_best), 2)
    side = "below" if item.below_best >= 0 else "above"
    found = fmt.plural(item.at_gpus, "measurement")
    away = f"{share} {side}" if abs(item.below_best) >= _EQUAL else "Equal to"
    return f"{away} the best known of {found} {_what(item)} at {_gpus(item)}"


def _what(item: Placement) -> str:
    low, high = item.parameters_range_b or (item.parameters_b, item.parameters_b)
    sizes = dict.fromkeys((fmt.number(low, 2), fmt.number(high, 2)))
    return f"on {item.board} of {' to '.join(sizes)} billion parameters"


def _gpus(item: Placement) -> str:
    counts = item.gpus_compared
    text = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    near = "" if item.setting.gpus in counts else f", the nearest to {item.setting.gpus}"
    return f"{text} GPUs{near}"


def placement_sentences(item: Placement) -> tuple[str, ...]:
    """Return the lines below the first one: the job, its percentile, why, and what is compared."""
    origin = "" if item.data_source == MEASURED else f" ({item.data_source})"
    mfu = ""
    if item.mfu is not None and item.peak_tflops is not None:
        peak = f"{fmt.number(item.peak_tflops)} TFLOP/s at the highest clock"
        mfu = f", {fmt.percent(item.mfu, 2)} of the peak of {peak}"
    job = (
        f"{item.workload} on {item.setting.gpus} {item.hardware}{origin}: "
        f"{fmt.number(item.tokens_per_s_per_gpu)} tokens/s per GPU, "
        f"{fmt.number(item.tflops_per_gpu)} TFLOP/s per GPU{mfu} "
        f"({fmt.number(item.parameters_b)} billion parameters)."
    )
    lines = [job, _percentile(item), *_why(item)]
    sources = [f"{name} {count:,}" for name, count in item.sources.items()]
    shown = [*sources[:4], *([f"{len(sources) - 4} others"] if len(sources) > 4 else [])]
    if shown:
        lines.append(f"Comparable at any number of GPUs: {item.comparable:,} ({', '.join(shown)}).")
    left_out = [f"{count:,} {reason}" for reason, count in item.left_out.items()]
    if left_out:
        lines.append(f"Not compared: {', '.join(left_out)}.")
    return tuple(filter(None, lines))


def _percentile(item: Placement) -> str:
    if item.percentile is None or item.percentile_ci is None:
        return f"{fmt.plural(item.at_gpus, 'measurement')}: too few for a percentile."
    low, high = (f"{100 * end:.0f}" for end in item.percentile_ci)
    slower = f"{100 * item.percentile:.0f} %"
    return f"Faster than {slower} of these {item.at_gpus:,} (95 % interval: {low} to {high} %)."


def _why(item: Placement) -> list[str]:
    if item.expected_tflops is None or item.expected_tflops_ci is None:
        few = f"{item.with_layout} of {LEAST} needed"
        return [f"Why: too few measurements with a layout to say ({few})."] if item.best else []
    low, high = map(fmt.number, item.expected_tflops_ci)
    own = (
        f"Expected for this layout (estimated from {fmt.plural(item.with_layout, 'measurement')}):"
        f" {fmt.number(item.expected_tflops)} TFLOP/s per GPU (90 % interval: {low} to {high})."
    )
    if item.explanation == NORMAL:
        return [own]
    if item.explanation == BEYOND:
        why = (
            "the job is slower than its layout explains. Look at the network, "
            "the software release, loading of data and other jobs on the nodes."
        )
    elif item.explanation == SETTING:
        cause = item.causes[0]
        why = f"most probably {_cause(item.setting, cause)}."
    else:
        why = "cannot tell; no single setting stands out."
    return [own, f"Why: {why}"]


def _cause(setting: Setting, cause: Cause) -> str:
    low, high = (fmt.change(1 + end) for end in cause.gain_ci)
    text, other = f"{cause.setting} {cause.value}", cause.other
    if cause.setting in _NAMES:
        text, other = f"{_NAMES[cause.setting]} {cause.value}", f"{cause.other:g}"
    elif cause.setting == "checkpointing":
        text = f"{cause.value} recomputation of activations"
    if cause.setting == "tp" and setting.gpus_per_node and setting.tp > max(setting.gpus_per_node):
        text += ", over nodes"
    if cause.setting == "pp":
        text += f" and {setting.gradient_accumulation} micro-batches"
    return (
        f"{text}: {other} would bring about {fmt.change(1 + cause.gain)} (90 % interval: {low} to "
        f"{high}; probability {cause.probability:.2f} of bringing most), if it fits in memory"
    )


def placement_table(item: Placement) -> tables.Table | None:
    def layout(run: KnownRun) -> str:
        if run.setting is None:
            return fmt.MISSING
        micro = run.setting.micro_batch
        text = layout_label(run.setting)
        return text if "micro-batch" in text or not micro else f"micro-batch {micro:g}"

    return tables.build(
        "known_measurements",
        "The best known measurement, and those with the nearest layouts (rates per GPU)",
        [
            tables.text("source", lambda run: fmt.printable(run.source, 16)),
            tables.number("GPUs", lambda run: run.gpus),
            tables.number("params (10⁹)", lambda run: run.parameters_b, 2),
            tables.text("layout", layout),
            tables.number("tokens/s", lambda run: run.tokens_per_s_per_gpu),
            tables.number("TFLOP/s", lambda run: run.tflops_per_gpu),
        ],
        item.nearest,
        command="wattlaw compare --reference --json",
    )
