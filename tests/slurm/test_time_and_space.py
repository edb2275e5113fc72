"""Jobs whose time is over, and runs for which there is no room on the disk."""

import pytest

from slurm.cluster import Cluster
from slurm.studies import Desk, finished, is_whole, slowly
from wattlaw.store.store import Store


@pytest.mark.timeout(700)
def test_a_time_limit_makes_a_checkpoint_and_the_run_goes_on(cluster: Cluster, desk: Desk) -> None:
    # Slurm looks every 30 s, and warns 30 to 60 s after the start; training takes 58 s. On a loaded
    # machine an attempt has little of that time left, and there are more of them.
    slowly(desk, epochs=12, slurm={"time": "2", "warn_s": 60}, train={})
    desk.pause_s, before = 0.4, desk.submissions()
    with desk.running() as front:
        output = finished(front, 600)
    record = desk.record()
    is_whole(desk, record)
    assert record.attempts >= 2, output
    assert all(one.has_progress for one in record.interruptions)
    assert "warned" in record.interruptions[0].reason
    assert len({one.job_id for one in record.interruptions}) == 1  # the job itself went back
    assert desk.submissions() == before + 1


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
