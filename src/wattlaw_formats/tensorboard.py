"""TensorBoard event files: scalars with their step and the time at which they were written.

A file is a sequence of TFRecords, each an ``Event``; tensorboardX decodes it. The files of a folder
are one training, continued in each file; its folders ``train`` and ``validation`` belong to it.
Windows are the steps between evaluations and pauses, by the times of the scalar of training that
was written most often.
"""

import re
import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import read_input
from wattlaw.common.formatting import plural
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MAX_BYTES, Source, ns_of
from wattlaw.importing.timeseries import are_pauses, run_of_training

_EVALUATION = re.compile(
    r"(?:^|[^a-z])(?:val|valid|validation|eval|evaluation|test)(?:[^a-z]|$)", re.IGNORECASE
)
_PART = re.compile(
    r"(?:.*[^a-z])?(?:train|training|val|valid|validation|eval|evaluation|test)", re.IGNORECASE
)
_FILES = "*tfevents*"
#: Keras numbers epochs, not steps, in scalars of this name.
_OF_EPOCHS = "epoch_"
_MAX_STEPS = 10**7
_MAX_SCALARS = 2_000_000
_MAX_CHECKED = 4096
#: Records of scalars are smaller than this, and images and graphs may be larger; decoded, a record
#: can take fifty times its size.
_MAX_RECORD_BYTES, _LARGE = 4 * 2**20, "a record above 4 MiB"
_FLOAT = 1  # DataType.DT_FLOAT


@dataclass(frozen=True)
class Scalar:
    """One value of a tag; ``row`` is the number of its record."""

    row: int
    file: Path
    tag: str
    step: int
    time_s: float
    value: float

    @property
    def is_evaluation(self) -> bool:
        folder = self.file.parent.name
        is_part = _PART.fullmatch(folder) and _EVALUATION.search(folder)
        return bool(is_part or _EVALUATION.search(self.tag))


class EventsImporter:
    name = "tensorboard"
    description = "TensorBoard event file (events.out.tfevents.*), or the folder of a training"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return b"brain.Event:" in head[:100]

    def files_of(self, path: Path) -> list[Path]:
        """Return the event files of a training: of its folder, and of ``train`` and the like."""
        parts = [each for each in sorted(path.iterdir()) if each.is_dir()]
        folders = [path, *(each for each in parts if _PART.fullmatch(each.name))]
        return [file for each in folders for file in sorted(each.glob(_FILES)) if file.is_file()]

    def read(self, source: Source, options: Options) -> Imported:
        path, account = source.path, source.account
        scalars, notes = _scalars(source)
        evaluated = [each for each in scalars if each.is_evaluation]
        of_training = [each for each in scalars if not each.is_evaluation]
        by_tag = Counter(each.tag for each in of_training)
        tag = max(sorted(by_tag), key=lambda name: by_tag[name], default=None)
        others = [each.row for each in of_training if each.tag != tag]
        account.leave_out("a scalar of training whose times are not used", *others)
        account.read(*(each.row for each in evaluated))
        points = [each for each in of_training if each.tag == tag]
        windows, own_notes = _windows(source, _sessions(source, points), evaluated)
        if not windows:
            raise BadInput(
                f"{path}: no scalar of training at two steps between evaluations; log one in "
                "each step, or import the times with --from table --map"
            )
        notes += own_notes
        steps = sum(window.get("steps", 0) for window in windows)
        length = f"{steps:,} steps" if steps else plural(len(windows), "epoch")
        names = {each.tag for each in evaluated if "loss" not in each.tag.lower()}
        windows += _evaluations(evaluated, min(names, default=None))
        note = f"steps by the times of the scalar {str(tag)[:100]}"
        run = run_of_training(path, options, windows, names, [note, *notes])
        tags = len({each.tag for each in scalars})
        text = f"TensorBoard events: {len(scalars):,} scalars, {tags} tags, {length} by "
        return Imported(f"{text}{str(tag)[:60]!a}", [run], notes=notes)


def _sessions(source: Source, points: Sequence[Scalar]) -> list[list[Scalar]]:
    """Return the points of each uninterrupted training: its steps only grow, in one file.

    Files that are written at the same time are those of several processes of one training.
    """
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
        first, end = bisect_right(times_s, before.time_s), bisect_left(times_s, point.time_s)
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


def _scalars(source: Source) -> tuple[list[Scalar], list[str]]:
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tensorboardX import proto  # noqa: F401 - the reason below if it is missing
    except ImportError:
        raise NotAvailable(
            f'{source.path}: tensorboardX is needed; pip install "wattlaw[import]"'
        ) from None
    path, scalars, notes = source.path, list[Scalar](), list[str]()
    files = IMPORTER.files_of(path) if path.is_dir() else [path]
    if not files:
        raise BadInput(f"{path}: a folder without event files")
    for file in files:
        data = read_input(file, MAX_BYTES)
        for row, (at, record) in source.items(_records(data), "record"):
            if record is not None and len(record) > _MAX_RECORD_BYTES:
                source.account.leave_out(_LARGE, row)
                continue
            try:
                if record is None:
                    raise ValueError("damaged")
                own = [Scalar(row, file, *values) for values in _event(record)]
            except (ValueError, struct.error, DecodeError):
                if at == 0:
                    raise BadInput(
                        f"{file}: not an event file: its first record is damaged"
                    ) from None
                source.account.leave_out("a record that is damaged or cut off", row)
                notes.append(f"damaged or cut off at byte {at:,} of {len(data):,}")
                continue
            if not own and at == 0:  # the version of the format
                source.account.header(row)
            elif not own:
                source.account.leave_out("a record without a scalar", row)
            scalars += own
            if len(scalars) > _MAX_SCALARS:
                raise BadInput(f"{path}: more than {_MAX_SCALARS:,} scalars")
    return scalars, notes[:1]


def _records(data: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield the place and content (None: damaged) of each TFRecord up to a damaged length."""
    from tensorboardX.record_writer import masked_crc32c

    at = 0
    while at < len(data):
        length, crc = struct.unpack("<QI", data[at : at + 12].ljust(12, b"\0"))
        end = at + 16 + length
        if crc != masked_crc32c(data[at : at + 8]) or end > len(data):
            yield at, None
            return
        content = data[at + 12 : end - 4]
        (crc,) = struct.unpack_from("<I", data, end - 4)
        # Scalars are small; the sums of images and graphs would take long.
        is_damaged = length <= _MAX_CHECKED and crc != masked_crc32c(content)
        yield at, None if is_damaged else content
        at = end


def _event(record: bytes) -> Iterator[tuple[str, int, float, float]]:
    """Yield tag, step, time and value of each scalar; TensorFlow 2 writes them as tensors."""
    from tensorboardX.proto.event_pb2 import Event

    event = Event.FromString(record)
    if not (0 <= event.step < _MAX_STEPS and event.wall_time > 0):
        return
    for value in event.summary.value:
        number = value.simple_value if value.HasField("simple_value") else _tensor(value.tensor)
        if value.tag and number is not None:
            yield value.tag[:200], event.step, event.wall_time, number


def _tensor(tensor: Any) -> float | None:
    if tensor.dtype != _FLOAT or len(tensor.float_val) > 1:
        return None
    if tensor.float_val:
        return float(tensor.float_val[0])
    content = tensor.tensor_content
    return float(struct.unpack("<f", content)[0]) if len(content) == 4 else None


IMPORTER = EventsImporter()
