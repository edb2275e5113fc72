"""The summary in words: sentences made from findings, only such as the data support.

The most important comes first: what to run, how it scales, where that ends, what caps do, what
energy follows, what the batch does to quality, what the published findings are worth here, and what
to doubt.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.words import ENERGY, TIME, told
from wattlaw.analysis.batch_effects import CANNOT_TELL, FALLS, NO_FALL
from wattlaw.analysis.caps.comparison import DIFFERENT, SAME, LimitComparison
from wattlaw.analysis.caps.limits import LIMITS, limit_words
from wattlaw.analysis.caps.rules import LeastEnergyWithin
from wattlaw.analysis.claims.verdicts import CONTRADICTED, NOT_DECIDABLE, SUPPORTED, Claim
from wattlaw.analysis.findings import Findings
from wattlaw.analysis.groups import group_label
from wattlaw.analysis.laws.fits import Fit
from wattlaw.report.format import (
    change,
    ended,
    interval,
    known,
    number,
    percent,
    plural,
    with_interval,
)
from wattlaw.report.tables.batch import label
from wattlaw.report.tables.claims import STUDIES
from wattlaw.report.tables.limits import KIND, effects_by_workload
from wattlaw.report.tables.scaling import main_fits, relative_rows

#: Sentences of one kind; the rest is in the tables.
MOST = 8


@dataclass(frozen=True)
class Sentence:
    """One sentence, what it is about, and the section that has the rest."""

    topic: str
    text: str
    section: str


def summary(findings: Findings, claims: Sequence[Claim] = ()) -> list[Sentence]:
    """Return the sentences at the top of a report."""
    if findings.runs.empty:
        return [Sentence("Nothing yet", "No run is done, so there is nothing to conclude yet.",
                         "data")]  # fmt: skip
    kinds = (
        ("What to run", "advice", _advice(findings)),
        ("Scaling", "scaling", _scaling(findings)),
        ("Beyond the power law", "scaling", _bends(findings)),
        ("Caps and clocks", "caps", _limits(findings)),
        ("Energy", "energy", _energy(findings)),
        ("Batch size", "batch", _batch(findings)),
        ("Published findings", "claims", _claims(claims)),
        ("To doubt", "data", _doubts(findings)),
    )
    return [Sentence(topic, text, where) for topic, where, texts in kinds for text in _first(texts)]


def worker(findings: Findings) -> str:
    """Return what the runs' workers are: GPUs where any was seen, else workers."""
    seen = findings.runs[["sm_util_mean", "gpu_energy_per_epoch_j"]].notna().any(axis=None)
    return "GPU" if seen else "worker"


def _first(texts: Iterable[str]) -> list[str]:
    found = list(texts)
    more = len(found) - MOST
    return [*found[:MOST], *([f"{more} more are in the tables."] if more > 0 else [])]


def _advice(findings: Findings) -> Iterator[str]:
    for advice in findings.advice:
        option = advice.recommended
        if option is None:
            yield f"{advice.workload}: nothing is recommended. {advice.reason}"
            continue
        words = f"{advice.workload}: {_setting(findings, advice)}: "
        words += told(option.epoch_time_s, TIME)
        if option.energy_j is not None:
            words += f" and {told(option.energy_j, ENERGY)}"
        yield f"{words} an epoch."
    of = len(findings.advice)
    chosen = [one for one in findings.advice if one.recommended]
    found = "It has " if len(chosen) == 1 else "Each has "
    yield from shared([(one.workload, one.reason.replace("It has ", found)) for one in chosen], of)
    gravest = [(one.workload, one.warnings[0]) for one in findings.advice if one.warnings]
    yield from shared(gravest, of)
    for workload, reason in findings.advice_refusals:
        yield f"{workload}: no advice: {reason}."


def _setting(findings: Findings, advice: Advice) -> str:
    """Return a recommended setting in words, without what is the same in all runs."""
    option = advice.recommended
    if option is None:
        return ""
    words = [f"{option.gpus} {advice.worker}{'s' if option.gpus > 1 else ''}"]
    words += [
        limit_words(kind, option.setting[kind]) for kind in LIMITS if kind in findings.differing
    ]
    if option.setting["local_batch"] is not None:
        local, whole = option.setting["local_batch"], option.setting["global_batch"]
        words.append(f"batch {local} each ({whole} in all)")
    words += [
        str(option.setting[name])
        for name in ("precision", "hardware")
        if name in findings.differing and option.setting[name]
    ]
    return ", ".join(words)


def shared(told_of: Sequence[tuple[str, str]], of: int) -> list[str]:
    """Return each text once, with the names that it is told of unless these are all ``of`` them."""
    names: dict[str, list[str]] = {}
    for name, words in told_of:
        own = names.setdefault(words, [])
        own += [name] if name not in own else []
    return [
        words if len(own) == of else f"{', '.join(own)}: {words}" for words, own in names.items()
    ]


