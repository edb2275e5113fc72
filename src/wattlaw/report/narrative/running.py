"""What to run, in words."""

from collections.abc import Iterator, Sequence

from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.formatting import ENERGY_UNITS, TIME_UNITS, with_unit
from wattlaw.analysis.caps.limits import LIMITS, format_limit
from wattlaw.analysis.findings import Findings

#: How the warning begins that tells of variants left out.
_VARIANTS = "The runs are of "


def recommended(findings: Findings) -> Iterator[str]:
    """Say what to run of each workload, why, and the gravest warning."""
    for advice in findings.advice:
        option = advice.recommended
        if option is None:
            yield f"{advice.workload}: nothing is recommended. {advice.reason}"
            continue
        words = f"{advice.workload}: {_setting(findings, advice)}: "
        words += with_unit(option.epoch_time_s, TIME_UNITS)
        if option.energy_j is not None:
            words += f" and {with_unit(option.energy_j, ENERGY_UNITS)}"
        words += " an epoch" + (" (measured once)" if option.repeats == 1 else "")
        yield f"{words}.{_left_out(advice)}"
    of = len(findings.advice)
    chosen = [one for one in findings.advice if one.recommended]
    found = "This setting has " if len(chosen) == 1 else "The setting named for each has "
    reasons = [(one.workload, one.reason) for one in chosen]
    for words in shared([(name, why.replace("It has ", found)) for name, why in reasons], of):
        name, colon, why = words.partition(f": {found}")
        yield f"The setting named for {name} has {why}" if colon else words
    warned = [(one.workload, _others(one)) for one in findings.advice]
    gravest = [(name, warnings[0]) for name, warnings in warned if warnings]
    yield from shared(gravest, of)
    for workload, reason in findings.advice_refusals:
        yield f"{workload}: no advice: {reason}."


def _left_out(advice: Advice) -> str:
    """Say in a few words where other jobs of the workload were left out."""
    found = any(words.startswith(_VARIANTS) for words in advice.warnings)
    return " Runs of other variants of this job were left out." if found else ""


def _others(advice: Advice) -> list[str]:
    return [words for words in advice.warnings if not words.startswith(_VARIANTS)]


def _setting(findings: Findings, advice: Advice) -> str:
    """Return a recommended setting in words, without what is the same in all runs."""
    option = advice.recommended
    if option is None:
        return ""
    words = [f"{option.gpus} {advice.worker}{'s' if option.gpus > 1 else ''}"]
    words += [
        format_limit(kind, option.setting[kind])
        for kind in LIMITS
        if kind in findings.varying_settings
    ]
    if option.setting["local_batch"] is not None:
        local, whole = option.setting["local_batch"], option.setting["global_batch"]
        words.append(f"batch {local} each ({whole} in all)")
    words += [
        str(option.setting[name])
        for name in ("precision", "hardware")
        if name in findings.varying_settings and option.setting[name]
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
