"""ImageNet in TFRecord shards: ``train-00000-of-01024`` and so on.

Names and features are those of TensorFlow's scripts (``build_imagenet_data.py``, and
``imagenet_to_gcs.py``, which has a folder for each split) or of TensorFlow Datasets.

A record is ``length: uint64, crc(length): uint32, payload, crc(payload): uint32``, little-endian,
with masked CRC-32C sums (https://www.tensorflow.org/tutorials/load_data/tfrecord).
"""

import os
import re
import struct
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tfrecord import TFRecordWriter, example_pb2

from wattlaw.common.errors import BadInput, one_line
from wattlaw.workloads.data_cache import DataCache, signature
from wattlaw.workloads.workload import VALIDATION_NAMES

#: The features of TensorFlow's scripts, and of TensorFlow Datasets, whose labels count from 0.
_IMAGE, _LABEL = "image/encoded", "image/class/label"
_TFDS_IMAGE, _TFDS_LABEL = "image", "label"
#: Names of shards; the first pattern with files counts.
_PATTERNS = ("{0}-*", "{0}/{0}-*", "*-{0}.tfrecord*", "{0}*.tfrecord*", "{0}/*.tfrecord*")
_NUMBERED = re.compile(r"-(\d+)-of-(\d+)")
_HEADER, _FOOTER = 12, 4
_OPEN_FILES = 64
_INDEX_SUFFIXES = (".idx", ".index", ".tfindex")
#: Headers are small reads far apart, so that shared storage answers many at once quicker.
_INDEX_THREADS = 16
_COMPRESSED = {
    b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd",
    b"\x78\x01": "zlib", b"\x78\x5e": "zlib", b"\x78\x9c": "zlib", b"\x78\xda": "zlib",
}  # fmt: skip

#: The offsets of a shard's records and of its end: shape (records + 1,).
Bounds = npt.NDArray[np.int64]


def index_of(files: Sequence[Path]) -> Bounds:
    """Return the bounds of the records of some shards, one shard after the other.

    Each shard's bounds begin with 0. Of ``files``, those of index files are used where they are.
    It is cached, because finding a record takes as many reads as there are records before it.
    """
    shards = [path for path in files if path.suffix not in _INDEX_SUFFIXES]

    def make() -> Bounds:
        with ThreadPoolExecutor(_INDEX_THREADS) as threads:
            return np.concatenate([*threads.map(bounds, shards)])

    return DataCache().array(["tfrecords", signature(files)], make)


def bounds(shard: Path) -> Bounds:
    """Return the bounds of a shard's records, by its index file or by reading the shard."""
    paths = [shard.with_name(shard.name + suffix) for suffix in _INDEX_SUFFIXES]
    if "-of-" not in shard.suffix:  # or one index would be of all shards
        paths.append(shard.with_suffix(".tfindex"))
    index = next((path for path in paths if path.is_file()), None)
    try:
        return _scan(shard) if index is None else _read_index(index, shard)
    except OSError as error:
        raise BadInput(f"{shard}: cannot be read ({one_line(error)})") from error


def _scan(shard: Path) -> Bounds:
    starts, position = [0], 0
    with shard.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no data between the headers
        while position < size:
            header = os.pread(file.fileno(), _HEADER, position)
            length = _payload_length(header, shard, len(starts) - 1)
            position += _HEADER + length + _FOOTER
            if position > size:
                raise _truncated(shard, len(starts) - 1)
            starts.append(position)
    return np.array(starts, np.int64)


def _payload_length(header: bytes, shard: Path, record: int) -> int:
    if len(header) < _HEADER:
        raise _truncated(shard, record)
    if TFRecordWriter.masked_crc(header[:8]) != header[8:]:
        kinds = (kind for magic, kind in _COMPRESSED.items() if header.startswith(magic))
        if record == 0 and (kind := next(kinds, None)):
            raise BadInput(
                f"{shard}: is compressed ({kind}); decompress it; allowed: uncompressed TFRecord "
                "files"
            )
        raise BadInput(
            f"{shard}: record {record}: its length has a wrong checksum; allowed: uncompressed "
            "complete TFRecord files"
        )
    return int(struct.unpack_from("<Q", header)[0])


def _truncated(shard: Path, record: int) -> BadInput:
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
            "allowed: the index of this file, or none"
        )
    return starts


