"""Which runs a claim is tested on: a group is one workload in one form on one machine.

``on_groups``, ``on_main_series``, ``on_every_series`` and ``on_pairs`` return a function that
tests the groups of measurements.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations, permutations

import pandas as pd

from wattlaw.analysis.laws.limit_effects import LIMITS, Limit, without_limits
from wattlaw.analysis.laws.series import FIXED, law_refusals
from wattlaw.analysis.metrics.estimates import ERROR
from wattlaw.analysis.metrics.groups import JSON_COLUMNS, differing_options, groups
from wattlaw.analysis.metrics.metrics import ESTIMATED, SETTINGS, WHY_NO_LAW
from wattlaw.common.errors import Refused
from wattlaw.common.scopes import DEVICES
from wattlaw.study.labels import group_label
from wattlaw.study.sources import MEASURED, origin_of
from wattlaw_papers.claims import effects
from wattlaw_papers.claims.verdicts import Case, Cases, Check, Measurements, Within

_JOB = tuple(name for name in FIXED if name not in (*LIMITS, "dataset_fraction"))
_RUNS = [
    "run_id", *SETTINGS, "time_s", "energy_j", "energy_is", "energy_verdict", "energy_requested",
    "gpu_hours", "energy_per_gpu_hour_j", "samples_per_gpu_hour", "steps_per_gpu_hour",
    "sm_util_mean", "sm_util_cv", "mem_util_mean", "mem_util_cv",
]  # fmt: skip
_SERIES = [*_RUNS, "rule", "batch", "fraction_per_gpu", "series", "family"]

Checks = Callable[[pd.DataFrame], Iterable[Check]]


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in GPUs, batch, limits, data set and repeat alone."""

    workload: str
    hardware: str
    label: str
    runs: pd.DataFrame  # metrics.metrics.run_metrics
    series: pd.DataFrame  # laws.series.scaling_series

    def main_series(self) -> pd.DataFrame:
        """Return the series that represents the group: without limits (or with the highest), of
        constant local batch if there is one, of the largest data set, then of the most and largest
        GPU counts and the most runs."""
        rows = without_limits(self.series[self.series["fraction_per_gpu"].isna()])
        of_local_batch = rows[rows["rule"] == "local_batch"]
        rows = of_local_batch if len(of_local_batch) else rows
        if rows.empty:
            raise Refused("no series of several GPU counts: run the same setting on 3 or more")
        return max(
            (series for _, series in rows.groupby("series")),
            key=lambda series: (
                float(series["dataset_fraction"].iloc[0]), series["gpus"].nunique(),
                float(series["gpus"].max()), len(series),
            ),
        )  # fmt: skip

    def limit_series(self, limit: Limit) -> pd.DataFrame:
        """Return the main series and those that differ from it in one limit alone."""
        main = self.main_series()
        in_family = self.series["family"] == main["family"].iloc[0]
        rows = self.series[in_family & (self.series["rule"] == main["rule"].iloc[0])]
        return effects.varying_only(rows, limit).reset_index(drop=True)


def run_groups(measured: Measurements, *names: str) -> list[RunGroup]:
    every = _all_groups(measured)
    return [group for group in every if not names or matches_name(group.workload, *names)]


@lru_cache(maxsize=1)
def _all_groups(measured: Measurements) -> tuple[RunGroup, ...]:
    # Grouping a frame of all columns is slow.
    runs = measured.runs.loc[law_refusals(measured.runs).isna(), _RUNS]
    shortened = runs.assign(
        **{name: runs[name].map(differing_options(runs[name])) for name in JSON_COLUMNS}
    )
    varying = [name for name in _JOB if runs[name].nunique(dropna=False) > 1]
    result = []
    for group, rows in groups(runs, _JOB):
        varying_values = shortened.loc[rows.index[0], varying].to_dict()
        label = group_label({"workload": group["workload"]} | varying_values)
        series = measured.series.loc[measured.series["run_id"].isin(rows["run_id"]), _SERIES]
        result.append(RunGroup(group["workload"], str(group["hardware"]), label, rows, series))
    return tuple(result)


def describe_runs(rows: pd.DataFrame, *, energy: bool = False) -> str:
    least, most = int(rows["gpus"].min()), int(rows["gpus"].max())
    span = f"{least} GPU{'s' * (most > 1)}" if least == most else f"{least} to {most} GPUs"
    origins = {origin_of(launcher) for launcher in rows["launcher"]} - {MEASURED}
    text = f"{' '.join([str(len(rows)), *sorted(origins)])} run{'s' * (len(rows) > 1)}, {span}"
    kinds = sorted(rows["energy_is"].dropna().unique()) if energy else []
    if not kinds:
        return text
    text += f", energy of {'; '.join(kinds)}"
    asked = rows["energy_requested"].iloc[0]
    if asked == DEVICES and any(kind.partition(",")[0] != asked for kind in kinds):
        text += f", where the study counted {asked}"
    return text


def matches_name(workload: str, *names: str) -> bool:
    """Say whether a name is a word of a workload's, in any case: ``resnet-50`` is ``resnet50``,
    ``inceptionv3`` is ``inception`` with a version, and ``roberta`` is not ``bert``."""
    parts = ("[^a-z0-9]*".join(re.findall("[a-z]+|[0-9]+", name.lower())) for name in names)
    words = (f"(?<![a-z0-9]){each}(v[0-9]+)?(?![a-z0-9])" for each in parts)
    return any(re.search(word, workload.lower()) for word in words)


