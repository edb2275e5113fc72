"""Starts the ranks of a run on this node, waits for them, and ends all of them when one fails.

The ranks of workloads and of commands are plain processes with torchrun's environment variables, so
that a command needs no torch. Those of a launcher program are started by that program.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from wattlaw.common.processes import handling
from wattlaw.running.training.environment import HOST

SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
_POLL_S = 0.02
#: A signal to a process tree can reach its ranks, and end them, before it reaches this process.
_SIGNAL_DELAY_S = 0.2
#: How long a rank may take to end after a signal: as under torchrun, to save what it has, or after
#: the failure of another rank, in which it may wait in a collective that never ends.
_GRACE_S, _FAILED_GRACE_S = 30.0, 5.0
#: Open MPI 4 and 5 start as many ranks as requested and bind none to a core, as without mpirun. By
#: default, they refuse more ranks than the tasks of a job of Slurm, of which there is one per node.
_MPIRUN = {
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_rmaps_default_mapping_policy": ":OVERSUBSCRIBE",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
#: Options of srun in the environment (srun(1), "Input environment variables"). Those of an outer
#: job are not for the ranks; a job of ours has none but those of its setup.
_SRUN_OPTIONS = re.compile(
    r"(SRUN|SBATCH)_.*|SLURM_((CPU|MEM|GPU|TRES)_BIND.*|CPU_FREQ_REQ|DISTRIBUTION|DIST_PLANESIZE|"
    r"EPILOG|EXACT|EXCLUSIVE|EXPORT_ENV|GPU_FREQ|GPUS_PER_.*|HINT|KILL_BAD_EXIT|LABELIO|MPI_TYPE|"
    r"NTASKS|NPROCS|NTASKS_PER_.*|OPEN_MODE|OVERCOMMIT|PROLOG|REMOTE_CWD|RESV_PORTS|"
    r"STD(ERR|IN|OUT)MODE|TASK_(EP|PRO)LOG|THREADS|THREADS_PER_CORE|TIMELIMIT|TRES_PER_TASK|"
    r"UNBUFFEREDIO|WAIT|WORKING_DIR)"
)


class EndedBySignal(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)


@dataclass(frozen=True)
class Node:
    number: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"
    port: int | None = None  # a free one if the node is alone


def run_ranks(
    line: Sequence[str],
    ranks: int,
    node: Node | None = None,
    is_over: Callable[[], bool] = lambda: False,
    signals: Collection[int] = SIGNALS,
    *,
    forwards_notice: bool = False,
) -> dict[int, int]:
    """Run a command line once per rank of this node, in a session each; on the main thread.

    ``is_over`` is called often: once it is true, or raises, the ranks are ended, and none of them
    has failed. The result has the exit codes of the ranks that failed, in the order of their
    failures, without those that were ended because another failed. Raises ``EndedBySignal`` if this
    process got one of ``signals``; the ranks got the same signal. With ``forwards_notice`` each
    rank gets the SIGUSR1 that came to this process, which has called ``block_notices``.
    """
    node = node or Node()
    first, shared = node.number * ranks, _environment(ranks, node)
    environments = []
    for rank in range(ranks):
        own = {"RANK": first + rank, "ROLE_RANK": first + rank, "LOCAL_RANK": rank}
        environments.append(os.environ | shared | {name: str(n) for name, n in own.items()})
    failed = _run(line, environments, is_over, signals, forwards_notice=forwards_notice)
    return {first + rank: code for rank, code in failed.items()}


def run_launcher(line: Sequence[str], is_over: Callable[[], bool]) -> int:
    ranks_own = {"RANK", "LOCAL_RANK", "ROLE_RANK", *_environment(1, Node())}
    is_job = HOST in os.environ  # of the launcher slurm
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ranks_own and (is_job or not _SRUN_OPTIONS.fullmatch(name))
    }
    return _run(line, [_MPIRUN | environment], is_over, SIGNALS).get(0, 0)


#: SIGUSR1 that came although ``block_notices`` was called.
_notices: list[int] = []


def block_notices() -> None:
    """Block SIGUSR1 for all that starts from here; ``run_ranks`` forwards one that comes.

    Threads that libraries have begun before do not block it: without a handler it ends the process.
    """
    signal.signal(signal.SIGUSR1, lambda number, _: _notices.append(number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})


def _run(
    line: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    is_over: Callable[[], bool],
    signals: Collection[int],
    *,
    forwards_notice: bool = False,
) -> dict[int, int]:
    processes: list[subprocess.Popen[bytes]] = []
    failed, grace_s = dict[int, int](), _FAILED_GRACE_S
    received: list[int] = []
    with handling(signals, lambda number, _: received.append(number)):
        try:
            processes.extend(
                subprocess.Popen(line, env=environment, start_new_session=True)
                for environment in environments
            )
            while not failed and not received:
                if forwards_notice and (_notices or signal.SIGUSR1 in signal.sigpending()):
                    forwards_notice = False
                    for process in processes:
                        process.send_signal(signal.SIGUSR1)
                codes = [process.poll() for process in processes]
                failed = {rank: code for rank, code in enumerate(codes) if code}
                if not failed and is_over():
                    grace_s = _GRACE_S
                    break
                if all(code is not None for code in codes):
                    break
                time.sleep(_POLL_S)
            if failed and not received:
                time.sleep(_SIGNAL_DELAY_S)
        finally:
            if received:
                _end(processes, received[0], _GRACE_S)
            else:
                _end(processes, signal.SIGTERM, grace_s)
        if received:
            raise EndedBySignal(received[0])
        return failed


def _environment(ranks: int, node: Node) -> dict[str, str]:
    world, port = str(ranks * node.nodes), node.port
    if port is None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
    handling = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")
    return {
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), world),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(node.number),
        "GROUP_WORLD_SIZE": str(node.nodes),
        "ROLE_NAME": "default",
        "MASTER_ADDR": node.address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": str(uuid.uuid4()),
        **dict.fromkeys(("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"), "0"),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": handling,
    }


def _end(processes: Sequence["subprocess.Popen[bytes]"], number: int, grace_s: float) -> None:
    """End the processes that live, with their groups: by a signal, then by SIGKILL."""
    for how, wait_s in ((number, grace_s), (signal.SIGKILL, _GRACE_S)):
        alive = [process for process in processes if process.poll() is None]
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
        end_s = time.monotonic() + wait_s
        for process in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end_s - time.monotonic()))
