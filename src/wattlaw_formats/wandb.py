"""Runs of Weights & Biases: the log of an offline run, and the CSV of a run's history.

``run-ID.wandb`` is a log as LevelDB writes it: after 7 bytes, blocks of 32 KiB with pieces of
records, each with a CRC-32. A record is a protocol buffer (``wandb_internal.proto``).
"""

import json
import re
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wattlaw.common.files import read_input
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MAX_BYTES, Source, count, headers_in, ns_of, number
from wattlaw.importing.runs import HOST, workload_of
from wattlaw_formats import scalars
from wattlaw_formats.scalars import MAX_STEPS

_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK, _PIECE = 32_768, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4
_HISTORY, _CONFIG, _STATS, _RUN, _EXIT, _ENVIRONMENT = 2, 5, 7, 17, 18, 26  # fields of a record
_ITEM, _KEY, _NESTED_KEY, _JSON = 1, 1, 2, 16
#: What numbers the steps: of the trainers of Lightning and Hugging Face, of scripts, and of W&B.
_STEPS = ("trainer/global_step", "train/global_step", "global_step", "_step")
_GPU = re.compile(r"(?:system\.)?gpu\.(\d{1,3})\.(\w+)(?:/l:([\w.-]{1,100}))?")
_COLUMNS = {
    "powerWatts": ("power_w", 1.0), "energyJoules": ("energy_j", 1.0), "gpu": ("sm_util", 0.01),
    "enforcedPowerLimitWatts": ("power_limit_w", 1.0), "memory": ("mem_util", 0.01),
    "smClock": ("sm_clock_mhz", 1.0), "memoryClock": ("mem_clock_mhz", 1.0),
    "temp": ("temperature_c", 1.0),
}  # fmt: skip


class RunImporter:
    name = "wandb"
    description = "offline run of Weights & Biases (run-ID.wandb), or the CSV of a run's history"
    mapped = scalars.MAPPED

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        names = {name for names in headers_in(head) if "_timestamp" in names for name in names}
        return head.startswith(_MAGIC) or "_step" in names or any(map(_GPU.fullmatch, names))

    def read(self, source: Source, options: Options) -> Imported:
        run = _Run(source, "W&B run", workload_of(source.path))
        if source.begins_with(":W&B"):
            data = read_input(source.path, MAX_BYTES)
            for row, (at, record) in source.items(_records(data), "record"):
                try:
                    if record is None:
                        raise ValueError("damaged")
                    run.add_record(row, dict(_fields(record)))
                except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    run.leave_out_damaged(row, at, len(data))
        else:
            for line, cells in source.rows(["_timestamp"]):
                run.add(line, number(cells["_timestamp"]), cells)
        return run.imported(options)


class _Run(scalars.Logged):
    def add_record(self, row: int, record: Mapping[int, Any]) -> None:
        account = self.source.account
        if _HISTORY in record:
            values = _items(record[_HISTORY], _ITEM)
            return self.add(row, number(values.get("_timestamp")), values)
        if _STATS in record:
            time = dict(_fields(dict(_fields(record[_STATS])).get(2, b"")))
            return self.add(row, time.get(1, 0) + time.get(2, 0) * 1e-9, _items(record[_STATS], 3))
        if _RUN in record:
            run = dict(_fields(record[_RUN]))
            self.workload = _text(run.get(3, b"")) or self.workload
            self.config |= _flat(_items(run.get(4, b""), _ITEM))
        elif _CONFIG in record:
            self.config |= _flat(_items(record[_CONFIG], _ITEM))
        elif _ENVIRONMENT in record:
            self.hardware = _text(dict(_fields(record[_ENVIRONMENT])).get(18, b"")) or self.hardware
        elif _EXIT in record:
            self.notes += ["the run failed"] if dict(_fields(record[_EXIT])).get(1) else []
        else:
            return account.leave_out("a record without a step or a power", row)
        return account.header(row)

    def add(self, row: int, time_s: float | None, values: Mapping[str, Any]) -> None:
        t_ns, account = None if time_s is None else ns_of(time_s), self.source.account
        if time_s is None or not t_ns:
            return account.leave_out("no time", row)
        gpus = defaultdict[tuple[str, str], dict[str, float | None]](dict)
        for name, value in values.items():
            match, known = _GPU.fullmatch(name), number(value)
            if match and match[2] in _COLUMNS and known is not None:
                column, scale = _COLUMNS[match[2]]
                gpus[match[3] or HOST, match[1]][column] = known * scale
        for (host, gpu), own in gpus.items():
            self.add_reading(row, host, gpu, t_ns, own)
        counts = {name: count(values.get(name), most=MAX_STEPS) for name in _STEPS}
        step = next((name for name in _STEPS if counts[name] is not None), "_step")
        at = counts[step]
        if at is None:
            return None if gpus else account.leave_out("a record without a step or a power", row)
        for name, value in values.items():
            is_own = name.startswith("_") or name in _STEPS or name.endswith("epoch")
            if is_own or _GPU.fullmatch(name) or (known := number(value)) is None:
                continue
            is_kept = scalars.EVALUATION.search(name) or scalars.SAMPLES.fullmatch(name)
            self.add_scalar(row, name if is_kept else step, at, time_s, known)
        return None


def _records(data: bytes) -> Iterator[tuple[int, bytes | None]]:
    """Yield the place and content of each record; None: damaged, the next block goes on."""
    at, begun, pieces = len(_MAGIC), 0, list[bytes]()
    while at < len(data):
        left = _BLOCK - at % _BLOCK
        if left < _PIECE.size:  # filled up
            at += left
            continue
        crc, size, kind = _PIECE.unpack(data[at : at + _PIECE.size].ljust(_PIECE.size, b"\0"))
        piece = data[at + _PIECE.size : at + _PIECE.size + size]
        is_whole = len(piece) == size <= left - _PIECE.size
        is_first = kind in (_FULL, _FIRST)
        if not is_whole or zlib.crc32(piece, zlib.crc32(bytes([kind]))) != crc:
            yield at, None
            at, pieces = at + left, []
            continue
        if is_first and pieces:
            yield begun, None
        if is_first:
            begun, pieces = at, []
        at += _PIECE.size + size
        if is_first or pieces:  # else the rest of a record whose begin is damaged
            pieces.append(piece)
            if kind in (_FULL, _LAST):
                yield begun, b"".join(pieces)
                pieces = []
    if pieces:
        yield begun, None


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer: an integer or bytes."""
    at, value = 0, 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        if at + size > len(message):
            raise ValueError("a field that is cut off")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while shift < 64:
        byte = message[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("an integer of more than 64 bits")


def _items(message: bytes, field: int) -> dict[str, Any]:
    """Return the values of items, such as of a history; the parts of a nested key are joined."""
    values = {}
    for item in (value for place, value in _fields(message) if place == field):
        parts = list(_fields(item))
        key = ".".join(_text(value) for place, value in parts if place in (_KEY, _NESTED_KEY))
        values[key] = next((json.loads(value) for place, value in parts if place == _JSON), None)
    return values


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = dict[str, Any]()
    for name, value in values.items():
        is_nested = isinstance(value, dict) and len(prefix) < 1000
        flat |= _flat(value, f"{prefix}{name}.") if is_nested else {prefix + name: value}
    return flat


def _text(value: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in value.decode("utf-8", "replace"))[:200]


IMPORTER = RunImporter()
