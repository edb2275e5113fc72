"""TensorBoard event files: scalars with their step and the time at which they were written.

A file is a sequence of TFRecords, each a protocol buffer ``Event``
(https://github.com/tensorflow/tensorboard/blob/master/tensorboard/compat/proto/event.proto). Only
the fields of scalars are read. Windows are the steps between evaluations, by the times of the
scalar of training that was written most often.
"""

import re
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from wattlaw.errors import BadInput
from wattlaw.files import read_input
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MAX_BYTES, ns_of
from wattlaw.importing.runs import RunMaker, single_run
from wattlaw.importing.timeseries import measure_of
from wattlaw.store.record import Facts

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

    def read(self, path: Path, options: Options) -> Imported:
        """Return the run."""
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
        run = single_run(
            path, RunMaker(path, options), {}, windows, measure_of(windows),
            facts=Facts(metric=min(names, default=None)),
            notes=(f"steps by the times of the scalar {str(tag)[:100]}",),
        )  # fmt: skip
        steps = sum(window["steps"] for window in windows if window["phase"] == "steps")
        return Imported(
            f"TensorBoard events: {len(scalars):,} scalars, {len({s.tag for s in scalars})} tags, "
            f"{steps:,} steps by {str(tag)[:60]!a}",
            runs=(run,),
            notes=() if damage is None else (damage,),
        )


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
    data, at, scalars = memoryview(read_input(path, MAX_BYTES)), 0, list[Scalar]()
    while at < len(data):
        try:
            record, end = _record(data, at)
            scalars += _event(record)
        except (ValueError, struct.error, IndexError):
            if at == 0:
                raise BadInput(f"{path}: not an event file: its first record is damaged") from None
            return scalars, f"damaged or cut off at byte {at:,} of {len(data):,}"
        if len(scalars) > _MAX_SCALARS:
            raise BadInput(f"{path}: more than {_MAX_SCALARS:,} scalars")
        at = end
    return scalars, None


def _record(data: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the content of the TFRecord at a place, and where the next one begins."""
    length, crc = struct.unpack_from("<QI", data, at)
    if crc != _masked_crc(data[at : at + 8]) or at + 16 + length > len(data):
        raise ValueError("a record is damaged")
    content = data[at + 12 : at + 12 + length]
    # Scalars are small; the sums of images and graphs would take long.
    if length <= _MAX_CHECKED and struct.unpack_from("<I", data, at + 12 + length)[0] != (
        _masked_crc(content)
    ):
        raise ValueError("a record is damaged")
    return content, at + 16 + length


def _event(data: memoryview) -> Iterator[Scalar]:
    """Yield the scalars of an ``Event``: wall_time = 1, step = 2, summary = 5."""
    time_s, step, summaries = 0.0, 0, []
    for number, value in _fields(data):
        if number == 1 and isinstance(value, memoryview):
            (time_s,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, memoryview):
            summaries.append(value)
    if not 0 <= step < _MAX_STEPS:
        return
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, memoryview):
                yield from _value(value, step, time_s)


def _value(data: memoryview, step: int, time_s: float) -> Iterator[Scalar]:
    """Yield the scalar of a ``Summary.Value``: tag = 1, simple_value = 2, tensor = 8."""
    tag, result = "", None
    for number, value in _fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == 1:
            tag = bytes(value).decode()
        elif number == 2:
            (result,) = struct.unpack("<f", value)
        elif number == 8:
            result = _tensor(value)
    if tag and result is not None and time_s > 0:
        yield Scalar(tag[:200], step, time_s, result)


def _tensor(data: memoryview) -> float | None:
    """Return the value of a ``TensorProto`` of one float: dtype = 1, content = 4, float_val = 5."""
    fields = dict(_fields(data))
    content = fields.get(4, fields.get(5))
    if fields.get(1) != _FLOAT or not isinstance(content, memoryview) or len(content) != 4:
        return None
    return float(struct.unpack("<f", content)[0])


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field of a protocol buffer."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            integer, at = _varint(data, at)
            yield number, integer
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(data):
            raise ValueError("a field is cut off")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return tuple(table)


_CRC = _crc_table()


def _masked_crc(data: memoryview) -> int:
    """Return the masked CRC-32C of a TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 255]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


IMPORTER = EventsImporter()
