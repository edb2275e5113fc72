"""What to run, as text."""

from __future__ import annotations

from collections.abc import Sequence

from wattlaw import formatting as fmt
from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.option import Option
from wattlaw.analysis.footprint import Footprint

_MAX_TIES = 2
_MAX_REASON = 60


def summary(advice: Advice) -> tuple[str, ...]:
    """Return what to run, what it takes and saves, how sure that is, and what to measure next.

    These are at most 12 lines of 80 columns, unless names are very long.
    """
    option = advice.recommended
    if option is None:
        caveats = "".join(f" ({caveat})" for caveat in _caveats(advice))
        lines = [f"Nothing to recommend for {advice.workload}: {advice.reason}{caveats}"]
        if advice.nearest is not None:
            lines += [f"Nearest: {advice.label(advice.nearest)}.", _takes(advice, advice.nearest)]
        return (*lines, _basis(advice))
    return (
        _verdict(advice, option), _takes(advice, option), _saves(advice, option), _sure(advice),
        _basis(advice), _next(advice),
    )  # fmt: skip


def brief(advice: Advice) -> str:
    """Return the recommendation, its savings and probability in one line."""
    option = advice.recommended
    if option is None:
        return f"{advice.workload}: nothing to recommend. {advice.reason}"
    parts = [advice.label(option), _changes(advice, ("energy", "time"), intervals=False)]
    if advice.probability is not None:
        parts.append(f"{_percent(advice.probability)} sure")
    parts.append("" if option.source == fmt.MEASURED else option.source)
    if "batch-quality-unknown" in {warning.code for warning in advice.warnings}:
        parts.append("larger batches are left out (--any-batch)")
    return f"{advice.workload}: {'; '.join(filter(None, parts))}"


def details(advice: Advice) -> tuple[str, ...]:
    """Return the reason, what the energy counts, and all warnings."""
    lines = [fmt.sentence(f"It has the {advice.reason}")] if advice.recommended else []
    if (energy := advice.rests_on.energy_is) is not None:
        lines.append(f"Counted: {(advice.footprint or Footprint()).counted(energy)}.")
    return (*lines, *(f"Warning: {warning}" for warning in advice.warnings))


def _verdict(advice: Advice, option: Option) -> str:
    caveats = "; ".join(_caveats(advice))
    text = f"Run {advice.workload} on {advice.label(option)}"
    return f"{text} ({caveats})." if caveats else f"{text}."


def _caveats(advice: Advice) -> list[str]:
    """Return what a reader must know before following the advice, the most serious first."""
    option, codes = advice.recommended, {warning.code for warning in advice.warnings}
    source = "" if option is None else option.source
    if option is not None and option.is_predicted:
        of = " and ".join(advice.rests_on.runs)
        source = f"predicted from {of} runs"
    elif source not in ("", fmt.MEASURED):
        source += ", not measured here"
    caveats = [] if source in ("", fmt.MEASURED) else [source]
    caveats += [text for code, text in _CAVEATS.items() if code in codes]
    if "energy-suspect" in codes:
        reason = advice.rests_on.energy_reason or "see energy_reason in the store's epochs"
        caveats.append(f"energies are suspect: {_shortened(reason)}")
    return caveats


_CAVEATS = {
    "quality-falls": "quality is lower at this batch",
    "batch-quality-unknown": "the quality of larger batches is unknown, see --any-batch",
    "only-the-mean-meets": "only the mean meets the constraints",
    "energy-estimated": "energies are estimated from CPU use, not measured",
    "no-energy": "energy is not known",
}


def _takes(advice: Advice, option: Option) -> str:
    """Return time, energy, GPU-hours, cost and carbon of all epochs, or of one unit.

    The relative interval of GPU-hours is that of time, and that of carbon is that of energy.
    """
    cost, carbon = option.cost, option.co2_kg
    currency = (advice.footprint.currency if advice.footprint else None) or ""
    amounts = [
        fmt.duration_text(option.train_time_s), fmt.energy_text(option.train_energy_j),
        fmt.estimate_text(option.gpu_hours.mean, f"{advice.worker}-hours"),
        fmt.estimate_text(cost, currency),
        fmt.estimate_text(carbon and carbon.mean, "kg CO2e"),
    ]  # fmt: skip
    count = option.amount.mean
    subject = f"{count:.4g} {option.unit}{' takes' if count == 1 else 's take'}"
    return f"{subject} {', '.join(amount for amount in amounts if amount != fmt.MISSING)}."


