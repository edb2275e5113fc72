"""The driver of a job: ``python -m wattlaw.launch.slurm.driver RUN_FOLDER``, on the first node.

It numbers the attempt, starts a node agent on each node, and brings the run home, so that nobody
else need be there. Slurm's warning of the time limit (SIGUSR1) becomes a checkpoint and a requeue.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from wattlaw import crash
from wattlaw.errors import BadInput, NotAvailable, WattlawError, one_line
from wattlaw.files import read_text, write_text
from wattlaw.isolation import isolate
from wattlaw.launch.attempts import merged_windows, missing_windows
from wattlaw.launch.finish import failure_reason, finish
from wattlaw.launch.slurm import commands, node
from wattlaw.launch.slurm.codes import INTERRUPTED, NO_FOLDER
from wattlaw.launch.slurm.interruption import interrupted
from wattlaw.launch.slurm.submission import Submission, claim_path, read_submission
from wattlaw.store.record import RunRecord, Site, now
from wattlaw.store.run_folder import RunFolder
from wattlaw.training import failures
from wattlaw.training.environment import DISK_FULL
from wattlaw.training.failures import disk_full_error, reason_of

#: Once a node's agent has ended, the others have this long.
_TOGETHER_S = 60
_POLL_S = 0.5
_GRACE_S = 20.0


class _Told:
    """What Slurm has told this process: ``warned`` of the time limit, or to ``end`` now."""

    def __init__(self) -> None:
        self.warned, self.end = "WATTLAW_WARNED" in os.environ, False  # see the batch script
        signal.signal(signal.SIGUSR1, self._note)
        signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, _: object) -> None:
        self.warned |= number == signal.SIGUSR1
        self.end |= number == signal.SIGTERM


def main() -> int:
    """Drive a run's attempt to its end; the exit code is one of ``codes``."""
    told = _Told()
    isolate()
    folder = RunFolder(Path(sys.argv[1]))
    job_id = os.environ.get("SLURM_JOB_ID", "")
    try:
        submitted = read_submission(folder)
        record = folder.read()
        if submitted is None or record is None:
            print(f"wattlaw: {folder.path}: not there on {socket.gethostname()}", file=sys.stderr)
            return NO_FOLDER
        if record.status in ("done", "failed", "skipped") or not _is_ours(folder, job_id):
            print("wattlaw: another job has this run, or it has ended", file=sys.stderr)
            return 0
        return _Driver(folder, submitted, told).drive(record)
    except OSError as error:
        print(f"wattlaw: {one_line(error)}", file=sys.stderr)
        return DISK_FULL if disk_full_error(error) else 1
    except WattlawError as error:
        print(f"wattlaw: {error}", file=sys.stderr)
        return error.exit_code


def _is_ours(folder: RunFolder, job_id: str) -> bool:
    """Take the run for this job; False if another job has it."""
    path = claim_path(folder)
    with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        file.write(job_id)
    return read_text(path) == job_id


