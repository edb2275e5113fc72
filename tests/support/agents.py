"""Real node agents on this machine: with a sampler, and ranks that meet."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from wattlaw.running.node_setup import Rendezvous
from wattlaw.store.record import RunRecord
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec

PLUGIN = Path(__file__).parent / "dropout_plugin"
HERE = socket.gethostname()


def record_of(spec: RunSpec, folder: RunFolder, attempts: int) -> RunRecord:
    """Write the record of a run under way, and make the live folder of its attempt."""
    record = RunRecord(
        run_id=folder.run_id, study="t", spec=spec, seed=0, order_seed=0, attempts=attempts,
        status="running",
    )  # fmt: skip
    folder.write(record, durable=False)
    folder.live(attempts).mkdir(parents=True, exist_ok=True)
    return record


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(PLUGIN), os.environ.get("PYTHONPATH")]))
    local = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **local, **more}


def several(nodes: int) -> list[list[str]]:
    """Return the options of each of several agents that meet on this machine."""
    where = ["--nodes", nodes, "--port", free_port()]
    return [[str(word) for word in (*where, "--node", node)] for node in range(nodes)]


def agent(
    folder: RunFolder, attempt: int, options: Sequence[str] = (), **more: str
) -> "subprocess.Popen[bytes]":
    """Start a node agent, by default of a single node; what it prints is added to the run's log."""
    more = more if options else Rendezvous().environment | more
    line = [sys.executable, "-m", "wattlaw.running.training.agent", str(folder.path), str(attempt)]
    line += ["--parent-pid", str(os.getpid()), *options]
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.log_path.open("ab") as log:
        return subprocess.Popen(
            line, env=environment(**more), stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
