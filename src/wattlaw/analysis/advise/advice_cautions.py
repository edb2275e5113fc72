"""What a reader of an advice has to know: warnings of the choice, and of what it rests on."""

from collections.abc import Iterator

from wattlaw.analysis.advise.choice import Choice
from wattlaw.analysis.advise.possible_options import LOWER_BATCH, UNKNOWN_BATCH, WIDEST, Options
from wattlaw.analysis.metrics.comparable_runs import ComparableRuns
from wattlaw.analysis.metrics.result import Caution
from wattlaw.analysis.metrics.time_errors import MORE_STEPS
from wattlaw.analysis.predict import reach
from wattlaw.analysis.predict.peak_memory import SURE_FIT
from wattlaw.analysis.predict.posterior import fit
from wattlaw.analysis.predict.predictions import misfit_cautions
from wattlaw.common.formatting import names_text, plural
from wattlaw.study.labels import LIMIT_NAMES, layout_label

#: The codes of warnings that runs may have done different work.
WORK_UNKNOWN, BATCH_UNKNOWN = "work-unknown", "batch-unknown"
#: Epochs of unknown length that take at least this share of the time on the fewest workers may have
#: more samples on more workers; numbers of samples that differ by this share are of other epochs.
_HARDLY_FASTER, _MORE_SAMPLES = 0.8, 0.05
_NAMES = {"gpus": "GPU counts"} | LIMIT_NAMES
_MAX_LISTED = 4  # batches
#: A share of the whole job beside its training that decides how long it takes.
_BESIDE = 0.2
_BATCHES_LEFT_OUT = {
    UNKNOWN_BATCH: (
        "batch-quality-unknown",
        "Global batches of unknown quality are left out ({}). --any-batch includes them.",
    ),
    LOWER_BATCH: ("batch-excluded", "Excluded because quality is lower: global batch {}."),
}


def of_choice(choice: Choice, options: Options, job: ComparableRuns) -> Iterator[Caution]:
    """Yield which batches are left out, and what is not certain about the chosen setting."""
    for reason, (code, text) in _BATCHES_LEFT_OUT.items():
        left = {item.global_batch or 0 for item in options.ran if item.left_out == reason}
        if left:
            more = ", ..." if len(left) > _MAX_LISTED else ""
            yield Caution(code, text.format(", ".join(map(str, sorted(left)[:_MAX_LISTED])) + more))
    if layouts := [setting for setting in options.unsure if setting.layout]:
        first = layouts[0]
        yield Caution(
            "layouts-unsure",
            f"{plural(len(layouts), 'layout')} that did not run are not offered: the 95 % interval "
            f"of their time is wider than a factor of {WIDEST:g}. To narrow it, measure the one "
            f"with the lowest predicted time: {plural(first.gpus, job.worker)}, "
            f"{layout_label(first, among_others=True)}.",
        )
    if (best := choice.recommended) is not None:
        if best.falls:
            yield Caution("quality-falls", "Quality is lower at this global batch.")
        yield from (Caution("quality", text) for text in best.quality_warnings)
    yield from choice.warnings
    if (option := best or choice.nearest) is None:
        return
    if option.is_predicted:
        counts = sorted({item.gpus for item in options.ran})
        names = [_NAMES.get(name, name.replace("_", " ")) for name in option.extrapolates]
        outside = f" Outside of their range: {names_text(names)}." if names else ""
        text = (
            "This setting did not run: time and energy are predicted from runs on "
            f"{counts[0]} to {counts[-1]} {job.worker}s.{outside}"
        )
        yield Caution("extrapolated" if option.extrapolates else "predicted", text)
        if option.fits is not None and option.fits < SURE_FIT:
            text = f"It fits into a GPU's memory with a probability of {100 * option.fits:.0f} %."
            yield Caution("may-not-fit", f"{text} Run a few steps first.")
        if option.model is not None:
            yield from misfit_cautions(fit(option.model.observations))
            yield from reach.cautions(option.setting, option.model.settings, option.model.board)
    share = option.beside_s / option.job_time_s.mean
    if share > _BESIDE:
        text = f"Start-up and other work outside training take {100 * share:.0f} % of the job, and "
        text += "settings hardly change them. A longer training may have another answer."
        yield Caution("startup-decides", text)
    if option.is_short:
        runs = (
            "Runs that it is predicted from" if option.is_predicted else "The runs of this setting"
        )
        error = 1.96 * 100 * option.time_error
        how = f": each leaves its mean time unknown by ±{error:.0f} % (95 %)" if error else ""
        text = f"{runs} have too few or too unsteady steps to be sure by{how}."
        yield Caution("short-run", f"{text} {MORE_STEPS}")
    if option.repeats == 1:
        known_by = option.interval_from
        text = ", so it has no interval: its uncertainty is unknown"
        text = f": its interval is from {known_by}" if known_by else text
        yield Caution("measured-once", f"This setting ran once{text}.")