class _Driver:
    """One attempt of a job."""

    def __init__(self, folder: RunFolder, submitted: Submission, told: _Told) -> None:
        self._folder, self._submitted, self._told = folder, submitted, told
        self._slurm = submitted.launch.slurm
        self._nodes = commands.hostnames(os.environ.get("SLURM_JOB_NODELIST", ""))
        self._begun_s = time.monotonic()

    def drive(self, old: RunRecord) -> int:
        if len(self._nodes) != old.spec.nodes:
            told = f"{len(self._nodes)} nodes of this job are known, {old.spec.nodes} are needed"
            raise NotAvailable(f"{told}: 'scontrol show hostnames' did not tell them")
        record = self._begin(old)
        if record.status == "failed":
            self._folder.write(record)
            return 0
        live = self._folder.live(record.attempts)
        self._folder.write(record)
        live.mkdir(parents=True, exist_ok=True)
        print(f"\n== attempt {record.attempts}, {now():%Y-%m-%d %H:%M:%S} UTC", flush=True)
        code, stopped_for = self._run(record, live)
        try:
            return self._conclude(record, live, code, stopped_for)
        except OSError as error:
            if not disk_full_error(error):
                raise
            with contextlib.suppress(OSError):  # a record is small; there may be room for it
                self._end(record, "failed", reason_of(error))
            return DISK_FULL

    def _begin(self, old: RunRecord) -> RunRecord:
        """Return the record of this attempt; one before it that has told no end was cut."""
        record = old
        if old.status == "running":
            why = _read(self._folder.live(old.attempts) / "cut.json", "the job was put back")
            record = interrupted(old, self._folder, why)
            if record.status == "failed":
                return record
        return record.model_copy(
            update={
                "status": "running",
                "reason": None,
                "interrupted": False,
                "attempts": old.attempts + 1,
                "started_at": (record.interruptions and old.started_at) or now(),
                "finished_at": None,
                "site": self._site(),
            }
        )

    def _site(self) -> Site:
        environ = os.environ
        return Site(
            scheduler="slurm",
            version=commands.version(),
            cluster=environ.get("SLURM_CLUSTER_NAME"),
            job_id=environ.get("SLURM_JOB_ID"),
            partition=environ.get("SLURM_JOB_PARTITION"),
            account=environ.get("SLURM_JOB_ACCOUNT"),
            qos=environ.get("SLURM_JOB_QOS"),
            nodes=self._nodes,
            submitted_at=self._submitted.at,
        )

    def _run(self, record: RunRecord, live: Path) -> tuple[int, str | None]:
        """Run a node agent on each node; return the step's code, and why we ended it if we did."""
        process = subprocess.Popen(self._srun(record), stdin=subprocess.DEVNULL)
        limit_s = self._submitted.launch.timeout_s
        why: str | None = None
        has_passed_on = False
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S), why
            if self._told.warned and not has_passed_on and self._may_be_warned(record, live):
                process.send_signal(signal.SIGUSR1)
                has_passed_on = True
            if why is not None:
                continue
            if limit_s is not None and time.monotonic() - self._begun_s > limit_s:
                why = f"time limit of {limit_s:g} s reached (launch.timeout_s)"
            elif any(live.glob("refused.*.json")):
                why = "refused"
            if why is not None:
                _end(process)

    def _srun(self, record: RunRecord) -> list[str]:
        spec = record.spec
        workers = spec.setting.gpus // spec.nodes
        words = ["srun", f"--nodes={spec.nodes}", f"--ntasks={spec.nodes}", "--ntasks-per-node=1"]
        words += ["--mpi=none", "--kill-on-bad-exit=0", f"--wait={_TOGETHER_S}"]
        if self._slurm.cpus_per_worker is not None:
            words.append(f"--cpus-per-task={self._slurm.cpus_per_worker * workers}")
        address, suffix = socket.gethostname(), self._slurm.host_suffix
        if suffix:
            address = address.partition(".")[0] + suffix
        line = node.line(self._folder, record.attempts, workers, spec.nodes, address, _free_ports())
        return [*words, *line]

    def _may_be_warned(self, record: RunRecord, live: Path) -> bool:
        """Say whether all nodes listen; a command would die of a signal that it does not know."""
        if record.spec.workload.command is not None:
            return False
        return all(node.begun_path(live, name).exists() for name in self._nodes)

    def _conclude(self, record: RunRecord, live: Path, code: int, why: str | None) -> int:
        """Bring an attempt home, or tell what became of it.

        srun may end with 0 although its tasks were killed: only what the nodes tell counts.
        """
        refused = [_read(path, "") for path in sorted(live.glob("refused.*.json"))]
        if refused or why is not None:
            self._end(record, "skipped" if refused else "failed", "; ".join(refused) or why or "")
            return 0
        ends = self._ends(live)
        silent = [name for name in self._nodes if name not in ends]
        if not silent and not any(ends.values()):
            if (live / "stopped.json").exists():
                return self._cut(record, live, "warned by Slurm (time limit or preemption)")
            self._finish(record, live)
            return 0
        if self._told.end or silent or _was_terminated(live):
            heard = f"nothing more was heard of {', '.join(silent)}" if silent else "ended by Slurm"
            others = failures.first_failure(live)
            return self._cut(record, live, f"{heard}; {others}" if others else heard)
        self._end(record, "failed", failure_reason(self._folder, record.attempts, code))
        return 0

    def _ends(self, live: Path) -> dict[str, int]:
        """Return the codes of the nodes that have told their end.

        A slow file system is waited for, unless Slurm does not leave us the time.
        """
        end_s = time.monotonic() + self._slurm.settle_s
        while True:
            found = {}
            for name in self._nodes:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    text = (live / f"ended.{name}.json").read_text(encoding="utf-8")
                    found[name] = int(json.loads(text)["code"])
            if len(found) == len(self._nodes) or time.monotonic() > end_s or self._told.end:
                return found
            list(live.iterdir())  # has a network file system look again
            time.sleep(_POLL_S)

    def _cut(self, record: RunRecord, live: Path, why: str) -> int:
        """Leave an attempt that something else has ended to the next one.

        Told to end, we do not know why, and leave the record: Slurm's state of the job says it.
        """
        if self._told.end:
            write_text(live / "cut.json", json.dumps({"reason": f"{why}; asked to end (SIGTERM)"}))
            return INTERRUPTED
        after = interrupted(record, self._folder, why)
        self._write(after)
        if after.status == "failed":
            return 0
        if commands.requeue(os.environ.get("SLURM_JOB_ID", "")):
            time.sleep(_GRACE_S)  # Slurm ends us
        return INTERRUPTED

    def _finish(self, record: RunRecord, live: Path) -> None:
        self._check_is_last(record)
        self._await_windows(record, live)
        try:
            after = finish(record, self._folder)
        except OSError:
            raise
        except Exception as error:  # told as the run's end, not as the driver's
            self._end(record, "failed", f"could not be finished: {one_line(error)}")
            return
        site = (record.site or self._site()).model_copy(update={"topology": self._topology(live)})
        after = after.model_copy(update={"site": site, "finished_at": now()})
        self._write(after)
        if after.status == "done":
            self._folder.remove_live_files()

    def _topology(self, live: Path) -> dict[str, str]:
        told: dict[str, str] = {}
        for name in self._nodes:
            with contextlib.suppress(OSError, ValueError):
                text = node.begun_path(live, name).read_text(encoding="utf-8")
                switches = json.loads(text).get("topology")
                told |= {name: str(switches)} if switches else {}
        return told

    def _end(self, record: RunRecord, status: str, reason: str) -> None:
        told = {"status": status, "reason": reason, "finished_at": now()}
        self._write(record.model_copy(update=told))

    def _write(self, record: RunRecord) -> None:
        """Replace the record, unless a later attempt has begun.

        Where a node's daemon was lost, Slurm may start a job again while the old one still runs.
        """
        self._check_is_last(record)
        self._folder.write(record)

    def _check_is_last(self, record: RunRecord) -> None:
        there = self._folder.read()
        if there is not None and there.attempts != record.attempts:
            raise BadInput(
                f"attempt {record.attempts}: {there.attempts} has begun; nothing is told"
            )

    def _await_windows(self, record: RunRecord, live: Path) -> None:
        """Wait until a slow file system shows what other nodes have written."""
        end_s = time.monotonic() + self._slurm.settle_s
        while time.monotonic() < end_s:
            windows, _ = merged_windows(record, self._folder)
            if missing_windows(record, windows) is None:
                return
            list(live.iterdir())  # has a network file system look again
            time.sleep(_POLL_S)


def _was_terminated(live: Path) -> bool:
    """Say whether Slurm has terminated a node (SIGTERM), the first step of a preemption."""
    kinds = {failure.kind for failure in failures.read_failures(live)}
    return any(live.glob("terminated.*")) or kinds == {"terminated"}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End a step: its agents are asked, and after a while made to."""
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _read(path: Path, otherwise: str) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, KeyError):
        return otherwise


def _free_ports() -> tuple[int, int]:
    """Return two ports that are free on this node now."""
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("", 0))
        return one.getsockname()[1], other.getsockname()[1]


if __name__ == "__main__":
    sys.exit(crash.run(main))
