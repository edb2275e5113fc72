"""TFRecord framing: where the records of a shard are, and reading one of them.

A record is ``length: uint64, crc(length): uint32, payload, crc(payload): uint32``, little-endian,
with masked CRC-32C sums (https://www.tensorflow.org/tutorials/load_data/tfrecord).
"""

import os
import struct
import weakref
from collections import OrderedDict
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tfrecord import TFRecordWriter

from wattlaw.errors import BadInput, one_line

_HEADER, _FOOTER = 12, 4
_OPEN_FILES = 64

#: Where each record begins, and at last where the file ends: shape (records + 1,).
Bounds = npt.NDArray[np.int64]


def bounds(shard: Path) -> Bounds:
    """Return where a shard's records are: from its index file, or by reading the shard.

    Raises
    ------
    wattlaw.errors.BadInput
        The shard is truncated or not a TFRecord file, or its index is of another file.
    """
    index = next((path for path in _indices_of(shard) if path.is_file()), None)
    try:
        found = _scan(shard) if index is None else _read_index(index, shard)
    except OSError as error:
        raise BadInput(f"{shard}: cannot be read ({one_line(error)})") from error
    return found


def _indices_of(shard: Path) -> list[Path]:
    paths = [shard.with_name(shard.name + ending) for ending in (".idx", ".index", ".tfindex")]
    return [*paths, shard.with_suffix(".tfindex")]


def is_index(path: Path) -> bool:
    """Say whether a file is named as an index is."""
    return path.suffix in {".idx", ".index", ".tfindex"}


def _scan(shard: Path) -> Bounds:
    starts, position = [0], 0
    with shard.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        while position < size:
            header = os.pread(file.fileno(), _HEADER, position)
            length = _payload_length(header, shard, len(starts) - 1)
            position += _HEADER + length + _FOOTER
            if position > size:
                raise _broken_off(shard, len(starts) - 1)
            starts.append(position)
    return np.array(starts, np.int64)


def _payload_length(header: bytes, shard: Path, record: int) -> int:
    if len(header) < _HEADER:
        raise _broken_off(shard, record)
    if TFRecordWriter.masked_crc(header[:8]) != header[8:]:
        raise BadInput(
            f"{shard}: record {record}: its length has a wrong checksum; allowed: uncompressed "
            "complete TFRecord files"
        )
    return int(struct.unpack_from("<Q", header)[0])


def _broken_off(shard: Path, record: int) -> BadInput:
    return BadInput(f"{shard}: record {record}: the file ends within it; allowed: complete records")


def _read_index(index: Path, shard: Path) -> Bounds:
    try:
        table = np.array(index.read_text("utf-8").split(), np.int64).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise BadInput(
            f"{index}: cannot be read as an index ({one_line(error)}); allowed: a line `offset "
            "length` for each record"
        ) from error
    starts = np.append(table[:, 0], shard.stat().st_size)
    wrong = np.flatnonzero((np.diff(starts) != table[:, 1]) | (table[:, 1] < _HEADER + _FOOTER))
    if starts[0] != 0 or len(wrong):
        record = int(wrong[0]) if len(wrong) else 0
        raise BadInput(
            f"{index}: record {record} does not end where the next one, or {shard.name}, does; "
            "allowed: the index of this very file, or none"
        )
    return starts


class Records:
    """Reads records of some shards; keeps the files it used last open, in each process anew."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._files: OrderedDict[Path, int] = OrderedDict()
        weakref.finalize(self, _close, self._files)

    def __reduce__(self) -> tuple[type["Records"], tuple[()]]:
        return Records, ()  # open files stay behind

    def read(self, shard: Path, start: int, end: int, record: int) -> bytes:
        """Return the payload of a record, after checking its sums.

        Raises
        ------
        wattlaw.errors.BadInput
            The file breaks off, or what it has is not what was written.
        """
        try:
            framed = os.pread(self._opened(shard), end - start, start)
        except OSError as error:
            raise BadInput(f"{shard}: record {record}: {one_line(error)}") from error
        if len(framed) < end - start:
            raise _broken_off(shard, record)
        length = _payload_length(framed[:_HEADER], shard, record)
        payload = framed[_HEADER:-_FOOTER]
        if length != len(payload):
            raise BadInput(
                f"{shard}: record {record}: it has {length} bytes, its index says {len(payload)}; "
                "allowed: the index of this very file, or none"
            )
        if TFRecordWriter.masked_crc(payload) != framed[-_FOOTER:]:
            raise BadInput(
                f"{shard}: record {record}: its {length} bytes have a wrong checksum; allowed: "
                "records as they were written"
            )
        return payload

    def _opened(self, shard: Path) -> int:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._files.clear()
        if shard in self._files:
            self._files.move_to_end(shard)
        else:
            if len(self._files) >= _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
            self._files[shard] = os.open(shard, os.O_RDONLY)
        return self._files[shard]


def _close(files: OrderedDict[Path, int]) -> None:
    while files:
        os.close(files.popitem()[1])
