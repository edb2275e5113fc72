"""The sampler: a small process that reads every meter of a host on a fixed schedule.

It is started once per host by the node agent, writes an Arrow stream at least once a second, and
ends, with its data flushed, on SIGTERM or when the process it belongs to is gone.
"""

import argparse
import dataclasses
import os
import signal
import sys
import threading
import time
from pathlib import Path

from wattlaw import registry
from wattlaw.devices.meter import GROUP, Meter, Target
from wattlaw.errors import WattlawError, one_line
from wattlaw.store.files import StreamWriter, write_text
from wattlaw.store.record import SamplerReport
from wattlaw.store.schema import SAMPLES

FLUSH_S = 1.0


def command(folder: Path, host: str, target: Target, sample_hz: float) -> list[str]:
    """Return the command line that starts a sampler as a child of this process."""
    line = [sys.executable, "-m", "wattlaw.telemetry.sampler", str(folder), host]
    line += ["--root-pid", str(target.root_pid), "--parent-pid", str(os.getpid())]
    line += ["--sample-hz", repr(sample_hz)]
    if target.assume_cpu_w is not None:
        line += ["--assume-cpu-w", repr(target.assume_cpu_w)]
    return line


def stream_path(folder: Path, host: str) -> Path:
    """Return where the samples of a host go while a run lives."""
    return folder / f"telemetry.{host}.arrows"


def report_path(folder: Path, host: str) -> Path:
    """Return where a sampler that ended in good order tells how it fared."""
    return folder / f"sampler.{host}.json"


class Sampler:
    """Reads meters at ``sample_hz`` until told to stop; late ticks are skipped, never piled up."""

    def __init__(self, folder: Path, host: str, target: Target, sample_hz: float) -> None:
        self._folder, self._host = folder, host
        self._period_s = 1.0 / sample_hz
        self._meters: list[Meter] = []
        self._problems: list[str] = []
        for name in registry.names(GROUP):
            try:
                self._meters.append(registry.load(GROUP, name).open(target))
            except WattlawError as error:
                self._problems.append(f"{name}: {one_line(error)}")
        self._devices = tuple(device.id for meter in self._meters for device in meter.devices())

    def run(self, stop: threading.Event, parent_pid: int) -> None:
        """Sample until ``stop`` is set or the parent has died, then flush and report."""
        begun_s, begun_cpu_s = time.monotonic(), time.process_time()
        samples = 0
        rows: list[dict[str, object]] = []
        with StreamWriter(stream_path(self._folder, self._host), SAMPLES) as stream:
            next_s = flushed_s = begun_s
            while not stop.is_set() and os.getppid() == parent_pid:
                rows += self._read()
                now_s = time.monotonic()
                if now_s - flushed_s >= FLUSH_S or not samples:
                    samples += len(rows)
                    stream.append(rows)
                    rows, flushed_s = [], now_s
                missed = max(0, int((now_s - next_s) / self._period_s))
                next_s += (missed + 1) * self._period_s
                while not stop.is_set() and (wait_s := next_s - time.monotonic()) > 0:
                    stop.wait(min(wait_s, FLUSH_S))
                    if os.getppid() != parent_pid:
                        break
            rows += self._read()
            samples += len(rows)
            stream.append(rows)
        for meter in self._meters:
            meter.close()
        report = SamplerReport(
            host=self._host,
            samples=samples,
            duration_s=time.monotonic() - begun_s,
            cpu_s=time.process_time() - begun_cpu_s,
            devices=self._devices,
            problems=tuple(self._problems),
        )
        write_text(report_path(self._folder, self._host), report.model_dump_json())

    def _read(self) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for meter in list(self._meters):
            try:
                found = meter.read()
            except Exception as error:  # a broken device must never end a run's telemetry
                self._meters.remove(meter)
                self._problems.append(f"{type(meter).__name__} given up: {one_line(error)}")
                continue
            rows += [{"host": self._host, **dataclasses.asdict(sample)} for sample in found]
        return rows


def main() -> None:
    """Run a sampler as its command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("host")
    parser.add_argument("--root-pid", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--sample-hz", type=float, required=True)
    parser.add_argument("--assume-cpu-w", type=float)
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    target = Target(options.root_pid, options.assume_cpu_w)
    Sampler(options.folder, options.host, target, options.sample_hz).run(stop, options.parent_pid)


if __name__ == "__main__":
    main()
