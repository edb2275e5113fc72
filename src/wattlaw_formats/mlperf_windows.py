"""The windows of an MLPerf training: epochs or blocks of steps, and evaluations.

Logs mark training with ``epoch_start``/``epoch_stop``, ``block_start``/``block_stop``, or both. The
metadata count it: ``samples_count`` (a running total, or the size of the block), ``step``,
``epoch_num`` (epochs, or in some benchmarks samples or tokens), or ``first_epoch_num`` and
``epoch_count``.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from wattlaw.importing.reading import Account, number
from wattlaw.importing.timeseries import overlapping

METRIC = "eval_accuracy"
OTHER_RANK = "logged by another rank too"
#: Ranks log an event of their training within this time.
SKEW_MS = 2000
#: No training has so many epochs: from here on, ``epoch_num`` counts samples or tokens.
_MAX_EPOCHS, _MAX_EPOCH_NUMBER = 10_000, 10**7
#: So do numbers this far from each other, and at least a batch.
_MIN_GAP = 100
#: A part of an interval beside evaluations is ignored if it is shorter than this share.
_MIN_SHARE = 0.01
_SAMPLES, _STEP = ("samples_count",), ("step", "step_num")


@dataclass(frozen=True)
class Event:
    row: int
    rank: int | None
    t_ms: int
    key: str
    value: Any
    metadata: Mapping[str, Any]

    def count(self, *names: str) -> float | None:
        known = (number(self.metadata.get(name)) for name in names)
        return next((each for each in known if each is not None and each >= 0), None)

    @property
    def epoch(self) -> float | None:
        """The number of the epoch, which old logs have as the value."""
        known = self.count("epoch_num")
        return known if known is not None or self.key == METRIC else number(self.value)

    def repeats(self, other: "Event | None") -> bool:
        """Say whether this is the event ``other``, logged by another rank."""
        if other is None or self.key != other.key or abs(self.t_ms - other.t_ms) > SKEW_MS:
            return False
        names = (self.metadata.keys() | other.metadata.keys()) - {"file", "lineno"}
        mine, theirs = self.metadata, other.metadata
        return all(mine.get(name, ...) == theirs.get(name, ...) for name in names)


class Interval(NamedTuple):
    begin: Event
    stop: Event
    kind: str

    @property
    def rows(self) -> tuple[int, int]:
        return self.begin.row, self.stop.row

    @property
    def times(self) -> tuple[int, int]:
        return self.begin.t_ms, self.stop.t_ms

    @property
    def text(self) -> str:
        return "an epoch" if self.kind == "epoch" else f"a {self.kind}"


@dataclass(frozen=True)
class Scale:
    """What the numbers of a log count; None is unknown."""

    batch: float | None  # samples of a step
    dataset: float | None  # samples of an epoch
    epoch_unit: float | None  # samples of one in ``epoch_num``
    first_epoch: int  # the number of the first epoch, 0 or 1


@dataclass(frozen=True)
class Amount:
    """What was trained in an interval; ``reason`` says why that is unknown."""

    samples: float | None = None
    steps: float | None = None
    epoch: int | None = None  # from 0: the interval is this epoch
    reason: str = ""


def windows_of(
    account: Account,
    events: Sequence[Event],
    batch: float | None,
    dataset: float | None,
    sequence: float | None,
) -> tuple[list[dict[str, Any]], int]:
    """Return the windows of a training, and the number of evaluations that ran at the same time, by
    the samples of a step and of an epoch, and the tokens of a sample."""
    evaluations = _intervals(account, events, "eval")
    starts = [each.begin.t_ms for each in evaluations]
    training = _innermost(
        account, _intervals(account, events, "epoch"), _intervals(account, events, "block")
    )
    scale = _scale(events, batch, dataset, sequence)
    beside = {each.rows for each in evaluations}
    end_ms = next((event.t_ms for event in events if event.key == "run_stop"), math.inf)
    rows = list[dict[str, Any]]()
    for interval, amount in zip(training, _amounts(training, events, scale), strict=True):
        first, end = (bisect_left(starts, t_ms) for t_ms in interval.times)
        inside = [each for each in evaluations[first:end] if _is_within(each, interval, scale)]
        beside -= {each.rows for each in inside}
        own = _windows(interval, inside, amount, scale)
        if isinstance(own, str):
            account.leave_out(f"{interval.text} {own}", *interval.rows)
            continue
        account.read(*interval.rows)
        # Training stops when the target is reached, which may be within an epoch.
        is_cut = interval.stop.t_ms >= end_ms
        rows += [row | {"interrupted": is_cut} if "epoch" in row else row for row in own]
    if rows and all(row.get("interrupted") for row in rows):
        for interval in training:
            account.leave_out("an epoch within which training ended", *interval.rows)
        rows = []
    begins, ends = ([each.times[edge] for each in training] for edge in (0, 1))
    overlaps = sum(
        each.rows in beside
        and bisect_left(begins, each.stop.t_ms) > bisect_right(ends, each.begin.t_ms)
        for each in evaluations
    )
    return rows + _evaluations(account, events, evaluations, rows, scale), overlaps


def _intervals(account: Account, events: Sequence[Event], kind: str) -> list[Interval]:
    begin, end = f"{kind}_start", f"{kind}_stop"
    intervals, ended = list[Interval](), None
    begun: Event | None = None
    for event in events:
        if event.key == begin:
            if event.repeats(begun):
                account.leave_out(OTHER_RANK, event.row)
                continue
            if begun is not None:
                account.leave_out(f"a {begin} without its {end}", begun.row)
            begun = event
        elif event.key == end and begun is None:
            is_copy = event.repeats(ended)
            account.leave_out(OTHER_RANK if is_copy else f"a {end} without its {begin}", event.row)
        elif event.key == end and begun is not None:
            if event.t_ms > begun.t_ms:
                intervals.append(Interval(begun, event, kind))
            else:
                account.leave_out(f"a {end} that is not after its {begin}", begun.row, event.row)
            begun, ended = None, event
    if begun is not None:
        account.leave_out(f"a {begin} without its {end}", begun.row)
    return sorted(intervals, key=lambda each: each.times)


def _innermost(
    account: Account, epochs: Sequence[Interval], blocks: Sequence[Interval]
) -> list[Interval]:
    """Return the epochs and blocks that have no others within them and do not overlap."""
    kept = {each.rows: each for each in (*epochs, *blocks)}

    def leave_out(intervals: Iterable[Interval], why: str) -> None:
        for each in intervals:
            account.leave_out(f"{each.text} {why}", *each.rows)
            kept.pop(each.rows, None)

    for epoch in epochs:
        within = _within(epoch, blocks)
        marks = [mark for block in within for mark in (block.begin, block.stop)]
        if any(mark.count(*_SAMPLES, *_STEP) is not None for mark in marks):
            leave_out([epoch], "of blocks, which are read instead")
        else:
            leave_out(within, "within an epoch, which is read instead")
    for block in blocks:
        around = (epoch.rows in kept for epoch in _within(block, epochs))
        if block.rows in kept and any(around):
            leave_out([block], "of epochs, which are read instead")
    spans = {rows: ("train", *each.times) for rows, each in kept.items()}
    for rows, why in overlapping(spans).items():
        leave_out([kept[rows]], f"is {why}")
    return sorted(kept.values(), key=lambda each: each.times)


def _within(outer: Interval, others: Sequence[Interval]) -> list[Interval]:
    first, end = (
        bisect_left(others, t_ms, key=lambda each: each.begin.t_ms) for t_ms in outer.times
    )
    return [each for each in others[first:end] if each.stop.t_ms <= outer.stop.t_ms]


def _is_within(evaluation: Interval, training: Interval, scale: Scale) -> bool:
    """Say whether training waits for this evaluation, which is not of the model before it."""
    if evaluation.stop.t_ms > training.stop.t_ms:
        return False
    for names in (_SAMPLES, ("epoch_num",)):
        evaluated, begun = evaluation.begin.count(*names), training.begin.count(*names)
        if evaluated is None or begun is None:
            continue
        is_size = names is _SAMPLES and training.stop.count(*names) == begun
        if is_size or evaluated > begun:
            return True
        if evaluated < begun or names is _SAMPLES or scale.epoch_unit != scale.dataset:
            return evaluated == begun == 0
        # Epoch 2 may be the one that begins here, or the one that was trained.
        left_ms = training.stop.t_ms - evaluation.stop.t_ms
        return left_ms < evaluation.begin.t_ms - training.begin.t_ms
    return True


def _scale(
    events: Sequence[Event], batch: float | None, dataset: float | None, sequence: float | None
) -> Scale:
    marks = [event for event in events if event.key.endswith(("_start", "_stop"))]
    known = [event.count("epoch_num", "first_epoch_num") for event in marks]
    known += [event.epoch for event in marks if event.key.startswith("epoch_")]
    places = sorted({each for each in known if each is not None})
    gaps = [after - before for before, after in pairwise(places)]
    unit = dataset
    is_whole = bool(places) and all(place == int(place) for place in places)
    is_wide = bool(batch and gaps) and min(gaps) >= max(batch or 0, _MIN_GAP)
    if is_whole and (is_wide or places[-1] >= _MAX_EPOCHS):
        unit = 1.0
        if batch and sequence and all(gap % (batch * sequence) == 0 for gap in gaps):
            unit = 1 / sequence
    first = next((number(e.value) for e in events if e.key == "first_epoch_num"), None)
    return Scale(batch, dataset, unit, int((places[0] if places else first or 0) == 1))


def _amounts(training: Sequence[Interval], events: Sequence[Event], scale: Scale) -> list[Amount]:
    ended = [e for e in events if e.key.startswith("eval_") or e.key == "run_stop"]
    begin = _counts([each.begin for each in training])
    stop = _counts([each.stop for each in training])
    totals = _counts(sorted(ended, key=lambda event: event.t_ms))
    steps, epochs = (_differences(begin, stop, totals, name) for name in ("step", "epoch_num"))
    samples = _samples(begin, stop, _differences(begin, stop, totals, "samples_count"))
    numbered = begin["first_epoch_num"].diff().shift(-1)
    # The count is certain only where the next block begins with the epoch after them.
    count = begin["epoch_count"]
    if ((numbered == count) | numbered.isna() | count.isna()).all():
        numbered = numbered.fillna(count[-1:].where(begin["first_epoch_num"].notna()))
    numbered = numbered.where(numbered > 0)
    # ``step`` counts optimizer steps, where it fits a number of samples.
    batch = scale.batch or math.nan
    fits = samples.sub(steps.where(steps > 0) * batch, axis=0).abs() < batch
    steps_fit = bool(fits.any(axis=None))
    amounts, rows = [], samples.to_numpy().tolist()
    for place, interval in enumerate(training):
        known = [None if math.isnan(own[place]) else float(own[place])
                 for own in (steps, epochs, numbered)]  # fmt: skip
        of_samples = [each for each in rows[place] if not math.isnan(each)]
        amounts.append(_amount(scale, interval, of_samples, *known, steps_fit=steps_fit))
    return amounts


def _counts(events: Sequence[Event]) -> pd.DataFrame:
    """Return the numbers of the metadata of events, NaN where they lack one."""
    names: dict[str, tuple[str, ...]] = {"samples_count": _SAMPLES, "step": _STEP}
    names |= {name: (name,) for name in ("epoch_num", "first_epoch_num", "epoch_count")}
    columns = {name: [e.count(*own) for e in events] for name, own in names.items()}
    return pd.DataFrame({"t_ms": [event.t_ms for event in events], **columns}, dtype=float)


def _amount(  # noqa: PLR0911 - a line for each way to count
    scale: Scale,
    interval: Interval,
    samples: Sequence[float],
    steps: float | None,
    epochs: float | None,
    numbered: float | None,
    *,
    steps_fit: bool,
) -> Amount:
    """Return what was trained in one interval; the first of ``samples`` is the likeliest."""
    batch = scale.batch
    first, edges = interval.begin.count("first_epoch_num"), (interval.begin, interval.stop)
    if interval.kind == "epoch":
        first = interval.begin.epoch
        is_epoch = all(edge.epoch is None or edge.epoch == int(edge.epoch) for edge in edges)
    else:
        is_epoch = numbered == 1 and steps is None and not samples
    if is_epoch and first is not None and scale.epoch_unit == scale.dataset:
        return Amount(epoch=max(0, int(first) - scale.first_epoch))
    has_steps = steps is not None and steps > 0
    if steps_fit and steps is not None and not has_steps:
        return Amount(reason="whose number of steps does not grow")
    has_samples = bool(samples) and samples[0] > 0
    if steps is not None and has_steps and batch and (steps_fit or not has_samples):
        fitting = (each for each in samples if abs(each - steps * batch) < batch)
        return Amount(next(fitting, steps * batch), steps)
    known: float | None = samples[0] if samples else None
    if known is None:
        unit, trained = scale.epoch_unit, epochs if numbered is None else numbered
        known = None if unit is None or trained is None else trained * unit
    if known is None and steps is None:
        return Amount(reason="whose size is not logged")
    if known is not None and known <= 0 and not has_steps:
        return Amount(reason="whose number of samples does not grow")
    if has_steps and not batch:
        return Amount(known if known and known > 0 else None, steps)
    if known is None or not batch:
        return Amount(reason="whose steps are not known: set --map global_batch=@N")
    return Amount(known, known / batch)


def _differences(
    begin: pd.DataFrame, stop: pd.DataFrame, totals: pd.DataFrame, name: str
) -> "pd.Series[float]":
    """Return the difference of a running total in each interval; NaN where it is not logged. One
    event may lack it, and has that of its neighbour: the evaluation after a block, the block before
    it, or 0 at the start."""
    first, until = begin[name], stop["t_ms"].shift(-1).fillna(math.inf)
    later = totals.reindex(np.searchsorted(totals["t_ms"], stop["t_ms"])).reset_index(drop=True)
    after = stop[name].fillna(first.shift(-1).where(first.notna()))
    after = after.fillna(later[name].where(later["t_ms"] < until))
    before = after.fillna(first).ffill().shift().fillna(0.0)
    return after - first.fillna(before)


def _samples(
    begin: pd.DataFrame, stop: pd.DataFrame, differences: "pd.Series[float]"
) -> pd.DataFrame:
    """Return what ``samples_count`` can mean for each interval, the likeliest first."""
    first, last = begin["samples_count"], stop["samples_count"]
    known = last.fillna(first)
    changes, both = known.dropna().diff().dropna(), first.notna() & last.notna()
    is_equal = known.min() > 0 and (first == last)[both].all()
    # Sizes of blocks do not only grow. A stop without a start may have a total that stays.
    is_size = is_equal and (
        (changes < 0).any()
        or (both.any() and (changes == 0).any())
        or (not changes.any() and (both.any() or len(changes) > 0))
    )
    if is_size:
        return pd.DataFrame({"size": known, "difference": differences})
    # Both ends have the total after the block.
    since = known.diff() if is_equal and both.any() else known * math.nan
    if (differences > 0).any():  # the total before a block whose end is not logged is no size
        known = known.where(since.notna() | differences.notna())
    return pd.DataFrame({"since": since, "difference": differences, "size": known})


def _windows(
    interval: Interval, inside: Sequence[Interval], amount: Amount, scale: Scale
) -> list[dict[str, Any]] | str:
    edges = (mark for each in inside for mark in (each.begin, each.stop))
    marks = [interval.begin, *edges, interval.stop]
    spans = [(first, last, last.t_ms - first.t_ms)
             for first, last in zip(marks[::2], marks[1::2], strict=True)]  # fmt: skip
    trained_ms = sum(span_ms for _, _, span_ms in spans if span_ms > 0)
    parts = [each for each in spans if each[2] > 0 and each[2] >= _MIN_SHARE * trained_ms]
    has_fraction = any(mark.epoch is not None and mark.epoch != int(mark.epoch) for mark in marks)
    windows = []
    for first, last, span_ms in parts:
        window: dict[str, Any] = {"start_ns": first.t_ms * 10**6, "duration_s": span_ms * 1e-3}
        if amount.epoch is not None and not has_fraction:
            windows.append(window | {"phase": "train", "epoch": amount.epoch})
            continue
        samples, steps = amount.samples, amount.steps
        if len(parts) > 1 or amount.epoch is not None:
            samples = _between(first, last, scale)
            steps = samples / scale.batch if samples is not None and scale.batch else None
        if steps is not None and round(steps) >= 1:
            count = None if samples is None else round(samples)
            windows.append(window | {"phase": "steps", "samples": count, "steps": round(steps)})
    if windows:
        return windows
    if amount.reason or len(parts) > 1:
        return amount.reason or "whose parts between evaluations have no size"
    return "of less than one step"


def _between(first: Event, last: Event, scale: Scale) -> float | None:
    for names, unit in ((_SAMPLES, 1.0), (("epoch_num",), scale.epoch_unit), (_STEP, scale.batch)):
        before, after = first.count(*names), last.count(*names)
        if before is not None and after is not None and unit is not None and after > before:
            return (after - before) * unit
    return None


def _evaluations(
    account: Account,
    events: Sequence[Event],
    evaluations: Sequence[Interval],
    training: Sequence[Mapping[str, Any]],
    scale: Scale,
) -> list[dict[str, Any]]:
    """Return the windows of evaluations; a result outside of them is one without a duration."""
    rows = [
        {
            "phase": "evaluate", "start_ns": each.begin.t_ms * 10**6,
            "duration_s": (each.stop.t_ms - each.begin.t_ms) * 1e-3, "metric": None,
        }
        for each in evaluations
    ]  # fmt: skip
    places = [each.begin for each in evaluations]
    starts = [each.begin.t_ms for each in evaluations]
    for event in (event for event in events if event.key == METRIC):
        value, index = number(event.value), bisect_right(starts, event.t_ms) - 1
        if value is None:
            account.leave_out(f"{METRIC} that is no number", event.row)
            continue
        account.read(event.row)
        late_ms = event.t_ms - evaluations[index].stop.t_ms if index >= 0 else math.inf
        if late_ms <= 0 or (late_ms < math.inf and rows[index]["metric"] in (None, value)):
            rows[index]["metric"] = value
        elif not event.repeats(places[-1] if places else None):
            rows.append({"phase": "evaluate", "duration_s": None, "metric": value})
            places.append(event)
    for each in evaluations:
        account.read(*each.rows)
    epochs = _epochs(places, training, scale)
    return [row | {"epoch": epoch} for row, epoch in zip(rows, epochs, strict=True)]


def _epochs(
    places: Sequence[Event], training: Sequence[Mapping[str, Any]], scale: Scale
) -> list[int | None]:
    """Return the number from 0 of the last epoch that was trained, at each evaluation."""
    by_end = {row["start_ns"] // 10**6 + round(row["duration_s"] * 1e3): row for row in training}
    ends = sorted(by_end)
    totals = [0, *accumulate(by_end[end].get("samples") or 0 for end in ends)]
    epoch_ends = [end for end in ends if "epoch" in by_end[end]]
    counts = [event.count(*_SAMPLES) for event in places]
    is_total = len({*counts}) > 1 or len(places) == 1
    numbers = [event.count("epoch_num") for event in places]
    is_epoch = scale.epoch_unit == scale.dataset
    from_0 = is_epoch and min((each for each in numbers if each is not None), default=1) == 0
    epochs = list[int | None]()
    for event, count, own in zip(places, counts, numbers, strict=True):
        if place := bisect_right(epoch_ends, event.t_ms):
            epochs.append(by_end[epoch_ends[place - 1]]["epoch"])
            continue
        done = None  # epochs
        if own is not None and is_epoch:
            done = own + from_0
        elif own is not None and scale.epoch_unit and scale.dataset:
            done = own * scale.epoch_unit / scale.dataset
        elif scale.dataset:
            past = totals[bisect_right(ends, event.t_ms)]
            done = (count if count is not None and is_total else past) / scale.dataset
        is_known = done is not None and 0 <= done < _MAX_EPOCH_NUMBER
        epochs.append(max(0, math.ceil(done - 1e-9) - 1) if done is not None and is_known else None)
    return epochs
