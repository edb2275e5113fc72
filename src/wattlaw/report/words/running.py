"""What to run, in words."""

from collections.abc import Iterator, Sequence

from wattlaw.analysis.advice.advice import Advice
from wattlaw.analysis.advice.words import ENERGY, TIME, told
from wattlaw.analysis.caps.limits import LIMITS, limit_words
from wattlaw.analysis.findings import Findings


def recommended(findings: Findings) -> Iterator[str]:
    """Say what to run of each workload, why, and the gravest warning."""
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
