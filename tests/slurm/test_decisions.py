"""A study with ``decide``: several jobs at once, a lost node, a cancelled job."""

from slurm.studies import RUN_S, SLOW
from wattlaw.api import results
from wattlaw.running.campaign import STOPPED_EARLY
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store


def test_a_decision_survives_a_lost_node_and_a_cancelled_job(cluster, desk):
    go = desk.folder / "go"
    loop = 'while echo "step $((i += 1))"; do sleep 0.05; done'
    line = ["bash", "-c", f"until [ -e {go} ]; do sleep 0.2; done; {loop}"]
    command = {"name": "counts", "command": line, "dataset_samples": 1000}
    desk.write(
        workloads=[command | {"progress": {"pattern": r"step (?P<step>\d+)"}}],
        sweeps=[{"gpus": [1, 2], "local_batch": [32, 64]}],
        launch={"gpus_per_node": 2},
        measure={"steps": 20, "warmup_steps": 2, "sample_hz": 20},
        decide={"minimize": "gpu_hours", "tolerance": "90%", "at_once": 3},
    )

    def active() -> list[RunRecord] | None:
        runs = [item for item in desk.records() if item.status == "running" and item.site]
        return runs if len(runs) == 3 else None

    with desk.running() as front:
        runs = cluster.wait_for(active, "three runs at once", 60)
        lost, cancelled, _ = sorted(runs, key=lambda item: item.spec.setting.gpus)
        victim = lost.site.nodes[0]
        cluster.kill_node(victim)
        cluster.declare_down(victim)
        cluster.run("scancel", cancelled.site.job_id)
        go.touch()
        output, _ = front.communicate(timeout=RUN_S)
    decision = results.open(desk.store).decision
    records = {item.run_id: item for item in desk.records()}
    assert decision["stopped_because"] is not None, output
    assert decision["setting"] is not None
    assert front.returncode == (0 if decision["stopped_because"] == "certain" else 1), output
    assert records[lost.run_id].status == "done"
    assert records[lost.run_id].attempts == 2
    assert records[cancelled.run_id].status == "failed"
    ended = [item for item in records.values() if item.status in ("done", "failed")]
    assert decision["runs"] == decision["course"][-1]["runs"] == len(ended)


def test_the_job_of_a_hopeless_run_is_ended_and_its_windows_are_kept(desk):
    desk.pauses(0)
    desk.write(
        workloads=SLOW,
        sweeps=[{"gpus": [1], "local_batch": [64, 128]}],
        measure={"epochs": 8, "warmup_epochs": 1, "sample_hz": 20, "evaluate": False},
        decide={"minimize": "time", "tolerance": "5%", "at_once": 1},
    )

    def done() -> list[RunRecord]:
        return [item for item in desk.records() if item.status == "done"]

    with desk.running() as front:
        desk.cluster.wait_for(done, "a run", 120)
        desk.pauses(0.4)  # the other run is far slower than expected
        output, _ = front.communicate(timeout=RUN_S)
    (early,) = (item for item in done() if any(STOPPED_EARLY in note for note in item.notes))
    assert early.spec.setting.local_batch == 128, output
    assert results.open(desk.store).decision["setting"]["local_batch"] == 64
    windows = Store(desk.store).pandas("epochs")
    assert 1 < (windows.run_id == early.run_id).sum() < 8
    assert desk.cluster.state(early.site.job_id) == "CANCELLED"