class Records:
    """Reads records and keeps the most recently used shards open, separately in each process."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._files: OrderedDict[Path, int] = OrderedDict()
        weakref.finalize(self, _close, self._files)

    def __reduce__(self) -> tuple[type["Records"], tuple[()]]:
        return Records, ()  # without the open files

    def read(self, shard: Path, start: int, end: int, record: int) -> bytes:
        """Return the payload of a record, whose checksums are verified; ``BadInput`` if wrong."""
        try:
            framed = os.pread(self._opened(shard), end - start, start)
        except OSError as error:
            raise BadInput(f"{shard}: record {record}: {one_line(error)}") from error
        if len(framed) < end - start:
            raise _truncated(shard, record)
        length = _payload_length(framed[:_HEADER], shard, record)
        payload = framed[_HEADER:-_FOOTER]
        if length != len(payload):
            raise BadInput(
                f"{shard}: record {record}: it has {length} bytes, its index says {len(payload)}; "
                "allowed: the index of this file, or none"
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


class Shards:
    """Images in TFRecord shards, numbered over all; ``BadInput`` if one is absent or damaged."""

    def __init__(self, data: Path, classes: int, first_label: int, *, training: bool) -> None:
        files = _files(data, ("train",) if training else VALIDATION_NAMES)
        self._paths = [path for path in files if path.suffix not in _INDEX_SUFFIXES]
        self._index = index_of(files)
        # The place of each shard's bounds, and the number of its first record and of all records.
        self._places = np.flatnonzero(self._index == 0)
        places = np.append(self._places, len(self._index))
        self._firsts = places - np.arange(len(places))
        if not len(self):
            raise BadInput(f"{self._paths[0]}: no record in any shard; allowed: at least one")
        self._classes, self._first_label = classes, first_label
        self._records = Records()

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def read(self, index: int) -> tuple[bytes, int]:
        shard, record = self._find(index)
        place = self._places[shard] + record
        start, end = self._index[place : place + 2].tolist()
        payload = self._records.read(self._paths[shard], start, end, record)
        try:
            features = example_pb2.Example.FromString(payload).features.feature
        except DecodeError as error:
            raise BadInput(
                f"{self.location(index)}: not a tf.train.Example; allowed: Examples with the "
                f"features {_IMAGE} and {_LABEL}"
            ) from error
        is_tfds = _TFDS_LABEL in features and _LABEL not in features
        image, label = (_TFDS_IMAGE, _TFDS_LABEL) if is_tfds else (_IMAGE, _LABEL)
        images = list(features[image].bytes_list.value) if image in features else []
        labels = list(features[label].int64_list.value) if label in features else []
        for name, values, kind in ((image, images, "bytes"), (label, labels, "int64")):
            if len(values) != 1:
                raise BadInput(
                    f"{self.location(index)}: {len(values)} {kind} values in feature {name}; "
                    "allowed: one"
                )
        first = 0 if is_tfds else self._first_label
        last = first + self._classes - 1
        if not first <= labels[0] <= last:
            raise BadInput(
                f"{self.location(index)}: label {labels[0]}; allowed: {first} to {last} (options "
                "first_label and classes)"
            )
        return images[0], labels[0] - first

    def location(self, index: int) -> str:
        shard, record = self._find(index)
        return f"{self._paths[shard]}: record {record}"

    def _find(self, index: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return shard, index - int(self._firsts[shard])


def _files(data: Path, splits: Sequence[str]) -> list[Path]:
    patterns = [pattern.format(split) for pattern in _PATTERNS for split in splits]
    found = ([path for path in data.glob(pattern) if path.is_file()] for pattern in patterns)
    files = next((sorted(paths) for paths in found if paths), [])
    shards = [path for path in files if path.suffix not in _INDEX_SUFFIXES]
    if not shards:
        raise BadInput(
            f"{data / patterns[0]}: no such file; allowed: TFRecord shards with these names, or "
            "source folder"
        )
    # Without this check, a missing shard would silently shorten the epochs.
    numbered = [_NUMBERED.search(path.name) for path in shards]
    if all(numbered):
        there = {(int(each[1]), int(each[2])) for each in numbered if each}
        total = max(of for _, of in there)
        missing = [number for number in range(total) if (number, total) not in there]
        if missing or len(there) != total:
            number = missing[0] if missing else "another total"
            raise BadInput(
                f"{data / patterns[0]}: {len(shards)} shards of {total}, not shard {number}; "
                "allowed: all of them"
            )
    return files
