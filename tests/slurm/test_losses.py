"""Nodes that are killed under a run."""

import pytest

from slurm.studies import finished, is_whole, slowly
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
