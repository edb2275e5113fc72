"""The status of runs whose jobs have ended without recording it.

`squeue` and `sbatch` are small programs here with scripted output; tests/slurm has the real ones.
"""

import os
import signal

import pytest
from test_slurm_words import command, launch_of, queue_line, record_of

from conftest import study_in, study_of
from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.running.campaign import Campaign
from wattlaw.running.launcher import ResourcesBusy
from wattlaw.running.slurm import SlurmLauncher
from wattlaw.running.slurm.submission import (
    INTERRUPTED,
    NO_FOLDER,
    job_name,
    read_submission,
    store_tag,
)
from wattlaw.running.training.environment import DISK_FULL
from wattlaw.store.record import Site, now
from wattlaw.store.store import Store
from wattlaw.study.plan import PlannedRun, read_study

RUN = "0123456789abcdef"
SITE = Site(scheduler="slurm", job_id="7", nodes=("node1", "node2"))


class Queue:
    """A launcher on a store, and a scripted queue."""

    def __init__(self, folder, **slurm):
        self.bin, self.store = folder / "bin", Store(folder / "store")
        self.bin.mkdir()
        self.store.create()
        self.folder = self.store.folder(RUN)
        self.set_job()
        command(self.bin, "sbatch", "7")
        command(self.bin, "scancel", "")
        self.launch = launch_of(poll_s=1, **({"settle_s": 0} | slurm))
        self.launcher = SlurmLauncher.open(self.launch, self.store.path)

    def set_job(self, state=None, code=0, reason="None", job="7", signal=0):
        text = ""
        if state is not None:
            name = job_name(store_tag(self.store.path), RUN)
            text = queue_line(job, state, str((code << 8) + signal), name, reason)
        command(self.bin, "squeue", text)

    def submitted(self, **changes):
        """Return the attempt at a run whose job was submitted; the job then left this record."""
        record = record_of(RUN, status="planned", attempts=0)
        self.folder.write(record)
        attempt = self.launcher.start(record, self.folder, self.launcher.allocate(record.spec))
        told = {"status": "running", "attempts": 1, "site": SITE} | changes
        self.folder.write(record.model_copy(update=told))
        return attempt

    def poll(self, attempt):
        """Make the next poll of the queue due, and poll the attempt."""
        self.launcher.poller._next_s = 0.0
        return attempt.poll()

    def times(self, program):
        path = self.bin / f"{program}.words"
        return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return Queue(tmp_path)


@pytest.mark.parametrize(
    ("state", "code", "log", "expected"),
    [
        ("TIMEOUT", 0, "", "job 7: reached its time limit"),
        ("FAILED", NO_FOLDER, "", "it must be on a file system that login node and compute nodes"),
        ("FAILED", DISK_FULL, "", "job 7: the disk is full"),
        ("FAILED", 1, "a\nb  c\n\n", "job 7: ended FAILED with exit code 1; b c (log: "),
        ("FAILED", 15, None, "must be on a file system that login node and compute"),
    ],
)
def test_a_job_that_ended_without_recording_it_fails_its_run_with_what_slurm_says(
    queue, state, code, log, expected
):
    attempt = queue.submitted()
    if log is not None:
        queue.folder.log_path.write_text(log)
    queue.set_job(state, code)
    ended = queue.poll(attempt)
    assert expected in ended.reason
    assert queue.folder.read() == ended.record
    assert (ended.record.status, ended.record.interrupted) == ("failed", False)
    assert ended.record.finished_at is not None


def test_several_refusals_in_a_row_end_the_campaign(queue):
    record = record_of(RUN, status="planned", attempts=0)
    queue.folder.write(record)
    command(queue.bin, "sbatch", "sbatch: error: invalid partition specified: nope", code=1)
    for _ in range(3):
        with pytest.raises(BadInput, match="invalid partition specified: nope"):
            queue.launcher.start(record, queue.folder, queue.launcher.allocate(record.spec))
    with pytest.raises(NotAvailable, match="3 jobs in a row"):
        queue.launcher.allocate(record.spec)


def test_a_job_that_has_not_ended_is_left_alone(queue):
    attempt = queue.submitted()
    for state in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"):
        queue.set_job(state)
        assert queue.poll(attempt) is None
        assert queue.folder.read().status == "running"


