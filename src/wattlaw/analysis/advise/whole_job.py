"""The time of a whole job: its training with start-up, evaluation, checkpoints, and its end."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.advise.amounts import Amounts
from wattlaw.analysis.advise.option import BESIDE_TRAINING, Option, Quantity
from wattlaw.analysis.metrics.comparable_runs import TIME, ComparableRuns
from wattlaw.analysis.metrics.estimates import LEVEL
from wattlaw.analysis.metrics.result import Caution, plain
from wattlaw.analysis.metrics.variation import variation
from wattlaw.common.formatting import duration_text

_PARTS = ("startup_s", "end_s", "between_s", "evals_per_epoch", "eval_time_s")
_STARTUP, _EVALUATION, _CHECKPOINTS = BESIDE_TRAINING
#: The share of an epoch's time from which an evaluation that is not counted gets a warning.
_MUCH = 0.05
WholeJob = tuple[Quantity | None, tuple[str, ...]]


def whole_jobs(job: ComparableRuns, group: pd.Series, amounts: Amounts) -> Iterator[WholeJob]:
    """Yield, for each setting, the time of a whole job and the parts that were not measured.

    The interval is that of one job on another day and other nodes: the mean's is widened by how
    single runs vary, sessions and nodes with them. ``group`` numbers the settings. The time is None
    where the training has no known length.
    """
    rows, size = job.rows, int(group.max()) + 1
    if job.unit in ("sample", "step"):
        yield from [(None, BESIDE_TRAINING)] * size
        return
    parts = rows[list(_PARTS)].astype(float)
    # A run that lacks a part has that of the others of its setting; a process has all of them.
    parts = parts.fillna(parts.groupby(group).transform("mean"))
    parts = parts.mask(rows["basis"] == "run", 0.0)
    keys = zip(rows["precision"], rows["global_batch"], strict=True)
    needed = [amounts.get((plain(precision), plain(batch))) for precision, batch in keys]
    ends = {end: [getattr(of, end, None) for of in needed] for end in ("mean", "low", "high")}
    amount = pd.DataFrame(ends, index=rows.index).astype(float)
    whole_s = amount.apply(lambda epochs: rows[TIME] * epochs + _beside_s(parts, epochs))
    varied = variation(whole_s["mean"], group, rows)
    own_s = special.ndtri((1 + LEVEL) / 2) * np.sqrt(varied.variances.sum())
    factors = np.exp(np.hypot(varied.half, own_s))
    first = parts.assign(most=amount["mean"]).groupby(group).first()
    means = whole_s.groupby(group).mean().to_numpy()
    settings = zip(means, factors, first.to_dict("records"), strict=True)
    for (mean, low, high), factor, part in settings:
        yield Quantity.of(mean, low / factor, high * factor), tuple(_missing(part))


def _missing(part: Mapping[Any, float]) -> Iterator[str]:
    if pd.isna(part["startup_s"]):
        yield _STARTUP
    if pd.isna(part["between_s"]) and (part["most"] > 1 or pd.isna(part["evals_per_epoch"])):
        # Evaluation that is not marked takes time between the windows.
        if not part["evals_per_epoch"] > 0:
            yield _EVALUATION
        yield _CHECKPOINTS


def _beside_s(parts: pd.DataFrame, amount: pd.Series) -> pd.Series:
    """Return the time of what is known beside the training of an amount of epochs.

    A part of an epoch at the end is not evaluated.
    """
    evaluations = np.floor(amount * parts["evals_per_epoch"] + 1e-9)
    between_s = parts["between_s"].fillna(0.0) * (amount - 1).clip(lower=0.0)
    once_s = parts["startup_s"].fillna(0.0) + parts["end_s"].fillna(0.0)
    evaluation_s: pd.Series = evaluations * parts["eval_time_s"]
    return once_s + between_s + evaluation_s.fillna(0.0)


def whole_job_cautions(option: Option, deadline_s: float | None) -> Iterator[Caution]:
    """Yield what an option's training leaves out, where it matters."""
    share = (option.eval_time_s or 0) / option.time_s.mean
    if option.unit == "epoch" and share >= _MUCH and _EVALUATION in option.whole_job_without:
        yield Caution(
            "evaluation-not-included",
            f"An evaluation takes {100 * share:.0f} % of an epoch's training time and is not "
            "included.",
        )
    late = lateness(option, deadline_s)
    if late and option.train_time_s.mean <= (deadline_s or 0.0):
        text = f"The training takes {duration_text(option.train_time_s)}, but the whole job"
        yield Caution("whole-job-late", f"{text} {duration_text(option.whole_job_s)}: it {late}.")


def lateness(option: Option, deadline_s: float | None) -> str:
    """Return that a whole job ``misses the deadline of 2 h``, or may; empty if it does not."""
    whole_s = option.whole_job_s
    if whole_s is None or deadline_s is None or (whole_s.high or whole_s.mean) <= deadline_s:
        return ""
    verb = "misses" if whole_s.mean > deadline_s else "may miss"
    return f"{verb} the deadline of {duration_text(deadline_s)}"
