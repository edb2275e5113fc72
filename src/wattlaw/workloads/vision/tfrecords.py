"""ImageNet in TFRecord shards: ``train-00000-of-01024`` and so on."""

import re
from pathlib import Path

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tfrecord import example_pb2

from wattlaw.errors import BadInput
from wattlaw.workloads.vision.records import Records, bounds, is_index

_IMAGE, _LABEL = "image/encoded", "image/class/label"
_NUMBERED = re.compile(r"-(\d+)-of-(\d+)")


class Shards:
    """Images in TFRecord shards, by number over all of them.

    Raises
    ------
    wattlaw.errors.BadInput
        Shards are missing or damaged.
    """

    def __init__(self, data: Path, classes: int, first_label: int, *, training: bool) -> None:
        pattern = "train-*" if training else "validation-*"
        self._paths = _shards(data, pattern)
        self._bounds = [bounds(path) for path in self._paths]
        # The number, over all shards, of the first record of each, and at last of all records.
        self._firsts = np.cumsum([0, *(len(each) - 1 for each in self._bounds)])
        if not len(self):
            raise BadInput(f"{data / pattern}: no record in any shard; allowed: at least one")
        self._classes, self._first_label = classes, first_label
        self._records = Records()

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def read(self, index: int) -> tuple[bytes, int]:
        """Return an image file's bytes and its label."""
        shard, record = self._find(index)
        start, end = self._bounds[shard][record : record + 2].tolist()
        payload = self._records.read(self._paths[shard], start, end, record)
        try:
            features = example_pb2.Example.FromString(payload).features.feature
        except DecodeError as error:
            raise BadInput(
                f"{self.location(index)}: it is no tf.train.Example; allowed: Examples with the "
                f"features {_IMAGE} and {_LABEL}"
            ) from error
        images = list(features[_IMAGE].bytes_list.value) if _IMAGE in features else []
        labels = list(features[_LABEL].int64_list.value) if _LABEL in features else []
        for name, values, kind in ((_IMAGE, images, "bytes"), (_LABEL, labels, "int64")):
            if len(values) != 1:
                raise BadInput(
                    f"{self.location(index)}: {len(values)} {kind} values in feature {name}; "
                    "allowed: one"
                )
        return images[0], self._label(labels[0], index)

    def location(self, index: int) -> str:
        """Return an image's shard, and which record it is there, from 0."""
        shard, record = self._find(index)
        return f"{self._paths[shard]}: record {record}"

    def _find(self, index: int) -> tuple[int, int]:
        shard = int(np.searchsorted(self._firsts, index, side="right")) - 1
        return shard, index - int(self._firsts[shard])

    def _label(self, label: int, index: int) -> int:
        first, last = self._first_label, self._first_label + self._classes - 1
        if not first <= label <= last:
            raise BadInput(
                f"{self.location(index)}: label {label}; allowed: {first} to {last} (options "
                "first_label and classes)"
            )
        return label - first


def _shards(data: Path, pattern: str) -> list[Path]:
    paths = sorted(path for path in data.glob(pattern) if path.is_file() and not is_index(path))
    if not paths:
        raise BadInput(
            f"{data / pattern}: no such file; allowed: TFRecord shards with these names, or "
            "source folder"
        )
    # A shard that was not copied would make an epoch shorter, and nobody would see it.
    numbered = [_NUMBERED.search(path.name) for path in paths]
    if all(numbered):
        there = {(int(each[1]), int(each[2])) for each in numbered if each}
        total = max(of for _, of in there)
        missing = [number for number in range(total) if (number, total) not in there]
        if missing or len(there) != total:
            number = missing[0] if missing else "another total"
            raise BadInput(
                f"{data / pattern}: {len(paths)} shards of {total}, not shard {number}; allowed: "
                "all of them"
            )
    return paths
