"""``wattlaw cancel``: the end of what a store has under way. Jobs of Slurm: tests/slurm."""

from conftest import (
    LONG,
    in_training,
    processes_of,
    records,
    started,
    wait_for,
    wattlaw,
)
from wattlaw.launch.stopping import CANCELLED
from wattlaw.store.store import Store


def test_a_campaign_ends_its_runs_and_itself(tmp_path, write_study):
    study = write_study(measure=LONG | {"epochs": 40}, repeats=2)
    store = tmp_path / "store"
    with started("run", study, "--store", store) as campaign:
        wait_for(lambda: in_training(store), "training")
        told = wattlaw("cancel", store)
        output, _ = campaign.communicate(timeout=30)
    assert told.returncode == 0, told.stderr
    assert "no job was in the queue" in told.stdout
    assert campaign.returncode == 1
    assert f"stopped by {CANCELLED}" in output
    assert not processes_of(store)
    begun = [record for record in records(store).values() if record.attempts]
    assert [(one.status, one.interrupted) for one in begun] == [("failed", True)]
    assert begun[0].reason == f"interrupted by {CANCELLED}"


def test_where_nothing_is_under_way_nothing_is_changed(tmp_path):
    store = tmp_path / "store"
    Store(store).create()
    told = wattlaw("cancel", store)
    assert told.returncode == 0
    assert "0 run(s) noted as interrupted" in told.stdout
    missing = wattlaw("cancel", tmp_path / "nowhere")
    assert missing.returncode == 2
    assert "no store" in missing.stderr
