"""What caps and clocks do, in words."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from wattlaw.analysis.caps.comparison import DIFFERENT, SAME, LimitComparison
from wattlaw.analysis.caps.rules import LeastEnergyWithin
from wattlaw.analysis.findings import Findings
from wattlaw.formatting import change, known, plural
from wattlaw.report.tables.limits import KIND, effects_by_workload


def limits(findings: Findings) -> Iterator[str]:
    """Say what limits do to the exponent, to time and to energy, and which is best."""
    for kind, name in KIND.items():
        compared = [one for _, one in findings.comparisons if one.limit == kind]
        if compared:
            yield _tally(compared, name)
    yield from _effects(findings)
    yield from _best(findings)


def _effects(findings: Findings) -> Iterator[str]:
    """Tell what each limit does, over all workloads: the range of their medians."""
    rows = effects_by_workload(findings)
    per = "workload and hardware" if "hardware" in findings.varying_settings else "workload"
    for kind, limit in dict.fromkeys((row["kind"], row["words"]) for row in rows):
        alike = [row for row in rows if (row["kind"], row["words"]) == (kind, limit)]
        against = " or ".join(dict.fromkeys(row["against"] for row in alike))
        words = f"{limit} against {against}: time {_changes(row['time'] for row in alike)}"
        energies = [row["energy"] for row in alike if known(row["energy"])]
        if energies:
            words += f", energy {_changes(energies)}"
        settings = plural(sum(row["settings"] for row in alike), "setting")
        yield f"{words} ({_over(len(alike), per)}{settings})."


def _over(workloads: int, name: str) -> str:
    return "median of " if workloads == 1 else f"{workloads} medians, one per {name}, of "


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
    rule = LeastEnergyWithin().description
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
            f"Best {KIND[str(kind)]} of each setting ({rule}): {chosen} of "
            f"{plural(len(of_kind), 'setting')}; {_sure(sure, len(of_kind))}."
        )


def _sure(sure: int, of: int) -> str:
    """Return for how many settings repeats set the best limit apart from the others."""
    if sure == 0:
        return "repeats set none apart from the others"
    if sure == of:
        return "repeats set it apart from the others in all"
    return f"repeats set it apart from the others in {sure}"
