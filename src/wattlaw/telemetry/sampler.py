"""The sampler: a small process that reads every meter of a host.

It is started once per host, writes its rows to a live file once a second, and ends, with its data
flushed, on SIGTERM or when the process it belongs to is gone. It imports no torch, no pyarrow, and
nothing of the user's. One thread does it all, because each waking costs more than most readings; a
second one looks now and then whether a driver hangs, and then goes on without it.
"""

import argparse
import dataclasses
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Set
from pathlib import Path

from wattlaw import crash, registry
from wattlaw.devices.meter import GROUP, Device, Meter, Sample, Target
from wattlaw.errors import one_line
from wattlaw.files import write_text
from wattlaw.isolation import isolated_python
from wattlaw.store.live import LiveWriter
from wattlaw.store.record import DeviceReport, SamplerReport
from wattlaw.telemetry.meter_poller import HANGS_S, MeterPoller

FLUSH_S = 1.0
#: Ends any sampler in good order.
END = signal.SIGUSR2


def command(folder: Path, host: str, target: Target, *, handles_sigterm: bool = True) -> list[str]:
    """Return the command line that starts a sampler as a child of this process.

    It ends on SIGUSR2 and, unless told not to heed it, on SIGTERM: a scheduler sends that to all
    processes of a job some time before their end.
    """
    line = isolated_python("-m", "wattlaw.telemetry.sampler", str(folder), host)
    line += ["--root-pid", str(target.root_pid), "--parent-pid", str(os.getpid())]
    line += ["--period-s", repr(target.period_s)]
    if target.assume_cpu_w is not None:
        line += ["--assume-cpu-w", repr(target.assume_cpu_w)]
    if not handles_sigterm:
        line.append("--no-sigterm")
    if target.gpus is not None:
        line += ["--gpus", ",".join(target.gpus)]
    return line


def stream_path(folder: Path, host: str) -> Path:
    """Return where the samples of a host go while a run lives; there once sampling has begun."""
    return folder / f"telemetry.{host}.csv"


def report_path(folder: Path, host: str) -> Path:
    """Return where a sampler that ended in good order tells how it fared."""
    return folder / f"sampler.{host}.json"