def on_groups(
    select: Callable[[RunGroup], pd.DataFrame], checks: Checks, *names: str, hardware: str = "",
    but: str | None = None, energy: bool = False,
) -> Cases:  # fmt: skip
    """Test the rows that ``select`` returns of each group, on hardware whose name contains
    ``hardware``, and of workloads other than ``but``."""
    return lambda measured: [
        make_case(group.workload, group.label, partial(select, group), checks, energy=energy)
        for group in run_groups(measured, *names)
        if hardware in group.hardware.lower()
        and not (but is not None and matches_name(group.workload, but))
    ]


on_main_series = partial(on_groups, RunGroup.main_series)


def on_every_series(rule: str, checks: Checks, *names: str, grows: bool = False) -> Cases:
    """Test every series of a batch rule that has no limits, with or without growing data."""

    def cases(measured: Measurements) -> Iterator[Case]:
        for group in run_groups(measured, *names):
            has_growth = group.series["fraction_per_gpu"].notna()
            rows = group.series[(group.series["rule"] == rule) & (has_growth == grows)]
            for label, series in without_limits(rows).groupby("series", sort=True):
                name = str(label)
                name = name if name.startswith(group.workload) else f"{group.workload}, {name}"
                yield make_case(group.workload, name, series, checks)

    return lambda measured: [*cases(measured)]


def on_pairs(
    are_pair: Callable[[RunGroup, RunGroup], bool], select: Callable[[RunGroup], pd.DataFrame],
    checks: Checks, *, ordered: bool = False, shared_counts: bool = False, energy: bool = False,
) -> Cases:  # fmt: skip
    """Test the rows that ``select`` returns of both groups of each pair, 0 and 1 in ``which``; with
    ``ordered`` in both orders, with ``shared_counts`` at GPU counts of both."""

    def rows(pair: tuple[RunGroup, RunGroup]) -> pd.DataFrame:
        parts = [select(group).assign(which=i) for i, group in enumerate(pair)]
        both = pd.concat(parts, ignore_index=True)
        if shared_counts:
            both = both[both.groupby("gpus")["which"].transform("nunique") == len(pair)]
        if both.empty:
            raise Refused("no GPU count that both have")
        return both

    return lambda measured: [
        make_case(
            ", ".join(dict.fromkeys(group.workload for group in pair)),
            " and ".join(group.label for group in pair), partial(rows, pair), checks, energy=energy,
        )
        for pair in (permutations if ordered else combinations)(run_groups(measured), 2)
        if are_pair(*pair)
    ]  # fmt: skip


def are_models(first: RunGroup, other: RunGroup) -> bool:
    return first.workload != other.workload and first.hardware == other.hardware


def on_models(first: Sequence[str], others: Sequence[str], checks: Checks) -> Cases:
    """Test the main series of a model beside those of others, at the GPU counts of both."""

    def are_pair(one: RunGroup, other: RunGroup) -> bool:
        are_named = matches_name(one.workload, *first) and matches_name(other.workload, *others)
        return are_models(one, other) and are_named

    return on_pairs(are_pair, RunGroup.main_series, checks, ordered=True, shared_counts=True)


def per_doubling(
    name: str, label: str, y: str, low: float = -math.inf, high: float = math.inf
) -> Checks:
    """Return the test that the change of ln ``y`` per ln GPUs lies between two bounds."""

    def checks(rows: pd.DataFrame) -> list[Check]:
        slope = effects.scaled(effects.exponent(rows, y), -1.0)
        return [Within(name, label, slope, low, high, effects.growth, "{:+.1%}")]

    return checks


def first_to_last(
    name: str, what: str, y: str, least: float, *, reach: float, up_to: float = math.inf
) -> Checks:
    """Return the test that ``y`` changes (a time falls, all else rises) by a factor of ``least`` or
    more up to the largest count, or ``up_to``. More GPUs may still bring more: too small a factor
    contradicts only if the counts span a factor of ``reach``."""
    sign = -1.0 if y == effects.TIME else 1.0

    def checks(rows: pd.DataFrame) -> Iterator[Check]:
        known = effects.require_measured(rows[rows["gpus"] <= up_to], y)
        first, last = int(known["gpus"].min()), int(known["gpus"].max())
        label = f"{what} from {first} to {last} GPUs"
        effect = effects.contrast(known, y, "gpus", {first: -sign, last: sign})
        if effect.bounds(ERROR)[0] < math.log(least) and last < reach * first:
            found = f"{label} {math.exp(effect.estimate):.3g}, a factor of {last / first:g} in GPUs"
            raise Refused(f"{found}: measure counts that span a factor of {reach:g}")
        yield Within(name, label, effect, math.log(least), show=math.exp)

    return checks


def make_case(
    workload: str,
    label: str,
    rows: pd.DataFrame | Callable[[], pd.DataFrame],
    checks: Checks,
    *,
    energy: bool = False,
) -> Case:
    try:
        selected = rows() if callable(rows) else rows
        if energy and selected["energy_is"].str.contains(ESTIMATED, na=False).any():
            raise Refused(WHY_NO_LAW)
        counted = describe_runs(selected, energy=energy)
        simulated = bool((selected["launcher"].map(origin_of) == "simulated").any())
        return Case(workload, label, tuple(checks(selected)), counted, simulated=simulated)
    except Refused as refused:
        return Case(workload, label, refusal=str(refused))
