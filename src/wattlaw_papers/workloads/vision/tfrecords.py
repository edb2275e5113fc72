"""ImageNet in TFRecord shards: ``train-00000-of-01024`` and so on.

Names and features are those of TensorFlow's scripts (``build_imagenet_data.py``, and
``imagenet_to_gcs.py``, which has a folder for each split) or of TensorFlow Datasets.

A record is ``length: uint64, crc(length): uint32, payload, crc(payload): uint32``, little-endian,
with masked CRC-32C sums (https://www.tensorflow.org/tutorials/load_data/tfrecord).
"""

import os
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
from wattlaw_papers.workloads.data_cache import DataCache, signature
from wattlaw_papers.workloads.data_sets import VALIDATION_NAMES
from wattlaw_papers.workloads.shards import check_all_there

#: The features of TensorFlow's scripts, and of TensorFlow Datasets, whose labels count from 0.
_IMAGE, _LABEL = "image/encoded", "image/class/label"
_TFDS_IMAGE, _TFDS_LABEL = "image", "label"
#: Names of shards; the first pattern with files counts.
_PATTERNS = ("{0}-*", "{0}/{0}-*", "*-{0}.tfrecord*", "{0}*.tfrecord*", "{0}/*.tfrecord*")
_HEADER, _FOOTER = 12, 4
_OPEN_FILES = 64
#: Files beside shards, which other readers use.
_INDEX_SUFFIXES = (".idx", ".index", ".tfindex")
#: Headers are small reads far apart, so that shared storage answers many at once quicker.
_INDEX_THREADS = 16

#: The offsets of a shard's records and of its end: shape (records + 1,).
Bounds = npt.NDArray[np.int64]


def index_of(shards: Sequence[Path]) -> Bounds:
    """Return the bounds of the records of some shards, one shard after the other, each from 0. They
    are cached: finding a record takes as many reads as there are records before it."""

    def make() -> Bounds:
        with ThreadPoolExecutor(_INDEX_THREADS) as threads:
            return np.concatenate([*threads.map(bounds, shards)])

    return DataCache().array(["tfrecords", signature(shards)], make)


def bounds(shard: Path) -> Bounds:
    starts, position = [0], 0
    try:
        with shard.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            # No data between the headers.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            while position < size:
                header = os.pread(file.fileno(), _HEADER, position)
                length = _payload_length(header, shard, len(starts) - 1)
                position += _HEADER + length + _FOOTER
                if position > size:
                    raise _truncated(shard, len(starts) - 1)
                starts.append(position)
    except OSError as error:
        raise BadInput(f"{shard}: cannot be read ({one_line(error)})") from error
    return np.array(starts, np.int64)


def _payload_length(header: bytes, shard: Path, record: int) -> int:
    if len(header) < _HEADER:
        raise _truncated(shard, record)
    if TFRecordWriter.masked_crc(header[:8]) != header[8:]:
        allowed = "allowed: uncompressed complete TFRecord files"
        raise BadInput(f"{shard}: record {record}: its length has a wrong checksum; {allowed}")
    return int(struct.unpack_from("<Q", header)[0])


def _truncated(shard: Path, record: int) -> BadInput:
    return BadInput(f"{shard}: record {record}: the file ends within it; allowed: complete records")


class Records:
    """Reads records and keeps the most recently used shards open; forks share the open files."""

    def __init__(self) -> None:
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
            said = f"it has {length} bytes, its index says {len(payload)}"
            raise BadInput(f"{shard}: record {record}: {said}")
        if TFRecordWriter.masked_crc(payload) != framed[-_FOOTER:]:
            raise BadInput(f"{shard}: record {record}: its {length} bytes have a wrong checksum")
        return payload

    def _opened(self, shard: Path) -> int:
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
        self._paths = _shards(data, ("train",) if training else VALIDATION_NAMES)
        self._index = index_of(self._paths)
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
            raise BadInput(f"{self.location(index)}: not a tf.train.Example") from error
        is_tfds = _TFDS_LABEL in features and _LABEL not in features
        image, label = (_TFDS_IMAGE, _TFDS_LABEL) if is_tfds else (_IMAGE, _LABEL)
        images = list(features[image].bytes_list.value) if image in features else []
        labels = list(features[label].int64_list.value) if label in features else []
        for name, values, kind in ((image, images, "bytes"), (label, labels, "int64")):
            if len(values) != 1:
                given = f"{len(values)} {kind} values in feature {name}"
                raise BadInput(f"{self.location(index)}: {given}; allowed: one")
        first = 0 if is_tfds else self._first_label
        last = first + self._classes - 1
        if not first <= labels[0] <= last:
            allowed = f"allowed: {first} to {last} (options first_label and classes)"
            raise BadInput(f"{self.location(index)}: label {labels[0]}; {allowed}")
        return images[0], labels[0] - first

    def location(self, index: int) -> str:
        shard, record = self._find(index)
        return f"{self._paths[shard]}: record {record}"

    def _find(self, index: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return shard, index - int(self._firsts[shard])


def _shards(data: Path, splits: Sequence[str]) -> list[Path]:
    patterns = [pattern.format(split) for pattern in _PATTERNS for split in splits]
    found = (sorted(filter(Path.is_file, data.glob(pattern))) for pattern in patterns)
    files = next((paths for paths in found if paths), [])
    shards = [path for path in files if path.suffix not in _INDEX_SUFFIXES]
    if not shards:
        raise BadInput(f"{data / patterns[0]}: no such TFRecord shard")
    check_all_there(shards)
    return shards
