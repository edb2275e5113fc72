"""Quality against global batch, and the batch beyond which it falls.

Huber et al. 2025 find that accuracy falls beyond a global batch of 8192 for ResNet50. Here the fall
is a finding of Hsu's multiple comparisons with the best (``analysis.comparisons``), whose intervals
hold for all batches together. How many epochs a target takes is ``analysis.critical_batch``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.comparisons import from_the_best
from wattlaw.analysis.groups import Group, groups
from wattlaw.analysis.quality import direction
from wattlaw.errors import BadInput, Refused

FALLS, NO_FALL, CANNOT_TELL = "falls", "no fall seen", "cannot tell"
#: A loss that is not more than this share of the best is no fall; MLPerf Inference asks of a
#: reduced-precision model 99 % of the reference's quality.
MARGIN = 0.01
#: Settings that change what is learned; caps, clocks, GPUs and launchers do not.
LEARNING = ("workload", "options", "train", "precision", "dataset_fraction")
_BY = [*LEARNING, "hardware", "epochs_trained", "metric_name"]
_MEANS = [
    "global_batch", "n", "mean", "sd", "worse_by", "worse_by_low", "worse_by_high", "p_value",
    "verdict",
]  # fmt: skip


@dataclass(frozen=True)
class BatchQuality:
    """Quality against global batch of the runs that learn alike.

    ``means`` has one row per batch: ``n`` repeats, ``mean`` and ``sd`` of the metric; ``worse_by``
    the best of the other batches, in the metric's unit and above zero where worse, with its
    95 % interval; ``p_value`` of "this batch is the best"; ``verdict``: ``worse``,
    ``holds`` (within the margin of the best) or ``cannot tell``.
    """

    group: Group  # LEARNING, hardware, epochs_trained, metric_name
    better: str | None  # higher | lower
    verdict: str  # FALLS | NO_FALL | CANNOT_TELL
    sentence: str
    best_batch: int | None
    falls_beyond: int | None  # the largest batch that cannot be told from the best
    falls_from: int | None  # the next: it and all that are larger are worse
    holds_to: int | None  # from the best up to here quality is shown to be within the margin
    means: pd.DataFrame

    def warning(self, global_batch: float) -> str | None:
        """Return what speaks against this global batch; None where nothing does."""
        batches = self.means["global_batch"]
        if self.verdict == FALLS:
            return self.sentence if global_batch > (self.falls_beyond or 0) else None
        if batches.empty or global_batch <= (self.holds_to or batches.min()):
            return None
        if self.verdict == NO_FALL:
            return f"{self.sentence}; nothing is known of {global_batch:g}"
        return self.sentence

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain Python."""
        means = self.means.astype(object).where(self.means.notna(), None)
        return {
            "group": self.group,
            "better": self.better,
            "verdict": self.verdict,
            "sentence": self.sentence,
            "best_batch": self.best_batch,
            "falls_beyond": self.falls_beyond,
            "falls_from": self.falls_from,
            "holds_to": self.holds_to,
            "means": means.to_dict("records"),
        }


@dataclass(frozen=True)
class QualityByBatch:
    """One finding per group of runs that learn alike."""

    rows: tuple[BatchQuality, ...]

    def warnings(self, settings: Mapping[str, Any]) -> list[str]:
        """Return what speaks against the global batch of ``settings``, a row of ``run_metrics``.

        Findings count whose workload, options, training settings, precision and data set are those
        of ``settings``, on any hardware.
        """
        asked = settings["global_batch"]
        if pd.isna(asked):
            return []
        alike = (row for row in self.rows if _same(row.group, settings))
        found = (row.warning(float(asked)) for row in alike)
        return list(dict.fromkeys(words for words in found if words is not None))

    def as_json(self) -> list[dict[str, Any]]:
        """Return the findings as plain Python."""
        return [row.as_json() for row in self.rows]


def quality_by_batch(
    table: pd.DataFrame,
    better: Mapping[str, str] | None = None,
    metric: str = "metric",
    margin: float = MARGIN,
) -> QualityByBatch:
    """Find for each group of runs up to which global batch quality holds and where it falls.

    Parameters
    ----------
    table
        Rows of ``run_metrics``. Runs of the same repeat and global batch on other GPU counts, caps
        or clocks share a seed and most of what is learned, so they are averaged to one value.
    better
        ``higher`` or ``lower`` by workload; by default as ``quality.direction`` tells from the
        metric's name.
    metric
        ``metric`` (of the last evaluation) or ``best_metric``.
    margin
        The share of the best mean that may be lost before it is called a fall.

    Returns
    -------
    QualityByBatch
        ``falls``: a batch and all that are larger are worse than the best with 95 % confidence,
        and their loss may exceed the margin. ``no fall seen``: the loss at the largest batch is
        within the margin with that confidence. Otherwise ``cannot tell``, with the reason: a
        direction that is unknown, one batch, no repeats, too much spread.

    Raises
    ------
    BadInput
        A direction is neither ``higher`` nor ``lower``.
    """
    given = dict(better or {})
    for workload, way in given.items():
        if way not in ("higher", "lower"):
            raise BadInput(f"better of {workload}: given {way!r}; allowed: higher, lower")
    known = table[table["global_batch"].notna()]
    rows = []
    for group, runs in groups(known, _BY):
        workload = str(group["workload"])
        found = given[workload] if workload in given else direction(group["metric_name"])
        rows.append(_of_group(group, runs, metric, found, margin))
    return QualityByBatch(tuple(rows))


