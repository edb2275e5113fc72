"""What clusters do to jobs: nodes are lost, time is over, somebody cancels, others come first."""

import signal
import time

import pytest

from slurm.cluster import Cluster
from slurm.studies import SLOW, Desk, finished
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

#: About 2.4 s of training in each epoch of two ranks.
PAUSE_S = 0.2


def slowly(desk: Desk, epochs: int = 5, **changes: object) -> None:
    """Write a study of one run on two nodes that lasts and keeps a checkpoint of each epoch."""
    desk.pause_s = PAUSE_S
    slurm = changes.pop("slurm", None)
    changes = {"workloads": SLOW, "train": {"checkpoint_every": 1}} | changes
    measure = {"epochs": epochs, "warmup_epochs": 1, "sample_hz": 20, "evaluate": False}
    desk.write(slurm, measure=measure, **changes)


def is_whole(desk: Desk, record: RunRecord) -> None:
    """Check that a done run has every epoch of every host, cut or not, exactly once."""
    assert record.status == "done", record.reason
    epochs = Store(desk.store).pandas("epochs")
    mine = epochs[(epochs.run_id == record.run_id) & (epochs.phase == "train")]
    for epoch in range(record.spec.measure.epochs):
        parts = mine[mine.epoch == epoch]
        seen = parts.groupby("host").updates.sum()
        assert set(seen) == {12}, (epoch, parts)
    cut = mine[mine.from_update > 0]
    assert cut.interrupted.all()


@pytest.mark.parametrize("which", [0, 1], ids=["the first node", "another node"])
def test_a_run_whose_node_is_killed_goes_on_from_its_checkpoint(
    cluster: Cluster, desk: Desk, which: int
) -> None:
    slowly(desk)
    with desk.running() as front:
        desk.wait_epochs(2)
        victim = desk.record().site.nodes[which]
        cluster.kill_node(victim)
        cluster.declare_down(victim)
        output = finished(front)
    record = desk.record()
    is_whole(desk, record)
    assert record.attempts == 2, output
    (cut,) = record.interruptions
    assert cut.attempt == 1
    assert cut.has_progress
    assert victim in cut.nodes
    assert victim not in record.site.nodes
    epochs = Store(desk.store).pandas("epochs")
    assert epochs.interrupted.any()  # the first window after the loss, whose caches were cold
    assert not epochs[epochs.epoch == 0].interrupted.any()


def test_a_time_limit_makes_a_checkpoint_and_the_run_goes_on(cluster: Cluster, desk: Desk) -> None:
    # Slurm looks every 30 s, and warned 30 to 60 s after the start; training takes 58 s.
    slowly(desk, epochs=12, slurm={"time": "2", "warn_s": 60}, train={})
    desk.pause_s = 2 * PAUSE_S
    with desk.running() as front:
        output = finished(front)
    record = desk.record()
    is_whole(desk, record)
    assert record.attempts >= 2, output
    assert all(one.has_progress for one in record.interruptions)
    assert "warned" in record.interruptions[0].reason
    assert len({one.job_id for one in record.interruptions}) == 1  # the job itself went back
    assert desk.submissions() == 1


def test_a_preempted_run_goes_on(cluster: Cluster, desk: Desk) -> None:
    slowly(desk, epochs=8, train={})
    with desk.running() as front:
        desk.wait_epochs(2)
        nodes = ",".join(desk.record().site.nodes)
        urgent = ["--partition=urgent", f"--nodelist={nodes}", "--nodes=2", "--exclusive"]
        other = cluster.sbatch("sleep 3", *urgent)
        output = finished(front)
    assert cluster.state(other) == "COMPLETED"
    record = desk.record()
    is_whole(desk, record)
    assert record.attempts == 2, output
    assert record.interruptions[0].has_progress


