"""What repeats in one place cannot show: how runs vary between sessions and nodes; slow nodes.

A session is a day (UTC). The logarithm of a run's time or energy is that of its setting, plus a
deviation of its set of nodes, of its session there, and of the run.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.metrics.estimates import LEVEL, ROUNDING, Floats, LeastSquares, Mean
from wattlaw.analysis.metrics.groups import group_numbers
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.result import Caution
from wattlaw.study.sources import origin_of

#: Standard deviations in logs before a store has shown its own, and the degrees of freedom that
#: they count for. Nodes: the same T4 jobs on other nodes of a cluster differ by 3.2 %
#: (`test_the_prior` in tests/analysis/test_variation.py). Sessions: public repeats on other days,
#: of which a tenth differ by more than 4 % (docs/prediction.md, Noise). Runs: between the 1 % of
#: most GPUs and the 2.8 % of these T4 jobs.
PRIOR = {"run": (0.02, 2.0), "session": (0.01, 4.0), "nodes": (0.03, 4.0)}
#: With more repeats beyond the first, runs of a setting vary as they show; with fewer, as those of
#: all settings do, and no less than they show.
_ENOUGH_FREEDOM = 3
#: With as many repeats of all settings beyond the first, ``PRIOR`` of a run does not count: a wrong
#: one would make intervals of few repeats too narrow (`test_intervals_of_few_repeats`).
ENOUGH_REPEATS = 2
#: The probability that a node is named although none is slower by more than ``PRIOR`` of nodes.
_FALSE_NAMES = 0.01
#: A node of which a smaller share is left beside the settings cannot be told from these.
_IDENTIFIED = 0.05
#: Nodes times settings on a set of nodes: with more, a comparison takes a GB and minutes.
_MOST_PLACES = 10_000_000
_SIZE = ["gpus", "nodes"]
#: Runs that are alike in these columns are taken to vary alike.
JOB = ("workload", "hardware", "launcher")


#: A ratio with its 95 % interval.
Ratio = tuple[float, float, float]


@dataclass(frozen=True)
class Variation:
    """How far mean logarithms of settings may be from those on other days and nodes.

    ``variances`` are those of the components ``run``, ``session`` and ``nodes``, with ``freedoms``;
    ``origins`` says what shows each: ``repeats``, ``public data``, or None where it cannot differ.
    ``half`` is half the width of the 95 % interval of each setting's mean logarithm, missing for
    imported runs without repeats. ``repeated`` is the number of repeats beyond the first of each
    setting. ``of_run`` has the variance of a run of its setting, and degrees of freedom.
    """

    variances: Floats
    freedoms: Floats
    origins: tuple[str | None, ...]
    half: Floats
    repeated: int
    placed_runs: pd.DataFrame  # log, slow_log, hosts, session, setting of each run with a value
    of_run: Floats  # shape (2, settings)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """The runs with the numbers of their ``nodes`` and of their ``session`` there."""
        places = self.placed_runs
        # Unknown nodes are shared with no other setting.
        if (unknown := places["hosts"].isna()).any():
            own = (
                places["hosts"].astype(object).mask(unknown, "of " + places["setting"].astype(str))
            )
            places = places.assign(hosts=own)
        nodes, session = (group_numbers(places, by) for by in (["hosts"], ["hosts", "session"]))
        return places.assign(nodes=nodes, session=session)

    def contrast(self, weights: pd.Series) -> Mean:
        """Return the weighted sum of log values of runs; ``weights`` are by the index of runs.

        What runs on the same nodes and in the same session share counts once: it cancels in the
        difference of settings that ran there.
        """
        parts = self.among_repeats(weights), self.beyond_repeats(weights)
        mean = Mean.combined(parts, (1, 1))
        return mean if np.isfinite(self.half).any() else Mean(mean.value, np.nan, 0)

    def among_repeats(self, weights: pd.Series) -> Mean:
        """Return the weighted sum with the variance of runs alone; see ``contrast``."""
        runs = self.runs
        weight = weights.reindex(runs.index, fill_value=0.0).to_numpy(float)
        by_setting = np.bincount(runs["setting"], weight**2, minlength=self.of_run.shape[1])
        is_own = self.of_run[1] != self.freedoms[0]
        parts = by_setting * self.of_run[0]
        parts = np.array([*parts[is_own], parts[~is_own].sum()])
        squares = (parts**2 / [*self.of_run[1][is_own], self.freedoms[0]]).sum()
        variance = float(parts.sum())
        return Mean(float(weight @ runs["log"]), variance, variance**2 / squares if squares else 1)

    def beyond_repeats(self, weights: pd.Series) -> Mean:
        """Return the part of ``contrast`` that repeats in one place cannot show; its value is 0."""
        weight = weights.reindex(self.runs.index, fill_value=0.0).to_numpy(float)
        parts = self._shared(weight)
        if not (variance := float(parts.sum())) > 0:
            return Mean(0.0, 0.0, 1)
        return Mean(0.0, variance, float(variance**2 / (parts**2 / self.freedoms[1:]).sum()))

    def _shared(self, weight: Floats) -> Floats:
        sums = [np.bincount(self.runs[name], weight) for name in ("session", "nodes")]
        return np.array([own @ own for own in sums]) * self.variances[1:]

    def ratio(self, first: "pd.Index[Any]", other: "pd.Index[Any]") -> Ratio:
        """Return the ratio of the geometric means of two sets of runs, with its 95 % interval.

        It reaches to the ratio without what a slow node adds. Missing if a set has no value.
        """
        known = [runs.intersection(self.runs.index) for runs in (first, other)]
        if not all(map(len, known)):
            return np.nan, np.nan, np.nan
        if known[0].equals(known[1]):
            return 1.0, 1.0, 1.0
        shares = [pd.Series(1 / len(runs), index=runs) for runs in known]
        weights = shares[0].sub(shares[1], fill_value=0.0)
        mean = self.contrast(weights)
        slower = float((weights * self.runs["slow_log"]).sum())
        low, high = mean.interval
        ends = np.exp([mean.value, low - max(slower, 0.0), high - min(slower, 0.0)]).tolist()
        return ends[0], ends[1], ends[2]


def variation(quantity: pd.Series, setting: pd.Series, rows: pd.DataFrame) -> Variation:
    """Return how a quantity varies: nested analysis of variance by unweighted means, shrunk.

    Each sum of squares, less what finer components add to it (Searle, Casella & McCulloch 1992,
    "Variance Components", chapter 3), is pooled with that of ``PRIOR``: a scaled inverse chi-square
    posterior. Degrees of freedom of a mean are Satterthwaite's. ``setting`` numbers the settings
    from 0 on. ``rows`` has the columns hosts, session, slow_log, launcher and nodes, and may have
    ``time_error``, of the quantity.
    """
    absent, known = _absent(rows), quantity > 0
    places = rows[["slow_log", "hosts", "session"]].assign(setting=setting)
    places["placed"] = group_numbers(places, ["setting", "hosts"])
    cell = group_numbers(places, ["placed", "session"])
    logs = np.log(quantity[known].to_numpy(float)) - rows.loc[known, "slow_log"].to_numpy(float)
    levels = [level[known] for level in (cell, places["placed"], setting)]
    size = int(setting.max()) + 1
    runs_of = np.bincount(levels[-1], minlength=size).astype(float)
    values, below, units, repeated = logs, np.zeros(len(logs)), np.arange(len(logs)), 0
    variances, freedoms, shares, origins = [], [], [], []
    for (name, (sd, counts_for)), level in zip(PRIOR.items(), levels, strict=True):
        # The units of this component, each of one group: runs, cells, sets of nodes.
        first = np.unique(units, return_index=True)[1]
        group, owner = (own.to_numpy()[first] for own in (level, levels[-1]))
        counts = np.bincount(units)
        groups, number, sizes = np.unique(group, return_inverse=True, return_counts=True)
        means = np.bincount(number, values) / sizes
        deviations = (values - means[number]) ** 2
        squares, freedom = float(deviations.sum()), len(values) - len(groups)
        if name == "run":
            cells_of = np.unique(np.column_stack([group, owner]), axis=0)[:, 1]
            own_squares = np.bincount(owner, deviations, minlength=size)
            own_freedom = runs_of - np.bincount(cells_of, minlength=size)
        if squares <= len(values) * ROUNDING**2:
            freedom = 0  # identical repeats show nothing
        squares -= float((below * (1 - 1 / sizes[number])).sum())
        weight = 0.0 if name == "run" and freedom >= ENOUGH_REPEATS else counts_for
        prior = 0.0 if name in absent else weight * sd**2
        variance = max(
            squares / freedom if name == "run" and freedom else 0.0,
            (prior + max(0.0, squares)) / (weight + freedom),
        )
        variances.append(variance)
        freedoms.append(weight + freedom)
        origins.append("repeats" if freedom else "public data" if prior else None)
        with np.errstate(invalid="ignore", divide="ignore"):
            shares.append(np.bincount(owner, counts**2.0, minlength=size) / runs_of**2)
        repeated += freedom
        below = np.bincount(number, below + variance) / sizes**2.0
        values, units = means, np.searchsorted(groups, level.to_numpy())
    of_settings, freedom_of = (
        np.repeat(np.array(column)[:, None], size, axis=1) for column in (variances, freedoms)
    )
    # A setting whose repeats differ by more has that variance, with one degree of freedom of others
    # (two repeats alone: a factor of 13); one with enough repeats its own, unless identical.
    own_variance = own_squares / np.maximum(own_freedom, 1)
    has_enough = (own_freedom > _ENOUGH_FREEDOM) & (own_squares > runs_of * ROUNDING**2)
    of_settings[0] = np.where(has_enough, 0.0, of_settings[0]).clip(min=own_variance)
    freedom_of[0] = np.select(
        [has_enough, own_variance > variances[0]],
        [own_freedom, np.fmin(own_freedom + 1, freedom_of[0])],
        freedom_of[0],
    )
    # A run varies no less than its own steps leave its mean unknown.
    own = rows.get("time_error", 0.0 * quantity)[known].fillna(0.0).pow(2).groupby(levels[-1])
    of_settings[0] = np.fmax(of_settings[0], own.mean().reindex(range(size), fill_value=0.0))
    parts = np.array(shares) * of_settings
    total = parts.sum(0)
    of_mean = total**2 / (parts**2 / freedom_of).sum(0)
    half = np.sqrt(total) * special.stdtrit(of_mean, (1 + LEVEL) / 2)
    if not repeated and "imported" in set(rows["launcher"]):
        half = half * np.nan  # nothing says in what these runs differ
    placed_runs = places[known].assign(log=np.log(quantity[known].to_numpy(float)))
    return Variation(
        np.array(variances), np.array(freedoms), tuple(origins), half, repeated, placed_runs,
        of_run=np.array([of_settings[0], freedom_of[0]]),
    )  # fmt: skip


def variations(
    table: pd.DataFrame, names: Sequence[str]
) -> Iterator[tuple[Hashable, dict[str, Variation]]]:
    """Yield how quantities vary among runs that are alike in ``JOB``, with the index of each run.

    Energies of a setting that count different things show nothing.
    """
    settings = [name for name in SETTINGS if name in table]
    jobs = [name for name in JOB if name in table]
    for _, rows in with_slow_nodes(table).groupby(jobs, dropna=False):
        setting = group_numbers(rows, settings)
        alike = rows["energy_is"].groupby(setting).transform("nunique") <= 1
        varied = {
            name: variation(rows[name].where(alike | ("energy" not in name)), setting, rows)
            for name in names
        }
        yield from ((run, varied) for run in rows.index)


def _absent(rows: pd.DataFrame) -> set[str]:
    """Return the components that cannot differ between runs, unless they show it."""
    launchers = set(rows["launcher"])
    if {origin_of(launcher) for launcher in launchers} == {"simulated"}:
        return {"session", "nodes"}
    is_one_machine = rows["nodes"].max() == rows["hosts"].nunique() == 1
    return {"nodes"} if launchers == {"local"} and is_one_machine else set()


def shared_deviations(
    rows: pd.DataFrame, varied: Sequence[Variation]
) -> dict[Hashable, tuple[float, ...]]:
    """Return what the mean of a setting's runs shares with other settings, by nodes and session.

    The values are standard deviations in logs, of each quantity in ``varied``.
    """
    return {
        key: tuple(float(share * np.sqrt(own.variances[at])) for own in varied)
        for at, by in ((1, ["hosts", "session"]), (2, ["hosts"]))
        for key, share in rows.groupby(by)["run_id"].size().div(len(rows)).items()
    }


@dataclass(frozen=True)
class SlowNode:
    """A node, or nodes that only ran together, slower than ``peers`` others by a share."""

    names: tuple[str, ...]
    slower: float
    interval: tuple[float, float]  # 90 %
    peers: int

    @property
    def caution(self) -> Caution:
        low, high = (100 * end for end in self.interval)
        who = f"Node {self.names[0]} is"
        if len(self.names) > 1:
            who = f"One of nodes {', '.join(self.names)}, which ran only together, is"
        text = (
            f"{who} {100 * self.slower:.0f} % slower (90 % interval {low:.0f} to {high:.0f} %) "
            f"than the other {self.peers}; repeat its runs elsewhere."
        )
        return Caution("slow-node", text)


def slow_nodes(rows: pd.DataFrame) -> tuple[list[SlowNode], pd.Series]:
    """Return nodes slower than their peers by more than the noise; of each run, by how much in log.

    A run is as fast as its slowest node: hosts of one run cannot be compared, only runs can. Means
    of a setting on one set of nodes are compared with those on others and, after effects of
    settings, with other settings. The node with the largest t is named if it is significantly
    slower than nodes usually are (Bonferroni, one-sided), then the next.
    """
    slower = pd.Series(0.0, index=rows.index)
    table = rows[(rows["time_s"] > 0) & rows["hosts"].notna()]
    if table["hosts"].nunique() < 2:
        return [], slower
    logs = np.log(table["time_s"].to_numpy(float))
    table = table.assign(y=logs, setting=group_numbers(table, SETTINGS))
    cells = table.groupby(["setting", "hosts"], as_index=False).agg(
        {"y": "mean", **dict.fromkeys(SETTINGS, "first")}
    )
    if len(cells) * cells["hosts"].str.split(",").explode().nunique() > _MOST_PLACES:
        return [], slower
    theta, surface, lost = _effects_of_settings(cells)

    def transformed(columns: Floats) -> Floats:
        own = pd.DataFrame(columns)
        means = own.groupby(cells["setting"]).transform("mean")
        return np.asarray(own - means.mul(theta, axis=0), dtype=float)

    ran = cells["hosts"].str.get_dummies(",")
    y, design = transformed(cells[["y"]].to_numpy(float)), transformed(surface)
    members, found = ran.to_numpy(float, copy=True), list[tuple[str, ...]]()
    while (freedom := len(cells) - lost - len(found) - 1) > 0:
        own = transformed(members)
        left = np.column_stack([y, own])
        left = left - design @ np.linalg.lstsq(design, left, rcond=None)[0]
        norm = (left[:, 1:] ** 2).sum(0)
        is_known = (norm > _IDENTIFIED * (own**2).sum(0)) & (members.sum(0) > 1)
        if not is_known.any():
            break
        norm = np.where(is_known, norm, 1.0)
        log = left[:, 0] @ left[:, 1:] / norm
        error = np.sqrt(np.maximum((left[:, 0] ** 2).sum() - log**2 * norm, 0.0) / freedom / norm)
        t = (log - PRIOR["nodes"][0]) / np.maximum(error, ROUNDING)
        best = int(np.where(is_known, t, -np.inf).argmax())
        distinct = len(np.unique(members[:, is_known], axis=1).T)
        if distinct * special.stdtr(freedom, -t[best]) > _FALSE_NAMES:
            break
        column = members[:, [best]].copy()
        found.append(tuple(ran.columns[(members == column).all(0)]))
        design = np.column_stack([design, transformed(column)])
        members *= 1 - column  # its runs are as fast as it is, whatever their other nodes are
    if not found:
        return [], slower
    last, freedom = LeastSquares(design, y[:, 0]), len(cells) - lost - len(found)
    half = float(special.stdtrit(freedom, 0.95)) * np.sqrt(
        last.squares / freedom * np.diag(last.gram)
    )
    peers, named = ran.shape[1] - sum(map(len, found)), []
    for at, names in enumerate(found, start=len(half) - len(found)):
        low, middle, high = np.expm1(last.params[at] + half[at] * np.array([-1, 0, 1])).tolist()
        named.append(SlowNode(names, middle, (low, high), peers))
    for item in reversed(named):  # the first one named counts
        ran_on = rows["hosts"].str.split(",").map({*item.names}.issubset, na_action="ignore")
        slower = slower.mask(ran_on.eq(other=True), float(np.log1p(item.slower)))
    return named, slower


def with_slow_nodes(table: pd.DataFrame) -> pd.DataFrame:
    """Return rows of runs with ``slow_log``: how much higher their log time is for a slow node."""
    if "slow_log" in table:
        return table
    of_workloads = [slow_nodes(rows)[1] for _, rows in table.groupby("workload", dropna=False)]
    return table.assign(slow_log=pd.concat(of_workloads) if of_workloads else 0.0)


def _effects_of_settings(cells: pd.DataFrame) -> tuple[pd.Series, Floats, int]:
    """Return the share of a setting's mean to subtract, its effects, and degrees of freedom lost.

    This is the random-effects estimator of panels (Swamy & Arora 1972, Econometrica 40, 261-275),
    of which the panels are settings. Times may differ with each number of GPUs, each combination of
    limits and the like, and smoothly with the batch; what is left of a setting's mean is random.
    """
    rest = [name for name in SETTINGS if name not in (*_SIZE, "global_batch", "local_batch")]
    factors = [pd.get_dummies(group_numbers(cells, by), dtype=float) for by in (_SIZE, rest)]
    batch = np.log(cells["local_batch"].fillna(1.0).to_numpy(float))
    surface = np.column_stack([*factors, batch, batch**2])
    by_setting, first = cells.groupby("setting")["y"], ~cells["setting"].duplicated()
    middle, counts = by_setting.transform("mean"), by_setting.transform("size")
    between = LeastSquares(surface[first], middle[first].to_numpy())
    theta, repeated = pd.Series(0.0, index=cells.index), int((~first).sum())
    if between.freedom == 0:  # as many effects as settings: only a setting's own runs compare
        return theta + 1, np.zeros((len(cells), 1)), int(first.sum())
    if repeated:
        within = max(float(((cells["y"] - middle) ** 2).sum()) / repeated, ROUNDING**2)
        misfit = max(0.0, between.variance - within * float((1 / counts[first]).mean()))
        theta = 1 - (within / (within + counts * misfit)) ** 0.5
    return theta, surface, len(cells[first]) - between.freedom