def _of_group(
    group: Group, runs: pd.DataFrame, metric: str, better: str | None, margin: float
) -> BatchQuality:
    values = _repeats(runs, metric)
    means = _means(values)
    try:
        if values.empty:
            raise Refused("no run has a quality; evaluate (measure.evaluate)")
        if len(means) < 2:
            raise Refused("one global batch only; measure others")
        if better is None:
            name = group["metric_name"] or "the metric"
            raise Refused(f"{name} may be better high or low; say which")
        means = _compared(values, means, better, margin)
    except Refused as refusal:
        sentence = f"cannot tell whether quality falls with the global batch: {refusal}"
        none = dict.fromkeys(("best_batch", "falls_beyond", "falls_from", "holds_to"))
        return BatchQuality(group, better, CANNOT_TELL, sentence, **none, means=means)
    return _judged(group, means, better, margin)


def _repeats(runs: pd.DataFrame, metric: str) -> pd.Series:
    """Return one quality per batch and repeat."""
    one = runs[runs[metric].notna()]
    return one.groupby(["global_batch", "study", "repeat"], dropna=False)[metric].mean()


def _means(values: pd.Series) -> pd.DataFrame:
    by_batch = values.groupby(level="global_batch")
    means = pd.DataFrame({"n": by_batch.size(), "mean": by_batch.mean(), "sd": by_batch.std()})
    means = means.reset_index().reindex(columns=_MEANS)
    return means.astype({"global_batch": int, "n": int, "verdict": object})


def _compared(values: pd.Series, means: pd.DataFrame, better: str, margin: float) -> pd.DataFrame:
    sign = 1.0 if better == "higher" else -1.0
    samples = [sign * one.to_numpy(float) for _, one in values.groupby(level="global_batch")]
    found = from_the_best(samples)
    top = found.mean.max()
    apart = np.array([np.delete(found.mean, i).max() for i in range(len(samples))]) - found.mean
    holds = -found.low <= margin * abs(top)
    verdict = np.where(holds, "holds", np.where(found.high < 0, "worse", CANNOT_TELL))
    return means.assign(
        worse_by=apart,
        worse_by_low=-found.high,
        worse_by_high=-found.low,
        p_value=found.p_value,
        verdict=verdict,
    )


def _judged(group: Group, means: pd.DataFrame, better: str, margin: float) -> BatchQuality:
    batches, verdicts = means["global_batch"].tolist(), means["verdict"].tolist()
    best = int(means["worse_by"].to_numpy().argmin())
    last = max(i for i, verdict in enumerate(verdicts) if verdict != "worse")
    falls = last + 1 < len(batches)
    held = best - 1
    while held + 1 < len(batches) and verdicts[held + 1] == "holds":
        held += 1
    name = group["metric_name"] or "quality"
    if falls:
        row = means.iloc[last + 1]
        verdict, words = FALLS, (
            f"{name} falls beyond global batch {batches[last]}: at {batches[last + 1]} it is worse "
            f"than the best by {row['worse_by']:.3g} ({row['worse_by_low']:.3g} to "
            f"{row['worse_by_high']:.3g})"
        )  # fmt: skip
    elif verdicts[-1] == "holds":
        verdict = NO_FALL
        words = (
            f"no fall of {name} by more than {margin:.3g} of the best is seen up to global batch "
            f"{batches[-1]}"
        )
    else:
        row, verdict = means.iloc[-1], CANNOT_TELL
        words = (
            f"cannot tell whether {name} falls with the global batch: at {batches[-1]} it may be "
            f"worse than the best by up to {row['worse_by_high']:.3g}; measure more repeats"
        )
    epochs = group["epochs_trained"]
    words += f", after {epochs:g} epochs of training" if epochs is not None else ""
    return BatchQuality(
        group,
        better,
        verdict,
        words,
        best_batch=batches[best],
        falls_beyond=batches[last] if falls else None,
        falls_from=batches[last + 1] if falls else None,
        holds_to=batches[held] if held >= best else None,
        means=means,
    )


def _same(group: Group, settings: Mapping[str, Any]) -> bool:
    def known(value: Any) -> Any:
        return None if value is None or pd.isna(value) else value

    return all(group[name] == known(settings.get(name)) for name in LEARNING)
