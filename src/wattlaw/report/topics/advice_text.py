"""What to run, as text."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wattlaw.analysis.advise.advice import Advice
from wattlaw.analysis.advise.choice import Savings
from wattlaw.analysis.advise.option import BESIDE_TRAINING, Option, Quantity
from wattlaw.analysis.advise.possible_options import UNKNOWN_BATCH
from wattlaw.analysis.decide.decision import study_command, sweep_text
from wattlaw.analysis.decide.next_runs import CERTAIN
from wattlaw.analysis.metrics.metrics import HOUR_S
from wattlaw.analysis.metrics.result import Caution
from wattlaw.common import formatting as fmt
from wattlaw.report.sections import Answer, KeyFigure
from wattlaw.study.footprint import Footprint
from wattlaw.study.labels import threads_label
from wattlaw.study.sources import MEASURED

_MAX_CANDIDATES = 3
_MAX_REASON = 60
#: Warnings that are said in brackets beside the answer, the most serious first.
_CAVEATS = {
    "quality-falls": "quality is lower at this batch",
    "batch-quality-unknown": "the quality of larger batches is unknown, see --any-batch",
    "short-run": "the runs have too few or too unsteady steps; measure more steps",
    "work-unknown": "the runs may have done different work",
    "decision-differs": "the study's decision leads with another setting",
    "only-the-mean-meets": "only the mean meets the constraints",
    "energy-estimated": "energies are estimated from CPU use, not measured",
    "no-energy": "energy is not known",
    "electricity-not-counted": "electricity is not counted",
}
#: Warnings that say for how many epochs totals are.
_EPOCHS = ("epochs-differ", "epochs-unknown")
#: Warnings that other lines of the first screen say.
_SAID = (*_CAVEATS, *_EPOCHS, "energy-suspect", "energy-reason", "predicted", "extrapolated")
#: Warnings that the other one makes superfluous.
IMPLIED = {
    "energy-simulated": "simulated",
    "energy-replayed": "replayed",
    "quality-not-measured": "batch-quality-unknown",
}
#: Launchers of runs on clusters, where jobs have a time limit.
_OF_CLUSTERS = ("slurm", "simulated", "replay")
#: Programs of the printed command that start before the script, which no run has measured.
_STARTERS = ("torchrun", "srun", "mpirun")
_SAVING = "saving"
#: Before the command to run, which is a line of its own.
COMMAND = "  "
#: Lines that contain a command, which no line break may cut.
WITH_COMMAND = (COMMAND, "- Measure next")
_ONLY = "the only setting that is compared"


def summary(advice: Advice) -> tuple[str, ...]:
    """The lines of the command: the answer with its figures, what changes it, what it rests on."""
    shown = answer(advice)
    mark = "," if advice.recommended else ":"
    changing = [f"- {line}" for line in what_changes(advice)]
    return (
        f"{shown.headline}{mark} {shown.qualifier}",
        *([f"{COMMAND}{shown.command}"] if shown.command else []),
        *(fmt.sentence(f"{item.name}: {_with_note(item)}") for item in shown.figures),
        *filter(None, [shown.reference]),
        *(["What changes the answer:", *changing] if changing else []),
        *basis(advice),
        *(f"Warning: {item}" for item in advice.warnings if item not in _said(advice)),
    )  # fmt: skip


def _said(advice: Advice) -> list[Caution]:
    """Return the warnings that other lines of the first screen say."""
    codes = {item.code for item in advice.warnings}
    return [
        item for item in advice.warnings
        if item.code in _SAID or IMPLIED.get(item.code) in codes
    ]  # fmt: skip


def _with_note(figure: KeyFigure) -> str:
    is_phrase = figure.note.startswith(("less ", "more "))  # as in ``55 % less time``
    return f"{figure.value}{' ' if is_phrase else ', '}{figure.note}".rstrip(", ")


def answer(advice: Advice) -> Answer:
    known, best, nearest = "; ".join(_caveats(advice)), advice.recommended, advice.nearest
    caveats = f" ({known})" if known else ""
    if best is None:
        headline = f"Nothing to recommend for {advice.workload}"
        qualifier = advice.reason.rstrip(".") + caveats
        if nearest is not None:
            beyond = ", outside of the range of the runs" if nearest.extrapolates else ""
            known_by = f" (predicted{beyond})" if nearest.is_predicted else ""
            qualifier = f"{fmt.full_stop(qualifier)} Nearest{known_by}: {nearest.label}."
    else:
        # The command to run says the threads, where there is one.
        threads = "" if advice.command else threads_label(best.threads_per_worker)
        setting = best.label + threads
        headline = f"Run {advice.workload} on {setting}"
        if not advice.clearly_best:
            only = "the only setting" if _is_only(advice) else "lowest mean"
            headline = f"No setting is clearly best for {advice.workload}; {only}: {setting}"
        study = ", as the study asks" if advice.decision is not None else ""
        qualifier = fmt.full_stop(f"for the lowest {advice.goal}{study}{caveats}")
    figures = tuple(_figures(advice, best or nearest))
    whole = _whole_job(advice)
    is_said = _SAVING in {item.name for item in figures}
    reference = "" if is_said else _reference(advice)
    return Answer(headline, qualifier, figures, f"{reference} {whole}".strip(), advice.command)


def _figures(advice: Advice, option: Option | None) -> Iterator[KeyFigure]:
    """Yield time, what is spent (money, energy or GPU-time), and how sure the answer is. The
    relative interval of GPU-hours is that of time, and that of carbon is that of energy."""
    if option is None:
        return
    changes = dict(_changes(advice, option))
    count = option.amount.mean
    amount = f"{count:,.0f}" if count >= 1e4 else f"{count:.4g}"
    amount += f" {option.unit}{'s' * (count != 1)}"
    time = fmt.duration_text(option.job_time_s)
    of = "a job of " if option.is_whole_job and option.unit != "run" else ""
    yield KeyFigure(f"time of {of}{amount}", time, changes.get("time", ""))
    footprint = advice.question.footprint
    currency = (footprint.currency if footprint else None) or ""
    hours = option.gpu_hours
    spent = {
        "cost": fmt.estimate_text(option.cost, currency),
        "energy": fmt.energy_text(option.job_energy_j),
        "gpu_hours": fmt.work_text(hours.mean, advice.worker),
        "carbon": fmt.estimate_text(option.co2_kg and option.co2_kg.mean, "kg CO2e"),
    }
    first, *others = ((name, text) for name, text in spent.items() if text != fmt.MISSING)
    notes = [changes.get(first[0], "")]
    for name, text in others:
        change = changes.get(name, "") if name != "carbon" else ""  # that of energy
        notes.append(f"{text} {change}".rstrip())
    saving = _saving(advice)
    if first[0] == "gpu_hours" and option.gpus == 1 and saving is not None:
        yield saving  # the time of one worker is the time
    else:
        noun = f"{advice.worker} time" if first[0] == "gpu_hours" else first[0]
        yield KeyFigure(noun, first[1], "; ".join(filter(None, notes)))
    if advice.recommended is not None:
        yield KeyFigure("sure", *_sure(advice))


def _sure(advice: Advice) -> tuple[str, str]:
    counts = advice.rests_on.settings
    if _is_only(advice):
        return "no choice", _ONLY
    compared = " and ".join(f"{count} {name}" for name, count in counts.items()) + " settings"
    if advice.probability is None:
        why = "there are too few repeats for a probability"
        return "unknown", f"lowest of {compared}; {why}"
    sure = percent(advice.probability)
    if advice.recommended is not None and not advice.recommended.is_measured:
        sure = f"at most {sure}"
        why = "its runs are too short" if advice.recommended.is_short else "no run shows it"
        sure += f" (no more, since {why})"
    note = f"to be within {fmt.percent(advice.tolerance)} of the best"
    if advice.spread_from == "decision" and advice.decision is not None:
        runs = fmt.plural(advice.decision.runs, "run")
        return sure, f"{note}, by the study's decision after {runs}"
    note += f" of {compared}"
    if advice.spread_from == "model":
        note += ", if runs vary as the model assumes (too few repeats)"
    if advice.simulated:
        note += ", in the simulation"
    return sure, note


def _saving(advice: Advice) -> KeyFigure | None:
    """Return the change of time as a figure; None where nobody says what is run."""
    if advice.recommended is None or advice.baseline_is == "fastest":
        return None
    if _is_baseline(advice):
        return KeyFigure(_SAVING, "none", f"it is {_named(advice)}")
    if advice.savings is None or advice.savings.time is None:
        return None
    size, what = fmt.less(advice.savings.time.mean, "time").split(" % ")
    doubt = _doubt(advice.savings.time)
    return KeyFigure(_SAVING, f"{size} %", f"{what} than {_named(advice)}{doubt}")


def _doubt(*changes: Quantity | None) -> str:
    """Say that a change may be none, where the interval of one has both signs."""
    ends = [change.interval for change in changes if change and change.interval]
    return ", which is uncertain" if any(low < 0 < high for low, high in ends) else ""


def _named(advice: Advice) -> str:
    """Return the baseline as a phrase, such as ``what you run (batch 32)``."""
    base, option = advice.baseline, advice.recommended
    if base is None or option is None:
        return "the baseline"
    name = {"in use": "what you run", "named": "the baseline"}.get(advice.baseline_is)
    if name is None:
        that = " that is compared" if advice.faster_left_out or advice.left_out else ""
        name = f"the fastest {base.source} setting{that}"
    other = base.label_beyond(option)
    other += ["predicted"] if other and base.is_predicted else []
    return f"{name} ({', '.join(other)})" if other else name


def _reference(advice: Advice) -> str:
    base, option = advice.baseline, advice.recommended
    if base is None or option is None:
        return ""
    if not _is_baseline(advice) and advice.baseline_is == "in use":
        known = [(name, getattr(advice.savings, name, None)) for name in ("time", "energy")]
        changes = [fmt.less(change.mean, name) for name, change in known if change]
        doubt = _doubt(*(change for _, change in known))
        return fmt.sentence(f"{' and '.join(changes)} than {_named(advice)}{doubt}")
    if not _is_baseline(advice):
        return f"Changes are against {_named(advice)}."
    if advice.baseline_is != "fastest":
        return f"It is {_named(advice)}, so it saves nothing."
    if advice.clearly_best and not _is_only(advice):
        return f"It is {_named(advice)}; name what you run as the baseline to see what it saves."
    return ""


def _whole_job(advice: Advice) -> str:
    option, deadline_s = advice.recommended or advice.nearest, advice.question.deadline_s
    if option is None or option.whole_job_s is None:
        return ""
    missing = option.whole_job_without
    known = [part for part in BESIDE_TRAINING if part not in missing]
    near = option.overhead_from
    of_one = "epochs-unknown" in {warning.code for warning in advice.warnings}
    what = "a job of 1 epoch" if of_one else "the whole job"
    text, training_s = f"This is {what}", option.train_time_s.mean
    if option.is_whole_job:  # the first figure is of it, too
        text += f", {fmt.duration_text(training_s)} of it training"
    elif not math.isclose(option.whole_job_s.mean, training_s, rel_tol=1e-3):
        text = f"{what.capitalize()} takes about {fmt.duration_text(option.whole_job_s)}"
    text += f", with {fmt.names_text(known)}" if known else ""
    text += f" carried over from {near}" if known and near else ""
    if missing:
        verb = "was" if len(missing) == 1 and missing[0] != "checkpoints" else "were"
        text += f", without {fmt.names_text(missing)}, which {verb} not measured"
    if program := next((name for name in _STARTERS if name in (advice.command or "")), None):
        text += f"; {program} adds its own start"
    if option.slurm_time is not None and option.launcher in _OF_CLUSTERS:
        text += f"; Slurm: {'at least ' if missing else ''}--time={option.slurm_time}"
    if deadline_s is not None:
        time_s = option.whole_job_s
        meets = "misses" if time_s.mean > deadline_s else "may miss"
        if (time_s.high or time_s.mean) <= deadline_s:
            meets = "without them, it meets" if missing else "it meets"
        text += f"; {meets} the deadline of {fmt.duration_text(deadline_s)}"
    how = " For more, name how many: --epochs 20, or epochs under decide in the study."
    return f"{text}.{how if of_one else ''}"


def what_changes(advice: Advice) -> Iterator[str]:
    """Yield what would make another setting the answer, or the figures others."""
    option = advice.recommended or advice.nearest
    own = option and option.epochs_trained
    ran = f" This setting ran {own:g}." if own and own != option.amount.mean else ""  # type: ignore[union-attr]
    has_whole = option is not None and option.whole_job_s is not None  # which says it then
    yield from (f"{item.text}{ran}" for item in advice.warnings if item.code in _EPOCHS
                and not (has_whole and item.code == "epochs-unknown"))  # fmt: skip
    near = f"probability to be within {fmt.percent(advice.tolerance)} of the best"
    for name, is_better in (("Probably better", True), ("Ties with", False)):
        ties = [tie for tie in advice.ties if tie.is_better == is_better]
        ties.sort(key=lambda tie: -tie.probability)
        shown = [
            f"{_difference(advice, tie.option)}: {percent(tie.probability)}"
            for tie in ties[:_MAX_CANDIDATES]
        ]
        shown += [f"{len(ties) - len(shown)} more"] if len(ties) > len(shown) else []
        if shown:
            yield f"{name}: {'; '.join(shown)} ({near})."
    if (larger := advice.any_batch) is not None:
        text, nearest = larger.label, advice.nearest
        if advice.any_batch_savings and (nearest is None or larger.identity != nearest.identity):
            base = "the nearest setting" if advice.recommended is None else "this setting"
            text += f", {_listed(advice.any_batch_savings)} against {base}"
        meets = advice.any_batch_meets or ""
        if meets.startswith("only"):
            text += f"; {meets}"
        elif meets and advice.recommended is None:  # else it meets what the recommended one does
            text += f"; it {meets}"
        yield f"If quality allows a larger batch: {text}."
    # The line on larger batches names the best of them.
    faster = [f"{item.label} ({item.left_out})" for item in advice.faster_left_out
              if advice.any_batch is None or item.left_out != UNKNOWN_BATCH]  # fmt: skip
    if faster:
        yield f"Faster, but left out: {'; '.join(faster)}."
    if _is_only(advice) and (left := len(advice.batches_left_out)):
        yield f"Other global batches are left out ({left}): --any-batch includes them."
    if (best := advice.recommended or (advice.nearest if advice.decision else None)) is not None:
        yield f"Measure next: {next_run(advice, best)}."


def details(advice: Advice) -> tuple[str, ...]:
    lines = [fmt.sentence(f"It has the {advice.reason}")] if advice.recommended else []
    if (energy := advice.rests_on.energy_is) is not None:
        lines.append(f"Counted: {(advice.question.footprint or Footprint()).counted(energy)}.")
    return (*lines, *(f"Warning: {item}" for item in _said(advice)))


def _is_only(advice: Advice) -> bool:
    return sum(advice.rests_on.settings.values()) == 1


def _caveats(advice: Advice) -> list[str]:
    option, codes = advice.recommended, {warning.code for warning in advice.warnings}
    caveats = []
    if option is not None and option.is_predicted:
        beyond = ", outside of their range" if option.extrapolates else ""
        caveats.append(f"predicted from {' and '.join(advice.rests_on.runs)} runs{beyond}")
    elif option is not None and option.source != MEASURED:
        caveats.append(f"{option.source}, not measured here")
    caveats += [text for code, text in _CAVEATS.items() if code in codes]
    if advice.unit == "step" and "batch-unknown" in codes:
        caveats.append("the batch is unknown, and may differ")
    caveats += [_ONLY] if _is_only(advice) else []
    if codes & {"energy-suspect", "energy-reason"}:
        reason = advice.rests_on.energy_reason or "see energy_reason in the store's epochs"
        caveats.append(f"energies are suspect: {fmt.printable(reason, _MAX_REASON)}")
    return caveats


def changes(advice: Advice) -> str:
    """Return ``−31 % energy, +4 % time``; empty at the baseline itself."""
    return "" if _is_baseline(advice) else _listed(advice.savings)


def _is_baseline(advice: Advice) -> bool:
    option, base = advice.recommended, advice.baseline
    return option is None or base is None or option.identity == base.identity


def _changes(advice: Advice, option: Option) -> Iterator[tuple[str, str]]:
    """Yield the changes from the baseline with their intervals, by what changes."""
    if _is_baseline(advice) or advice.baseline is None:
        return
    for name, change in vars(advice.savings).items():
        # With as many GPUs, their hours change as the time does.
        if change is None or (name == "gpu_hours" and option.gpus == advice.baseline.gpus):
            continue
        low, high = change.interval or (0.0, 0.0)
        ends = (low, high) if high > 0 else (high, low)
        bounds = [fmt.change(1 + end).removesuffix(" %") for end in ends]
        interval = f" ({' to '.join(bounds)})" if len(set(bounds)) > 1 else ""
        yield name, f"{fmt.change(1 + change.mean)}{interval}"


def _listed(savings: Savings | None) -> str:
    known = {name: getattr(savings, name, None) for name in ("energy", "time")}
    texts = [f"{fmt.change(1 + change.mean)} {name}" for name, change in known.items() if change]
    return ", ".join(texts)


def _difference(advice: Advice, option: Option) -> str:
    gpus, *others = option.label.split(", ")
    if advice.recommended is not None:
        others = [part for part in option.label_beyond(advice.recommended) if part != gpus]
    text = ", ".join([gpus, *others])
    return f"{text} (predicted)" if option.is_predicted else text


def basis(advice: Advice) -> Iterator[str]:
    rests_on = advice.rests_on
    runs = " and ".join(f"{count} {source}" for source, count in rests_on.runs.items())
    runs += " run" if sum(rests_on.runs.values()) == 1 else " runs"
    least, most = rests_on.repeats
    repeats = f"{least}" if least == most else f"{least} to {most}"
    energy = rests_on.energy_is or "not known"
    yield f"Rests on {runs}, {repeats} of each setting; energy: {energy}."
    if advice.left_out:
        total = fmt.plural(sum(advice.left_out.values()), "run")
        parts = [f"{count} {reason}" for reason, count in advice.left_out.items()]
        shown = f"({'; '.join(parts)})" if len(parts) > 1 else next(iter(advice.left_out))
        status = " wattlaw status names each failure." if advice.left_out.get("failed") else ""
        yield f"Left out: {total} {shown}.{status}"


def next_run(advice: Advice, option: Option) -> str:
    """What to measure next, with the command or the lines of a study for it."""
    run, decision = advice.next_measurement, advice.decision
    is_made = decision is not None and decision.stopped_because == CERTAIN
    is_of_hardware = advice.simulated and run is not None
    if decision is not None and decision.next_step and not (is_made or is_of_hardware):
        return decision.next_step
    if run is None:
        lacks = f"this is {_ONLY}; a study with others gives a choice"
        return f"nothing, {lacks if _is_only(advice) else 'the decision is certain enough'}"
    what = "this setting" if run.option.identity == option.identity else run.option.label
    again = " again" if run.is_repeat else ""
    again = " on the hardware itself" if advice.simulated else again
    cost = f"about {fmt.work_text(run.gpu_hours, advice.worker)}"
    if run.gpu_hours * HOUR_S < 1:
        cost = f"less than 1 {advice.worker}-second"
    text, sweep = f"{what}{again} ({cost})", sweep_text(run.option.setting)
    if run.option.launcher == "measure":
        return f"{text}: wattlaw measure -o {advice.store} -- COMMAND"
    kind = "slurm" if (run.option.setting.nodes or 1) > 1 else "local"
    launch = f" --launch {kind}" if advice.simulated else ""
    text += f": {study_command(advice.store, advice.study_file)}{launch}"
    lines = [sweep] if sweep else []
    is_short = "short-run" in {warning.code for warning in advice.warnings}
    more = "more steps under measure" if is_short else f"repeats: {run.option.repeats + 1}"
    lines += [more] if run.is_repeat else []
    return f"{text}, where the study file has {' and '.join(lines)}" if lines else text


def percent(share: float) -> str:
    return "> 99 %" if share > 0.99 else "< 1 %" if share < 0.01 else f"{100 * share:.0f} %"
