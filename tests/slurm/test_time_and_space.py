"""Time limits and full disks."""

from slurm.cluster import Cluster
from slurm.studies import Desk, finished, is_whole, slowly
from wattlaw.store.store import Store


def test_a_run_at_its_time_limit_writes_a_checkpoint_and_continues(
    cluster: Cluster, desk: Desk
) -> None:
    # Slurm looks every 30 s, and warns 30 to 90 s after the start.
    slowly(desk, slurm={"time": "2", "warn_s": 30}, train={})
    desk.pauses(1.0)
    before = desk.submissions()
    with desk.running() as front:
        stopped = lambda: [*desk.store.glob("runs/*/live/1/stopped.json")]  # noqa: E731
        cluster.wait_for(stopped, "the first attempt to stop", 200)
        desk.pauses(0)
        output = finished(front, 150)
    record = desk.record()
    is_whole(desk, record)
    assert record.attempts >= 2, output  # more on a loaded machine
    cut = record.interruptions[0]
    assert cut.has_progress
    assert "preemption notice" in cut.reason
    assert {one.job_id for one in record.interruptions} == {record.site.job_id}  # it was requeued
    assert desk.submissions() == before + 1


def test_a_full_disk_fails_the_run_and_leaves_no_partial_result(
    cluster: Cluster, desk: Desk
) -> None:
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
