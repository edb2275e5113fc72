"""From the steps of processes to the steps of a job: its steady state, as windows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from wattlaw.common.formatting import plural
from wattlaw.running.instrumentation.records import ProcessSteps, TrainingFacts
from wattlaw.running.steps import Floats, Mask, drift, drift_note, step_time_columns
from wattlaw.store.record import Facts
from wattlaw.study.not_as_declared import TOO_SHORT

#: Warm-up steps of a measurement that is limited, and the largest share of one that is not.
WARMUP_STEPS = 20
_WARMUP_SHARE = 0.1
#: Fewer measured steps may all be at the end of an epoch, where batches are smaller.
_ENOUGH_STEPS = 10
#: A step of this many medians is long. It contains a pause if it also takes this much longer than
#: the median, or if it has an evaluation and takes this many medians of the others.
_LONG, _PAUSE_S, _EVALUATION = 5.0, 0.25, 1.05
#: The least share of a window's steps whose part is known, for the part of the window.
_KNOWN = 0.9
#: Kinds of parallelism in which several ranks compute the same samples.
_SHARED_SAMPLES = ("tensor", "pipeline")
TRAINING_FACTS = tuple(field.name for field in fields(TrainingFacts))


@dataclass(frozen=True)
class MeasuredPart:
    """Which steps of a training are measured: those after the warm-up, up to a limit.

    ``steps`` or ``seconds``, counted from the end of the warm-up, is the limit. The first step
    always is warm-up, since its start is unknown. Without ``warmup_steps`` 20 steps are, or a tenth
    of all if these are fewer and there is no limit.
    """

    warmup_steps: int | None = None
    steps: int | None = None
    seconds: float | None = None

    @property
    def is_limited(self) -> bool:
        return self.steps is not None or self.seconds is not None

    def bounds(self, step_end_s: Floats) -> tuple[int, int]:
        count = len(step_end_s)
        warmup = self.warmup_steps
        if warmup is None:
            share = int(count * _WARMUP_SHARE)
            warmup = WARMUP_STEPS if self.is_limited else min(WARMUP_STEPS, share)
        warmup = max(1, warmup)
        end = count
        if self.steps is not None:
            end = min(count, warmup + self.steps)
        elif self.seconds is not None and warmup <= count:
            over = np.flatnonzero(step_end_s >= step_end_s[warmup - 1] + self.seconds)
            end = min(count, int(over[0]) + 1) if len(over) else count
        return min(warmup, count), max(end, min(warmup, count))

    def is_complete(self, processes: Sequence[ProcessSteps]) -> bool:
        """Say whether every rank has the steps of the limit.

        The launcher's environment variables may say that more ranks are to come.
        """
        training = [process for process in processes if process.steps]
        expected = 1  # processes that are to be seen here
        for process in training:
            world_size = process.world_size or process.env_world_size or 1
            expected = max(expected, min(world_size, process.local_world_size or world_size))
        for process in training:
            warmup, end = self.bounds(process.step_end_s)
            measured_s = process.step_end_s[end - 1] - process.step_end_s[warmup - 1]
            if self.steps is not None:
                has_all = end - warmup >= self.steps
            else:
                has_all = self.seconds is not None and bool(measured_s >= self.seconds)
            if not has_all:
                return False
        return len(training) >= expected


@dataclass(frozen=True)
class StepSummary(TrainingFacts):
    """The steps of a job: those of one rank, never the sum over ranks; unknown values are None.

    The measured steps are those after the warm-up, without pauses: steps that took far longer than
    the others, such as with an evaluation or a checkpoint. Samples are of all ranks together.
    ``drift`` is the relative change of the step time, where it is clear. ``windows`` are columns of
    the warm-up and the measured windows; none has a pause. ``workers_work_together`` is False if
    several processes trained at the same time and none has joined a process group. The peak memory
    is the largest of the ranks. ``steps_by_samples`` states how many measured steps had a number of
    samples, of all ranks; it is empty where these are unknown or mixed.
    """

    instrumented: bool = False
    steps: int | None = None
    steps_measured: int | None = None
    samples_measured: int | None = None
    step_time_mean_s: float | None = None
    step_time_p50_s: float | None = None
    step_time_p95_s: float | None = None
    step_time_cv: float | None = None
    step_time_error: float | None = None
    world_size: int | None = None
    samples_seen: int | None = None
    pauses: int | None = None
    pause_s: float | None = None
    drift: float | None = None
    windows: tuple[dict[str, Any], ...] = ()
    workers_work_together: bool | None = None
    notes: tuple[str, ...] = ()
    steps_by_samples: Mapping[int, int] = field(default_factory=dict)

    def facts(self, threads: int | None) -> dict[str, Any]:
        """Return the columns of ``Facts``; ``threads`` are those of a worker if none were seen."""
        known = {name: getattr(self, name) for name in Facts.model_fields if hasattr(self, name)}
        if self.workers_work_together is False:  # each has epochs of its own
            known["dataset_samples"] = None
        known["peak_memory_bytes"] = self.peak_memory_bytes or self.peak_resident_bytes
        known["threads_per_worker"] = self.threads_per_worker or threads
        return known | {"workers_cooperate": self.workers_work_together}


def summarise(processes: Sequence[ProcessSteps], part: MeasuredPart | None = None) -> StepSummary:
    part = part or MeasuredPart()
    notes = [f"steps of {p.host}, process {p.pid}: {why}" for p in processes for why in p.problems]
    training = [process for process in processes if process.steps]
    if not training:
        return StepSummary(notes=tuple(notes))
    first = min(training, key=lambda p: (p.rank or 0, -p.steps))
    ranks = [process for process in training if _are_of_one_job(process, first)]
    if len(ranks) < len(training):
        notes.append(
            f"{len(training) - len(ranks)} of {len(training)} training processes ran at another "
            "time; their steps are not counted"
        )
    has_joined = any((process.world_size or 1) > 1 for process in ranks)
    together = has_joined if has_joined or len(ranks) > 1 else None
    members = ranks if together else [first]
    samples = _samples(members, first)
    common = min(process.steps for process in members)  # a killed rank may lack the last ones
    facts = {name: getattr(first, name) for name in TRAINING_FACTS}
    for name in ("peak_memory_bytes", "peak_resident_bytes"):
        peaks = [getattr(p, name) for p in ranks if getattr(p, name) is not None]
        facts[name] = max(peaks, default=None)
    batches: Mapping[int, int] = {}
    if not any(process.is_mixed for process in members):
        models = len(ranks) if together is False else 1  # each has samples of its own
        begin, end = part.bounds(first.step_end_s)
        measured = models * samples[begin if end - begin >= _ENOUGH_STEPS else 0 : end]
        batches = Counter(int(count) for count in measured[np.isfinite(measured)])
        if facts["micro_batch"] is None and first.dp and first.gradient_accumulation and batches:
            parts = first.dp * first.gradient_accumulation
            size, rest = divmod(max(batches, key=lambda count: batches[count]), parts)
            facts["micro_batch"] = size if size and not rest else None
    return StepSummary(
        instrumented=True,
        steps=first.steps,
        world_size=first.world_size or 1,
        samples_seen=_total(samples[:common]),
        **facts,
        workers_work_together=together,
        **_measured(first, samples, _parts_s(members, first), part, notes),
        notes=tuple(dict.fromkeys(notes)),
        steps_by_samples=batches,
    )


def _samples(ranks: Sequence[ProcessSteps], first: ProcessSteps) -> Floats:
    """Return the samples of each step, of all ranks: those of ranks that share a copy of the model
    once. Some of these may read none.
    """
    table = _of_ranks(ranks, first.steps, "samples_per_step")
    unknown = np.full(first.steps, np.nan)
    if len(ranks) != (first.world_size or 1):
        return unknown
    if first.dp is None or first.dp == first.world_size:
        return unknown if first.parallelism in _SHARED_SAMPLES else table.sum(0)
    copies = [rank.data_rank for rank in ranks]
    if len({*copies} - {None}) != first.dp or None in copies:
        return unknown
    of_copies = [table[[copy == one for one in copies]].max(0) for copy in {*copies}]
    total: Floats = np.sum(of_copies, axis=0)
    return total


def _are_of_one_job(process: ProcessSteps, first: ProcessSteps) -> bool:
    begin_s, end_s = np.nanmin(first.step_end_s), np.nanmax(first.step_end_s)
    if np.nanmin(process.step_end_s) <= end_s and begin_s <= np.nanmax(process.step_end_s):
        return True
    are_ranks = None not in (process.rank, first.rank) and process.rank != first.rank
    return are_ranks and process.env_world_size == first.env_world_size is not None


def _of_ranks(ranks: Sequence[ProcessSteps], steps: int, name: str) -> Floats:
    """Return a value of each rank and step; NaN where it is unknown."""
    table = np.full((len(ranks), steps), np.nan)
    for row, process in zip(table, ranks, strict=True):
        if (values := getattr(process, name)) is not None:
            row[: len(values)] = values[:steps]
    return table


def _parts_s(ranks: Sequence[ProcessSteps], first: ProcessSteps) -> dict[str, Floats]:
    """Return the measured parts of each step's time, as means over ranks.

    The last rank of a step does not wait for others' gradients: it only communicates, unless ranks
    are late in turn within a step of FSDP, which waits many times.
    """
    parts_s = {"data_wait_s": _of_ranks(ranks, first.steps, "data_wait_s").mean(0)}
    if first.parallelism in ("ddp", "fsdp") and 1 < len(ranks) == first.world_size:
        waits_s = _of_ranks(ranks, first.steps, "gradient_wait_s")
        least_s = waits_s.min(0)
        parts_s |= {"communication_s": least_s, "rank_wait_s": waits_s.mean(0) - least_s}
    return parts_s


def _measured(
    process: ProcessSteps,
    samples: Floats,
    parts_s: Mapping[str, Floats],
    part: MeasuredPart,
    notes: list[str],
) -> dict[str, Any]:
    end_s = process.step_end_s
    warmup, end = part.bounds(end_s)
    steps_s = np.diff(end_s, prepend=np.nan)  # the start of the first one is unknown
    is_known = np.isfinite(steps_s)
    is_warmup, is_steady = np.zeros((2, len(end_s)), dtype=bool)
    is_warmup[:warmup], is_steady[warmup:end] = is_known[:warmup], is_known[warmup:end]
    if not is_steady.any():
        had = f"the training has only {plural(len(end_s), 'step')}, all of them warm-up"
        notes.append(f"{had}; {TOO_SHORT}")
        return {"windows": tuple(_windows(is_warmup, end_s, samples, parts_s, warmup=True))}
    if part.steps is not None and end - warmup < part.steps:
        had = f"the training ended after {end - warmup} of {part.steps} measured steps"
        notes.append(f"{had}; {TOO_SHORT}")
    is_pause = is_steady & _contains_pause(steps_s, is_steady, process.evaluated)
    pauses, pause_s = int(is_pause.sum()), float(steps_s[is_pause].sum())
    if pauses:
        # Trainers fetch batches ahead, and a pause often begins an epoch: a batch that was fetched
        # in a step with a pause may belong to the next one. So each step gets the mean.
        samples = samples.copy()
        samples[warmup:end] = samples[warmup:end].mean()
        notes.append(
            f"{pauses} of {end - warmup} steps contain a pause, {pause_s:.1f} s in "
            "all, such as an evaluation or a checkpoint; they are left out"
        )
    is_steady &= ~is_pause
    if (note := drift_note(steps_s[is_steady])) is not None:
        notes.append(note)
    before = _windows(is_warmup, end_s, samples, parts_s, warmup=True)
    measured = _windows(is_steady, end_s, samples, parts_s, warmup=False)
    counts = [window["samples"] for window in measured]
    return {
        "windows": (*before, *measured),
        "steps_measured": int(is_steady.sum()),
        "samples_measured": None if None in counts else sum(n or 0 for n in counts),
        **step_time_columns(steps_s[is_steady]),
        "pauses": pauses,
        "pause_s": pause_s,
        "drift": drift(steps_s[is_steady]),
    }


def _contains_pause(steps_s: Floats, is_measured: Mask, evaluated: Mask | None) -> Mask:
    """Say which steps contain a pause; where most have an evaluation, it is a part of a step."""
    is_usual = is_measured.copy()
    if evaluated is not None and evaluated[is_measured].mean() < 0.5:
        is_usual &= ~evaluated
    median_s = float(np.median(steps_s[is_usual]))
    is_long: Mask = steps_s > max(_LONG * median_s, median_s + _PAUSE_S)
    return is_long | is_measured & ~is_usual & (steps_s > _EVALUATION * median_s)


def _windows(
    is_kept: Mask,
    step_end_s: Floats,
    samples: Floats,
    parts_s: Mapping[str, Floats],
    *,
    warmup: bool,
) -> list[dict[str, Any]]:
    """Return the columns of a window for each run of kept steps, which the first step is not.

    A window begins with the end of the step before its first one.
    """
    edges = np.flatnonzero(np.diff(is_kept, append=False)) + 1
    windows = []
    for begin, end in edges.reshape(-1, 2).tolist():
        windows.append(
            {
                "epoch": None,
                "phase": "steps",
                "warmup": warmup,
                "start_ns": int(step_end_s[begin - 1] * 1e9),
                "duration_s": float(step_end_s[end - 1] - step_end_s[begin - 1]),
                "from_step": begin,
                "steps": end - begin,
                "samples": _total(samples[begin:end]),
                **{name: _window_part_s(steps_s[begin:end]) for name, steps_s in parts_s.items()},
                **step_time_columns(np.diff(step_end_s[begin - 1 : end])),
            }
        )
    return windows


def _window_part_s(steps_s: Floats) -> float | None:
    """Return the sum, with the mean for the few steps that a GPU had not ended at a limit."""
    known_s = steps_s[np.isfinite(steps_s)]
    is_known = len(known_s) >= _KNOWN * len(steps_s)
    return float(known_s.mean() * len(steps_s)) if is_known else None


def _total(samples: Floats) -> int | None:
    """Return the sum; None if a value is unknown or no loader gave any."""
    total = float(samples.sum())
    return round(total) if np.isfinite(total) and total > 0 else None
