"""A study with ``decide``: several jobs at once, a lost node, a cancelled job."""

from slurm.cluster import Cluster
from slurm.studies import SLOW, Desk
from wattlaw.api import results
from wattlaw.store.record import RunRecord


def test_a_decision_survives_a_lost_node_and_a_cancelled_job(cluster: Cluster, desk: Desk) -> None:
    desk.pauses(1.0)
    desk.write(
        workloads=SLOW,
        sweeps=[{"gpus": [1, 2], "local_batch": [32, 64]}],
        repeats=2,
        measure={"steps": 10, "warmup_steps": 2, "sample_hz": 20, "evaluate": False},
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
        desk.pauses(0)
        output, _ = front.communicate(timeout=120)
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
