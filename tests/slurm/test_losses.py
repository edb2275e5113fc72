"""Lost nodes, preempting jobs, ranks that fail, time limits and full disks."""

import pytest

from conftest import setenv
from slurm.studies import RUN_S, finished, is_whole, slowly
from wattlaw.store.store import Store


@pytest.mark.parametrize("which", [0, 1], ids=["the first node", "another node"])
def test_a_run_whose_node_is_killed_continues_from_its_checkpoint(cluster, desk, which):
    slowly(desk, sweeps=[{"gpus": [which + 1], "global_batch": [128]}])
    with desk.running() as front:
        desk.wait_epochs(2)
        victim = desk.record().site.nodes[which]
        cluster.kill_node(victim)
        cluster.declare_down(victim)
        desk.pauses(0)
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
    assert epochs.interrupted.any()  # the first window after the loss
    assert not epochs[epochs.epoch == 0].interrupted.any()


def test_a_preempted_run_continues(cluster, desk):
    two = [{"gpus": [2], "global_batch": [128]}]
    slowly(desk, train={}, sweeps=two)
    with desk.running() as front:
        desk.wait_epochs(2)
        nodes = ",".join(desk.record().site.nodes)
        urgent = ["--partition=urgent", f"--nodelist={nodes}", "--nodes=2", "--exclusive"]
        other = cluster.sbatch("sleep 3", *urgent)
        cluster.wait_state(other, "COMPLETED", seconds=60)
        desk.pauses(0)
        output = finished(front)
    record = desk.record()
    is_whole(desk, record)
    assert record.attempts == 2, output
    assert record.interruptions[0].has_progress


def test_a_failing_rank_ends_the_ranks_of_all_nodes(desk, monkeypatch):
    told = {
        "TEST_FAULT": "3 training lacks_memory",
        "TEST_FAILED_AT": str(desk.folder / "failed-at"),
        "TEST_WAITS": "1",
    }
    setenv(monkeypatch, told)
    desk.write(
        workloads=[{"name": "digits-failing", "options": {"width": 4}}],
        sweeps=[{"gpus": [4], "global_batch": [128]}],
        train={"checkpoint_every": 1},
    )
    desk.runs()
    record = desk.record()
    assert (record.status, record.attempts, record.interruptions) == ("failed", 1, ())
    assert record.reason.startswith("rank 3: out of memory")
    failed_s = float((desk.folder / "failed-at.3").read_text())
    assert record.finished_at.timestamp() - failed_s < 90  # waiting for the failed rank: 600 s
    assert len({*Store(desk.store).folder(record.run_id).windows(1)["host"].to_pylist()}) == 4


def test_a_run_that_is_warned_of_its_time_limit_writes_a_checkpoint_and_continues(cluster, desk):
    slowly(desk, train={})
    before = desk.submissions()
    with desk.running() as front:
        desk.wait_epochs(2)
        # What Slurm sends near the limit with --signal=B:USR1@S (README.md); it looks every 30 s.
        cluster.run("scancel", "--signal=USR1", "--batch", desk.job_of(desk.record()))
        stopped = lambda: [*desk.store.glob("runs/*/live/1/stopped.json")]  # noqa: E731
        cluster.wait_for(stopped, "the first attempt to stop", 60)
        desk.pauses(0)
        output = finished(front)
    record = desk.record()
    is_whole(desk, record)
    assert record.attempts == 2, output
    (cut,) = record.interruptions
    assert cut.has_progress
    assert "preemption notice" in cut.reason
    assert cut.job_id == record.site.job_id  # it was requeued
    assert desk.submissions() == before + 1


def test_a_full_disk_fails_the_run_and_leaves_no_partial_result(cluster, desk):
    desk.folder = cluster.small / "alice"
    cluster.run("mkdir", desk.folder)
    slowly(desk)
    with desk.running() as front:
        desk.wait_epochs(1)
        cluster.run("dd", "if=/dev/zero", f"of={cluster.small}/ballast", "bs=4k", check=False)
        output, _ = front.communicate(timeout=RUN_S)
        cluster.run("rm", cluster.small / "ballast")
    assert front.returncode == 1, output
    assert "disk is full" in output
    assert Store(desk.store).arrow("epochs").num_rows == 0
    desk.pauses(0)
    if desk.record().status != "failed":  # the disk had no space for the record
        assert "disk is full" in desk.runs().stdout
    again = desk.runs()
    assert again.returncode == 0, again.stdout
    is_whole(desk, desk.record())
