"""Two sets of runs at the same settings: machines, code versions, before and after a change.

Of each setting with runs on both sides, the ratio of the geometric means over repeats, B / A, with
the 95 % interval of ``metrics.variation``: the noise of runs is pooled over the settings of a
workload. What other days and nodes add is in it, where the sides did not share them.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from wattlaw.analysis.metrics.comparable_runs import (
    ENERGY_WARNINGS,
    release_cautions,
    scope_cautions,
)
from wattlaw.analysis.metrics.estimates import ROUNDING, Interval, Mean
from wattlaw.analysis.metrics.groups import (
    JSON_COLUMNS,
    Group,
    differing_options,
    group_numbers,
    groups,
)
from wattlaw.analysis.metrics.metrics import HOUR_S, SETTINGS
from wattlaw.analysis.metrics.result import Caution, Result, plain
from wattlaw.analysis.metrics.variation import ENOUGH_REPEATS, Variation, variation
from wattlaw.common.errors import BadInput, Refused
from wattlaw.common.formatting import change, names_text, plural
from wattlaw.study.sources import MEASURED, ORIGINS, origin_of, source_of

QUANTITIES = ("time", "energy", "power", "gpu_hours", "metric")
EXCEEDED, KEPT, UNKNOWN = "exceeded", "kept", "cannot tell"
REPEATS, OVER_SETTINGS = "repeats", "settings"
#: Columns of time and energy by unit, in the order of preference.
_IN_UNIT = {
    "epoch": ("epoch_time_s", "energy_per_epoch_j"),
    "sample": ("time_per_sample_s", "energy_per_sample_j"),
    "step": ("step_time_s", "energy_per_step_j"),
    "run": ("time_s", "energy_j"),
}
_OF_MACHINE = ("hardware", "threads_per_worker")
#: Rows that are alike in these are of one run.
_SAME_RUN = ("run_id", "hardware", "launcher", "software", "hosts", "session", "time_s", "energy_j")
_LIMIT = re.compile(rf"\s*({'|'.join(QUANTITIES)})\s*([<>])\s*([+-]?\d{{1,9}}(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True)
class Side(Result):
    """The runs of one side; ``source`` is measured, imported, replayed or simulated."""

    name: str
    source: str
    hardware: tuple[str, ...]
    runs: int
    settings: int


@dataclass(frozen=True)
class Change(Result):
    """A quantity of B relative to A, at a setting or over all common settings.

    ``setting`` is None over all settings; the ratio is then the geometric mean of their ratios.
    ``a`` and ``b`` are geometric means over ``n_a`` and ``n_b`` runs. ``ratio_ci`` covers other
    days and nodes, unless both sides ran there alike, and the scatter that ``interval`` names: of
    ``repeats`` of the workload, or, where it has none, of the ratios between ``settings``.
    """

    properties = ("percent", "percent_ci")

    setting: Group | None
    quantity: str
    unit: str
    a: float | None
    b: float | None
    n_a: int
    n_b: int
    ratio: float
    ratio_ci: Interval | None
    interval: str | None

    @property
    def percent(self) -> float:
        return 100 * (self.ratio - 1)

    @property
    def percent_ci(self) -> Interval | None:
        ends = self.ratio_ci
        return None if ends is None else (100 * (ends[0] - 1), 100 * (ends[1] - 1))

    def __str__(self) -> str:
        ends = self.ratio_ci
        return change(self.ratio) + (f" ({change(ends[0])} to {change(ends[1])})" if ends else "")


@dataclass(frozen=True)
class Check(Result):
    """A limit on a change over all settings; ``verdict`` is exceeded, kept or cannot tell."""

    limit: str
    verdict: str
    change: Change | None

    @property
    def is_judged(self) -> bool:
        return self.change is not None and self.change.ratio_ci is not None

    def __str__(self) -> str:
        if self.change is None:
            return f"{self.limit}: {self.verdict}: no common setting has it on both sides"
        hint = "" if self.is_judged else " without an interval; repeat the runs on both sides"
        return f"{self.limit}: {self.verdict}: {self.change}{hint}"


@dataclass(frozen=True)
class Comparison(Result):
    """The differences between two sides; ``changes`` has those over all settings first.

    ``of_machines`` says that the sides share no hardware, so that settings match without it.
    """

    rows_field = "changes"

    a: Side
    b: Side
    of_machines: bool
    settings: int
    changes: tuple[Change, ...]
    warnings: tuple[Caution, ...]

    @property
    def pooled(self) -> dict[str, Change]:
        return {item.quantity: item for item in self.changes if item.setting is None}

    def check(self, limit: str) -> Check:
        """Judge a limit such as ``energy > +5%``: exceeded if the interval lies beyond it.

        ``BadInput`` if it is not a name of ``QUANTITIES``, ``>`` or ``<``, and a percentage.
        """
        match = _LIMIT.fullmatch(limit.replace("\u2212", "-"))
        if match is None:
            names = ", ".join(QUANTITIES)
            raise BadInput(f"limit {limit!a:.80}; expected 'energy > +5%', with one of {names}")
        quantity, sign, most = match[1], match[2], float(match[3])
        found = self.pooled.get(quantity)
        if found is None or found.percent_ci is None:
            return Check(limit, UNKNOWN, found)
        low, high = found.percent_ci
        if sign == "<":
            low, high, most = -high, -low, -most
        return Check(limit, EXCEEDED if low > most else KEPT if high <= most else UNKNOWN, found)


def compare(a: pd.DataFrame, b: pd.DataFrame, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare two tables of ``run_metrics``.

    Settings match if they are the same in all columns of ``SETTINGS`` but launcher and unit, and
    without hardware and threads if the sides have no hardware in common. Energies are compared
    where both count the same devices. ``Refused`` if no setting has runs on both sides, or machines
    are compared and a side has several.
    """
    warnings: list[Caution] = []
    sides = [_one_origin(rows, name, warnings) for rows, name in zip((a, b), names, strict=True)]
    hardware = [set(rows["hardware"].dropna()) for rows in sides]
    of_machines = all(hardware) and hardware[0].isdisjoint(hardware[1])
    if of_machines and max(map(len, hardware)) > 1:
        raise Refused("a comparison of machines needs runs of one hardware on each side")
    without = ("launcher", "unit", *(_OF_MACHINE if of_machines else ()))
    by = [name for name in SETTINGS if name not in without]
    both = pd.concat([rows.assign(side=i) for i, rows in enumerate(sides)], ignore_index=True)
    table = _values(both).assign(slow_log=0.0)
    # A run that both sides have is one row of their noise, and differs in nothing from itself.
    table = table.set_index(group_numbers(table, [*_SAME_RUN]))
    cells = list(groups(table, by))
    matched = [(setting, rows) for setting, rows in cells if rows["side"].nunique() == 2]
    left_out = _left_out(cells, table, sides, names, by)
    if not matched:
        raise Refused(
            f"{names[0]} and {names[1]} have no done runs at the same setting: {left_out}"
        )
    noise = _Noise.of(table, [*by, "side"], ["workload", *({*_OF_MACHINE} & {*by})])
    labels = _labels([setting for setting, _ in matched])
    changes = [item for label, (_, rows) in zip(labels, matched, strict=True)
               for item in _changes(label, rows, noise)]  # fmt: skip
    by_quantity = ([x for x in changes if x[0].quantity == name] for name in QUANTITIES)
    pooled = [_pool(of_quantity, noise) for of_quantity in by_quantity if of_quantity]
    compared = pd.concat([rows for _, rows in matched])
    of_a, of_b = (
        Side(name, " and ".join(sorted({*rows["launcher"].map(source_of)})),
             tuple(sorted(of_side)), len(rows), rows.groupby(by, dropna=False).ngroups)
        for name, rows, of_side in zip(names, sides, hardware, strict=True)
    )  # fmt: skip
    kept = [*pooled, *(item for item, _ in changes)]
    if left_out:
        text = f"{plural(len(matched), 'setting')} compared. Left out: {left_out}."
        warnings.append(Caution("unmatched", text))
    if same := int(table.index.duplicated().sum()):
        text = f"{plural(same, 'run')} are on both sides, with equal times: no difference."
        if same == len(sides[0]) == len(sides[1]):
            text = f"A and B are the same {plural(same, 'run')}: there is nothing to compare."
        warnings.append(Caution("same-runs", text))
    warnings += _cautions(of_a, of_b, compared, of_machines=of_machines)
    return Comparison(of_a, of_b, of_machines, len(matched), tuple(kept), tuple(warnings))


