"""What clusters do to jobs: nodes are lost, time is over, others come first, the disk is full."""

import pytest

from slurm.cluster import Cluster
from slurm.studies import PAUSE_S, Desk, finished, slowly
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store


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
    slowly(desk, epochs=4, sweeps=[{"gpus": [which + 1], "global_batch": [128]}])
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
    desk.pause_s, before = 2 * PAUSE_S, desk.submissions()
    with desk.running() as front:
        output = finished(front)
    record = desk.record()
    is_whole(desk, record)
    assert record.attempts >= 2, output
    assert all(one.has_progress for one in record.interruptions)
    assert "warned" in record.interruptions[0].reason
    assert len({one.job_id for one in record.interruptions}) == 1  # the job itself went back
    assert desk.submissions() == before + 1


def test_a_preempted_run_goes_on(cluster: Cluster, desk: Desk) -> None:
    two = [{"gpus": [2], "global_batch": [128]}]
    slowly(desk, epochs=8, train={}, sweeps=two)
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
