"""Ranks that fail, and full disks."""

from conftest import setenv
from slurm.studies import RUN_S, is_whole, slowly
from wattlaw.store.store import Store


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
