"""The sampler: a small process that reads every meter of a host.

One sampler per host writes its rows to a live file, about once a second or when the next reading
is later than that. It ends, with its data flushed, on SIGTERM or when its parent process has ended.
It imports no torch, no pyarrow, and nothing of the user. A wake-up costs more than most readings.
So one thread reads all meters, each at whole periods after the first reading of all of them,
and nothing but a reading wakes it more often than every 4 s. A second thread checks now and then
whether a driver hangs, and then continues without it.
"""

import contextlib
import dataclasses
import functools
import gc
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import IO, Self

from wattlaw.common import crash, registry
from wattlaw.common.errors import BadInput, WattlawError, one_line
from wattlaw.common.files import write_text
from wattlaw.common.isolation import isolated_environment, isolated_python
from wattlaw.measure.devices.meter import GROUP, Device, Meter, Sample, Target
from wattlaw.store.live import LiveWriter
from wattlaw.store.record import DeviceReport, MeterReport, SamplerReport

FLUSH_S = 1.0
#: The longest sleep, after which the sampler checks that its parent lives.
_MAX_SLEEP_S = 4.0
#: A meter may be read early by this share of its period, to share the wake-up of another.
_EARLY_SHARE = 0.04
#: The longest that a meter may take to be read, and to open.
READ_TIMEOUT_S = 10.0
OPEN_TIMEOUT_S = 30.0
END_SIGNAL = signal.SIGUSR2
#: How long a caller waits for open meters, for an orderly end, and after a kill. A sampler notices
#: within 15 s that a driver hangs.
_READY_S, _GRACE_S, _KILL_WAIT_S = 15.0, 20.0, 5.0


def command(folder: Path, host: str, target: Target, *, handles_sigterm: bool = True) -> list[str]:
    """It ends on SIGUSR2 and, with ``handles_sigterm``, on SIGTERM, which precedes a job's end."""
    line = isolated_python("-m", "wattlaw.measure.telemetry.sampler", str(folder), host)
    line += [str(os.getpid()), json.dumps(dataclasses.asdict(target))]
    return line if handles_sigterm else [*line, "--no-sigterm"]


def stream_path(folder: Path, host: str) -> Path:
    return folder / f"telemetry.{host}.csv"


def report_path(folder: Path, host: str) -> Path:
    return folder / f"sampler.{host}.json"


