"""The driver of a job: ``python -m wattlaw.running.slurm.driver RUN_FOLDER``, on the first node.

It numbers the attempt, starts a node agent on each node, and stores the run. No campaign needs to
be active meanwhile. On Slurm's preemption notice (SIGUSR1) the run saves a checkpoint, and the
job is requeued.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from wattlaw.common import crash
from wattlaw.common.errors import BadInput, NotAvailable, WattlawError, one_line
from wattlaw.common.files import read_text
from wattlaw.common.isolation import isolate, isolated_python
from wattlaw.running.finish import (
    failed,
    failure_reason,
    finish,
    merged_windows,
    missing_windows,
)
from wattlaw.running.node_setup import log_head
from wattlaw.running.slurm import commands
from wattlaw.running.slurm.node import begun_path
from wattlaw.running.slurm.submission import (
    ENDED,
    INTERRUPTED,
    NO_FOLDER,
    Submission,
    claim_path,
    interrupted,
    read_submission,
)
from wattlaw.running.training import failures
from wattlaw.running.training.environment import DISK_FULL
from wattlaw.running.training.failures import disk_full_error, reason_of
from wattlaw.store.record import RunRecord, Site, Status, now
from wattlaw.store.run_folder import RunFolder

#: How long nodes may continue after one node's agent has ended.
_SRUN_WAIT_S = 60
_POLL_S = 0.5
_GRACE_S = 20.0


class _Signals:
    def __init__(self) -> None:
        self.notice, self.terminate = "WATTLAW_WARNED" in os.environ, False  # see the batch script
        signal.signal(signal.SIGUSR1, self._receive)
        signal.signal(signal.SIGTERM, self._receive)

    def _receive(self, number: int, _: object) -> None:
        self.notice |= number == signal.SIGUSR1
        self.terminate |= number == signal.SIGTERM


def main() -> int:
    signals = _Signals()
    isolate()
    folder = RunFolder(Path(sys.argv[1]))
    job_id = os.environ.get("SLURM_JOB_ID", "")
    try:
        submitted = read_submission(folder)
        record = folder.read()
        if submitted is None or record is None:
            message = f"{folder.path}: does not exist on {socket.gethostname()}"
            print(f"wattlaw: {message}", file=sys.stderr)
            return NO_FOLDER
        claim = claim_path(folder)
        if record.status not in ENDED:
            with contextlib.suppress(FileExistsError), claim.open("x", encoding="utf-8") as file:
                file.write(job_id)
        if record.status in ENDED or read_text(claim) != job_id:
            print("wattlaw: another job has this run, or it has ended", file=sys.stderr)
            return 0
        return _Driver(folder, submitted, signals).drive(record)
    except OSError as error:
        print(f"wattlaw: {one_line(error)}", file=sys.stderr)
        return DISK_FULL if disk_full_error(error) else 1
    except WattlawError as error:
        print(f"wattlaw: {error}", file=sys.stderr)
        return error.exit_code


class _Driver:
    def __init__(self, folder: RunFolder, submission: Submission, signals: _Signals) -> None:
        self._folder, self._submission, self._signals = folder, submission, signals
        self._slurm = submission.launch.slurm
        self._nodes = commands.hostnames(os.environ.get("SLURM_JOB_NODELIST", ""))
        self._begun_s = time.monotonic()

    def drive(self, old: RunRecord) -> int:
        if len(self._nodes) != old.spec.nodes:
            raise NotAvailable(
                f"'scontrol show hostnames' names {len(self._nodes)} nodes of this job; "
                f"{old.spec.nodes} are needed"
            )
        record = self._begin(old)
        self._folder.write(record)
        if record.status == "failed":
            return 0
        live = self._folder.live(record.attempts)
        live.mkdir(parents=True, exist_ok=True)
        print(log_head(record), end="", flush=True)
        code, stop_reason = self._run(record, live)
        try:
            return self._conclude(record, live, code, stop_reason)
        except OSError as error:
            if not disk_full_error(error):
                raise
            with contextlib.suppress(OSError):  # a record is small and may still fit
                self._end(record, "failed", reason_of(error))
            return DISK_FULL

    def _begin(self, old: RunRecord) -> RunRecord:
        record = old
        if old.status == "running":  # an attempt without an end was interrupted
            record = interrupted(old, self._folder, "the job was requeued")
            if record.status == "failed":
                return record
        of_job = {
            "cluster": "SLURM_CLUSTER_NAME",
            "job_id": "SLURM_JOB_ID",
            "partition": "SLURM_JOB_PARTITION",
            "account": "SLURM_JOB_ACCOUNT",
            "qos": "SLURM_JOB_QOS",
        }
        site = Site(
            scheduler="slurm",
            nodes=self._nodes,
            submitted_at=self._submission.at,
            **{name: os.environ.get(variable) for name, variable in of_job.items()},
        )
        changes: dict[str, object] = {
            "status": "running",
            "reason": None,
            "interrupted": False,
            "attempts": old.attempts + 1,
            "site": site,
            "started_at": (record.interruptions and old.started_at) or now(),
            "finished_at": None,
        }
        return record.model_copy(update=changes)

    def _run(self, record: RunRecord, live: Path) -> tuple[int, str | None]:
        """Run a node agent on each node; return srun's code, and why it was stopped if it was."""
        process = subprocess.Popen(self._srun(record), stdin=subprocess.DEVNULL)
        limit_s = self._submission.launch.timeout_s
        reason: str | None = None
        # A user's command may not handle SIGUSR1.
        is_forwarded = record.spec.workload.command is not None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S), reason
            if self._signals.notice and not is_forwarded:
                is_forwarded = all(begun_path(live, name).exists() for name in self._nodes)
                if is_forwarded:  # all nodes handle it now
                    process.send_signal(signal.SIGUSR1)
            if reason is not None:
                continue
            if limit_s is not None and time.monotonic() - self._begun_s > limit_s:
                reason = f"time limit of {limit_s:g} s reached (launch.timeout_s)"
            elif _refusals(live):
                reason = "refused"
            if reason is not None:
                process.terminate()
                try:
                    process.wait(_GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()

    def _srun(self, record: RunRecord) -> list[str]:
        nodes, workers = record.spec.nodes, record.spec.setting.gpus // record.spec.nodes
        cores = self._slurm.cpus_per_worker
        address, suffix = socket.gethostname(), self._slurm.host_suffix
        if suffix:
            address = address.partition(".")[0] + suffix
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        node = isolated_python("-m", "wattlaw.running.slurm.node", str(self._folder.path.resolve()))
        return [
            *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
            *("--mpi=none", "--kill-on-bad-exit=0", f"--wait={_SRUN_WAIT_S}"),
            *([] if cores is None else [f"--cpus-per-task={cores * workers}"]),
            *(*node, str(record.attempts), "--address", address, "--port", str(port)),
        ]

    def _conclude(self, record: RunRecord, live: Path, code: int, reason: str | None) -> int:
        """Return the exit code. srun may return 0 although its tasks were killed: files count."""
        if refusals := _refusals(live):
            self._end(record, "skipped", "; ".join(refusals))
            return 0
        if reason is not None:
            self._end(record, "failed", reason)
            return 0
        codes = self._node_codes(live)
        lost = [name for name in self._nodes if name not in codes]
        if not lost and not any(codes.values()):
            if (live / "stopped.json").exists():
                notice = "preemption notice from Slurm (SIGUSR1)"
                return self._interrupt(record, notice)
            self._finish(record, live)
            return 0
        # Slurm terminates a node (SIGTERM) as the first step of a preemption.
        kinds = {failure.kind for failure in failures.read_failures(live)}
        was_terminated = any(live.glob("terminated.*")) or kinds == {"terminated"}
        is_interrupted = self._signals.terminate or lost or was_terminated
        if is_interrupted and failures.cause(live) is None:
            why = f"lost contact with {', '.join(lost)}" if lost else "ended by Slurm"
            failure = failures.first_failure(live)
            return self._interrupt(record, f"{why}; {failure.reason}" if failure else why)
        self._write(
            finish(record, self._folder, failure_reason(self._folder, record.attempts, code))
        )
        return 0

    def _node_codes(self, live: Path) -> dict[str, int]:
        codes: dict[str, int] = {}

        def are_complete() -> bool:
            for name in self._nodes:
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    text = (live / f"ended.{name}.json").read_text(encoding="utf-8")
                    codes[name] = int(json.loads(text)["code"])
            return len(codes) == len(self._nodes) or self._signals.terminate

        self._wait_until(are_complete, live)
        return codes

    def _interrupt(self, record: RunRecord, reason: str) -> int:
        """Return the exit code. After SIGTERM the reason is unknown: the record stays, and Slurm's
        state of the job decides."""
        if self._signals.terminate:
            return INTERRUPTED
        after = interrupted(record, self._folder, reason)
        self._write(after)
        if after.status == "failed":
            return 0
        if commands.requeue(os.environ.get("SLURM_JOB_ID", "")):
            time.sleep(_GRACE_S)  # until Slurm ends this process
        return INTERRUPTED

    def _finish(self, record: RunRecord, live: Path) -> None:
        self._check_is_last(record)
        self._wait_until(
            lambda: missing_windows(record, merged_windows(record, self._folder)[0]) is None, live
        )
        after = finish(record, self._folder)
        self._write(after)
        if after.status == "done":
            self._folder.remove_live_files()

    def _end(self, record: RunRecord, status: Status, reason: str) -> None:
        self._write(failed(record, reason, status, finished_at=now()))

    def _write(self, record: RunRecord) -> None:
        self._check_is_last(record)
        self._folder.write(record)

    def _check_is_last(self, record: RunRecord) -> None:
        """After the loss of a node's daemon, Slurm may restart a job while one is active."""
        stored = self._folder.read()
        if stored is not None and stored.attempts != record.attempts:
            raise BadInput(
                f"attempt {record.attempts}: attempt {stored.attempts} has begun; nothing is stored"
            )

    def _wait_until(self, is_complete: Callable[[], bool], live: Path) -> None:
        end_s = time.monotonic() + self._slurm.settle_s
        while not is_complete() and time.monotonic() <= end_s:
            list(live.iterdir())  # makes a network file system refresh
            time.sleep(_POLL_S)


def _refusals(live: Path) -> list[str]:
    return [one.reason for one in failures.read_failures(live) if one.kind == "refused"]


if __name__ == "__main__":
    sys.exit(crash.run(main))