def compare_commits(runs: pd.DataFrame, table: pd.DataFrame) -> Comparison:
    """Compare the last two git commits of a store; ``table`` is of ``run_metrics``."""
    commits = runs[runs["status"] == "done"].dropna(subset=["git_commit"])
    latest = commits.groupby("git_commit")["started_at"].max().sort_values()
    if len(latest) < 2:
        count = f"{len(latest)} git commits" if len(latest) != 1 else "one git commit"
        raise Refused(f"compare: the done runs are of {count}; two are needed")
    ids = [commits.loc[commits["git_commit"] == commit, "run_id"] for commit in latest.index[-2:]]
    before, after = (table[table["run_id"].isin(of_commit)] for of_commit in ids)
    first, second = (
        f"{commit[:12]}{'-dirty' * commit.endswith('-dirty')}"
        for commit in map(str, latest.index[-2:])
    )
    return compare(before, after, (first, second))


def _one_origin(rows: pd.DataFrame, name: str, warnings: list[Caution]) -> pd.DataFrame:
    """Keep the measured runs of a side, else the replayed, else the simulated ones."""
    if rows.empty:
        raise Refused(f"{name}: no run is done")
    origins = rows["launcher"].map(origin_of)
    kept = min(origins, key=ORIGINS.index)
    if left := int((origins != kept).sum()):
        text = f"{name}: {plural(left, 'run')} that are not {kept} are excluded."
        warnings.append(Caution("origins-excluded", text))
    of_kept: pd.DataFrame = rows[origins == kept]
    return of_kept


