"""Time limits and full disks."""

from slurm.studies import finished, is_whole, slowly
from wattlaw.store.store import Store


def test_a_run_that_is_warned_of_its_time_limit_writes_a_checkpoint_and_continues(cluster, desk):
    slowly(desk, train={})
    before = desk.submissions()
    with desk.running() as front:
        desk.wait_epochs(2)
        # What Slurm sends near the limit with --signal=B:USR1@S (README.md); it looks every 30 s.
        warn = ("scancel", "--signal=USR1", "--batch", desk.job_of(desk.record()))
        cluster.run(*warn)
        stopped = lambda: [*desk.store.glob("runs/*/live/1/stopped.json")]  # noqa: E731
        cluster.wait_for(stopped, "the first attempt to stop", 60)
        desk.pauses(0)
        output = finished(front, 150)
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
        output, _ = front.communicate(timeout=120)
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
