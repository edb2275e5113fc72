"""``srun wattlaw measure``, and ``track`` in the tasks of one ``srun``: a run of all nodes."""

import sys
from pathlib import Path

import paths
from wattlaw.store.store import Store
from wattlaw.study.plan import read_study

MEASURE = (sys.executable, "-m", "wattlaw", "measure", "--assume-cpu-w", "5", "--store")
#: ``wattlaw`` that waits for a shorter time for the run of the first task.
IMPATIENT = """
import sys
from wattlaw.cli.main import main
from wattlaw.running import recording
recording._RUN_S = recording._BEGIN_S = 4.0
sys.exit(main())
"""
TRACKED = """
import sys, time, wattlaw
given = {"steps": 10, "warmup_steps": 1, "assume_cpu_w": 5, "quiet": True}
with wattlaw.track("loop", sys.argv[1], **given) as run:
    for _ in range(11):
        time.sleep(0.2)
        run.step(samples=8)
print(run.result.reason, run.result.run_id)
"""


def hosts_of(store: Path, table: str) -> list[str]:
    return sorted(set(Store(store).pandas(table)["host"]))


def test_measure_on_two_nodes_is_one_run_of_both_and_a_second_its_repeat(cluster, shared):
    store, report, script = shared / "store", shared / "summary.json", shared / "twice.sh"
    line = [*MEASURE, store, "--json", report, "--", "bash", "-c", "'sleep 1.5; hostname'"]
    script.write_text(2 * f"{' '.join(map(str, line))}\n")
    printed = cluster.run("srun", "--nodes=2", "--ntasks-per-node=2", "bash", script).split()
    assert sorted(printed) == sorted(["node1", "node1", "node2", "node2"] * 2)
    records = [*Store(store).records()]
    assert sorted(record.spec.repeat for record in records) == [0, 1]
    for record in records:
        assert (record.status, record.spec.nodes) == ("done", 2)
        assert record.facts.hosts == ("node1", "node2")
    assert hosts_of(store, "epochs") == hosts_of(store, "telemetry") == ["node1", "node2"]
    assert len(Store(store).pandas("epochs")) == 4
    assert Store(store).pandas("epochs")["duration_s"].min() >= 1.5
    assert any(record.run_id in report.read_text() for record in records)
    assert not [*store.glob("step.*")]


def test_a_command_that_fails_on_the_second_node_is_a_run_that_failed(cluster, shared):
    store = shared / "store"
    fails = "sleep 0.5; test $SLURM_PROCID = 0"
    line = (*MEASURE, store, "--", "bash", "-c", fails)
    job = cluster.sbatch(f"srun {' '.join(map(str, line[:-1]))} '{fails}' || echo code $?",
                         "--nodes=2", "--ntasks-per-node=1")  # fmt: skip
    cluster.wait_state(job, "COMPLETED")
    assert "code 1" in cluster.output(job)
    (record,) = Store(store).records()
    assert (record.status, record.reason) == ("failed", "task 1: exit code 1")


def test_a_store_that_nodes_do_not_share_is_named_and_the_command_runs(cluster, shared):
    """Each node has its own /tmp."""
    program = shared / "impatient.py"
    program.write_text(IMPATIENT)
    line = ("srun", sys.executable, program, "measure", "--store", "/tmp/own-store")  # noqa: S108
    words = " ".join(map(str, (*line, "--", "hostname")))
    job = cluster.sbatch(words, "--nodes=2", "--ntasks-per-node=1")
    cluster.wait_state(job, "COMPLETED", seconds=150)
    output = cluster.output(job)
    assert {"node1", "node2"} <= set(output.split())
    assert output.count("this node is not recorded") == 1
    assert "1 of 2 nodes recorded nothing" in " ".join(output.split())


def test_track_on_two_nodes_is_one_run_of_both(cluster, shared):
    store, script = shared / "store", shared / "train.py"
    script.write_text(TRACKED)
    tasks = ("srun", "--nodes=2", "--ntasks-per-node=2")
    printed = cluster.run(*tasks, sys.executable, script, store)
    (record,) = Store(store).records()
    assert printed.count(record.run_id) == 1
    assert (record.status, record.spec.nodes, record.spec.setting.gpus) == ("done", 2, 4)
    assert record.facts.world_size == 4
    epochs = Store(store).pandas("epochs")
    assert sorted(epochs["host"]) == ["node1", "node1", "node2", "node2"]
    assert sorted(epochs["steps"]) == [1, 1, 10, 10]


def test_init_writes_a_study_that_fits_the_nodes_of_the_partition(cluster, shared):
    line = (sys.executable, "-m", "wattlaw")
    script = (sys.executable, paths.SCRIPTS / "ddp.py", "--alone", "--batch-size", "10")
    init = ("init", "--partition", "normal", "-o", shared / "s.yaml", "--steps", "10")
    cluster.run(*line, *init, "--", *script, "--epochs", "9999")
    launch = read_study(shared / "s.yaml").launch
    assert (launch.kind, launch.gpus_per_node, launch.slurm.gres) == ("slurm", 2, "gpu")
    assert "will be skipped" not in cluster.run(*line, "check", shared / "s.yaml")
