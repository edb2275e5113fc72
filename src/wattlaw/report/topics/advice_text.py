"""What to run, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.advise.certainty import Savings, Tie
from wattlaw.analysis.advise.option import BESIDE_TRAINING, Option
from wattlaw.analysis.advise.possible_options import UNKNOWN_BATCH
from wattlaw.analysis.advise.whole_job import lateness
from wattlaw.analysis.metrics.comparable_runs import NO_SCOPE
from wattlaw.common import formatting as fmt
from wattlaw.study.footprint import Footprint
from wattlaw.study.not_as_declared import OTHER_BATCH
from wattlaw.study.sources import MEASURED

_MAX_TIES, _MAX_CANDIDATES = 2, 3
_MAX_REASON = 60
_IN_FULL = {
    OTHER_BATCH: "the batch that ran differs from the declared one",
    NO_SCOPE: "energies of the requested scope are missing",
}
#: Warnings that are said in brackets beside the answer, the most serious first.
_CAVEATS = {
    "quality-falls": "quality is lower at this batch",
    "batch-quality-unknown": "the quality of larger batches is unknown, see --any-batch",
    "work-unknown": "the runs may have done different work",
    "whole-job-late": "the whole job may miss the deadline",
    "only-the-mean-meets": "only the mean meets the constraints",
    "energy-estimated": "energies are estimated from CPU use, not measured",
    "no-energy": "energy is not known",
    "electricity-not-counted": "electricity is not counted",
}
#: Warnings that the other one makes superfluous.
_IMPLIED = {
    "energy-simulated": "simulated",
    "energy-replayed": "replayed",
    "quality-not-measured": "batch-quality-unknown",
}
#: Warnings that say for how many epochs totals are.
_EPOCHS = ("epochs-differ", "epochs-unknown")
_ONLY = "the only setting that is compared"
#: Warnings that a caveat on the data says, with the number of runs.
_IN_DATA = ("energy-suspect", "energy-reason", NO_SCOPE)


def summary(advice: Advice) -> tuple[str, ...]:
    """At most 16 lines of 80 columns, unless names are very long."""
    known, is_only = "; ".join(_caveats(advice)), _is_only(advice)
    caveats = f" ({known})" if known else ""
    option, lines = advice.recommended or advice.nearest, []
    if advice.recommended is None:
        lines.append(f"Nothing to recommend for {advice.workload}{caveats}: {advice.reason}")
        if advice.nearest is not None:
            beyond = ", outside of the range of the runs" if advice.nearest.extrapolates else ""
            known_by = f" (predicted{beyond})" if advice.nearest.is_predicted else ""
            lines.append(f"Nearest{known_by}: {advice.nearest.label}.")
    else:
        head = f"Run {advice.workload} on {advice.recommended.label}"
        if not advice.clearly_best:
            head = f"No setting is clearly best for {advice.workload}"
        lines.append(f"{head}, for the lowest {advice.goal}{caveats}.")
    compared = " and ".join(f"{count} {name}" for name, count in advice.rests_on.settings.items())
    compared += " setting" if is_only else " settings"
    if advice.recommended is not None and not advice.clearly_best:
        lines.append(_candidates(advice, advice.recommended, compared))
    if option is not None:
        lines += [_takes(advice, option), *_whole_job(option, advice.deadline_s)]
        own = option.epochs_trained
        ran = "" if own is None or own == option.amount.mean else f" This setting ran {own:g}."
        lines += [f"{item.text}{ran}" for item in advice.warnings if item.code in _EPOCHS]
    if advice.recommended is not None:
        lines += _saves(advice, advice.recommended)
    lines += _with_any_batch(advice)
    if advice.clearly_best:
        lines.append(_sure(advice, compared))
    lines += _basis(advice)
    if advice.recommended is not None:
        lines.append(_next(advice, advice.recommended))
    lines += [f"Warning: {item}" for item in advice.warnings if item.code in _IN_FULL]
    return tuple(lines)


def brief(advice: Advice) -> str:
    option, codes = advice.recommended, {warning.code for warning in advice.warnings}
    if option is None:
        return f"{advice.workload}: nothing to recommend. {advice.reason}"
    parts = [option.label]
    if not advice.clearly_best:
        if advice.probability is not None:
            parts = [f"{option.label} ({percent(advice.probability)})"]
        ties = sorted(advice.ties, key=lambda tie: -tie.probability)[:_MAX_TIES]
        parts = [" or ".join([*parts, *(_tie(advice, tie) for tie in ties)])]
    else:
        parts.append(changes(advice, ("energy", "time"), intervals=False))
        sure = _ONLY if _is_only(advice) else "probability unknown"
        if advice.probability is not None:
            sure = f"{percent(advice.probability)} sure"
        parts.append(sure)
    parts.append("" if option.source == MEASURED else option.source)
    parts += [text for code, text in _IN_FULL.items() if code in codes]
    if advice.any_batch is not None:
        parts.append(f"or, if quality allows, {advice.any_batch.label} (--any-batch)")
    elif "batch-quality-unknown" in codes:
        parts.append("larger batches are left out (--any-batch)")
    if "epochs-differ" in codes:
        parts.append(f"for {option.amount.mean:g} epochs (the runs trained different numbers)")
    if advice.left_out:
        parts.append(f"{fmt.plural(sum(advice.left_out.values()), 'run')} left out")
    head = "" if advice.clearly_best else "no setting is clearly best: "
    return f"{advice.workload}: {head}{'; '.join(filter(None, parts))}"


def details(advice: Advice) -> tuple[str, ...]:
    lines = [fmt.sentence(f"It has the {advice.reason}")] if advice.recommended else []
    if (energy := advice.rests_on.energy_is) is not None:
        lines.append(f"Counted: {(advice.footprint or Footprint()).counted(energy)}.")
    return (*lines, *(f"Warning: {warning}" for warning in advice.warnings))


def _is_only(advice: Advice) -> bool:
    return sum(advice.rests_on.settings.values()) == 1


def _caveats(advice: Advice) -> list[str]:
    option, codes = advice.recommended, {warning.code for warning in advice.warnings}
    caveats = []
    if option is not None and option.is_predicted:
        caveats.append(f"predicted from {' and '.join(advice.rests_on.runs)} runs")
    elif option is not None and option.source != MEASURED:
        caveats.append(f"{option.source}, not measured here")
    caveats += [text for code, text in _CAVEATS.items() if code in codes]
    if advice.unit == "step" and "batch-unknown" in codes:
        caveats.append("the batch is unknown, and may differ")
    caveats += [_ONLY] if _is_only(advice) else []
    if "energy-suspect" in codes:
        reason = advice.rests_on.energy_reason or "see energy_reason in the store's epochs"
        if len(reason) > _MAX_REASON:
            reason = f"{reason[: _MAX_REASON - 1].rstrip()}…"
        caveats.append(f"energies are suspect: {reason}")
    return caveats


def hours(advice: Advice, option: Option) -> tuple[float, str]:
    if advice.unit in ("sample", "step"):
        return option.train_time_s.mean * option.gpus, f"{advice.worker}-seconds"
    return option.gpu_hours.mean, f"{advice.worker}-hours"


def _takes(advice: Advice, option: Option) -> str:
    """Return time, energy, GPU-hours, cost and carbon of all epochs, or of one unit. The relative
    interval of GPU-hours is that of time, and that of carbon is that of energy."""
    spent, carbon = hours(advice, option), option.co2_kg
    currency = (advice.footprint.currency if advice.footprint else None) or ""
    amounts = [
        fmt.duration_text(option.train_time_s),
        fmt.energy_text(option.train_energy_j),
        fmt.estimate_text(*spent),
        fmt.estimate_text(option.cost, currency),
        fmt.estimate_text(carbon and carbon.mean, "kg CO2e"),
    ]
    count = option.amount.mean
    subject = f"{count:.4g} {option.unit}{' takes' if count == 1 else 's take'}"
    return f"{subject} {', '.join(amount for amount in amounts if amount != fmt.MISSING)}."


def _whole_job(option: Option, deadline_s: float | None) -> Iterator[str]:
    if option.whole_job_s is None:
        return
    missing = option.whole_job_without
    known = [part for part in BESIDE_TRAINING if part not in missing]
    text = f"The whole job takes about {fmt.duration_text(option.whole_job_s)}"
    text += f", with {fmt.listed(known)}" if known else ""
    if missing:
        verb = "was" if len(missing) == 1 and missing[0] != "checkpoints" else "were"
        text += f", without {fmt.listed(missing)}, which {verb} not measured"
    if option.slurm_time is not None:
        text += f"; Slurm: {'at least ' if missing else ''}--time={option.slurm_time}"
    if late := lateness(option, deadline_s):
        text += f"; it {late}"
    elif deadline_s is not None and not missing:
        text += f"; it meets the deadline of {fmt.duration_text(deadline_s)}"
    yield f"{text}."


def _saves(advice: Advice, option: Option) -> Iterator[str]:
    base, named = advice.baseline, "the baseline"
    if base is not None and not advice.baseline_is_named:
        that = " that is compared" if advice.faster_left_out or advice.left_out else ""
        named = f"the fastest {base.source} setting{that}"
    if base is not None and option.columns != base.columns:
        yield f"{changes(advice)} against {base.label} ({named})."
    elif advice.baseline_is_named or (advice.clearly_best and not _is_only(advice)):
        yield f"It is {named}, so it saves nothing."
    # The line on larger batches names the best of them.
    faster = [f"{item.option.label} ({item.reason})" for item in advice.faster_left_out
              if advice.any_batch is None or item.reason != UNKNOWN_BATCH]  # fmt: skip
    if faster:
        yield f"Faster, but left out: {'; '.join(faster)}."


def changes(
    advice: Advice,
    shown: Sequence[str] = ("energy", "time", "gpu_hours", "cost"),
    *,
    intervals: bool = True,
) -> str:
    """Return ``−31 % energy (−28 to −34), +4 % time``; empty at the baseline itself."""
    savings, option, base = advice.savings, advice.recommended, advice.baseline
    if savings is None or option is None or base is None or option.columns == base.columns:
        return ""
    if option.gpus == base.gpus:  # these hours change as time does
        shown = [name for name in shown if name != "gpu_hours"]
    return _listed(advice, savings, shown, intervals=intervals)


def _listed(
    advice: Advice, savings: Savings, shown: Sequence[str], *, intervals: bool = True
) -> str:
    texts = []
    for name in shown:
        change = getattr(savings, name)
        if change is None:
            continue
        low, high = change.interval or (0.0, 0.0)
        ends = (low, high) if high > 0 else (high, low)
        bounds = [fmt.change(1 + end).removesuffix(" %") for end in ends]
        interval = f" ({' to '.join(bounds)})" if intervals and len(set(bounds)) > 1 else ""
        noun = f"{advice.worker}-hours" if name == "gpu_hours" else name
        noun += " and carbon" if name == "energy" and intervals and savings.carbon else ""
        texts.append(f"{fmt.change(1 + change.mean)} {noun}{interval}")
    return ", ".join(texts)


def _with_any_batch(advice: Advice) -> Iterator[str]:
    if (option := advice.any_batch) is None:
        return
    text, savings, nearest = option.label, advice.any_batch_savings, advice.nearest
    if savings is not None and (nearest is None or option.columns != nearest.columns):
        base = "the nearest setting" if advice.recommended is None else "this setting"
        saved = _listed(advice, savings, ("energy", "time"), intervals=False)
        text += f", {saved} against {base}"
    meets = advice.any_batch_meets
    if meets and not meets.startswith("only"):  # as the recommended setting does
        meets = f"; it {meets}" if advice.recommended is None else ""
    elif meets:
        meets = f"; {meets}"
    yield f"If quality allows a larger batch: {text}{meets}."


def _candidates(advice: Advice, option: Option, compared: str) -> str:
    if _is_only(advice):
        return f"The only setting that is compared: {option.label}."
    lowest = f"Lowest mean of {compared}: {option.label}"
    if advice.probability is None:
        return f"{lowest}; its probability is unknown."
    lowest += (
        f" ({percent(advice.probability)} to be within {percent(advice.tolerance)} of the best)"
    )
    for name, is_better in (("probably better", True), ("others", False)):
        ties = [tie for tie in advice.ties if tie.is_better == is_better]
        ties.sort(key=lambda tie: -tie.probability)
        shown = [_tie(advice, tie) for tie in ties[:_MAX_CANDIDATES]]
        shown += [f"{len(ties) - len(shown)} more"] if len(ties) > len(shown) else []
        lowest += f"; {name}: {' and '.join(shown)}" if shown else ""
    return f"{lowest}."


def _sure(advice: Advice, compared: str) -> str:
    if _is_only(advice):
        left = len(advice.batches_left_out)
        noun = "other global batch is" if left == 1 else "other global batches are"
        others = f"; {left} {noun} left out (--any-batch)" if left else ""
        return f"It is {_ONLY}, so it saves nothing{others}."
    if advice.probability is None:
        return f"It is the best of {compared}; there are too few repeats for a probability."
    sure = f"{percent(advice.probability)} sure"
    if advice.spread_from == "model":
        sure += ", if runs vary as the model assumes (too few repeats),"
    if advice.simulated:
        sure = f"In the simulation, {sure}"
    groups = []
    for name, is_better in (("probably better:", True), ("tied with", False)):
        if ties := [tie for tie in advice.ties if tie.is_better == is_better]:
            shown = " and ".join(_difference(advice, tie.option) for tie in ties[:_MAX_TIES])
            more = f", and {len(ties) - _MAX_TIES} more" if len(ties) > _MAX_TIES else ""
            groups.append(f"{name} {shown}{more}")
    return (
        f"{sure} to be within {percent(advice.tolerance)} of the best of {compared}; "
        f"{'; '.join(groups) or 'no other setting ties with it'}."
    )


def _tie(advice: Advice, tie: Tie) -> str:
    return f"{_difference(advice, tie.option)} ({percent(tie.probability)})"


def _difference(advice: Advice, option: Option) -> str:
    known = advice.recommended.label if advice.recommended else ""
    gpus, *others = option.label.split(", ")
    text = ", ".join([gpus, *(part for part in others if part not in known)])
    return f"{text} (predicted)" if option.is_predicted else text


def _basis(advice: Advice) -> Iterator[str]:
    basis = advice.rests_on
    runs = " and ".join(f"{count} {source}" for source, count in basis.runs.items())
    runs += " run" if sum(basis.runs.values()) == 1 else " runs"
    least, most = basis.repeats
    repeats = f"{least}" if least == most else f"{least} to {most}"
    energy = basis.energy_is or "not known"
    yield f"Rests on {runs}, {repeats} of each setting; energy: {energy}."
    if advice.left_out:
        total = fmt.plural(sum(advice.left_out.values()), "run")
        parts = [f"{count} {reason}" for reason, count in advice.left_out.items()]
        shown = f"({'; '.join(parts)})" if len(parts) > 1 else next(iter(advice.left_out))
        yield f"Left out: {total} {shown}."


def _next(advice: Advice, option: Option) -> str:
    run = advice.next_measurement
    if run is None:
        return "Measure next: nothing, the decision is certain enough."
    what = "this setting" if run.option.columns == option.columns else run.option.label
    again = " again" if run.is_repeat else ""
    again = " on the hardware itself" if advice.simulated else again
    cost = f"{fmt.number(run.gpu_hours, 2)} {advice.worker}-hours"
    return f"Measure next: {what}{again} (about {cost})."


def percent(share: float) -> str:
    return "> 99 %" if share > 0.99 else "< 1 %" if share < 0.01 else f"{100 * share:.0f} %"


def merge_warnings(advices: Sequence[Advice]) -> list[str]:
    """Of a kind whose texts differ, those of the first workload are returned."""
    texts: dict[str, dict[str, list[str]]] = {}
    for advice in advices:
        codes = {warning.code for warning in advice.warnings}
        for warning in advice.warnings:
            if warning.code not in _IN_DATA and _IMPLIED.get(warning.code) not in codes:
                of_code = texts.setdefault(warning.code, {})
                of_code.setdefault(advice.workload, []).append(str(warning))
    lines: list[str] = []
    for of_code in texts.values():
        (first, shown), *others = of_code.items()
        if len(of_code) == len(advices) and all(text == shown for _, text in others):
            lines += shown
        else:
            more = f" So too for {fmt.plural(len(others), 'other workload')}." if others else ""
            lines += [f"{first}: {text}{more}" for text in shown]
    return lines
