"""Complete studies on a real Slurm with one, two and four nodes."""

import pytest

from hostile import BEFORE_US, Hostile
from slurm.studies import Desk
from wattlaw.store.record import RunRecord
from wattlaw.store.store import Store

#: It trains nothing, and does not begin before two of them run.
PAIR = "touch begun.$SLURM_JOB_ID; until [ $(ls begun.* | wc -l) = 2 ]; do sleep 0.2; done"


@pytest.fixture(scope="module")
def done(started_cluster):
    """Training on two nodes, and a command that trains nothing on one node and on four."""
    desk = Desk(started_cluster, started_cluster.fresh_folder())
    # Modules of the working folder must not be imported.
    hostile = Hostile(desk.folder, without=BEFORE_US)
    workloads = [{"name": "digits-cnn"}, {"name": "sleeps", "command": ["sleep", "1"]}]
    gpus = {"digits-cnn": [4], "sleeps": [1, 8]}
    sweeps = [{"gpus": n, "global_batch": [128], "workloads": [name]} for name, n in gpus.items()]
    two = {"gpus_per_node": 2}
    desk.write(workloads=workloads, sweeps=sweeps, order="random", launch=two)
    ended = desk.runs()
    assert hostile.imported == []
    assert ended.returncode == 0, ended.stdout + ended.stderr
    yield desk
    started_cluster.repair()


def on_nodes(desk: Desk, nodes: int) -> RunRecord:
    (record,) = [record for record in desk.records() if record.spec.nodes == nodes]
    return record


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_every_host_of_a_run_has_windows_and_a_sampler(done, nodes):
    record = on_nodes(done, nodes)
    epochs = Store(done.store).pandas("epochs")
    assert record.status == "done", record.reason
    assert len(set(record.site.nodes)) == nodes
    assert set(record.facts.hosts) == set(record.site.nodes)
    assert {report.host for report in record.samplers} == set(record.site.nodes)
    mine = epochs[epochs.run_id == record.run_id]
    is_trained = record.spec.workload.command is None
    assert [*mine.groupby("host").size()] == [2 * 2 if is_trained else 1] * nodes  # epochs, phases
    assert not mine.interrupted.any()
    samples = mine[mine.phase == "train"].groupby("epoch").samples.sum()
    assert set(samples) == ({1437} if is_trained else set())
    assert record.interruptions == ()


def test_each_host_measures_its_own_gpus(done):
    for record in done.records():
        for report in record.samplers:
            boards = {one.id for one in report.devices if one.kind == "gpu"}
            assert len(boards) == record.spec.setting.gpus // record.spec.nodes
            number = int(report.host.removeprefix("node"))
            assert all(f"-{number:04x}-" in board for board in boards)
    energies = Store(done.store).pandas("epochs").gpu_energy_j
    assert (energies > 0).all()


def test_the_record_describes_the_site(done):
    site = on_nodes(done, 4).site
    assert (site.scheduler, site.cluster, site.partition) == ("slurm", "wattlaw-test", "normal")
    assert "3 done" in done.does("status", "store").stdout
    before = done.submissions()
    again = done.runs(host="login2")
    assert again.returncode == 0, again.stdout
    assert done.submissions() == before


def test_two_jobs_on_one_node_measure_only_their_own_gpus(cluster, desk):
    watts = (100.0, 300.0)
    for board, power_w in zip(cluster.boards["node3"], watts, strict=True):
        board.low_w = board.high_w = power_w
    waits = [{"name": "waits", "command": ["bash", "-c", f"{PAIR}; sleep 1"]}]
    sweeps = [{"gpus": [1], "global_batch": [128]}]
    desk.write({"options": {"nodelist": "node3"}}, workloads=waits, sweeps=sweeps, repeats=2)
    ended = desk.runs()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    one, other = desk.records()
    assert one.started_at < other.finished_at
    assert other.started_at < one.finished_at  # they ran at the same time
    epochs = Store(desk.store).pandas("epochs")
    found = {}
    for record in (one, other):
        (board,) = (d.id for report in record.samplers for d in report.devices if d.kind == "gpu")
        mine = epochs[(epochs.run_id == record.run_id) & ~epochs.warmup]
        found[board] = mine.gpu_energy_j.sum() / mine.duration_s.sum()
    assert sorted(found.values()) == pytest.approx(watts, rel=0.05)
