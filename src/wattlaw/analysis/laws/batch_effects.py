"""Quality against global batch, and the batch beyond which it falls.

Huber et al. 2025 find that accuracy falls beyond a global batch of 8192 for ResNet50. Here the fall
is a finding of Hsu's multiple comparisons with the best, whose intervals hold for all batches
together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.metrics.estimates import ERROR, LEVEL, Floats, Mean
from wattlaw.analysis.metrics.groups import Group, groups
from wattlaw.analysis.metrics.metrics import direction
from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import Refused

FALLS, NO_FALL, CANNOT_TELL = "falls", "no fall seen", "cannot tell"
DIVERGED = "diverged"
#: A loss of at most this share of the best is no fall; MLPerf Inference requires of a
#: reduced-precision model 99 % of the reference's quality.
MARGIN = 0.01
#: Settings that change what is learned; caps, clocks, GPUs and launchers do not.
LEARNING = ("workload", "options", "train", "precision", "dataset_fraction")
_BY = [*LEARNING, "hardware", "epochs_trained", "metric_name"]
_NUMBERS = ["worse_by", "worse_by_low", "worse_by_high", "p_value"]
_MEANS = ["global_batch", "n", "diverged", "mean", "sd", *_NUMBERS, "verdict"]
_NODES = 64
_RESOLUTION = 1e-10  # of a quantile
_LEARNING_AND_BATCH = [*LEARNING, "global_batch"]
_EPOCHS = ["epochs", "epochs_low", "epochs_high"]


@dataclass(frozen=True)
class BatchQuality(Result):
    """Quality against global batch of the runs that share the settings in ``LEARNING``.

    ``means`` has one row per batch: ``n``, the repeats with a quality; ``diverged``, those without;
    ``mean`` and ``sd`` of the metric over the ``n``; ``worse_by``, the difference from the best of
    the other batches in the metric's unit, positive if worse, with its 95 % interval; ``p_value``
    of "this batch is the best"; ``verdict``: ``worse``, ``holds`` (within the margin of the best,
    none diverged), ``cannot tell`` or ``diverged`` (all of them).
    """

    rows_field = "means"

    group: Group  # LEARNING, hardware, epochs_trained, metric_name
    better: str | None  # higher | lower
    verdict: str  # FALLS | NO_FALL | CANNOT_TELL
    sentence: str
    best_batch: int | None
    falls_beyond: int | None  # the largest batch not shown to be worse than the best
    falls_from: int | None  # the next one: this and all larger batches are worse, or diverged
    holds_to: int | None  # from the best up to this batch, quality is shown to be within the margin
    means: pd.DataFrame

    @property
    def known_to(self) -> int | None:
        if self.verdict == NO_FALL:
            return int(self.means["global_batch"].max())
        return self.falls_beyond if self.verdict == FALLS else self.holds_to

    def warning(self, global_batch: float) -> str | None:
        batches = self.means["global_batch"]
        if self.verdict == FALLS and global_batch > (self.falls_beyond or 0):
            return self.sentence
        if diverged := _divergence_text(self.means[batches == global_batch]):
            return diverged
        if self.verdict == FALLS:
            return None
        if batches.empty or global_batch <= (self.holds_to or batches.min()):
            return None
        if self.verdict == NO_FALL:
            return f"{self.sentence}; larger batches, such as {global_batch:g}, were not measured"
        return self.sentence


def quality_by_batch(table: pd.DataFrame) -> tuple[BatchQuality, ...]:
    """Find up to which global batch the quality of each group of runs holds, and where it falls.

    Runs of the same repeat and global batch on other GPU counts, caps or clocks share a seed and
    most of what is learned, so they are averaged to one value.

    Verdict ``falls``: a batch and all that are larger are worse than the best with 95 % confidence,
    and their loss may exceed the margin. ``no fall seen``: the loss at the largest batch is within
    the margin with that confidence, and no run diverged from the best batch on.

    A run diverged if it was evaluated (it has an ``eval_time_s``, a ``loss``, or an infinite
    metric) and has no finite metric, while others of its group have one. A repeat of which any run
    diverged, on any number of GPUs, has no quality.
    """
    known = table[table["global_batch"].notna()]
    return tuple(_group_quality(*item) for item in groups(known, _BY))


def _group_quality(group: Group, runs: pd.DataFrame) -> BatchQuality:
    better = direction(group["metric_name"])
    values, means = _means(runs)
    try:
        if values.empty:
            raise Refused("no run has a quality; evaluate (measure.evaluate)")
        if (means["n"] > 0).sum() < 2:
            raise Refused("one global batch only; measure others")
        if better is None:
            name = group["metric_name"] or "the metric"
            raise Refused(f"{name} may be better high or low")
        means = _compare_batches(values, means, better)
    except Refused as refusal:
        why = "; ".join(filter(None, (str(refusal), _divergence_text(means))))
        sentence = f"cannot tell whether quality falls with the global batch: {why}"
        none = dict.fromkeys(("best_batch", "falls_beyond", "falls_from", "holds_to"))
        return BatchQuality(group, better, CANNOT_TELL, sentence, **none, means=means)
    return _with_verdict(group, means, better)


def _means(runs: pd.DataFrame) -> tuple[pd.Series, pd.DataFrame]:
    by = ["global_batch", "study", "repeat"]
    value = runs["metric"].astype(float)
    finite = value.where(np.isfinite(value))
    evaluated = runs["eval_time_s"].notna() | runs["loss"].notna() | value.notna()
    rows = runs[by].assign(value=finite, diverged=evaluated & finite.isna())
    repeats = rows[evaluated].groupby(by, dropna=False)
    outcome, failed = repeats["value"].mean(), repeats["diverged"].any()
    values, diverged = outcome[~failed], failed.groupby(level="global_batch").sum()
    if not finite.notna().any():  # a metric that no run has, has not been recorded
        values, diverged = outcome.dropna(), diverged.iloc[:0]
    by_batch = values.groupby(level="global_batch")
    means = pd.DataFrame({"mean": by_batch.mean(), "sd": by_batch.std()}).reindex(diverged.index)
    means = means.assign(n=by_batch.size().reindex(diverged.index, fill_value=0), diverged=diverged)
    means = means.reset_index().reindex(columns=_MEANS)
    types = {"global_batch": int, "n": int, "diverged": int, "verdict": object}
    return values, means.astype(types)


def _divergence_text(means: pd.DataFrame) -> str:
    batches = means[means["diverged"] > 0]
    counts = zip(batches["diverged"], batches["n"], batches["global_batch"], strict=True)
    texts = [f"{lost} of {n + lost} repeats at {batch}" for lost, n, batch in counts]
    return f"{', '.join(texts)} diverged" if texts else ""


def _compare_batches(values: pd.Series, means: pd.DataFrame, better: str) -> pd.DataFrame:
    sign = 1.0 if better == "higher" else -1.0
    by_batch = (sign * values.astype(float)).groupby(level="global_batch")
    best = compare_with_best([np.asarray(of_batch, dtype=float) for _, of_batch in by_batch])
    best_other = np.array([best["mean"].drop(i).max() for i in best.index])
    compared = means["n"] > 0
    holds = -best["low"] <= MARGIN * abs(best["mean"].max())
    holds &= (means.loc[compared, "diverged"] == 0).to_numpy()
    means = means.assign(verdict=DIVERGED).astype(dict.fromkeys(_NUMBERS, float))
    means.loc[compared, _NUMBERS] = np.column_stack(
        [best_other - best["mean"], -best["high"], -best["low"], best["p_value"]]
    )
    verdicts = np.where(holds, "holds", np.where(best["high"] < 0, "worse", CANNOT_TELL))
    means.loc[compared, "verdict"] = verdicts
    return means


def _with_verdict(group: Group, means: pd.DataFrame, better: str) -> BatchQuality:
    batches, verdicts = means["global_batch"].tolist(), means["verdict"].tolist()
    best = int(np.nanargmin(means["worse_by"].to_numpy(float)))
    last = max(i for i, verdict in enumerate(verdicts) if verdict not in ("worse", DIVERGED))
    # Diverged runs do not hide a fall of quality, but do not show one by themselves either.
    worse = [i for i in range(last + 1, len(batches)) if verdicts[i] == "worse"]
    holding = list(takewhile(lambda i: verdicts[i] == "holds", range(best, len(batches))))
    name = group["metric_name"] or "quality"
    if worse:
        verdict, row = FALLS, means.iloc[worse[0]]
        text = (
            f"{name} falls beyond global batch {batches[last]}: at {batches[worse[0]]} it is worse "
            f"than the best by {row['worse_by']:.3g} ({row['worse_by_low']:.3g} to "
            f"{row['worse_by_high']:.3g})"
        )
    elif verdicts[-1] == "holds" and not means["diverged"].iloc[best:].any():
        verdict = NO_FALL
        text = (
            f"no fall of {name} by more than {MARGIN:.3g} of the best is seen up to global batch "
            f"{batches[-1]}"
        )
    else:
        verdict, text = CANNOT_TELL, f"cannot tell whether {name} falls with the global batch: "
        text += (
            "runs diverged"
            if means["diverged"].iloc[best:].any()
            else f"at {batches[-1]} it may be worse than the best by up to "
            f"{means['worse_by_high'].iloc[-1]:.3g}; measure more repeats"
        )
    if diverged := _divergence_text(means):
        text += f"; {diverged}"
    if (epochs := group["epochs_trained"]) is not None:
        text += f", after {epochs:g} epoch{'s'[: epochs > 1]} of training"
    return BatchQuality(
        group, better, verdict, text,
        best_batch=batches[best],
        falls_beyond=batches[last] if worse else None,
        falls_from=batches[last + 1] if worse else None,
        holds_to=batches[holding[-1]] if holding else None,
        means=means,
    )  # fmt: skip


def compare_with_best(samples: Sequence[Floats]) -> pd.DataFrame:
    """Compare each sample's ``mean`` with the best of the others, bigger being better.

    ``low`` and ``high`` bound mean_i - max over j != i of mean_j. Which of the means have a high
    below 0, so are not the best, and all ``low`` hold together at 95 %.

    Hsu's multiple comparisons with the best (J. C. Hsu 1996, "Multiple Comparisons: Theory and
    Methods", chapter 4), on the one-sided comparisons with a control of C. W. Dunnett 1955.

    With s^2 the variance pooled over the k samples, n_i their sizes and d_j the 95 % quantile of
    the greatest of the k - 1 t statistics against sample j, the bound of i below j is L_ij =
    mean_i - mean_j - d_j s sqrt(1/n_i + 1/n_j). Then high_j = min over i of -L_ij, and low_i
    = min(0, min of L_ij over those j != i with high_j > 0). Assumes independent, normal values of
    one variance. Refused with fewer than two samples, or without repeats that differ.
    """
    if len(samples) < 2:
        raise Refused("a comparison needs at least two samples")
    sizes = np.array([len(values) for values in samples], dtype=float)
    freedom = int(sizes.sum()) - len(samples)
    if freedom < 1:
        raise Refused("no repeats, so the random variation is unknown; measure repeats")
    mean = np.array([values.mean() for values in samples])
    squares = sum(float(((values - values.mean()) ** 2).sum()) for values in samples)
    if squares <= (1e-12 * np.abs(mean).max()) ** 2:
        raise Refused("all repeats are identical, so the random variation is unknown: change seeds")
    error = np.sqrt(squares / freedom * (1 / sizes[:, None] + 1 / sizes[None, :]))
    difference = mean[:, None] - mean[None, :]
    below = np.full_like(difference, np.inf)  # L_ij
    p_value = np.ones(len(samples))
    for j, size in enumerate(sizes):
        is_other = np.arange(len(sizes)) != j
        load = np.sqrt(sizes[is_other] / (sizes[is_other] + size))
        d = _quantile(tuple(sorted(load)), freedom)
        below[is_other, j] = difference[is_other, j] - d * error[is_other, j]
        t = (difference[is_other, j] / error[is_other, j]).max()
        p_value[j] = 1 - _greatest_below(float(t), load, freedom)
    high = -below.max(axis=0, initial=-np.inf, where=np.isfinite(below))
    candidates = high > 0
    low = np.minimum(0, below[:, candidates].min(axis=1))
    return pd.DataFrame({"mean": mean, "low": low, "high": high, "p_value": p_value})


def _greatest_below(d: float, load: Floats, freedom: int) -> float:
    """Return the probability that all t statistics against one control are at most ``d``.

    Their correlations are products of loads, l_i = sqrt(n_i / (n_i + n_control)), so that given the
    control's mean z and the standard deviation u they are independent: the mean over z and u of
    the product over i of Phi((d u + l_i z) / sqrt(1 - l_i^2)). The integrals are by Gauss
    quadrature: the same value each time, and quicker than random sampling.
    """
    z, u, weights = _nodes(freedom)
    at = (d * u[:, None, None] + load * z[None, :, None]) / np.sqrt(1 - load**2)
    return float(weights @ special.ndtr(at).prod(axis=2) @ weights)


@lru_cache
def _nodes(freedom: int) -> tuple[Floats, Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    share = (nodes + 1) / 2
    chi = np.sqrt(2 * special.gammaincinv(freedom / 2, share))
    return special.ndtri(share), chi / np.sqrt(freedom), weights / 2


@lru_cache
def _quantile(load: tuple[float, ...], freedom: int) -> float:
    loads = np.array(load)
    low, high = 0.0, float(special.stdtrit(freedom, 1 - ERROR / (2 * len(load))))  # Bonferroni
    while high - low > _RESOLUTION:  # halving; scipy.optimize takes longer to import
        middle = (low + high) / 2
        is_below = _greatest_below(middle, loads, freedom) < LEVEL
        low, high = (middle, high) if is_below else (low, middle)
    return (low + high) / 2


def epochs_to_target(
    epochs: pd.DataFrame, target: float, better: Mapping[str, str]
) -> pd.DataFrame:
    """Return after how many epochs each run of ``better`` first reached a target.

    Warm-up epochs count: they train as well. Reached is at least (better ``higher``) or at most
    (``lower``) the target. The columns are ``run_id, epochs_to_target`` (missing when never
    reached), ``reached``.
    """
    evaluated = epochs[(epochs["phase"] == "evaluate") & epochs["metric"].notna()]
    evaluated = evaluated.assign(better=evaluated["run_id"].map(better)).dropna(subset="better")
    metric, higher = evaluated["metric"], evaluated["better"] == "higher"
    reached = (metric >= target).where(higher, metric <= target)
    number = (evaluated["epoch"] + 1).astype(float).where(reached)  # the first epoch is 0
    first = number.groupby(evaluated["run_id"]).min().rename("epochs_to_target")
    return first.to_frame().assign(reached=first.notna()).reset_index()


def epochs_by_batch(table: pd.DataFrame, epochs: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return the epochs to a target quality, one row per global batch of runs that learn alike.

    Refused if no run with the time of an epoch was evaluated with a metric of known direction.
    Runs without a known global batch are left out. The columns are those of ``LEARNING``,
    ``global_batch``, ``runs`` (its repeats, on any GPUs), and ``epochs, epochs_low, epochs_high``:
    their geometric mean with its 95 % interval. It is missing if one repeat did not reach the
    target: ``why`` says so.
    """
    table = table[table["epoch_time_s"].notna()]
    better = table["metric_name"].map(direction, na_action="ignore").set_axis(table["run_id"])
    known = {str(run_id): way for run_id, way in better.dropna().items()}
    runs = table.merge(epochs_to_target(epochs, target, known), on="run_id")
    if runs.empty:
        raise Refused(
            "no run with a metric that is known to be better high or low was evaluated: evaluate "
            "(measure.evaluate), and name a metric such as accuracy or loss"
        )
    rows = []
    for group, repeats in groups(_learning_repeats(runs), _LEARNING_AND_BATCH):
        reached, count = int(repeats["reached"].sum()), len(repeats)
        row = {**group, "runs": count, "why": f"{reached} of {count} repeats reached the target"}
        if reached == count:
            mean = Mean.of(repeats["log_epochs"].to_numpy(float))
            ends = map(math.exp, (mean.value, *mean.interval))
            row |= {"why": None, **dict(zip(_EPOCHS, ends, strict=True))}
        rows.append(row)
    result = pd.DataFrame(rows, columns=[*_LEARNING_AND_BATCH, "runs", *_EPOCHS, "why"])
    return result.astype(dict.fromkeys(_EPOCHS, float))


def _learning_repeats(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per repeat that learns alike; on other GPUs it has the same seed.

    Of runs of one global batch that differ in how long they trained, and so in their learning
    rates, the longest count. ``reached`` is by all of a repeat's runs; ``log_epochs`` the mean of
    ln of their epochs to the target, missing where one did not reach it.
    """
    runs = runs[runs["global_batch"].notna()]
    longest = runs.groupby(_LEARNING_AND_BATCH, dropna=False)["epochs_trained"].transform("max")
    runs = runs[runs["epochs_trained"] == longest]
    runs = runs.assign(log_epochs=np.log(runs["epochs_to_target"].astype(float)))
    by = [*_LEARNING_AND_BATCH, "epochs_trained", "study", "repeat"]
    repeats = runs.groupby(by, dropna=False, as_index=False).agg(
        reached=("reached", "all"), log_epochs=("log_epochs", "mean")
    )
    return repeats.assign(log_epochs=repeats["log_epochs"].where(repeats["reached"].astype(bool)))