class SamplerProcess:
    """A running sampler. As a context it is stopped at the end of the block."""

    def __init__(
        self,
        folder: Path,
        host: str,
        target: Target,
        *,
        log: IO[bytes] | None = None,
        handles_sigterm: bool = True,
    ) -> None:
        self._stream = stream_path(folder, host)
        self._process = subprocess.Popen(
            command(folder, host, target, handles_sigterm=handles_sigterm),
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
        self._process.send_signal(END_SIGNAL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver that hangs keeps it alive
            self._process.wait(_KILL_WAIT_S)


class MeterPoller:
    """Polls one meter on an absolute schedule, at whole periods after the first reading of all
    meters, so that they share wake-ups. A broken meter is not read again."""

    def __init__(self, name: str, open_meter: Callable[[], Meter]) -> None:
        self.name = name
        self.unavailable: str | None = None
        self.devices: list[Device] = []
        self.next_s = math.inf  # infinite: there is nothing to read
        self.due_s = math.inf  # when it may be read on a wake-up for another meter
        self.waiting_since_s: float | None = None  # since when a call of the meter is running
        self._limit_s = OPEN_TIMEOUT_S
        self._open_meter = open_meter
        self._meter: Meter | None = None
        self._problem: str | None = None
        self._first_s = 0.0
        self._reads = 0

    def open(self) -> None:
        self.waiting_since_s = time.monotonic()
        try:
            meter = self._open_meter()
            self.devices = meter.devices()
            if not all(device.id.isprintable() for device in self.devices):
                raise BadInput("a device has an id that cannot be printed")
            if not 0 < meter.period_s < math.inf:
                raise BadInput(f"a meter cannot be read every {meter.period_s} s")
            if self.devices:
                self._meter = meter
            else:
                meter.close()
        except WattlawError as error:
            self.unavailable = one_line(error)
        except Exception as error:
            self.unavailable = f"cannot be opened: {one_line(error)}"
        finally:
            self.waiting_since_s, self._limit_s = None, READ_TIMEOUT_S

    def begin(self, first_s: float) -> None:
        if self._meter is not None:
            self._first_s = self.next_s = self.due_s = first_s

    def read(self, now_s: float, *, last: bool = False) -> list[Sample]:
        if self._meter is None or self.next_s == math.inf:
            return []
        self.waiting_since_s = now_s
        try:
            samples = self._meter.read(last=last)
        except Exception as error:
            self.give_up(one_line(error))
            return []
        finally:
            self.waiting_since_s = None
        if self.next_s == math.inf:  # its reading was stopped meanwhile
            return []
        self._reads += 1
        period_s = self._meter.period_s
        early_s = _EARLY_SHARE * period_s
        periods = (time.monotonic() - self._first_s + early_s) // period_s + 1
        self.next_s = self._first_s + periods * period_s
        self.due_s = self.next_s - early_s
        return samples

    def close(self) -> None:
        if self._meter is not None and self.next_s != math.inf:
            self.waiting_since_s = time.monotonic()
            try:
                self._meter.close()
            except Exception as error:  # the samples are safe
                self._problem = f"{self.name}: {one_line(error)}"
            finally:
                self.waiting_since_s, self.next_s = None, math.inf

    def is_hung(self) -> bool:
        waiting_since_s = self.waiting_since_s
        return waiting_since_s is not None and time.monotonic() - waiting_since_s > self._limit_s

    def give_up(self, reason: str) -> None:
        self.next_s = self.due_s = self._limit_s = math.inf
        self._problem = f"{self.name} no longer read: {reason}"

    def problems(self) -> list[str]:
        problems = self._meter.problems() if self._meter is not None else []
        return [*problems, self._problem] if self._problem else list(problems)

    def report(self) -> MeterReport:
        period_s = self._meter.period_s if self._meter is not None else 0.0
        return MeterReport(period_s=period_s, reads=self._reads)


class Sampler:
    def __init__(
        self, folder: Path, host: str, target: Target, parent_pid: int, ends_on: Set[signal.Signals]
    ) -> None:
        self._folder, self._host, self._parent_pid = folder, host, parent_pid
        self._ends_on = ends_on
        self._pollers = [
            MeterPoller(name, functools.partial(_open, name, target))
            for name in registry.names(GROUP)
        ]
        self._unopened = list(self._pollers)
        self._stream: LiveWriter | None = None
        self._rows: list[Sample] = []  # read, not yet written
        self._is_ending = False
        self._sample_count = 0
        self._seen: set[str] = set()  # devices that have rows
        self._start_s = self._start_cpu_s = 0.0
        self._active_thread = threading.get_ident()
        self._ended = threading.Event()

    def run(self) -> None:
        """Sample until a signal or the end of the parent, then flush and report."""
        threading.Thread(target=self._watch, daemon=True).start()
        self._sample()
        self._ended.wait()  # if another thread has taken over, it ends the sampler

    def _sample(self) -> None:
        thread = threading.get_ident()
        while self._unopened:
            self._unopened.pop(0).open()
            if self._active_thread != thread:
                return
        if not self._start_s:
            gc.collect()
            gc.freeze()
            self._start_s, self._start_cpu_s = time.monotonic(), time.process_time()
            for poller in self._pollers:  # all begin now, so that they share wake-ups
                poller.begin(self._start_s)
        flushed_s = -math.inf
        pollers = [poller for poller in self._pollers if poller.next_s != math.inf]
        while True:
            now_s = time.monotonic()
            next_s = now_s + _MAX_SLEEP_S
            for poller in pollers:
                if poller.due_s <= now_s:
                    samples = poller.read(now_s)
                    if self._active_thread != thread:
                        return
                    self._rows += samples
                next_s = min(next_s, poller.next_s)
            if (self._rows or self._stream is None) and next_s - flushed_s > FLUSH_S:
                self._write()
                flushed_s = now_s
            if not self._is_ending:  # stays true if a meter hangs at the end
                wait_s = max(0.0, next_s - time.monotonic())
                received = signal.sigtimedwait(self._ends_on, wait_s)
                self._is_ending = received is not None or os.getppid() != self._parent_pid
            if self._is_ending:
                break
        self._end(thread)

    def _end(self, thread: int) -> None:
        for poller in self._pollers:
            samples = poller.read(time.monotonic(), last=True)
            if self._active_thread != thread:
                return
            self._rows += samples
            poller.close()
            if self._active_thread != thread:
                return
        self._write()
        if self._stream is not None:
            self._stream.close()
        self._report()
        self._ended.set()
        if any(poller.waiting_since_s is not None for poller in self._pollers):
            os._exit(0)  # a thread inside a driver would never end

    def _watch(self) -> None:
        """Continue in this thread, without the meter, if a meter hangs in the active thread."""
        while not self._ended.wait(READ_TIMEOUT_S / 2):
            hung = [poller for poller in self._pollers if poller.is_hung()]
            if hung:
                self._active_thread = threading.get_ident()
                for poller in hung:
                    poller.give_up("it does not answer")
                    poller.unavailable = None if poller.devices else "it does not answer"
                threading.Thread(target=self._watch, daemon=True).start()
                try:
                    self._sample()
                except BaseException as error:
                    crash.print_report(error)
                    os._exit(1)  # the main thread hangs
                return

    def _write(self) -> None:
        if self._stream is None:  # created with the first rows: from then on windows are covered
            self._stream = LiveWriter(stream_path(self._folder, self._host), Sample._fields)
        rows, self._rows = self._rows, []
        self._stream.append(rows)
        self._sample_count += len(rows)
        self._seen.update(row.device for row in rows)

    def _report(self) -> None:
        devices = []
        for device in (device for poller in self._pollers for device in poller.devices):
            facts = dict(device.facts)
            if device.has_energy and facts and device.id not in self._seen:
                facts["failed"] = facts.get("failed") or "it has no readings"
            devices.append(DeviceReport(**dataclasses.asdict(device) | {"facts": facts}))
        report = SamplerReport(
            host=self._host,
            samples=self._sample_count,
            duration_s=time.monotonic() - self._start_s,
            cpu_s=time.process_time() - self._start_cpu_s,
            start_cpu_s=self._start_cpu_s,
            devices=tuple(devices),
            meters={r.name: r.report() for r in self._pollers if r.devices},
            unavailable={r.name: r.unavailable for r in self._pollers if r.unavailable},
            problems=tuple(problem for r in self._pollers for problem in r.problems()),
        )
        write_text(report_path(self._folder, self._host), report.model_dump_json())


def _open(name: str, target: Target) -> Meter:
    meter: Meter = registry.load(GROUP, name).open(target)
    return meter


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, END_SIGNAL})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    folder, host, parent_pid, text, *no_sigterm = sys.argv[1:]
    target = Target(**json.loads(text))
    ends_on = {END_SIGNAL} if no_sigterm else {END_SIGNAL, signal.SIGTERM}
    try:
        Sampler(Path(folder), host, target, int(parent_pid), ends_on).run()
    except OSError as error:  # such as a full disk; the run notes that the sampler was lost
        sys.exit(f"sampler: {one_line(error)}")


if __name__ == "__main__":
    sys.exit(crash.run(main))
