"""The number of queued jobs, the calls of Slurm's commands, and what a job gets."""

import itertools
import time
from pathlib import Path

from pythons import python_without

RUNS, MOST, POLL_S = 20, 5, 1.0
#: Marks a run as done without training, once the file "go" exists.
STUB = """#!/bin/bash
folder=${@: -1}
until [ -e GO ]; do sleep 0.2; done
sed -i 's/"status": "planned"/"status": "done"/' "$folder/run.json"
"""


def test_a_limited_number_of_runs_is_queued_and_each_poll_is_one_call(cluster, desk):
    stub = desk.folder / "stub"
    stub.write_text(STUB.replace("GO", f"{desk.folder}/go"))
    stub.chmod(0o755)
    slurm = {"python": str(stub), "max_queued": MOST, "poll_s": POLL_S, "gres": None}
    desk.write(slurm, sweeps=[{"gpus": [1], "global_batch": [128]}], repeats=RUNS)
    earlier, most = len(cluster.calls()), 0
    begun_s = time.time()
    with desk.running() as front:
        while front.poll() is None:
            listed = cluster.run("squeue", "--noheader", "--format=%i")
            most = max(most, len(listed.split()))
            if most >= MOST:
                (desk.folder / "go").touch()
            time.sleep(0.1)
        output = front.stdout.read()
    took_s = time.time() - begun_s
    assert front.returncode == 0, output
    assert len([one for one in desk.records() if one.status == "done"]) == RUNS
    assert most == MOST
    calls = cluster.calls()[earlier:]
    assert [one[2] for one in calls].count("sbatch") == RUNS
    asked = [one for one in calls if one[2] in ("squeue", "scontrol", "sinfo")]
    assert {one[2] for one in asked} == {"squeue"}
    assert len(asked) <= took_s / POLL_S + 2
    times = [one[0] for one in asked[:-1]]
    assert all(b - a >= POLL_S * 0.9 for a, b in itertools.pairwise(times))


def test_packages_that_only_the_nodes_lack_fail_the_run_before_it_trains(desk):
    python = python_without(desk.folder / "env", "sklearn")
    desk.write({"python": str(python)}, sweeps=[{"gpus": [2], "global_batch": [128]}])
    before = desk.submissions()
    ended = desk.runs()
    assert ended.returncode == 1, ended.stderr
    assert desk.submissions() - before == 1  # no job is repeated
    record = desk.record()
    assert (record.status, record.attempts, record.interruptions) == ("failed", 1, ())
    assert "digits-cnn needs sklearn" in str(record.reason)


def test_options_setup_and_environment_reach_the_job(cluster, desk):
    seen = Path(desk.folder) / "seen"
    stub = desk.folder / "stub"
    stub.write_text(f'#!/bin/bash\necho "$SEEN|$SLURM_JOB_NAME|$SLURM_CPUS_PER_TASK" > {seen}\n')
    stub.chmod(0o755)
    slurm = {
        "python": str(stub),
        "setup": ["export SEEN='a b; $(id -u)'"],
        "options": {"comment": "mine; not yours", "exclusive": True, "nice": 5},
        "cpus_per_worker": 3,
        "settle_s": 1,
    }
    desk.write(slurm, sweeps=[{"gpus": [1], "global_batch": [128]}])
    ended = desk.runs()
    assert ended.returncode == 1  # the stub trains nothing
    assert "COMPLETED" in desk.record().reason
    words, name, cpus = seen.read_text().strip().split("|")
    assert words == "a b; $(id -u)"
    assert name.startswith("wattlaw-")
    assert cpus == "3"
    line = next(one[3] for one in reversed(cluster.calls("sbatch")))
    assert "--comment=mine; not yours" in line
    assert {"--exclusive", "--nice=5"} <= set(line.split())
