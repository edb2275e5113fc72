"""TensorBoard event files: scalars with their step and the time at which they were written.

A file is a sequence of TFRecords, each an ``Event``; tensorboardX decodes it. Windows are the steps
between evaluations, by the times of the scalar of training that was written most often.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from wattlaw.errors import BadInput, NotAvailable
from wattlaw.files import read_input
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MAX_BYTES, Source, ns_of
from wattlaw.importing.timeseries import run_of_training

_EVALUATION = re.compile(
    r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:[^a-z]|$)", re.IGNORECASE
)
_MAX_STEPS = 10**7
_MAX_SCALARS = 2_000_000
_MAX_CHECKED = 4096
_FLOAT = 1  # DataType.DT_FLOAT


@dataclass(frozen=True)
class Scalar:
    """One value of a tag."""

    tag: str
    step: int
    time_s: float
    value: float


class EventsImporter:
    """Steps and evaluations of one training."""

    name = "tensorboard"
    description = "TensorBoard event file (events.out.tfevents.*)"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        """Say whether the first record is that of an event file."""
        return b"brain.Event:" in head[:100]

    def read(self, source: Source, options: Options) -> Imported:
        """Return the run."""
        path = source.path
        scalars, damage = _scalars(path)
        evaluated = [each for each in scalars if _EVALUATION.search(each.tag)]
        by_tag = Counter(each.tag for each in scalars if not _EVALUATION.search(each.tag))
        tag = max(sorted(by_tag), key=lambda name: by_tag[name], default=None)
        points = sorted(
            {each.step: each for each in scalars if each.tag == tag}.values(),
            key=lambda each: each.step,
        )
        times_s = sorted(each.time_s for each in evaluated)
        windows = _blocks(points, times_s)
        if not windows:
            raise BadInput(f"{path}: no scalar of training at two steps between evaluations")
        windows += _evaluations(evaluated)
        names = {each.tag for each in evaluated if "loss" not in each.tag.lower()}
        note = f"steps by the times of the scalar {str(tag)[:100]}"
        run = run_of_training(path, options, windows, names, [note])
        steps = sum(window["steps"] for window in windows if window["phase"] == "steps")
        tags = len({each.tag for each in scalars})
        text = f"TensorBoard events: {len(scalars):,} scalars, {tags} tags, {steps:,} steps by "
        notes = () if damage is None else (damage,)
        return Imported(f"{text}{str(tag)[:60]!a}", [run], notes=notes)


def _blocks(points: list[Scalar], evaluated_s: list[float]) -> list[dict[str, Any]]:
    """Return windows of steps; an interval in which an evaluation was written is left out."""
    windows: list[dict[str, Any]] = []
    for before, point in pairwise(points):
        steps, start_ns = point.step - before.step, ns_of(before.time_s)
        is_evaluated = any(before.time_s < time_s < point.time_s for time_s in evaluated_s)
        if start_ns is None or not before.time_s < point.time_s or is_evaluated:
            continue
        duration_s = point.time_s - before.time_s
        last = windows[-1] if windows else None
        if last is not None and last["from_step"] + last["steps"] == before.step:
            last["steps"] += steps
            last["duration_s"] = point.time_s - last.pop("start_s")
            last["start_s"] = point.time_s - last["duration_s"]
            continue
        windows.append({
            "phase": "steps", "from_step": before.step, "start_ns": start_ns,
            "start_s": before.time_s, "duration_s": duration_s, "steps": steps,
        })  # fmt: skip
    for window in windows:
        del window["start_s"]
    return windows


def _evaluations(scalars: list[Scalar]) -> list[dict[str, Any]]:
    by_step: dict[int, dict[str, Any]] = {}
    for each in scalars:
        window = by_step.setdefault(each.step, {"phase": "evaluate", "duration_s": None})
        window["loss" if "loss" in each.tag.lower() else "metric"] = each.value
    return [by_step[step] for step in sorted(by_step)]


def _scalars(path: Path) -> tuple[list[Scalar], str | None]:
    """Return the scalars up to the first record that is damaged or cut off, and where that is."""
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from tensorboardX import proto  # noqa: F401 - the reason below if it is missing
    except ImportError:
        raise NotAvailable(
            f'{path}: tensorboardX is needed; pip install "wattlaw[import]"'
        ) from None
    data, at, scalars = read_input(path, MAX_BYTES), 0, list[Scalar]()
    while at < len(data):
        try:
            record, end = _record(data, at)
            scalars += _event(record)
        except (ValueError, struct.error, DecodeError):
            if at == 0:
                raise BadInput(f"{path}: not an event file: its first record is damaged") from None
            return scalars, f"damaged or cut off at byte {at:,} of {len(data):,}"
        if len(scalars) > _MAX_SCALARS:
            raise BadInput(f"{path}: more than {_MAX_SCALARS:,} scalars")
        at = end
    return scalars, None


def _record(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the content of the TFRecord at a place, and where the next one begins."""
    from tensorboardX.record_writer import masked_crc32c

    length, crc = struct.unpack_from("<QI", data, at)
    if crc != masked_crc32c(data[at : at + 8]) or at + 16 + length > len(data):
        raise ValueError("a record is damaged")
    content = data[at + 12 : at + 12 + length]
    (crc,) = struct.unpack_from("<I", data, at + 12 + length)
    # Scalars are small; the sums of images and graphs would take long.
    if length <= _MAX_CHECKED and crc != masked_crc32c(content):
        raise ValueError("a record is damaged")
    return content, at + 16 + length


def _event(record: bytes) -> Iterator[Scalar]:
    """Yield the scalars of an ``Event``; TensorFlow 2 writes them as tensors."""
    from tensorboardX.proto.event_pb2 import Event

    event = Event.FromString(record)
    if not (0 <= event.step < _MAX_STEPS and event.wall_time > 0):
        return
    for value in event.summary.value:
        number = value.simple_value if value.HasField("simple_value") else _tensor(value.tensor)
        if value.tag and number is not None:
            yield Scalar(value.tag[:200], event.step, event.wall_time, number)


def _tensor(tensor: Any) -> float | None:
    """Return the value of a tensor of one float."""
    if tensor.dtype != _FLOAT or len(tensor.float_val) > 1:
        return None
    if tensor.float_val:
        return float(tensor.float_val[0])
    content = tensor.tensor_content
    return float(struct.unpack("<f", content)[0]) if len(content) == 4 else None


IMPORTER = EventsImporter()
