"""A sampler as a child process: its start and its end."""

import contextlib
import subprocess
import time
from pathlib import Path
from typing import IO, Self

from wattlaw.common.isolation import isolated_environment
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.telemetry import sampler

_READY_S = 15.0
#: A sampler detects within 15 s that a driver hangs.
_GRACE_S = 20.0
_KILL_WAIT_S = 5.0


class SamplerProcess:
    """A running sampler. As a context it is stopped at the end of the block.

    ``folder`` gets its files, and ``log`` its output, by default the output of this process.
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        target: Target,
        *,
        log: IO[bytes] | None = None,
        handles_sigterm: bool = True,
    ) -> None:
        self._stream = sampler.stream_path(folder, host)
        self._process = subprocess.Popen(
            sampler.command(folder, host, target, handles_sigterm=handles_sigterm),
            env=isolated_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_until_ready(self) -> None:
        """Wait until its meters are open, at most 15 s."""
        end_s = time.monotonic() + _READY_S
        while (
            not self._stream.exists() and self._process.poll() is None and time.monotonic() < end_s
        ):
            time.sleep(0.005)

    def stop(self) -> None:
        """Stop the sampler, which writes its report; kill it after 20 s."""
        self._process.send_signal(sampler.END_SIGNAL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it alive
            self._process.wait(_KILL_WAIT_S)
