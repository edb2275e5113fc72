"""The windows of a host, which its first rank writes as each one ends."""

from pathlib import Path
from typing import Any, NamedTuple

from wattlaw.store.live import LiveWriter


class Window(NamedTuple):
    """One finished window; the columns of ``store.schema.WINDOWS``."""

    host: str
    epoch: int | None
    phase: str
    warmup: bool
    start_ns: int
    duration_s: float
    interrupted: bool = False
    from_step: int | None = None
    samples: int | None = None
    steps: int | None = None
    loss: float | None = None
    metric: float | None = None
    metrics: str | None = None
    step_time_mean_s: float | None = None
    step_time_p50_s: float | None = None
    step_time_p95_s: float | None = None
    step_time_cv: float | None = None


def windows_path(folder: Path, host: str) -> Path:
    """Return the path of one host's windows of one attempt."""
    return folder / f"windows.{host}.csv"


def open_windows(folder: Path, host: str) -> LiveWriter:
    """Open the stream of one host's windows of one attempt."""
    return LiveWriter(windows_path(folder, host), Window._fields)


def write_window(stream: LiveWriter | None, host: str, **window: Any) -> None:
    """Write one finished window; do nothing without a stream, as on all but the first rank."""
    if stream is not None:
        stream.append([Window(host, **window)])
