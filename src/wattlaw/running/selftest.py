"""Checks the overhead and the accuracy of measurements on this machine."""

import os
import random
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wattlaw.common.errors import NotAvailable
from wattlaw.measure.devices.meter import Target
from wattlaw.measure.telemetry import sampler
from wattlaw.measure.telemetry.sampler import SamplerProcess
from wattlaw.store.live import read_live
from wattlaw.store.record import DeviceReport, SamplerReport

#: The sampler's share of a core for each GPU, and for a machine without any.
MAX_SHARE = 0.001
MAX_SLOWDOWN = 0.001
MAX_GAP = 0.05
MAX_LATE_S = 0.01
MAX_REFRESH_S = 0.2
MAX_LEFT_OUT = 0.01
_REFRESH, _AGREEMENT = "counter's refresh period", "counter against integral of power"
_SAMPLE_HZ = 10.0
_BLOCK_S = 0.25
#: Fewer values have no 95 % interval of their median: 2 * 0.5^5 is more than 5 %.
_MIN_PAIRS = 6


@dataclass(frozen=True)
class Check:
    """One line of the selftest; ``value`` is None if it could not be measured."""

    check: str
    device: str | None
    value: float | None
    unit: str
    allowed: float | None  # at most
    verdict: str  # ok | poor | cannot tell | not available
    note: str | None = None


def run_checks(
    watch_s: float = 12.0,
    pairs: int = 60,
    most_s: float = 45.0,
    progress: Callable[[str, float], object] = lambda *_: None,
) -> list[Check]:
    """Run every check in less than a minute.

    The sampler is watched alone for ``watch_s``, then at most ``pairs`` of blocks of training are
    timed, until ``most_s`` after the start. ``progress`` gets the present check, and the share of
    the checks that is done.
    """
    end_s = time.monotonic() + most_s

    def advance(share: float, text: str = "training with and without the sampler") -> None:
        progress(text, max(share, 1 - (end_s - time.monotonic()) / most_s))

    with tempfile.TemporaryDirectory(prefix="wattlaw-selftest-") as name:
        idle, loaded = Path(name) / "idle", Path(name) / "loaded"
        idle.mkdir()
        loaded.mkdir()
        host, target = socket.gethostname(), Target(os.getpid(), 1 / _SAMPLE_HZ)
        with SamplerProcess(idle, host, target) as process:
            process.wait_until_ready()
            for _ in range(round(4 * watch_s)):
                advance(0.0, "the sampler alone")
                time.sleep(0.25)
        with SamplerProcess(loaded, host, target) as process:
            process.wait_until_ready()
            block, slowdowns = training_block(), list[float]()
            while len(slowdowns) < pairs and (time.monotonic() < end_s or not slowdowns):
                slowdowns += paired_slowdowns(process.pid, block, 1, seed=len(slowdowns))
                advance(len(slowdowns) / pairs)
        try:
            text = sampler.report_path(idle, host).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise NotAvailable("the sampler ended without a report; see its output above") from None
        report = SamplerReport.model_validate_json(text)
        return [
            *_sampler_checks(report),
            slowdown_check(slowdowns),
            *_gpu_checks(idle, host, report, watch_s),
        ]


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


def training_block() -> Callable[[], None]:
    """Return a function that trains a small network for 0.25 s, on a GPU if torch has one.

    Without torch it multiplies matrices with numpy.
    """
    try:
        step = _torch_step()
    except ImportError:
        import numpy as np

        matrix = np.random.default_rng(0).standard_normal((128, 128))

        step = partial(np.dot, matrix, matrix)
    step()
    begun_s, steps = time.perf_counter(), 0
    while time.perf_counter() - begun_s < _BLOCK_S:
        step()
        steps += 1

    def block() -> None:
        for _ in range(steps):
            step()

    return block