def of_data(options: Options, job: ComparableRuns, energy_reason: str | None) -> Iterator[Caution]:
    """Yield what the runs do not show, and why they may not be comparable."""
    if energy_reason is not None and "suspect" in (job.energy_is or ""):
        yield Caution("energy-reason", f"Energies are suspect: {energy_reason}.")
    ran = options.ran
    if job.energy_is is None:
        text = f"No energy is known: the advice considers time and {job.worker}-hours, not energy."
        yield Caution("no-energy", text)
    elif without := sum(item.energy_j is None for item in ran):
        text = f"{without} of {len(ran)} settings have no comparable energy"
        yield Caution("energy-incomplete", f"{text} and are not considered.")
    once = sum(item.repeats == 1 for item in ran)
    are_imported = {item.source for item in ran} == {"imported"}
    if job.unit == "run" and are_imported and once == len(ran) > 1:
        text = (
            f"These {len(ran)} runs may have done different work: each is a whole process of "
            "another setting, and only the name of the workload is the same. Repeat a setting to "
            "check this."
        )
        yield Caution(WORK_UNKNOWN, text)
    if job.rows["metric"].isna().all() and job.rows["global_batch"].nunique() > 1:
        text = "Quality is not known: global batches may differ in quality."
        yield Caution("quality-not-measured", text)
    precisions = sorted({str(item.setting.precision) for item in ran})
    if len(precisions) > 1:
        text = f"The settings differ in precision ({', '.join(precisions)}): compare quality, too."
        yield Caution("precisions-differ", text)
    # A unit may have more samples on more workers, where the batch grows with them.
    allowed = options.allowed
    counts: dict[int | None, set[int]] = {}
    for item in allowed:
        counts.setdefault(item.global_batch, set()).add(item.gpus)
    grows = (
        len(counts) > 1 and None not in counts and all(len(gpus) == 1 for gpus in counts.values())
    )
    if not grows or job.unit == "sample" or len(set.union(*counts.values())) == 1:
        return
    per_sample_s = [item.per.get("time_per_sample_s") for item in allowed]
    times = zip(allowed, per_sample_s, strict=True)
    samples = [item.time_s.mean / time_s for item, time_s in times if time_s]
    is_known = len(samples) == len(allowed)
    fewest, most = (of(allowed, key=lambda item: item.gpus) for of in (min, max))
    differs = most.time_s.mean >= _HARDLY_FASTER * fewest.time_s.mean
    if is_known:
        differs = max(samples) > (1 + _MORE_SAMPLES) * min(samples)
    if differs:
        has = "has" if is_known else "may have"
        unit = f"An {job.unit}" if job.unit == "epoch" else f"A {job.unit}"
        text = f"{unit} {has} more samples on more {job.worker}s: compare times of a sample."
        yield Caution(WORK_UNKNOWN, text)
