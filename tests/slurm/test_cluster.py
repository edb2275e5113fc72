"""The test cluster itself, on which the other tests rely."""

import os
import signal
import subprocess
import sys

import psutil

from slurm.folder import BASE


def test_no_process_remains_after_a_killed_test_process():
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
