"""The interface of importers: readers of files that other tools write.

An importer recognises the files of its format and returns what they contain. A format with
measurements of whole trainings gives runs. One with a time series gives readings of devices;
``wattlaw.importing.assemble`` makes runs of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from wattlaw.importing.reading import Source
from wattlaw.measure.devices.meter import Facts
from wattlaw.store.import_tables import ImportedRun

GROUP = "wattlaw.importers"


@dataclass(frozen=True)
class Mark:
    start_ns: int
    end_ns: int
    phase: str = "run"
    #: More columns of ``store.schema.WINDOWS``, such as ``epoch`` and ``steps``.
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """What the user says about files that do not say it themselves."""

    study: str
    mapping: str | None = None  # the text of --map
    constants: Mapping[str, Any] = field(default_factory=dict)  # its ``field=@value``, parsed
    timezone: tzinfo = UTC  # of local times
    timezone_is_assumed: bool = True
    windows: tuple[Mark, ...] = ()
    pattern: str | None = None  # a regular expression of log lines that end a window
    devices: tuple[str, ...] = ()  # the devices that count; empty: all
    source: str = ""  # what identifies the file among others; empty: its name

    @property
    def zone_note(self) -> str:
        return f"{self.timezone}{' assumed' if self.timezone_is_assumed else ''}"


@dataclass(frozen=True)
class Readings:
    samples: pa.Table  # of store.schema.SAMPLES
    facts: Mapping[tuple[str, str], Facts] = field(default_factory=dict)  # by host and device
    hardware: str | None = None  # the name of the GPUs, if they have one name


@dataclass(frozen=True)
class Imported:
    description: str  # what it is, in one line: "nvidia-smi log: 2 GPUs, 1,204 samples"
    runs: Sequence[ImportedRun] = ()
    readings: Readings | None = None
    marks: Sequence[Mark] = ()
    notes: Sequence[str] = ()  # what the user should know, a line each


class Importer(Protocol):
    """Reads one format. Registered under the entry point ``wattlaw.importers``.

    It may have ``mapped``, the fields that ``--map`` may take from a column of the format.
    """

    #: The name of the format, as in ``--from``.
    name: str
    #: What the format is, for the help.
    description: str

    def detect(self, path: Path, head: bytes) -> bool:
        """Say whether a file, by its path and first ``detection.HEAD_BYTES``, has this format."""

    def read(self, source: Source, options: Options) -> Imported:
        """Return the content of a file, read with the methods of ``source``.

        ``source.account`` takes what became of each row: ``read``, ``leave_out`` or ``reject``.
        Raises ``BadInput``, which names the file, if it is not of this format or lacks something.
        """


@runtime_checkable
class FolderImporter(Importer, Protocol):
    """Reads the folder of a training as a whole, too: then the path of its ``source``."""

    def files_of(self, path: Path) -> list[Path]:
        """Return the files of the training in a folder; none where there is no training."""
