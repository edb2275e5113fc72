"""The test cluster itself, on which the other tests rely."""

import os
import signal
import subprocess
import sys

import psutil

from slurm.cluster import Cluster
from slurm.folder import BASE

#: Prints which GPUs this task has, and what the driver shows.
BOARDS = """
import os, socket, pynvml as nvml
nvml.nvmlInit()
own = int(os.environ["CUDA_VISIBLE_DEVICES"])
handle = nvml.nvmlDeviceGetHandleByIndex(own)
print(socket.gethostname(), own, nvml.nvmlDeviceGetName(handle), flush=True)
try:
    nvml.nvmlDeviceSetPowerManagementLimit(handle, 200_000)
except nvml.NVMLError as error:
    print(error, flush=True)
"""


def test_jobs_on_one_node_get_a_gpu_each_that_only_root_may_limit(cluster: Cluster) -> None:
    cluster.boards("node3")[0].name, cluster.boards("node3")[1].name = "first", "second"
    program = f"{sys.executable} - <<'END'\n{BOARDS}\nEND\nsleep 1"
    jobs = [cluster.sbatch(program, "--nodelist=node3", "--gres=gpu:1") for _ in range(2)]
    for job in jobs:
        cluster.wait_state(job, "COMPLETED")
    printed = sorted(cluster.output(job) for job in jobs)
    refused = "Insufficient Permissions"
    assert printed == [f"node3 0 first\n{refused}\n", f"node3 1 second\n{refused}\n"]
    limit = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(1); "
    limit += "n.nvmlDeviceSetPowerManagementLimit(h, 200000)"
    cluster.run(sys.executable, "-c", limit, host="node3", root=True)
    assert [board.limit_mw for board in cluster.boards("node3")] == [400_000, 200_000]
    assert [board.limit_mw for board in cluster.boards("node2")] == [400_000, 400_000]


def test_a_job_survives_the_end_of_slurmd(cluster: Cluster) -> None:
    job = cluster.sbatch("echo began; sleep 1; echo done", "--nodelist=node4")
    cluster.wait_for(lambda: "began" in cluster.output(job), "the job's start")
    cluster.kill_daemon("node4")
    cluster.wait_for(lambda: "done" in cluster.output(job), "the job's end")
    assert cluster.state(job) != "COMPLETED"  # only slurmd can complete it
    cluster.start_daemon("node4")
    cluster.wait_state(job, "COMPLETED")


def test_no_process_remains_after_a_killed_test_process() -> None:
    program = (
        "import time\nfrom slurm.cluster import Cluster\nfrom slurm.settings import Settings\n"
    )
    program += "with Cluster(Settings(nodes=1)) as c:\n"
    program += "    c.sbatch('sleep 1000')\n    print(c.folder, flush=True)\n    time.sleep(100)\n"
    path = os.pathsep.join(sys.path)
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    folder = child.stdout.readline().strip()
    family = psutil.Process(child.pid).children(recursive=True)
    assert folder.startswith(str(BASE))
    assert len(family) > 8
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert psutil.wait_procs(family, timeout=5)[1] == []