def test_a_front_end_that_is_killed_loses_and_doubles_nothing(cluster: Cluster, desk: Desk) -> None:
    slowly(desk, epochs=3, repeats=3, sweeps=[{"gpus": [1], "global_batch": [128]}],
           slurm={"max_queued": 2})  # fmt: skip
    before = desk.submissions()
    with desk.running() as front:
        cluster.wait_for(lambda: desk.submissions() - before == 2, "two jobs")
        front.send_signal(signal.SIGKILL)
        front.wait()
    told = desk.does("status", "store", "--json", host="login2").stdout
    assert '"job": {"id"' in told
    ended = desk.runs(host="login2")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert desk.submissions() - before == 3
    assert [(one.status, one.attempts) for one in desk.records()] == [("done", 1)] * 3
    assert all(one.interruptions == () for one in desk.records())


def test_jobs_that_end_while_nobody_looks_are_done_all_the_same(
    cluster: Cluster, desk: Desk
) -> None:
    desk.write()
    before = desk.submissions()
    with desk.running() as front:
        cluster.wait_for(lambda: desk.submissions() > before, "the job")
        front.send_signal(signal.SIGINT)
        output, _ = front.communicate(timeout=30)
    assert "jobs go on" in output
    cluster.wait_for(lambda: desk.record().status == "done", "the run's end", 90)
    assert "1 done" in desk.does("status", "store").stdout


def test_a_job_cancelled_by_hand_fails_with_that_reason_and_harms_no_other(
    cluster: Cluster, desk: Desk
) -> None:
    slowly(desk, epochs=6, repeats=2, sweeps=[{"gpus": [1], "global_batch": [128]}], train={})
    with desk.running() as front:
        desk.wait_epochs(1)
        victim = desk.records()[0]
        job = desk.job_of(victim)
        cluster.run("scancel", job)
        output, _ = front.communicate(timeout=120)
    assert front.returncode == 1, output
    found = {one.run_id: one for one in desk.records()}
    assert found[victim.run_id].status == "failed"
    assert found[victim.run_id].reason == f"job {job} was cancelled"
    (other,) = [one for one in found.values() if one.run_id != victim.run_id]
    assert (other.status, other.attempts) == ("done", 1)


def test_a_scheduler_that_does_not_answer_is_waited_for(cluster: Cluster, desk: Desk) -> None:
    slowly(desk, epochs=8, train={})
    with desk.running() as front:
        desk.wait_epochs(1)
        cluster.stop_controller()
        time.sleep(12)  # squeue itself tries for 4 s
        assert front.poll() is None
        cluster.start_controller()
        output = finished(front)
    assert "does not answer" in output
    record = desk.record()
    assert (record.status, record.attempts) == ("done", 1)


def test_cancel_ends_jobs_and_the_front_end_and_the_next_run_takes_them_up(
    cluster: Cluster, desk: Desk
) -> None:
    slowly(desk, epochs=3, repeats=3, sweeps=[{"gpus": [1], "global_batch": [128]}],
           slurm={"max_queued": 2})  # fmt: skip
    with desk.running() as front:
        desk.wait_epochs(1)
        told = desk.does("cancel", "store", host="login2")
        output, _ = front.communicate(timeout=60)
    assert told.returncode == 0, told.stderr
    assert "2 jobs cancelled" in told.stdout
    assert front.returncode == 1
    assert "wattlaw cancel" in output
    assert not cluster.run("squeue", "--noheader")
    assert "done" not in {one.status for one in desk.records()}
    before = desk.submissions()
    assert desk.runs().returncode == 0
    assert desk.submissions() - before == 3
    assert {one.status for one in desk.records()} == {"done"}


def test_a_full_disk_fails_the_run_clearly_and_leaves_nothing_by_half(
    cluster: Cluster, desk: Desk
) -> None:
    desk.folder = cluster.small / "alice"
    cluster.run("mkdir", desk.folder)
    slowly(desk, epochs=4)
    with desk.running() as front:
        desk.wait_epochs(1)
        cluster.run("dd", "if=/dev/zero", f"of={cluster.small}/ballast", "bs=4k", check=False)
        output, _ = front.communicate(timeout=120)
        cluster.run("rm", cluster.small / "ballast")
    assert front.returncode == 1, output
    assert "disk is full" in output
    assert Store(desk.store).arrow("epochs").num_rows == 0
    if desk.record().status != "failed":  # what became of it could not be written; it is now
        assert "disk is full" in desk.runs().stdout
    again = desk.runs()
    assert again.returncode == 0, again.stdout
    is_whole(desk, desk.record())
