"""One node of a run: ``srun`` starts this module once on each node of the job.

It limits the job's GPUs, or checks that the site's prolog has, and then runs the node agent. On
SIGUSR1 and SIGTERM, with which Slurm announces the end, the ranks save a checkpoint.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from wattlaw.common import crash, processes
from wattlaw.common.errors import NotAvailable, NotPermitted, one_line
from wattlaw.common.files import write_text
from wattlaw.common.formatting import plural
from wattlaw.common.isolation import isolate
from wattlaw.measure.devices.inventory import visible_gpu_ids
from wattlaw.measure.limits.prolog_limits import verify_prolog_limits
from wattlaw.running.finish import write_limits
from wattlaw.running.node_setup import (
    Rendezvous,
    lease_boards,
    requested_limits,
    restore_stale_limits,
    worker_environment,
)
from wattlaw.running.slurm.submission import read_submission, workers_per_node
from wattlaw.running.training import failures
from wattlaw.running.training.agent import run_agent
from wattlaw.running.training.environment import HOST, WARNS, threads_of
from wattlaw.running.training.rank_processes import Node, block_notices
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.launching import Launch
from wattlaw.study.setting import Setting


def begun_path(live: Path, node: str) -> Path:
    return live / f"begun.{node}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("attempt", type=int)
    parser.add_argument("--address", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    isolate()
    folder = RunFolder(options.folder)
    number = int(os.environ.get("SLURM_NODEID", "0"))
    node = os.environ[HOST] = os.environ.get("SLURMD_NODENAME") or f"node{number}"
    live = folder.live(options.attempt)
    processes.end_with_parent(os.getppid())
    block_notices()  # until the agent forwards it
    submission = read_submission(folder)
    record = folder.read()
    if submission is None or record is None:
        print(f"wattlaw: {folder.path}: does not exist on {node}", file=sys.stderr)
        return os.EX_NOINPUT
    is_command = record.spec.workload.command is not None
    live.mkdir(parents=True, exist_ok=True)  # a folder of another node may not be visible yet
    if not is_command:  # the agent forwards SIGTERM to a command
        # Slurm's SIGTERM is a preemption notice, which a file reports to the driver.
        def notify(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGUSR1)
            with contextlib.suppress(OSError):
                (live / f"terminated.{node}").touch()

        signal.signal(signal.SIGTERM, notify)
    begun_path(live, node).touch()
    launch, workers = submission.launch, workers_per_node(record.spec)
    cores = processes.cores()
    if cores < workers:
        note = f"{node}: the job has {plural(cores, 'core')} for {workers} workers"
        advice = f"{note}; set launch.slurm.cpus_per_worker"
        write_text(live / f"notes.{node}.cores.json", json.dumps([advice]))
    # Without a number by the study or OMP_NUM_THREADS, a worker has its share of the cores of the
    # job, or of a full node if the site does not assign cores, so that runs with one and with
    # several workers are comparable.
    is_assigned = cores < (os.cpu_count() or 1)
    sharing = workers if is_assigned else launch.gpus_per_node or workers
    share = launch.slurm.cpus_per_worker or max(1, cores // sharing)
    threads = launch.threads_per_worker or threads_of(os.environ) or share
    os.environ |= worker_environment(threads, sharing) | {WARNS: "1"}
    place = Node(number, record.spec.nodes, options.address, options.port)
    if record.spec.nodes == 1:
        place = Node()
        os.environ |= Rendezvous().environment  # until this process ends
    try:
        with _limited(record.spec.setting, launch, live, node):
            return run_agent(folder, options.attempt, place)
    except NotAvailable as error:
        reason = f"{node}: {one_line(error)}"
        if launch.slurm.limits == "own" and isinstance(error, NotPermitted):
            reason += "; if the site's prolog sets limits, set launch.slurm.limits to prolog"
        failures.write_failure(live, node, "refused", reason)
        return os.EX_UNAVAILABLE


@contextlib.contextmanager
def _limited(setting: Setting, launch: Launch, live: Path, node: str) -> Iterator[None]:
    """Set the limits of a setting on the job's GPUs during a block; or raise ``NotAvailable``."""
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
    is_default = launch.prior_clocks == "default"
    with lease_boards(limits, visible_gpu_ids(), prior_clocks_are_default=is_default) as lease:
        write_limits(live, node, lease.apply(limits))
        yield


if __name__ == "__main__":
    sys.exit(crash.run(main))