def _values(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the columns ``QUANTITIES``, in a unit that both sides of the workload have."""
    tables = []
    for _, of_workload in rows.groupby("workload", dropna=False):
        for unit, (time, energy) in _IN_UNIT.items():
            is_usable = of_workload["unit"] == "run" if unit == "run" else True
            known = of_workload[of_workload[time].notna() & is_usable]
            if known["side"].nunique() == 2 or unit == "run":
                tables.append(
                    known.assign(compared_unit=unit, time=known[time], energy=known[energy])
                )
                break
    table = pd.concat(tables)
    return table.assign(
        power=table["energy"] / table["time"], gpu_hours=table["gpus"] * table["time"] / HOUR_S
    )


def _left_out(
    cells: Sequence[tuple[Group, pd.DataFrame]], table: pd.DataFrame,
    sides: Sequence[pd.DataFrame], names: Sequence[str], by: Sequence[str],
) -> str:  # fmt: skip
    """Return how many settings of each side are not compared, and what the nearest setting of the
    other side has otherwise; empty if all are compared."""
    texts = []
    codes = np.array(
        [
            pd.factorize(pd.Series(values, dtype=object))[0]
            for values in zip(*(setting.values() for setting, _ in cells), strict=True)
        ]
    ).T
    on = np.array([[(of["side"] == side).any() for side in (0, 1)] for _, of in cells], bool)
    on = on.reshape(-1, 2)
    for side, (name, rows) in enumerate(zip(names, sides, strict=True)):
        others, whys = np.flatnonzero(on[:, 1 - side]), Counter[tuple[str, ...]]()
        workloads = set(sides[1 - side]["workload"])
        for own in np.flatnonzero(on[:, side] & ~on[:, 1 - side]):
            differs = codes[others] != codes[own]
            if cells[int(own)][0]["workload"] not in workloads:
                whys["workload",] += 1
            elif len(others):
                whys[_names(by, differs[differs.sum(1).argmin()])] += 1
            else:
                whys["unit",] += 1
        found = [(f"other {names_text(why)}", count) for why, count in whys.most_common()]
        number = group_numbers(rows, by)
        own_runs = table.loc[table["side"] == side, "run_id"]
        is_timed = number.isin(number[rows["run_id"].isin(own_runs)])
        is_of_both = rows["workload"].isin(workloads)
        for why, of in (("other workload", ~is_of_both), ("no time in a unit of both", is_of_both)):
            if count := number[~is_timed & of].nunique():
                found.append((why, count))
        texts += [f"{count} of {name} ({why})" for why, count in found]
    return ", ".join(texts)


def _names(by: Sequence[str], differs: npt.NDArray[np.bool_]) -> tuple[str, ...]:
    names = [name for name, is_other in zip(by, differs, strict=True) if is_other]
    if "local_batch" in names and not {"gpus", "global_batch"}.isdisjoint(names):
        names.remove("local_batch")  # it follows from them
    return tuple("training loop" if name == "train" else name.replace("_", " ") for name in names)


def _labels(settings: Sequence[Group]) -> list[Group]:
    frame = pd.DataFrame(settings)
    for name in set(JSON_COLUMNS) & {*frame}:
        frame[name] = frame[name].map(differing_options(frame[name]), na_action="ignore")
    names = [name for name in frame
             if name in ("workload", "gpus") or frame[name].nunique(dropna=False) > 1]  # fmt: skip
    return [
        {str(key): plain(value) for key, value in row.items()}
        for row in frame[names].to_dict("records")
    ]


@dataclass(frozen=True)
class _Noise:
    """How runs vary, by quantity: those of each job, and all together by days and nodes."""

    of_jobs: Mapping[str, Sequence[Variation]]
    of_all: Mapping[str, Variation]

    @classmethod
    def of(cls, table: pd.DataFrame, setting: Sequence[str], job: Sequence[str]) -> "_Noise":
        runs = table[~table.index.duplicated()]
        without_error = runs.drop(columns="time_error", errors="ignore")

        def varied(name: str, rows: pd.DataFrame) -> Variation:
            return variation(rows[name], group_numbers(rows, setting), rows)

        of_jobs = {}
        for name in QUANTITIES:
            rows = without_error if name in ("power", "metric") else runs
            of_jobs[name] = [varied(name, own) for _, own in rows.groupby([*job], dropna=False)]
        return cls(of_jobs, {name: varied(name, without_error) for name in QUANTITIES[:4]})

    def interval(
        self, name: str, weights: pd.Series, scatter: Mean | None = None
    ) -> Interval | None:
        """Return that of a change by its weights of runs; None if a job has too few repeats.

        ``scatter``, the mean of the logarithms of ratios, replaces the noise of runs.
        """
        weights, means = weights.groupby(level=0).sum(), [scatter] if scatter else []
        if scatter is None:
            jobs = [of for of in self.of_jobs[name] if of.runs.index.isin(weights.index).any()]
            if any(of.repeated < ENOUGH_REPEATS for of in jobs):
                return None
            means = [of.among_repeats(weights) for of in jobs]
        means += [self.of_all[name].beyond_repeats(weights)] if name in self.of_all else []
        low, high = np.exp(Mean.combined(means, [1] * len(means)).interval).tolist()
        return low, high


#: With the weights of runs in the change.
_OfSetting = tuple[Change, pd.Series]


def _changes(setting: Group, rows: pd.DataFrame, noise: _Noise) -> list[_OfSetting]:
    changes, per = [], rows["compared_unit"].iloc[0]
    units = {"time": f"s per {per}", "energy": f"J per {per}", "power": "W",
             "gpu_hours": "GPU-hours", "metric": str(rows["metric_name"].iloc[0])}  # fmt: skip
    scopes = rows["energy_scope"].dropna().nunique()
    kinds = {"energy": scopes, "power": scopes, "metric": rows["metric_name"].nunique()}
    for name in QUANTITIES:
        known = [rows.loc[rows["side"] == i, name].dropna() for i in (0, 1)]
        if kinds.get(name, 1) != 1 or any(of.empty or (of <= 0).any() for of in known):
            continue
        a, b = (float(np.log(of).mean()) for of in known)
        shares = [pd.Series(sign / len(of), index=of.index)
                  for sign, of in zip((-1, 1), known, strict=True)]  # fmt: skip
        weights = pd.concat(shares)
        ends = noise.interval(name, weights)
        change = Change(
            setting, name, units[name], float(np.exp(a)), float(np.exp(b)), len(known[0]),
            len(known[1]), float(np.exp(b - a)), ends, REPEATS if ends else None,
        )  # fmt: skip
        changes.append((change, weights))
    return changes


def _pool(changes: Sequence[_OfSetting], noise: _Noise) -> Change:
    logs, count = np.log([item.ratio for item, _ in changes]), len(changes)
    name, weights = changes[0][0].quantity, pd.concat([own for _, own in changes]) / count
    ends, kind = noise.interval(name, weights), REPEATS
    scatter = Mean.of(logs)
    if ends is None and scatter.variance * count > ROUNDING**2:
        ends, kind = noise.interval(name, weights, scatter), OVER_SETTINGS
    pooled = replace(
        changes[0][0], setting=None, n_a=sum(item.n_a for item, _ in changes),
        n_b=sum(item.n_b for item, _ in changes), ratio=float(np.exp(logs.mean())),
        ratio_ci=ends, interval=kind if ends else None,
    )  # fmt: skip
    return pooled if count == 1 else replace(pooled, unit="", a=None, b=None)


def _cautions(a: Side, b: Side, rows: pd.DataFrame, *, of_machines: bool) -> list[Caution]:
    cautions: list[tuple[str, str, Any]] = [
        ("sources-differ", f"{a.name} is {a.source}, {b.name} is {b.source}: the differences are "
         "also those between the sources.", a.source != b.source),
        (a.source, f"All values are {a.source}: nothing was measured in these runs.",
         a.source == b.source != MEASURED),
        ("machines", f"{a.name} and {b.name} are different hardware ({', '.join(a.hardware)}; "
         f"{', '.join(b.hardware)}): settings match without it.", of_machines),
    ]  # fmt: skip
    energies = rows[rows["energy"].notna()]
    kinds = [{*energies.loc[energies["side"] == i, "energy_is"].dropna()} for i in (0, 1)]
    both = [", ".join(sorted(kind)) or "none" for kind in kinds]
    cautions += [
        ("energies-differ", f"The energies are of different kinds ({a.name}: {both[0]}; {b.name}: "
         f"{both[1]}). Energies of different devices are not compared.", kinds[0] != kinds[1]),
        *((f"energy-{marker}", text, marker in "".join(both) and marker != a.source)
          for marker, text in ENERGY_WARNINGS.items()),
    ]  # fmt: skip
    shown = [Caution(code, text) for code, text, applies in cautions if applies]
    return [*shown, *scope_cautions(rows), *release_cautions(rows)]