def _scaling(findings: Findings) -> Iterator[str]:
    noun = worker(findings)
    for fit in main_fits(findings):
        yield _law(fit, noun) + _speedup(findings, fit, noun)
    if not findings.fits.laws:
        yield f"No scaling law is fitted: it needs at least three {noun} counts."
    errors = [
        abs(float(error))
        for fit in findings.fits.rows
        if fit.selection is not None
        for error in fit.selection.table.query("law == 'power'")["largest_out_error"].dropna()
    ]
    if errors:
        middle = pd.Series(errors).median()
        yield (
            f"Asked for the largest {noun} count without having seen it, the power law errs by a "
            f"median of {percent(middle, 2)} and at most {percent(max(errors), 2)} "
            f"({len(errors)} series): no law here speaks for more {noun}s than were measured."
        )


def _law(fit: Fit, noun: str) -> str:
    law = fit.law
    if law is None:
        return ""
    measured = f"{law.x_min:g} to {law.x_max:g} {noun}s, {plural(law.n, 'run')}"
    bounds = law.trusted.beta_ci
    name = group_label(fit.group)
    beta = f"β = {number(law.beta)}"
    if interval(*bounds) == "–":
        return f"{name}: t = {number(law.alpha)} s · N^−{number(law.beta)} ({measured})."
    sentence = (
        f"{name}: doubling the {noun}s multiplies the epoch time by {2**-law.beta:.2f} "
        f"({beta}, 95 % interval {interval(*bounds)}; {measured})"
    )
    if bounds[0] <= 0 <= bounds[1]:
        sentence += "; over this range as a whole a gain cannot be told from none"
    return sentence + "."


def _speedup(findings: Findings, fit: Fit, noun: str) -> str:
    """Return the greatest speedup of a fit's series."""
    table = relative_rows(findings, fit)
    if table.empty:
        return ""
    best = table.iloc[int(table["speedup"].argmax())]
    if best["gpus"] == best["reference"]:
        return f" No count is faster than {best['reference']}."
    speedup = with_interval(best["speedup"], best["speedup_low"], best["speedup_high"])
    return (
        f" The fastest, on {best['gpus']} {noun}s, is {speedup} times as fast as on "
        f"{best['reference']}: a parallel efficiency of {number(best['efficiency'], 2)}."
    )


def _bends(findings: Findings) -> Iterator[str]:
    quoted = main_fits(findings)
    for fit in quoted:
        if fit.bend is not None:
            yield f"{group_label(fit.group)}: {fit.bend.sentence}."
    also = sum(fit.bend is not None for fit in findings.fits.rows if fit not in quoted)
    if also:
        yield f"Bends are also seen in {also} other series: see the table of bends."


def _limits(findings: Findings) -> Iterator[str]:
    for kind, name in KIND.items():
        compared = [one for _, one in findings.comparisons if one.limit == kind]
        if compared:
            yield _tally(compared, name)
    yield from _effects(findings)
    yield from _best(findings)


def _effects(findings: Findings) -> Iterator[str]:
    """Tell what each limit does, over all workloads: the range of their medians."""
    rows = effects_by_workload(findings)
    for kind, limit in dict.fromkeys((row["kind"], row["words"]) for row in rows):
        alike = [row for row in rows if (row["kind"], row["words"]) == (kind, limit)]
        against = " or ".join(dict.fromkeys(row["against"] for row in alike))
        words = f"{limit} against {against}: time {_changes(row['time'] for row in alike)}"
        energies = [row["energy"] for row in alike if known(row["energy"])]
        if energies:
            words += f", energy {_changes(energies)}"
        settings = plural(sum(row["settings"] for row in alike), "setting")
        yield f"{words} ({_over(len(alike))}{settings})."


def _over(workloads: int) -> str:
    return "median of " if workloads == 1 else f"medians of {workloads} workloads, "


def _changes(ratios: Iterable[float]) -> str:
    there = list(ratios)
    low, high = change(min(there)), change(max(there))
    return low if low == high else f"{low} to {high}"


def _tally(compared: Sequence[LimitComparison], name: str) -> str:
    verdicts = Counter(one.verdict for one in compared)
    margin = compared[0].margin
    series = len(compared)
    words = []
    if verdicts[SAME]:
        words.append(f"the same within {margin:g} in {verdicts[SAME]}")
    if verdicts[DIFFERENT]:
        words.append(f"different in {verdicts[DIFFERENT]}")
    if left := series - verdicts[SAME] - verdicts[DIFFERENT]:
        words.append(f"undecided in {left}")
    return f"Exponent β under each {name}: {', '.join(words)} of {series} series compared."


