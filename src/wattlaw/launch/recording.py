"""A run that is recorded where it happens: a measured command, or a tracked part of a script."""

import contextlib
import socket
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from wattlaw import crash, machine
from wattlaw.devices.meter import Target
from wattlaw.errors import BadInput
from wattlaw.files import open_regular, write_text
from wattlaw.isolation import isolated_environment, isolated_python
from wattlaw.store.live import LiveWriter
from wattlaw.store.record import Facts, RunRecord, now
from wattlaw.store.run_folder import RunFolder, RunLock
from wattlaw.store.store import Store
from wattlaw.study.identity import run_id
from wattlaw.study.model import RunSpec
from wattlaw.telemetry import sampler
from wattlaw.telemetry.windows import open_windows, write_window

_READY_S = 15.0
#: A sampler notices after 15 s at most that a driver hangs.
_SAMPLER_GRACE_S = 20.0
#: The last reading must lie after the end of the last window: counters refresh every 0.1 s.
_AFTER_S = 0.15
_PACKAGES = ("wattlaw", "torch", "numpy", "lightning", "transformers")


class Recording:
    """One run with a sampler beside it, from ``begin`` to ``end``.

    A run that is recorded again is its next repeat.

    Parameters
    ----------
    store
        Where the run goes.
    spec
        What it is; its repeat is the first that the store does not have.
    target
        What the sampler meters.
    """

    def __init__(self, store: Store, spec: RunSpec, target: Target) -> None:
        self._store, self._spec, self._target = store, spec, target
        self.host = socket.gethostname()
        self.warmup_epochs = 0  # a program that is tracked by itself names its own
        self._sampler: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Make the run and start sampling; returns when meters are open.

        Raises
        ------
        wattlaw.errors.WattlawError
            The store cannot be written.
        """
        self._store.create()
        self.folder, self._lock, spec = self._place()
        self.record = RunRecord(
            run_id=self.folder.run_id,
            study=spec.workload.name,
            spec=spec,
            seed=0,
            order_seed=0,
            status="running",
            attempts=1,
            started_at=now(),
        )
        self.folder.write(self.record)
        self.live = self.folder.live(1)
        self.live.mkdir(parents=True)
        self._windows: LiveWriter = open_windows(self.live, self.host)
        self._begin_sampling()

    def _place(self) -> tuple[RunFolder, RunLock, RunSpec]:
        for repeat in count(self._spec.repeat):
            spec = self._spec.model_copy(update={"repeat": repeat})
            folder = self._store.folder(run_id(spec))
            lock = RunLock(folder)
            with contextlib.suppress(BadInput):  # of a damaged run, which stays as it is
                if folder.read() is None and lock.acquire():
                    if folder.read() is None:
                        return folder, lock, spec
                    lock.release()
        raise AssertionError("repeats have no end")

    def _begin_sampling(self) -> None:
        line = sampler.command(self.live, self.host, self._target)
        with open_regular(self.folder.log_path, append=True) as log:
            self._sampler = subprocess.Popen(
                line,
                env=isolated_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end_s = time.monotonic() + _READY_S
        stream = sampler.stream_path(self.live, self.host)
        while not stream.exists() and self._sampler.poll() is None and time.monotonic() < end_s:
            time.sleep(0.005)

    def window(self, **window: Any) -> None:
        """Write one finished window."""
        write_window(self._windows, self.host, **window)

    def end(self, reason: str | None = None, notes: tuple[str, ...] = ()) -> RunRecord:
        """Stop sampling and bring the run home; with a reason it is kept as failed."""
        self._end_live()
        self.record = finalize_recording(self.record, self.folder, reason, notes)
        self._lock.release()
        return self.record

    def end_at_exit(self, reason: str) -> None:
        """Do so while the interpreter shuts down, when libraries cannot be imported any more."""
        self._end_live()
        line = isolated_python("-m", "wattlaw.launch.recording", str(self.folder.path), reason)
        subprocess.run(line, env=isolated_environment(), check=False, stdin=subprocess.DEVNULL)
        self._lock.release()

    def abandon(self) -> None:
        """Stop sampling and let the run go as it is; never raises."""
        with contextlib.suppress(Exception):
            self._end_sampling()
        with contextlib.suppress(Exception):
            self._lock.release()

    def _end_live(self) -> None:
        time.sleep(_AFTER_S)
        self._end_sampling()
        self._windows.close()
        facts = Facts(
            hosts=(self.host,),
            hardware=machine.hardware(),
            device_ids=(),
            software=machine.software(_PACKAGES),
        )
        write_text(self.live / f"facts.{self.host}.json", facts.model_dump_json())

    def _end_sampling(self) -> None:
        if self._sampler is None:
            return
        self._sampler.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._sampler.wait(_SAMPLER_GRACE_S)
        self._sampler.kill()
        self._sampler.wait()


def finalize_recording(
    record: RunRecord, folder: RunFolder, reason: str | None, notes: tuple[str, ...] = ()
) -> RunRecord:
    """Write a run's tables and its record from its live files; with a reason, as failed."""
    from wattlaw.launch.finish import finalize_run

    record = finalize_run(record, folder)
    if reason is not None:
        record = record.model_copy(update={"status": "failed", "reason": reason})
    told = {"finished_at": now(), "notes": (*record.notes, *notes)}
    record = record.model_copy(update=told)
    folder.write(record)
    folder.remove_live_files()
    return record


def main() -> None:
    """Bring home the run in the folder named first, as failed for the reason named second."""
    folder = RunFolder(Path(sys.argv[1]))
    record = folder.read()
    if record is not None:
        finalize_recording(record, folder, sys.argv[2])


if __name__ == "__main__":
    sys.exit(crash.run(main))
