"""Exporters: file formats of other programs and of archives, which packages can add."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

#: The entry-point group of exporters.
GROUP = "wattlaw.exporters"


@dataclass(frozen=True)
class Exported:
    """The files that were written, and the number of rows or values in them."""

    files: tuple[Path, ...]
    rows: int


class Tables(Protocol):
    """The results that an exporter reads."""

    @property
    def metrics(self) -> "pd.DataFrame":
        """Return a row per done run, as ``wattlaw.analysis.metrics.metrics.run_metrics``."""

    @property
    def documents(self) -> Mapping[str, bytes]:
        """Return the study files and the decision of the stores, by their path in a store."""

    def arrow(self, table: str) -> "pa.Table":
        """Return the table ``runs``, ``epochs`` or ``telemetry`` of ``wattlaw.store.schema``."""


class Exporter(Protocol):
    """Writes results as files of one format.

    An exporter has no state, and its class takes no arguments.
    """

    endings: tuple[str, ...]  # of its files, such as .zip

    def write(self, tables: Tables, path: Path) -> Exported:
        """Write the results to ``path``, which ends in one of ``endings``, atomically.

        Raises
        ------
        wattlaw.common.errors.Refused
            The results do not have what the format needs. Nothing is written.
        """