class Sampler:
    """Reads every registered meter and writes what they say, until one of some signals."""

    def __init__(
        self,
        folder: Path,
        host: str,
        target: Target,
        parent_pid: int,
        ends_on: Set[signal.Signals],
    ) -> None:
        self._folder, self._host, self._parent_pid = folder, host, parent_pid
        self._ends_on = ends_on
        self._readings = [
            MeterPoller(name, functools.partial(_open, name, target))
            for name in registry.names(GROUP)
        ]
        self._unopened = list(self._readings)
        self._stream: LiveWriter | None = None
        self._rows: list[Sample] = []  # read, not yet written
        self._is_ending = False
        self._samples = 0
        self._seen: set[str] = set()  # devices that have rows
        self._begun_s = self._start_cpu_s = 0.0
        self._in_charge = threading.get_ident()
        self._ended = threading.Event()

    def run(self) -> None:
        """Sample until a signal or until the parent has died, then flush and report."""
        threading.Thread(target=self._watch, daemon=True).start()
        self._sample()
        self._ended.wait()  # if we were not in charge any more, another thread ends it

    def _sample(self) -> None:
        me = threading.get_ident()
        while self._unopened:
            self._unopened.pop(0).open()
            if self._in_charge != me:
                return
        if not self._begun_s:
            gc.collect()
            gc.freeze()
            self._begun_s, self._start_cpu_s = time.monotonic(), time.process_time()
            for reading in self._readings:
                reading.begin(self._begun_s)  # all together, so that they wake us together
        flush_s = self._begun_s
        while True:
            now_s = time.monotonic()
            for reading in self._readings:
                if reading.next_s is not None and reading.next_s <= now_s:
                    found = reading.read(now_s)
                    if self._in_charge != me:
                        return
                    self._rows += found
            if now_s >= flush_s:
                self._write()
                flush_s += FLUSH_S
            next_s = min(
                (r.next_s for r in self._readings if r.next_s is not None), default=flush_s
            )
            # A flush waits for a reading that is due a little later.
            wake_s = next_s if flush_s <= next_s < flush_s + FLUSH_S / 10 else min(next_s, flush_s)
            if self._told_to_end(wake_s - time.monotonic()):
                break
        self._end(me)

    def _end(self, me: int) -> None:
        for reading in self._readings:
            found = reading.read(time.monotonic(), last=True)
            if self._in_charge != me:
                return
            self._rows += found
            reading.close()
            if self._in_charge != me:
                return
        self._write()
        if self._stream is not None:
            self._stream.close()
        self._report()
        self._ended.set()
        if self.hangs():
            os._exit(0)  # a thread that a driver holds would never end

    def _told_to_end(self, wait_s: float) -> bool:
        """Wait; return whether a signal has come or the parent has gone."""
        if not self._is_ending:  # a meter that hangs at the end must not make us forget it
            told = signal.sigtimedwait(self._ends_on, max(0.0, min(wait_s, FLUSH_S)))
            self._is_ending = told is not None or os.getppid() != self._parent_pid
        return self._is_ending

    def _watch(self) -> None:
        """Take charge when a meter holds the thread that was, and go on without it."""
        while not self._ended.wait(HANGS_S / 2):
            hung = [reading for reading in self._readings if reading.hangs()]
            if hung:
                self._in_charge = threading.get_ident()
                for reading in hung:
                    reading.give_up("it does not answer")
                    reading.unavailable = None if reading.devices else "it does not answer"
                threading.Thread(target=self._watch, daemon=True).start()
                try:
                    self._sample()
                except BaseException as error:
                    crash.print_report(error)
                    os._exit(1)  # the thread that held the process together hangs
                return

    def hangs(self) -> bool:
        """Say whether a meter still holds a thread."""
        return any(reading.asked_s is not None for reading in self._readings)

    def _write(self) -> None:
        if self._stream is None:  # made with its first rows: from then on windows are covered
            self._stream = LiveWriter(stream_path(self._folder, self._host), Sample._fields)
        rows, self._rows = self._rows, []
        self._stream.append(rows)
        self._samples += len(rows)
        self._seen.update(row.device for row in rows)

    def _report(self) -> None:
        duration_s = time.monotonic() - self._begun_s
        report = SamplerReport(
            host=self._host,
            samples=self._samples,
            duration_s=duration_s,
            cpu_s=time.process_time() - self._start_cpu_s,
            start_cpu_s=self._start_cpu_s,
            devices=tuple(
                DeviceReport(**dataclasses.asdict(self._with_failure(device)))
                for reading in self._readings
                for device in reading.devices
            ),
            meters={r.name: r.report() for r in self._readings if r.devices},
            unavailable={r.name: r.unavailable for r in self._readings if r.unavailable},
            problems=tuple(problem for r in self._readings for problem in r.problems()),
        )
        write_text(report_path(self._folder, self._host), report.model_dump_json())

    def _with_failure(self, device: Device) -> Device:
        """Return a device, as failed where it was opened and never answered: a sum lacks it."""
        if device.id in self._seen or not device.facts or device.facts.get("failed"):
            return device
        return dataclasses.replace(device, facts={**device.facts, "failed": "it has no readings"})


def _open(name: str, target: Target) -> Meter:
    meter: Meter = registry.load(GROUP, name).open(target)
    return meter


def main() -> None:
    """Run a sampler as its command line says."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, END})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("host")
    parser.add_argument("--root-pid", type=int, required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--period-s", type=float, required=True)
    parser.add_argument("--assume-cpu-w", type=float)
    parser.add_argument("--no-sigterm", action="store_true")
    parser.add_argument("--gpus", type=lambda told: tuple(filter(None, told.split(","))))
    options = parser.parse_args()
    target = Target(options.root_pid, options.period_s, options.assume_cpu_w, options.gpus)
    ends_on = {END} if options.no_sigterm else {END, signal.SIGTERM}
    try:
        Sampler(options.folder, options.host, target, options.parent_pid, ends_on).run()
    except OSError as error:  # such as a full disk; the run's end notes that the sampler was lost
        sys.exit(f"sampler: {one_line(error)}")


if __name__ == "__main__":
    sys.exit(crash.run(main))
