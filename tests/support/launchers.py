"""A launcher with scripted attempts, without training."""

from collections.abc import Callable
from pathlib import Path

from wattlaw.running.campaign import Campaign, Outcome
from wattlaw.running.launcher import Ended, Launcher
from wattlaw.running.local import SlotLease, free_slot
from wattlaw.store.live import open_windows, write_window
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.model import RunSpec, Study
from wattlaw.study.plan import expand


class ScriptedAttempt:
    def __init__(self, poll: Callable[[], Ended | None], lease: SlotLease) -> None:
        self._poll, self._lease, self.stopped = poll, lease, False

    def poll(self) -> Ended | None:
        ended = self._poll()
        if ended is not None:
            self._lease.release()
        return ended

    def stop(self) -> None:
        self.stopped = True
        self._lease.release()


class ScriptedLauncher(Launcher):
    """Every attempt writes all its windows; ``poll`` of a run's repeat is scripted."""

    def __init__(self, folder: Path, **polls: Callable[[], Ended | None]) -> None:
        self.polls = polls
        self.attempts: list[ScriptedAttempt] = []
        self._slot = str(folder / "only")

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        return None

    def allocate(self, spec: RunSpec) -> SlotLease | None:
        return free_slot([self._slot])

    def start(self, record: RunRecord, folder: RunFolder, lease: SlotLease) -> ScriptedAttempt:
        measure = record.spec.measure
        row = {"start_ns": 1, "duration_s": 1.0, "samples": 10, "steps": 1, "loss": 1.0}
        with open_windows(folder.live(record.attempts), "here") as windows:
            for epoch in range(measure.epochs):
                for phase in ("train", "evaluate"):
                    row |= {"epoch": epoch, "phase": phase, "warmup": epoch == 0}
                    write_window(windows, "here", **row)
        poll = self.polls.get(f"repeat_{record.spec.repeat}", Ended)
        self.attempts.append(ScriptedAttempt(poll, lease))
        return self.attempts[-1]


def execute(study: Study, store: Path, launcher: object) -> Outcome:
    opened = Store(store)
    opened.create()
    return Campaign(study, expand(study), opened, launcher, []).run()
