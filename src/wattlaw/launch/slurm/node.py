"""One node of a run: ``srun`` starts it once on each node of the job.

It limits the job's own GPUs, or sees that the site's prolog has; then it is the node agent.
SIGUSR1 and SIGTERM, with which Slurm announces the end, have the ranks make a checkpoint.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from wattlaw import crash, processes
from wattlaw.devices.nvidia.driver import visible_gpu_ids
from wattlaw.errors import NotAvailable, NotPermitted, one_line
from wattlaw.files import write_text
from wattlaw.isolation import isolate, isolated_python
from wattlaw.launch.finish import write_limits
from wattlaw.launch.limits import requested_limits, restore_stale_limits, unsupported_limits_reason
from wattlaw.launch.rendezvous import Rendezvous
from wattlaw.launch.slurm.submission import read_submission
from wattlaw.limits.guard import acquire, lock_conflict
from wattlaw.limits.prolog_limits import verify_prolog_limits
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.model import Setting
from wattlaw.training.agent import run_agent
from wattlaw.training.clocks import Endpoint
from wattlaw.training.environment import HOST, WARNS

#: Signals that torchrun ends workers at once for, but for SIGTERM, which announces the end here.
_TORCHRUNS_SIGNALS = "SIGINT,SIGHUP,SIGQUIT"


def begun_path(live: Path, node: str) -> Path:
    """Return where a node tells that it has begun, and where it is."""
    return live / f"node.{node}.json"


def terminated_path(live: Path, node: str) -> Path:
    """Return the path of the file that a node writes when Slurm has sent it SIGTERM."""
    return live / f"terminated.{node}"


def refused_path(live: Path, node: str) -> Path:
    """Return where a node tells why the run cannot be had there."""
    return live / f"refused.{node}.json"


def line(
    folder: RunFolder, attempt: int, workers: int, nodes: int, address: str, ports: tuple[int, int]
) -> list[str]:
    """Return the command line that starts a node of a run.

    Parameters
    ----------
    folder, attempt
        Of the run.
    workers, nodes
        Ranks of each node, and how many nodes there are.
    address, ports
        Where the first node is reached: for torchrun, and for comparing clocks.
    """
    module = "wattlaw.launch.slurm.node"
    words = isolated_python("-m", module, str(folder.path.resolve()), str(attempt))
    words += ["--workers", str(workers), "--nodes", str(nodes), "--address", address]
    return [*words, "--port", str(ports[0]), "--clock-port", str(ports[1])]


def main() -> int:
    """Run this node's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("attempt", type=int)
    parser.add_argument("--address", required=True)
    for name in ("--workers", "--nodes", "--port", "--clock-port"):
        parser.add_argument(name, type=int, required=True)
    options = parser.parse_args()
    isolate()
    folder = RunFolder(options.folder)
    number = int(os.environ.get("SLURM_NODEID", "0"))
    node = os.environ[HOST] = os.environ.get("SLURMD_NODENAME") or f"node{number}"
    live = folder.live(options.attempt)
    processes.end_with_parent(os.getppid())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # it waits for the agent
    told = read_submission(folder)
    record = folder.read()
    if told is None or record is None:
        print(f"wattlaw: {folder.path}: not there on {node}", file=sys.stderr)
        return os.EX_NOINPUT
    is_command = record.spec.workload.command is not None
    live.mkdir(parents=True, exist_ok=True)  # another node's may not be seen here yet
    if not is_command:  # a command gets its SIGTERM from the agent, and may act on it

        def warn(*_: object) -> None:
            """Take Slurm's announcement of the end for a warning, and let the driver know."""
            os.kill(os.getpid(), signal.SIGUSR1)
            with contextlib.suppress(OSError):
                terminated_path(live, node).touch()

        signal.signal(signal.SIGTERM, warn)
    write_text(begun_path(live, node), json.dumps({"topology": _switches()}))
    _prepare(told.launch, options.workers)
    try:
        with (
            _limited(record.spec.setting, told.launch, live, node),
            _meeting(options, number) as (rendezvous, clock),
        ):
            if not is_command:
                rendezvous += ["--signals-to-handle", _TORCHRUNS_SIGNALS]
            return run_agent(folder, options.attempt, options.workers, rendezvous, clock=clock)
    except NotAvailable as error:
        why = f"{node}: {one_line(error)}"
        if told.launch.slurm.limits == "own" and isinstance(error, NotPermitted):
            why += "; where the site's prolog can do it, say so (launch.slurm.limits: prolog)"
        write_text(refused_path(live, node), json.dumps({"reason": why}))
        return os.EX_UNAVAILABLE


def _prepare(launch: Launch, workers: int) -> None:
    """Set what workers find in their environment.

    Threads are a worker's share of the cores: of the job's, where the site gives it some, or else
    of the node's, as if it were full. So runs of one and of several workers compare fairly.
    """
    cores = processes.cores()
    is_given = cores < (os.cpu_count() or 1)
    share = cores // (workers if is_given else launch.gpus_per_node or workers)
    threads = str(launch.threads_per_worker or launch.slurm.cpus_per_worker or max(1, share))
    os.environ |= {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        WARNS: "1",
    }


@contextlib.contextmanager
def _meeting(
    options: argparse.Namespace, number: int
) -> Iterator[tuple[list[str], Endpoint | None]]:
    """Give torchrun's words, and where clocks are compared: on the first node, which has rank 0."""
    if options.nodes > 1:
        words = ["--nnodes", str(options.nodes), "--node-rank", str(number)]
        words += ["--master-addr", options.address, "--master-port", str(options.port)]
        yield words, Endpoint(options.address, options.clock_port, number, options.nodes)
        return
    with tempfile.TemporaryDirectory(prefix="wattlaw-") as folder:
        rendezvous = Rendezvous(Path(folder))
        os.environ |= rendezvous.environment
        yield rendezvous.words, None


@contextlib.contextmanager
def _limited(setting: Setting, launch: Launch, live: Path, node: str) -> Iterator[None]:
    """Have the job's own GPUs limited as a setting asks.

    Raises
    ------
    NotAvailable
        They are not, and the text says why.
    """
    limits = requested_limits(setting)
    if launch.slurm.limits == "prolog":
        if not limits.are_none:
            boards = visible_gpu_ids()
            write_limits(
                live, node, verify_prolog_limits(limits, boards, os.environ.get("SLURM_JOB_ID", ""))
            )
        yield
        return
    restore_stale_limits()
    if limits.are_none:
        yield
        return
    boards = visible_gpu_ids()
    why = unsupported_limits_reason(
        limits, boards, prior_clocks_are_default=launch.prior_clocks == "default"
    )
    if why is not None:
        raise NotAvailable(why)
    held = acquire(boards)
    if held is None:
        raise NotAvailable(lock_conflict(boards))
    with held:
        write_limits(live, node, held.apply(limits))
        yield


def _switches() -> str | None:
    """Return the switches above this node, from the root, where Slurm knows them."""
    address = os.environ.get("SLURM_TOPOLOGY_ADDR", "")
    pattern = os.environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "")
    return address if "switch" in pattern else None


if __name__ == "__main__":
    sys.exit(crash.run(main))
