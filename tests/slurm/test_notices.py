"""Notices of an end, by which a run writes a checkpoint: preemption and time limits."""

from slurm.studies import finished, is_whole, slowly


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


def test_a_run_that_is_warned_of_its_time_limit_writes_a_checkpoint_and_continues(cluster, desk):
    slowly(desk, train={})
    before = desk.submissions()
    with desk.running() as front:
        desk.wait_epochs(2)
        # What Slurm sends near the limit with --signal=B:USR1@S (README.md); it looks every 30 s.
        cluster.run("scancel", "--signal=USR1", "--batch", desk.record().site.job_id)
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
