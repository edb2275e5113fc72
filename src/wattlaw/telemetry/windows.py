"""Windows as a host's first rank marks them, written out as each one ends."""

from pathlib import Path
from typing import Any

from wattlaw.store.files import StreamWriter
from wattlaw.store.schema import WINDOWS


def open_windows(folder: Path, host: str) -> StreamWriter:
    """Return the stream to which one host's windows of one attempt go."""
    return StreamWriter(folder / f"windows.{host}.arrows", WINDOWS)


def write_window(stream: StreamWriter | None, host: str, **window: Any) -> None:
    """Write one finished window; ranks without a stream (all but a host's first) write nothing."""
    if stream is not None:
        stream.append([{"host": host, **window}])
