"""SIGKILLs of real campaigns: afterwards the next ``wattlaw run`` does what is missing, once."""

import subprocess
import sys
import time
from collections import Counter
from typing import Any

import yaml

from soak.killing import Fault, Killer, run, started
from wattlaw.store.run_folder import RunFolder
from wattlaw.store.store import Store
from wattlaw.study.plan import expand, read_study

WHAT = "SIGKILLs of real campaigns"
_LINE = ("run", "study.yaml", "--store", "store")
#: How long all may take to be finished, and the last process to end.
_LAST_S, _ORPHANS_S = 420.0, 20.0
#: What torch's own processes leave where they are killed is not ours.
_NOT_OURS = ("torchelastic_", "pymp-", "torch", "tmp", "fake-nvml")


class CampaignRound:
    """A campaign of which processes are killed, and which is finished afterwards."""

    def __init__(self, killer: Killer) -> None:
        self.killer, self.own, self.dice = killer, killer.sandbox, killer.dice
        self.environment = self.own.environment() | {"CUDA_VISIBLE_DEVICES": ""}
        del self.environment["LD_LIBRARY_PATH"]
        self.path, self.store = self.own.work / "study.yaml", Store(self.own.work / "store")
        self.path.write_text(yaml.safe_dump(self._study()))
        self.owners: list[subprocess.Popen[bytes]] = []
        self.done: dict[str, object] = {}  # when a run was done that is done

    def _study(self) -> dict[str, Any]:
        is_command = self.dice.random() < 0.6
        workload: dict[str, Any] = {"name": "digits-cnn"}
        if is_command:
            seconds = self.dice.choice([0, 0.5, 2.0])
            line = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
            workload = {"name": "command", "command": line}
        workers = self.dice.choice([[1], [2], [1, 2]])
        train = {"checkpoint_every": 1} if self.dice.random() < 0.5 and not is_command else {}
        launch = {"kind": "local", "gpus_per_node": 4, "threads_per_worker": 1}
        return {
            "name": "soak",
            "workloads": [workload],
            "sweeps": [{"gpus": workers, "global_batch": [64]}],
            "launch": launch | {"max_parallel": self.dice.choice([1, 2])},
            "repeats": self.dice.choice([1, 2]),
            "measure": {"epochs": 1 if is_command else 3, "warmup_epochs": 0, "sample_hz": 20},
            "train": train,
        }

    def go(self) -> None:
        """Carry the round out; raise ``Fault`` where something is wrong afterwards."""
        for _ in range(self.dice.choice([1, 1, 2, 3])):
            self._start()
        for _ in range(self.dice.randrange(3, 9)):
            time.sleep(self.dice.uniform(0.2, 6.0))
            for path in self.store.path.glob("runs/*"):
                record = RunFolder(path).read()
                if record is not None and record.status == "done":
                    self.done.setdefault(record.run_id, (record.attempts, record.finished_at))
            if all(owner.poll() is not None for owner in self.owners):
                self._start()
                continue
            if self.dice.random() < 0.1:
                self.killer.kill_all()
            else:
                roles = [None, None, {"owner"}, {"agent", "owner"}, {"rank"}, {"sampler"}]
                self.killer.kill_one(self.dice.choice(roles))
        self.killer.note("the last run")
        for owner in self.owners:
            self.killer.note(f"owner {owner.pid}: exit code {owner.poll()}")
        self._finish()
        self._look()

    def _start(self) -> None:
        log = self.own.work / f"owner{len(self.owners)}.log"
        self.owners.append(started(self.own, self.environment, log, *_LINE))
        self.killer.note(f"wattlaw run, pid {self.owners[-1].pid}")

    def _finish(self) -> None:
        """Let every owner that lives come to its end; then one more run does what is missing."""
        end_s = time.monotonic() + _LAST_S
        for owner in self.owners:
            try:
                owner.wait(max(1.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                logs = [log.read_text("utf-8", "replace") for log in self.own.work.glob("*.log")]
                said = "\n".join(log[-500:] for log in logs)
                raise Fault("a 'wattlaw run' does not end", said) from None
        code, said = run(self.own, self.environment, _LAST_S, *_LINE)
        if code:
            raise Fault("the last 'wattlaw run' fails", f"exit code {code}: {said[-1500:]}")

    def _look(self) -> None:
        left = self.own.wait_until_empty(_ORPHANS_S)
        if left:
            raise Fault("a process is left", "; ".join(left))
        for log in self.own.work.glob("owner*.log"):
            if "Traceback (most recent call last)" in (said := log.read_text("utf-8", "replace")):
                raise Fault("a traceback of wattlaw run", said[-1500:])
        planned = {one.run_id: one.spec for one in expand(read_study(self.path))}
        records = {record.run_id: record for record in self.store.records()}
        statuses = Counter(record.status for record in records.values())
        if records.keys() != planned.keys() or set(statuses) != {"done"}:
            raise Fault("not every run is done", f"{len(planned)} planned: {dict(statuses)}")
        for run_id, before in self.done.items():
            now = (records[run_id].attempts, records[run_id].finished_at)
            if now != before:
                raise Fault("a run that was done is done again", f"{run_id}: {before}, then {now}")
        self._count_windows(planned)
        patterns = ("**/.*", "runs/*/live", "**/*.tmp", "runs/*/checkpoint*")
        left = [str(path) for pattern in patterns for path in self.store.path.glob(pattern)]
        ours = [path for path in self.own.tmp.iterdir() if not path.name.startswith(_NOT_OURS)]
        left += [str(path) for path in ours if not path.name.startswith("wattlaw-")]
        if left:
            shown = ", ".join(path.removeprefix(str(self.own.root)) for path in left[:6])
            raise Fault("a file is left behind", shown)

    def _count_windows(self, planned: dict[str, Any]) -> None:
        epochs = self.store.pandas("epochs")
        for run_id, spec in planned.items():
            rows = epochs[epochs.run_id == run_id]
            if spec.workload.command is not None:
                if len(rows) != 1:
                    raise Fault("a command has another count of windows", f"{run_id}: {len(rows)}")
                continue
            wanted = {(e, p) for e in range(spec.measure.epochs) for p in ("train", "evaluate")}
            found = Counter(zip(rows.epoch, rows.phase, rows.from_step.fillna(0), strict=True))
            if {(epoch, phase) for epoch, phase, _ in found} != wanted:
                raise Fault("windows are lost", f"{run_id}: {sorted(found)}")
            if max(found.values()) > 1:
                raise Fault("a window is counted twice", f"{run_id}: {sorted(found.items())}")
            samples = rows[rows.phase == "train"].groupby("epoch").samples.sum()
            if samples.nunique() != 1:
                raise Fault("epochs have different samples", f"{run_id}: {samples.to_dict()}")