def _torch_step() -> Callable[[], None]:
    import torch

    from wattlaw.running.training.ranks import available_device, gpu_functions

    device = available_device()
    gpu = gpu_functions(device)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(576, 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(64, 1, 8, 8, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        if gpu is not None:
            gpu.synchronize()

    return step


def _sampler_checks(report: SamplerReport) -> list[Check]:
    gpus = sum(device.kind == "gpu" for device in report.devices)
    share, most = report.cpu_s / report.duration_s, MAX_SHARE * max(1, gpus)
    note = f"{gpus} GPUs, {_SAMPLE_HZ:g} Hz; its start took {report.start_cpu_s:.2f} s of a core"
    checks = [_at_most("sampler's share of a core", None, share, "", most, note)]
    for name, meter in report.meters.items():
        due = meter.reads + meter.missed
        rate = meter.reads / due if due else 0.0
        period = f"every {meter.period_s:g} s"
        checks.append(_at_most("lateness of readings, mean", name, meter.late_s, "s", MAX_LATE_S))
        checks.append(_at_most("readings left out", name, 1 - rate, "", MAX_LEFT_OUT, period))
    return checks + [_not_available("meter", name, why) for name, why in report.unavailable.items()]


def slowdown_check(slowdowns: list[float]) -> Check:
    """Return the verdict on the slowdowns of pairs of blocks, by the interval of their median."""
    low, high = median_interval(slowdowns)
    median = statistics.median(slowdowns)
    note = f"median of {len(slowdowns)} pairs; 95 % interval {low:.2%} to {high:.2%}"
    verdict = "ok" if high <= MAX_SLOWDOWN else "poor" if low > MAX_SLOWDOWN else "cannot tell"
    if len(slowdowns) < _MIN_PAIRS:
        verdict = "cannot tell"
    note += ": too wide for the limit; use an idle machine" if verdict == "cannot tell" else ""
    return Check("slow-down of a training loop", None, median, "", MAX_SLOWDOWN, verdict, note)


def _gpu_checks(folder: Path, host: str, report: SamplerReport, watch_s: float) -> list[Check]:
    gpus = [device for device in report.devices if device.kind == "gpu"]
    if not gpus:
        reasons = (report.unavailable.get(name) for name in ("amd", "intel", "nvidia"))
        why = "; ".join(filter(None, reasons)) or "no GPU"
        return [_not_available(name, None, why) for name in (_REFRESH, _AGREEMENT)]
    checks = []
    for gpu in gpus:
        refresh_s = gpu.facts.get("counter_refresh_s")
        if isinstance(refresh_s, float):
            checks.append(_at_most(_REFRESH, gpu.id, refresh_s, "s", MAX_REFRESH_S))
        else:
            checks.append(_not_available(_REFRESH, gpu.id, "it has no energy counter"))
    return checks + _agreement(folder, host, gpus, watch_s)


def _agreement(folder: Path, host: str, gpus: list[DeviceReport], watch_s: float) -> list[Check]:
    """Compare the energy counter with the integral of power over the same window."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from wattlaw.measure.telemetry.window_energy import energy_of_windows
    from wattlaw.store.schema import SAMPLES, WINDOWS

    samples = read_live(sampler.stream_path(folder, host), SAMPLES, host)
    start_ns = pc.min(samples["t_ns"]).as_py() + 500_000_000
    window = {"host": host, "start_ns": start_ns, "duration_s": watch_s - 2.0}
    windows = pa.Table.from_pylist([window], schema=WINDOWS)
    checks = []
    for gpu in gpus:
        gpu_samples = samples.filter(pc.field("device") == gpu.id)
        (row,) = energy_of_windows(windows, gpu_samples, {(host, gpu.id): gpu.facts}).to_pylist()
        counter, integral = row["gpu_energy_counter_j"], row["gpu_energy_integral_j"]
        reason = row["energy_reason"]
        if row["energy_verdict"] == "implausible":
            checks.append(Check(_AGREEMENT, gpu.id, None, "", MAX_GAP, "poor", reason))
        elif not counter or not integral:
            checks.append(_not_available(_AGREEMENT, gpu.id, reason or "one of the two is missing"))
        else:
            gap = abs(counter - integral) / max(counter, integral)
            note = f"{counter:.1f} J and {integral:.1f} J over {window['duration_s']:g} s"
            checks.append(_at_most(_AGREEMENT, gpu.id, gap, "", MAX_GAP, note))
    return checks


def _at_most(
    check: str, device: str | None, value: float, unit: str, allowed: float, note: str | None = None
) -> Check:
    verdict = "ok" if value <= allowed else "poor"
    return Check(check, device, value, unit, allowed, verdict, note)


def _not_available(check: str, device: str | None, why: str) -> Check:
    return Check(check, device, None, "", None, "not available", why)
