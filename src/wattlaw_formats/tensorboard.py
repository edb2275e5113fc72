"""TensorBoard event files: scalars with their step and the time at which they were written.

A file is a sequence of TFRecords, each an ``Event``; tensorboardX decodes it. The files of a folder
are one training, continued in each file; its folders ``train`` and ``validation`` belong to it.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import read_input
from wattlaw.importing.importer import Imported, Options
from wattlaw.importing.reading import MAX_BYTES, Source
from wattlaw.importing.runs import workload_of
from wattlaw_formats.scalars import MAX_STEPS, PART, Logged

_FILES = "*tfevents*"
_MAX_CHECKED = 4096
#: Records of scalars are smaller than this, and images and graphs may be larger; decoded, a record
#: can take fifty times its size.
_MAX_RECORD_BYTES, _LARGE = 4 * 2**20, "a record above 4 MiB"
_FLOAT = 1  # DataType.DT_FLOAT


class EventsImporter:
    name = "tensorboard"
    description = "TensorBoard event file (events.out.tfevents.*), or the folder of a training"

    def detect(self, path: Path, head: bytes) -> bool:  # noqa: ARG002 - the protocol's
        return b"brain.Event:" in head[:100]

    def files_of(self, path: Path) -> list[Path]:
        parts = [each for each in sorted(path.iterdir()) if each.is_dir()]
        folders = [path, *(each for each in parts if PART.fullmatch(each.name))]
        return [file for each in folders for file in sorted(each.glob(_FILES)) if file.is_file()]

    def read(self, source: Source, options: Options) -> Imported:
        path = source.path
        logged = Logged(source, "TensorBoard events", workload_of(path))
        try:
            from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
            from tensorboardX import proto  # noqa: F401 - the reason below if it is missing
        except ImportError:
            reason = 'tensorboardX is needed; pip install "wattlaw[import]"'
            raise NotAvailable(f"{path}: {reason}") from None
        files = self.files_of(path) if path.is_dir() else [path]
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
                    own = [*_event(record)]
                except (ValueError, struct.error, DecodeError):
                    if at == 0:
                        raise BadInput(f"{file}: its first record is damaged") from None
                    logged.leave_out_damaged(row, at, len(data))
                    continue
                if not own and at == 0:  # the version of the format
                    source.account.header(row)
                elif not own:
                    source.account.leave_out("a record without a scalar", row)
                for values in own:
                    logged.add_scalar(row, *values, file)
        return logged.imported(options)


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
    if not (0 <= event.step < MAX_STEPS and event.wall_time > 0):
        return
    for value in event.summary.value:
        number = value.simple_value if value.HasField("simple_value") else _tensor(value.tensor)
        if value.tag and number is not None:
            yield value.tag, event.step, event.wall_time, number


def _tensor(tensor: Any) -> float | None:
    if tensor.dtype != _FLOAT or len(tensor.float_val) > 1:
        return None
    if tensor.float_val:
        return float(tensor.float_val[0])
    content = tensor.tensor_content
    return float(struct.unpack("<f", content)[0]) if len(content) == 4 else None


IMPORTER = EventsImporter()
