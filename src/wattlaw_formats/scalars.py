"""A training from its scalars: values with a tag, a step and the time at which they were written.

Windows are the steps between evaluations and pauses, by the times of the scalar of training that
was written most often. Readings of GPUs beside the scalars give the windows their energy.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.common.formatting import plural
from wattlaw.common.text import join_names, quote
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import Source, ns_of, number
from wattlaw.importing.readings import SampleRows, describe, gpus_of, selected
from wattlaw.importing.runs import RunMaker
from wattlaw.importing.timeseries import are_pauses, measure_of, measured
from wattlaw.store.field_map import columns_of
from wattlaw.store.fields import FIELDS, OPTIONS, InvalidCell
from wattlaw.store.record import Facts

EVALUATION = re.compile(
    r"(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test)(?:[^a-z]|$)", re.IGNORECASE
)
PART = re.compile(
    r"(?:.*[^a-z])?(?:train|training|val|valid|validation|eval|evaluation|test)", re.IGNORECASE
)
#: Samples that were processed since the begin of a training.
SAMPLES = re.compile(r"(?:.*[/._])?(?:num_)?(?:samples|examples)(?:_seen)?", re.IGNORECASE)
#: Keras numbers epochs, not steps, in scalars of this name.
_OF_EPOCHS = "epoch_"
MAX_STEPS = 10**7
_MAX_SCALARS = 2_000_000
#: Fields that ``--map`` may take from the configuration of a run, and those that it has by its own
#: names. What ``gpus`` counts there is not certain: those of a node, or of the job.
MAPPED = ("gpus", "nodes", "workload", "global_batch", "local_batch", "precision")
_OWN = ("global_batch", "local_batch", "precision", "power_limit_w")
#: What differs between repeats of one setting.
_NOT_OPTIONS = re.compile(r"_.*|(?:.*[._])?(?:seed|run_name|run_id|.*_dir)", re.IGNORECASE)
_MAX_OPTIONS, _MAX_TEXT = 200, 200


@dataclass(frozen=True, slots=True)
class Scalar:
    row: int  # the number of its record or line
    file: Path
    tag: str
    step: int
    time_s: float
    value: float

    @property
    def is_evaluation(self) -> bool:
        folder = self.file.parent.name
        is_part = PART.fullmatch(folder) and EVALUATION.search(folder)
        return bool(is_part or EVALUATION.search(self.tag))


class Logged:
    """What a tool logged of a training: scalars, readings of GPUs, configuration, and notes."""

    def __init__(self, source: Source, what: str, workload: str) -> None:
        self.source, self.what, self.workload, self.hardware = source, what, workload, ""
        self.scalars, self.samples = list[Scalar](), SampleRows(source.path)
        self.config, self.notes = dict[str, Any](), list[str]()

    def add_scalar(
        self, row: int, tag: str, step: int, time_s: float, value: float, file: Path = Path()
    ) -> None:
        self.scalars.append(Scalar(row, file, tag[:_MAX_TEXT], step, time_s, value))
        if len(self.scalars) > _MAX_SCALARS:
            raise BadInput(f"{self.source.path}: more than {_MAX_SCALARS:,} scalars")

    def add_reading(
        self, row: int, host: str, gpu: str, t_ns: int, values: Mapping[str, float | None]
    ) -> None:
        """Add values of a GPU, which such tools log as averages."""
        self.samples.add(host, gpu, "gpu", t_ns, values)
        self.samples.facts[host, gpu] = {"power": "average"}
        self.source.account.read(row)

    def leave_out_damaged(self, row: int, at: int, size: int) -> None:
        self.source.account.leave_out("a record that is damaged or cut off", row)
        if not any(note.startswith("damaged") for note in self.notes):
            self.notes.append(f"damaged or cut off at byte {at:,} of {size:,}")

    def imported(self, options: Options) -> Imported:
        source, what, scalars, notes = self.source, self.what, self.scalars, self.notes
        path, account = source.path, source.account
        values = {"workload": self.workload, **setting_of(path, self.config, options)}
        values |= {"hardware": self.hardware} if self.hardware else {}
        readings = self.samples.readings() if self.samples else None
        evaluated = [each for each in scalars if each.is_evaluation]
        of_training = [each for each in scalars if not each.is_evaluation]
        seen = [each for each in of_training if SAMPLES.fullmatch(each.tag)]
        by_tag = Counter(each.tag for each in of_training if not SAMPLES.fullmatch(each.tag))
        tag = max(sorted(by_tag), key=lambda name: by_tag[name], default=None)
        others = [each.row for each in of_training if each.tag != tag]
        account.leave_out("a scalar of training whose times are not used", *others)
        account.read(*(each.row for each in evaluated))
        points = [each for each in of_training if each.tag == tag]
        windows, own_notes = _windows(source, _sessions(source, points), evaluated)
        if not windows and readings is not None:
            return Imported(describe(what, readings, options), readings=readings, notes=notes)
        if not windows:
            raise BadInput(
                f"{path}: no scalar of training at two steps between evaluations; log one in "
                "each step, or import the times with --from table --map"
            )
        _add_samples(windows, seen)
        own_notes = [*notes, *own_notes]
        steps = sum(window.get("steps", 0) for window in windows)
        length = f"{steps:,} steps" if steps else plural(len(windows), "epoch")
        names = {each.tag for each in evaluated if "loss" not in each.tag.lower()}
        measure = measure_of(windows)
        windows += _evaluations(evaluated, min(names, default=None))
        note = f"steps by the times of the scalar {str(tag)[:100]!a}"
        gpus = 0
        if readings is not None:
            readings, _ = selected(readings, options.devices)
            gpus = len(gpus_of(readings.samples))
            values = {"gpus": gpus, **values}
            wanted = options.constants.get("gpus", values["gpus"])
            if wanted != gpus:
                why = f"the power is that of {plural(gpus, 'GPU')}, and the run has {wanted}"
                own_notes.append(f"no energy: {why}")
                readings = None
        run = RunMaker(path, options).run(
            values, windows, measure,
            facts=Facts(metric=min(names, default=None)), notes=[note, *own_notes],
        )  # fmt: skip
        tags = len({each.tag for each in scalars})
        text = f"{what}: {len(scalars):,} scalars, {tags} tags, {length} by {str(tag)[:60]!a}"
        if readings is not None:
            run, text = measured(run, readings), f"{text}, power of {plural(gpus, 'GPU')}"
        return Imported(text, [run], notes=own_notes)


def setting_of(path: Path, config: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """Return the fields of a run by its configuration: those of ``--map``, those of wattlaw's own
    names, and all other numbers and texts as options."""
    columns, values = columns_of(options.mapping), dict[str, Any]()
    for field, name in (*((each, each) for each in _OWN if each in config), *columns.items()):
        if name not in config:
            known = join_names([quote(each) for each in list(config)[:20]])
            raise BadInput(f"{path}: --map {field}: no {quote(name)}; the run has: {known}")
        try:
            values[field] = FIELDS[field].parse_cell(field, config[name])
        except InvalidCell as error:
            if field in columns:
                raise BadInput(f"{path}: {error}") from None
    used = {columns.get(field, field) for field in values}
    for name, value in config.items():
        is_text = isinstance(value, str) and value.isprintable() and len(value) <= _MAX_TEXT
        is_plain = is_text or isinstance(value, bool) or number(value) is not None
        is_named = (
            name.isprintable() and len(name) <= _MAX_TEXT and not _NOT_OPTIONS.fullmatch(name)
        )
        if is_plain and is_named and name not in used and len(values) < _MAX_OPTIONS:
            values[OPTIONS + name] = value
    return values


def _add_samples(windows: Sequence[dict[str, Any]], seen: Sequence[Scalar]) -> None:
    """Add the samples of each window where a scalar counts them: it is then known at both ends."""
    known = {each.step: each.value for each in seen}
    counts = [known[step] for step in sorted(known)]
    if any(after < before for before, after in pairwise(counts)):
        return
    for window in windows:
        first = window.get("from_step", 0)
        before, after = known.get(first), known.get(first + window.get("steps", 0))
        if before is not None and after is not None and after > before:
            window["samples"] = int(after - before)


def _sessions(source: Source, points: Sequence[Scalar]) -> list[list[Scalar]]:
    """Return the points of each training without a break: its steps only grow, in one file. Files
    that are written at the same time are of several processes of one training."""
    sessions = list[list[Scalar]]()
    for point in points:
        last = sessions[-1][-1] if sessions else None
        if last is None or last.file != point.file or point.step < last.step:
            sessions.append([point])
        elif point.step > last.step and point.time_s > last.time_s:
            sessions[-1].append(point)
        else:
            source.account.leave_out("a step that is not after the one before", point.row)
    kept = list[list[Scalar]]()
    for session in sorted(sessions, key=lambda each: each[0].time_s):
        if kept and session[0].time_s < kept[-1][-1].time_s:
            source.account.leave_out(
                "written beside another file or part of it", *(point.row for point in session)
            )
        else:
            kept.append(session)
    return kept


def _windows(
    source: Source, sessions: Sequence[Sequence[Scalar]], evaluated: Sequence[Scalar]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the steps between evaluations and pauses, and notes on what is left out."""
    times_s = sorted(each.time_s for each in evaluated)
    pairs = [pair for session in sessions for pair in pairwise(session)]
    is_pause = are_pauses(
        [point.time_s - before.time_s for before, point in pairs],
        [point.step - before.step for before, point in pairs],
    )
    windows, evaluations_s = list[dict[str, Any]](), list[float]()
    pauses_s = [after[0].time_s - before[-1].time_s for before, after in pairwise(sessions)]
    last: Scalar | None = None
    for (before, point), is_long in zip(pairs, is_pause, strict=True):
        duration_s, steps = point.time_s - before.time_s, point.step - before.step
        first, end = bisect_right(times_s, before.time_s), bisect_right(times_s, point.time_s)
        if end > first:
            evaluations_s.append(duration_s)
        elif is_long:
            pauses_s.append(duration_s)
        elif (start_ns := ns_of(before.time_s)) is not None:
            source.account.read(before.row, point.row)
            window = {"start_ns": start_ns, "duration_s": duration_s}
            if point.tag.startswith(_OF_EPOCHS):
                windows.append({"phase": "train", "epoch": point.step, **window})
            elif last is before:
                windows[-1]["steps"] += steps
                windows[-1]["duration_s"] = point.time_s - windows[-1]["start_ns"] * 1e-9
            else:
                steps_of = {"phase": "steps", "from_step": before.step, "steps": steps}
                windows.append({**steps_of, **window})
            last = point
    for session in sessions:
        rows = sorted({point.row for point in session})
        alone = [row for row in rows if not source.account.is_read(row)]
        source.account.leave_out("beside an evaluation or a pause on both sides", *alone)
    notes = []
    for name, lengths_s in (("an evaluation", evaluations_s), ("a pause", pauses_s)):
        if lengths_s:
            count = plural(len(lengths_s), "interval")
            notes.append(f"{count} with {name} left out, of up to {max(lengths_s):.4g} s")
    return windows, notes


def _evaluations(scalars: Sequence[Scalar], metric: str | None) -> list[dict[str, Any]]:
    by_step: dict[int, dict[str, Any]] = {}
    for each in scalars:
        window = by_step.setdefault(each.step, {"phase": "evaluate", "duration_s": None})
        if "loss" in each.tag.lower():
            window["loss"] = each.value
        elif each.tag == metric:
            window["metric"] = each.value
    return [by_step[step] for step in sorted(by_step)]
