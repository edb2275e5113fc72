"""Shared by benchmarks: processor time, paired slowdowns, a training block, results files."""

import datetime
import json
import os
import platform
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from wattlaw.common import machine
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.telemetry import sampler

_CPUCLOCK_SCHED = 2
RESULTS = Path(__file__).parent / "results"


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and its descendants, including ended ones.

    Living processes are read from their CPU clocks (clock_getcpuclockid(3)), which are exact.
    """
    total_s = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            times = process.cpu_times()
            total_s += time.clock_gettime((~process.pid << 3) | _CPUCLOCK_SCHED)
            total_s += times.children_user + times.children_system
        except (OSError, psutil.Error):
            continue
    return total_s


def cores_used(process: "subprocess.Popen[str]", settle_s: float, watch_s: float) -> float:
    """Return the mean share of a core that a process tree uses after ``settle_s``."""
    time.sleep(settle_s)
    begun_s, begun_cpu_s = time.monotonic(), cpu_s(process.pid)
    time.sleep(watch_s)
    return (cpu_s(process.pid) - begun_cpu_s) / (time.monotonic() - begun_s)


def paired_slowdowns(
    sampler_pid: int, block: Callable[[], None], pairs: int, seed: int = 0
) -> list[float]:
    """Return the relative slowdown of a block by the sampler, for each pair of blocks.

    The sampler runs during one block of a pair and is stopped (SIGSTOP) during the other. Their
    order is random, so that a drift of the machine cancels.
    """
    order = random.Random(seed)  # noqa: S311 - not for secrets
    slowdowns = []
    try:
        for _ in range(pairs):
            times_s = {}
            for sampled in order.sample((True, False), 2):
                os.kill(sampler_pid, signal.SIGCONT if sampled else signal.SIGSTOP)
                begun_s = time.perf_counter()
                block()
                times_s[sampled] = time.perf_counter() - begun_s
            slowdowns.append(times_s[True] / times_s[False] - 1)
    finally:
        os.kill(sampler_pid, signal.SIGCONT)
    return slowdowns


def median_interval(values: list[float]) -> tuple[float, float]:
    """Return an interval of at least 95 % for the median: order statistics of the binomial."""
    from scipy import stats

    ordered = sorted(values)
    low = int(stats.binom.ppf(0.025, len(ordered), 0.5))
    return ordered[max(0, low - 1)], ordered[min(len(ordered) - 1, len(ordered) - low)]


def end_tree(process: "subprocess.Popen[str]") -> None:
    """End a process that we started, with its children."""
    children = (
        psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    )
    process.terminate()
    for child in children:
        if child.is_running():
            child.terminate()
    _, left = psutil.wait_procs(children, timeout=5)
    for child in left:
        child.kill()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def start_sampler(folder: Path, hz: float) -> "subprocess.Popen[str]":
    """Start a sampler and wait until it samples."""
    host = socket.gethostname()
    line = sampler.command(folder, host, Target(os.getpid(), 1 / hz))
    process = subprocess.Popen(line, text=True)
    while not sampler.stream_path(folder, host).exists():
        if process.poll() is not None:
            raise SystemExit("the sampler could not be started")
        time.sleep(0.01)
    return process


def training_block(batch: int, steps: int) -> Callable[[], None]:
    """Return a function that trains ``digits-cnn`` for some steps, on a GPU if torch has one."""
    import torch

    from wattlaw.running.training.ranks import to_device
    from wattlaw.study.model import WorkloadSpec
    from wattlaw.workloads import catalogue
    from wattlaw.workloads.data_loading import Loader
    from wattlaw.workloads.workload import Shard

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    workload = catalogue.build(WorkloadSpec(name="digits-cnn"))
    model = workload.model().to(device)
    optimizer = workload.optimizer(model, batch, fused=False)
    shard = Shard(0, 1, batch, seed=0, fraction=1.0)
    loader = Loader(workload.training_data(), shard, 0, training=True)
    batches = [to_device(part.data, device) for part in loader.epoch(0)]

    def block() -> None:
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            workload.loss(model, batches[step % len(batches)]).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    block()
    return block


def write_results(
    name: str, hardware: str, results: Mapping[str, object], *, show: bool = True
) -> Path:
    """Write a results file whose name has the hardware and the month; print it if ``show``."""
    now = datetime.datetime.now(datetime.UTC)
    content = {
        "machine": machine.hardware(),
        "software": machine.software(("wattlaw", "torch", "nvidia-ml-py")),
        "kernel": platform.release(),
        "date": f"{now:%Y-%m-%d}",
        **results,
    }
    folder = Path(os.environ.get("OUT", RESULTS))
    path = folder / f"{name}-{hardware}-{now:%Y-%m}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if show:
        print(path.read_text())
    return path