def _saves(advice: Advice, option: Option) -> str:
    base = advice.baseline
    named = "the baseline" if advice.baseline_is_named else "the fastest setting compared"
    if base is None or option.setting == base.setting:
        return f"It is {named}, so it saves nothing."
    return f"{_changes(advice)} against {advice.label(base)} ({named})."


def _changes(
    advice: Advice,
    shown: Sequence[str] = ("energy", "time", "gpu_hours", "cost"),
    *,
    intervals: bool = True,
) -> str:
    """Return ``−31 % energy (−28 to −34), +4 % time``; empty at the baseline itself."""
    savings, option, base = advice.savings, advice.recommended, advice.baseline
    if savings is None or option is None or base is None or option.setting == base.setting:
        return ""
    texts = []
    for name in shown:
        change = getattr(savings, name)
        if change is None or (name == "gpu_hours" and option.gpus == base.gpus):
            continue  # these hours change as time does
        low, high = change.interval or (0.0, 0.0)
        ends = (low, high) if high > 0 else (high, low)
        bounds = [fmt.change(1 + end).removesuffix(" %") for end in ends]
        interval = f" ({' to '.join(bounds)})" if intervals and len(set(bounds)) > 1 else ""
        noun = f"{advice.worker}-hours" if name == "gpu_hours" else name
        noun += " and carbon" if name == "energy" and intervals and savings.carbon else ""
        texts.append(f"{fmt.change(1 + change.mean)} {noun}{interval}")
    return ", ".join(texts)


def _sure(advice: Advice) -> str:
    of = " and ".join(f"{count} {source}" for source, count in advice.rests_on.settings.items())
    if sum(advice.rests_on.settings.values()) == 1:
        left = len(advice.batches_left_out)
        others = f"; {left} other global batches are left out (--any-batch)" if left else ""
        return f"It is the only setting that is compared{others}."
    text = f"the least {advice.goal} of {of} settings"
    if advice.probability is None:
        return f"It has {text}; how sure that is, is not known: there are too few repeats."
    sure = (
        f"{_percent(advice.probability)} sure to be within {_percent(advice.tolerance)} of {text}"
    )
    return f"{sure}; {_ties(advice)}."


def _ties(advice: Advice) -> str:
    if not advice.ties:
        return "no other setting ties with it"
    shown = advice.ties[:_MAX_TIES]
    texts = [_difference(advice, tie.option) for tie in shown]
    more = len(advice.ties) - len(shown)
    return f"tied with {' and '.join(texts)}" + (f", and {more} more" if more else "")


def _difference(advice: Advice, option: Option) -> str:
    """Return an option's GPUs, and those of its other settings that the recommended one lacks."""
    best = advice.recommended
    known = "" if best is None else advice.label(best)
    gpus, *others = advice.label(option).split(", ")
    text = ", ".join([gpus, *(part for part in others if part not in known)])
    return f"{text} (predicted)" if option.is_predicted else text


def _basis(advice: Advice) -> str:
    basis = advice.rests_on
    runs = " and ".join(f"{count} {source}" for source, count in basis.runs.items())
    least, most = basis.repeats
    repeats = f"{least}" if least == most else f"{least} to {most}"
    energy = basis.energy_is or "not known"
    return f"Rests on {runs} runs, {repeats} of each setting; energy: {energy}."


def _next(advice: Advice) -> str:
    run = advice.next_measurement
    if run is None:
        return "Measure next: nothing, the decision is certain enough."
    is_same = advice.recommended is not None and run.option.setting == advice.recommended.setting
    what = "this setting" if is_same else advice.label(run.option)
    again = " again" if run.is_repeat else ""
    hours = f"{fmt.number(run.gpu_hours, 2)} {advice.worker}-hours"
    return f"Measure next: {what}{again} (about {hours})."


def _percent(share: float) -> str:
    """Return a probability in whole per cent, never as certain."""
    return "> 99 %" if share > 0.99 else "< 1 %" if share < 0.01 else f"{100 * share:.0f} %"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_REASON else f"{text[: _MAX_REASON - 1].rstrip()}…"


def merge_equal(texts: Sequence[tuple[str, str]], count: int) -> list[str]:
    """Return each text of (name, text) once, after its names unless these are all ``count``."""
    names: dict[str, dict[str, None]] = {}
    for name, text in texts:
        names.setdefault(text, {})[name] = None
    return [
        text if len(of_text) == count else f"{', '.join(of_text)}: {text}"
        for text, of_text in names.items()
    ]