@pytest.mark.parametrize("status", ["done", "failed", "skipped"])
def test_a_record_of_the_job_precedes_the_state_in_slurm_once_it_can_be_read(queue, status):
    attempt = queue.submitted(status=status, reason="its own", finished_at=now())
    whole = queue.folder.record_path.read_text()
    queue.set_job("FAILED", 1)
    queue.folder.record_path.write_text("{")
    assert queue.poll(attempt) is None
    queue.folder.record_path.write_text(whole)
    assert queue.poll(attempt).record.reason == "its own"
    assert queue.times("scancel") == 0


def test_files_of_a_job_may_appear_late_on_a_slow_file_system(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    queue = Queue(tmp_path, settle_s=60)
    attempt, late = queue.submitted(), queue.submitted()
    queue.set_job("COMPLETED")
    assert queue.poll(attempt) is None
    assert queue.poll(late) is None
    late._over_since_s -= 61  # a minute has passed
    assert "COMPLETED" in queue.poll(late).reason
    done = queue.folder.read().model_copy(update={"status": "done"})
    queue.folder.write(done)  # only now it is seen here
    assert queue.poll(attempt).record.status == "done"


@pytest.mark.parametrize(
    ("state", "code", "by"),
    [
        ("NODE_FAIL", 0, 0),
        ("PREEMPTED", 0, 0),
        ("FAILED", INTERRUPTED, 0),
        ("FAILED", 0, signal.SIGUSR1),  # warned before its driver listened
    ],
)
@pytest.mark.parametrize("status", ["running", "planned"])  # the job has recorded its loss
def test_the_run_of_a_lost_job_is_planned_again_and_the_loss_recorded_once(
    queue, state, code, by, status
):
    attempt = queue.submitted(status=status)
    queue.set_job(state, code, signal=by)
    record = queue.poll(attempt).record
    assert record.status == "planned"
    assert queue.folder.read() == record
    recorded = [(cut.attempt, cut.job_id, cut.nodes) for cut in record.interruptions]
    assert recorded == [(1, "7", ("node1", "node2"))] * (status == "running")
    assert queue.launcher.reattach(record, queue.folder) is None  # the lost job is not taken up


def test_a_campaign_submits_a_lost_job_again(queue):
    """The state in the queue follows the jobs: the first is lost, the second leaves no record."""
    planned = PlannedRun(RUN, record_of(RUN).spec)
    lost, after = (
        queue_line(job, state, str(code << 8), job_name(store_tag(queue.store.path), RUN), "None")
        for job, state, code in (("7", "NODE_FAIL", 0), ("7", "FAILED", 1))
    )
    (queue.bin / "squeue").write_text(
        f"#!/bin/bash\ncase $(wc -l < {queue.bin}/sbatch.words) in\n"
        f"1) echo '{lost}';;\n2) echo '{after}';;\nesac\n"
    )
    study = read_study(study_in(queue.bin.parent, study_of()))
    queue.launcher.poller._poll_s = 0.01
    outcome = Campaign(study, [planned], queue.store, queue.launcher).run()
    assert (outcome.failed, outcome.left, queue.times("sbatch")) == (1, 0, 2)
    assert "exit code 1" in queue.folder.read().reason


def test_a_job_that_left_the_queue_without_a_record_is_an_interruption(queue):
    attempt = queue.submitted()
    queue.set_job()
    ended = queue.poll(attempt)
    assert "job 7 is no longer in the queue" in ended.reason
    assert ended.record.state == "interrupted"  # the next campaign starts it again


def test_a_submission_without_an_answer_is_not_repeated_before_the_queue_is_seen(queue):
    record = record_of(RUN, status="planned", attempts=0)
    queue.folder.write(record)
    command(queue.bin, "sbatch", "Socket timed out on send/recv operation", code=1)
    with pytest.raises(ResourcesBusy):
        queue.launcher.start(record, queue.folder, queue.launcher.allocate(record.spec))
    assert queue.launcher.allocate(record.spec) is None
    assert read_submission(queue.folder).job_id is None
    queue.set_job("PENDING", job="9")  # it had been taken all the same
    queue.launcher.poller._next_s = 0.0
    assert RUN in queue.launcher.detached_run_ids()
    attempt = queue.launcher.reattach(record, queue.folder)
    assert queue.poll(attempt) is None
    queue.set_job("CANCELLED", job="9")
    assert queue.poll(attempt).reason == "job 9 was cancelled"


def test_only_one_campaign_at_a_time_submits_for_a_store(queue):
    spec = record_of(RUN).spec
    assert queue.launcher.allocate(spec) is not None
    other = SlurmLauncher.open(queue.launch, queue.store.path)
    assert other.allocate(spec) is None
    queue.launcher.close()
    other.poller._next_s = 0.0
    assert other.allocate(spec) is not None