def _best(findings: Findings) -> Iterator[str]:
    rule = LeastEnergyWithin().words
    rows = findings.best_limits
    rows = rows[(rows["rule"] == rule) & rows["verdict"].notna()]
    for kind, of_kind in rows.groupby("limit_kind"):
        limits = Counter(None if pd.isna(one) else float(one) for one in of_kind["limit"])
        unit = "W" if kind == "power_limit_w" else "MHz"
        chosen = ", ".join(
            f"{'none' if limit is None else f'{limit:g} {unit}'} in {count}"
            for limit, count in limits.most_common()
        )
        sure = int((of_kind["verdict"] == "best").sum())
        yield (
            f"Best {KIND[str(kind)]} of each setting ({rule}): {chosen} of {len(of_kind)} "
            f"settings; repeats make sure of {sure}."
        )


def _energy(findings: Findings) -> Iterator[str]:
    if findings.energy is None:
        yield (
            "Energy was not measured: no meter is available where this ran. "
            "measure.assume_cpu_w gives an estimate, marked as one."
        )
        return
    words = f"Energies count: {findings.energy}."
    if "estimated" in findings.energy:
        words += " Estimated means busy cores times assumed watts: not a measurement."
    if "simulated" in findings.energy:
        words += " Simulated means from a model of a device: not a measurement."
    yield words
    noun = worker(findings)
    laws = findings.energy_laws
    for row in laws[laws["reason"].isna()].to_dict("records"):
        factor = with_interval(row["factor_w"], row["factor_w_low"], row["factor_w_high"])
        power = with_interval(row["exponent"], row["exponent_low"], row["exponent_high"])
        yield (
            f"{row['workload']} on {row['hardware']}: {factor} W per {noun}; energy goes with "
            f"{noun}-hours to the power {power} ({number(row['hours_min'])} to "
            f"{number(row['hours_max'])} {noun}-hours an epoch, R² {number(row['r2_log_log'], 4)})."
        )
    drifts = findings.factor_drift["verdict"].value_counts()
    if len(drifts):
        told_of = ", ".join(f"{verdict} in {count}" for verdict, count in drifts.items())
        yield f"Watts per {noun} with more {noun}s: {told_of} of {drifts.sum()} series."


def _batch(findings: Findings) -> Iterator[str]:
    judged = [row for row in findings.quality.rows if len(row.means)]
    for row in judged:
        if row.verdict == FALLS:
            yield f"{label(findings, row)}: {ended(row.sentence)}"
    holding = [row for row in judged if row.verdict == NO_FALL]
    if len(holding) == 1:
        yield f"{label(findings, holding[0])}: {ended(holding[0].sentence)}"
    elif holding:
        yield f"No fall of quality is seen in {len(holding)} of {len(judged)} groups of runs."
    undecided = sum(row.verdict == CANNOT_TELL for row in judged)
    if undecided:
        yield (
            f"Whether quality falls with the global batch cannot be told for {undecided} of "
            f"{plural(len(judged), 'group')} of runs; the table says why."
        )
    if findings.targets is not None:
        for group, found in findings.targets.critical:
            yield f"{group['workload']}: {ended(found.sentence)}"


def _claims(claims: Sequence[Claim]) -> Iterator[str]:
    for study in dict.fromkeys(claim.study for claim in claims):
        own = [claim for claim in claims if claim.study == study]
        tally = Counter(claim.verdict for claim in own)
        words = (
            f"Of {len(own)} findings of {STUDIES.get(study, study)}, {tally[SUPPORTED]} are "
            f"supported, {tally[CONTRADICTED]} contradicted, and {tally[NOT_DECIDABLE]} cannot be "
            "decided from these data."
        )
        against = [claim.claim for claim in own if claim.verdict == CONTRADICTED]
        if against:
            words += f" Contradicted: {'; '.join(one.rstrip('.') for one in against)}."
        yield words


def _doubts(findings: Findings) -> Iterator[str]:
    left = {name: count for name, count in findings.statuses.items() if name != "done"}
    if left:
        words = ", ".join(f"{count} {name}" for name, count in sorted(left.items()))
        yield f"{words} of {plural(sum(findings.statuses.values()), 'run')}: not in any result."
    runs = findings.runs
    for verdict, found in _VERDICTS.items():
        count = int((runs["energy_verdict"] == verdict).sum())
        if count:
            yield f"The energy of {plural(count, 'run')} {found}"
    if findings.energy is not None and runs["energy_per_epoch_j"].isna().any():
        count = int(runs["energy_per_epoch_j"].isna().sum())
        yield f"{plural(count, 'run')} of {len(runs)} have no energy that counts."
    if runs["energy_is"].nunique() > 1:
        yield "Energies count different things and are kept apart: compare only what counts alike."
    once = int((findings.cells["n"] == 1).sum())
    if once:
        yield (
            f"{once} of {plural(len(findings.cells), 'setting')} were run once: nothing says how "
            "sure their numbers are."
        )
    if (runs["launcher"] == "simulated").any():
        yield "Some runs are simulated: from a model of a cluster, not measured."
    yield from findings.notes[:2]


_VERDICTS = {
    "suspect": "is suspect: counter and power samples disagree, or sources were mixed.",
    "partial": "covers only a part of their windows, and is left out.",
}
