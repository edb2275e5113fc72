"""The parts of ``gpu_acceptance.py``: ``python gpu_parts.py PART RESULTS FOLDER SIZES``.

Each part saves its results after every measurement, so that a time limit loses the rest only. No
part changes a setting of the GPU. ``SIZES`` is ``gpu``; ``rehearsal`` and ``short`` make the same
calls on a CPU, with a board of the fake driver (tests/support/fake_nvml).
"""

import contextlib
import ctypes
import importlib.util
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pynvml
import yaml

import wattlaw
from common import (
    cores_used,
    end_tree,
    median_interval,
    paired_slowdowns,
    start_sampler,
    training_block,
)
from loop_process import Case, LoopError, open_pair
from throughput import BLOCK_LIMIT_S, BUILD_LIMIT_S, CASES, compare_rates, settings, train_in_turns
from wattlaw.common import machine, processes
from wattlaw.common.files import write_text
from wattlaw.measure.telemetry import sampler
from wattlaw.measure.telemetry.window_energy import energy_of_windows
from wattlaw.store.live import read_live
from wattlaw.store.record import SamplerReport
from wattlaw.store.schema import SAMPLES, WINDOWS
from wattlaw.store.store import Store

HERE = Path(__file__).parent
HOST = socket.gethostname()
PACKAGES = (
    "wattlaw", "torch", "torchvision", "transformers", "accelerate", "torch-geometric", "triton",
    "nvidia-physicsnemo", "nvidia-ml-py", "nvidia-cudnn-cu13", "numpy", "pandas", "pyarrow", "zeus",
)  # fmt: skip
#: Dense bf16 operations per second of the SXM boards, from NVIDIA's data sheets (half of the values
#: with sparsity).
PEAKS = {"NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H200": 989e12}
#: Pages are drawn on another machine, because this package has 33 MB.
NOT_NEEDED = {"vl-convert-python"}
#: What ``wattlaw predict`` predicts, by the names of the metrics of a run.
PREDICTED = ("time_per_sample_s", "power_per_gpu_w", "energy_per_sample_j")
LOADS = ("steady", "pulsed", "training")
MODES = ("no_set_device", "graph", "step_in_graph", "out_of_memory")


@dataclass(frozen=True)
class Sizes:
    """How much each part measures."""

    record_s: float  # of each load
    windows_s: tuple[float, ...]
    watch_s: float
    pairs: int
    block_steps: int
    cases: tuple[Case, ...]
    rounds: int
    script_steps: int
    width: int  # of the net of the study
    batches: tuple[int, ...]
    precisions: tuple[str, ...]
    seconds: float  # of the measured steps of a run
    most_runs: int  # of the decision
    loads: tuple[str, ...] = LOADS
    modes: tuple[str, ...] = MODES
    small: bool = True
    build_limit_s: float = 4 * BUILD_LIMIT_S
    block_limit_s: float = BLOCK_LIMIT_S


def _full_size() -> Iterator[Case]:
    """Yield the seven models; an epoch takes a second or two on an H100."""
    shared = Path("/dev/shm")  # noqa: S108 - a small one cannot hold batches of images
    workers = 8 if shared.exists() and shutil.disk_usage(shared).total > 16e9 else 0
    for name, batch, steps, options in (
        ("resnet50", 128, 24, {}),
        ("bert-base", 128, 24, {"sequence_length": 128}),
        ("vgg16", 128, 16, {}),
        ("inceptionv3", 128, 20, {}),
        ("schnet", 128, 48, {}),
        ("dimenet", 128, 12, {}),
        ("fourcastnet", 2, 12, {}),  # two sides with 20 GB each
    ):
        yield Case(
            name, options | {"train_samples": steps * batch}, batch, precision="bf16",
            channels_last=name in ("resnet50", "vgg16", "inceptionv3"), loader_workers=workers,
        )  # fmt: skip


def _reduced() -> Iterator[Case]:
    """Yield nets of the same models that a core trains in seconds."""
    for case in CASES:
        samples = case.options | {"train_samples": 2 * case.batch}
        yield replace(case, options=samples, precision="bf16", loader_workers=1)


def sizes(name: str) -> Sizes:
    """Return the sizes of a name."""
    if name == "gpu":
        return Sizes(
            22, (1, 5, 10), 8, 30, 100, tuple(_full_size()), 2, 200, 512, (64, 128, 256),
            ("fp32", "bf16"), 2, 4, small=False, build_limit_s=50, block_limit_s=60,
        )  # fmt: skip
    full = Sizes(
        16, (1, 5, 10), 3, 8, 10, tuple(_reduced()), 1, 60, 8, (32, 64, 128), ("fp32", "bf16"), 1, 4
    )
    if name == "rehearsal":
        return full
    # Without GPU, the others run what these do.
    return replace(
        full, record_s=4, windows_s=(1,), watch_s=1, pairs=2, cases=full.cases[:1], script_steps=40,
        precisions=("fp32",), most_runs=1, loads=LOADS[1:], modes=("graph", "out_of_memory"),
    )  # fmt: skip


@dataclass(frozen=True)
class Part:
    """The results of a part in the results file, which the program that started it has made."""

    name: str
    results: Path
    folder: Path  # stores that later parts read
    sizes: Sizes

    def save(self, **values: object) -> None:
        """Add values to the results of this part; the file is replaced atomically."""
        content = json.loads(self.results.read_text(encoding="utf-8"))
        content["parts"][self.name]["result"] |= values
        write_text(self.results, json.dumps(content, indent=1, default=str) + "\n")

    def of(self, name: str) -> dict[str, Any]:
        """Return the results of another part."""
        content = json.loads(self.results.read_text(encoding="utf-8"))
        result: dict[str, Any] = content["parts"].get(name, {}).get("result", {})
        return result


def run_wattlaw(*words: object, codes: Sequence[int] = (0,)) -> str:
    """Run the command line; return its output. Raises ``RuntimeError`` for another exit code."""
    done = processes.run_captured([sys.executable, "-m", "wattlaw", *map(str, words)], 600)
    if done.returncode not in codes:
        output = " ".join((done.stdout + done.stderr)[-600:].split())
        raise RuntimeError(f"wattlaw {words[0]}: exit code {done.returncode}: {output}")
    return done.stdout


# Facts


def facts(part: Part) -> None:
    """Save what is known of the board, the driver and the software; list the devices."""
    part.save(machine=machine.hardware(), software=machine.software(PACKAGES))
    part.save(missing_packages=missing_packages())
    with nvml_board() as (board, driver):
        part.save(nvml=driver | nvml_facts(board), settings=board_settings(board))
    import torch

    gpu = torch.cuda.is_available()
    known: dict[str, object] = {"cuda": torch.version.cuda, "cuda_is_available": gpu}
    if gpu:
        device = torch.cuda.get_device_properties(0)
        known |= {
            "name": device.name, "capability": [device.major, device.minor],
            "memory_bytes": device.total_memory, "multiprocessors": device.multi_processor_count,
            "compiled_for": torch.cuda.get_arch_list(), "cudnn": torch.backends.cudnn.version(),
        }  # fmt: skip
    part.save(torch=known)
    part.save(devices=json.loads(run_wattlaw("devices", "--json")))


def missing_packages() -> list[str]:
    """Return the base package's requirements, and theirs, that this Python does not fulfil."""
    from packaging.requirements import Requirement

    missing, seen = [], set()
    unseen = list(metadata.requires("wattlaw") or [])
    while unseen:
        requirement = Requirement(unseen.pop())
        has_extra = requirement.marker and not requirement.marker.evaluate({"extra": ""})
        if has_extra or requirement.name in NOT_NEEDED | seen:
            continue
        seen.add(requirement.name)
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(f"{requirement}: not installed")
            continue
        if installed not in requirement.specifier:
            missing.append(f"{requirement}: {installed} is installed")
        unseen += metadata.requires(requirement.name) or []
    return sorted(missing)


@contextlib.contextmanager
def nvml_board() -> Iterator[tuple[Any, dict[str, object]]]:
    """Yield the first GPU, and the versions of the driver."""
    pynvml.nvmlInit()
    try:
        versions = {
            name: answer(getattr(pynvml, name))
            for name in ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion")
        }
        yield pynvml.nvmlDeviceGetHandleByIndex(0), versions
    finally:
        pynvml.nvmlShutdown()


def answer(call: Callable[..., Any], *arguments: object) -> object:
    """Return what the driver answers, as values that fit into JSON; a text if it has none."""
    try:
        value = call(*arguments)
    except pynvml.NVMLError as error:
        return f"not available: {error}"
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, int | str | list | tuple) else str(value)


def board_settings(board: Any) -> dict[str, object]:
    """Return the settings that must be the same before and after."""
    names = (
        "nvmlDeviceGetPowerManagementLimit", "nvmlDeviceGetEnforcedPowerLimit",
        "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetMigMode",
        "nvmlDeviceGetEccMode",
    )  # fmt: skip
    return {name: answer(getattr(pynvml, name), board) for name in names}


def nvml_facts(board: Any) -> dict[str, object]:
    """Return what the driver says about the board, by the name of the call."""
    plain = (
        "nvmlDeviceGetName", "nvmlDeviceGetVbiosVersion", "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetVirtualizationMode", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetPowerManagementLimitConstraints", "nvmlDeviceGetPowerManagementDefaultLimit",
        "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlGpmQueryDeviceSupport",
    )  # fmt: skip
    found = {name: answer(getattr(pynvml, name), board) for name in plain}
    for name in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo"):
        found[name] = answer(getattr(pynvml, name), board, pynvml.NVML_CLOCK_SM)
    found["nvmlDeviceGetTemperature"] = answer(
        pynvml.nvmlDeviceGetTemperature, board, pynvml.NVML_TEMPERATURE_GPU
    )
    for name in ("TOTAL_POWER", "GPU_UTILIZATION", "MEMORY_UTILIZATION"):
        kind = getattr(pynvml, f"NVML_{name}_SAMPLES")
        found[f"samples {name}"] = answer(
            lambda kind=kind: len(pynvml.nvmlDeviceGetSamples(board, kind, 0)[1])  # type: ignore[misc]
        )
    for field, scope in ((83, 0), (185, 0), (186, 0), (185, 1), (186, 1), (185, 2), (186, 2)):
        found[f"field {field} scope {scope}"] = answer(
            lambda key=(field, scope): pynvml.nvmlDeviceGetFieldValues(board, [key])[0].nvmlReturn  # type: ignore[misc]
        )
    profiles = pynvml.c_nvmlWorkloadPowerProfileProfilesInfo_v1_t()
    reply = answer(
        pynvml.nvmlDeviceWorkloadPowerProfileGetProfilesInfo, board, ctypes.byref(profiles)
    )
    supported = list(profiles.perfProfilesMask.mask) if reply == pynvml.NVML_SUCCESS else reply
    return found | {"workload power profiles": supported}


def unchanged(part: Part) -> None:
    """Save whether the settings of the board are those that ``facts`` found."""
    with nvml_board() as (board, _):
        after = board_settings(board)
    before = part.of("facts").get("settings")
    after = json.loads(json.dumps(after))
    part.save(before=before, after=after, is_unchanged=before == after)


# Energy


@contextlib.contextmanager
def load_process(*, small: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that starts a load of ``gpu_load.py`` by name."""
    line = [sys.executable, str(HERE / "gpu_load.py"), *(["--small"] * small)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def load(name: str) -> None:
        assert process.stdin is not None
        process.stdin.write(f"{name}\n")
        process.stdin.flush()
        if small:  # a load does not change the fake board
            from fake_nvml import VARIABLE, FakeGpus

            board = FakeGpus(os.environ[VARIABLE])[0]
            board.period_s = 1.0 if name == "pulsed" else 0.0

    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError("the load could not be started; see the log")
        yield load
    finally:
        end_tree(process)


@contextlib.contextmanager
def peer(kind: str, hz: float, file: Path) -> Iterator[None]:
    """Let another monitor (``peer.py``) measure meanwhile, into a file.

    It starts in some seconds; if it cannot, the file stays empty and the log has the reason.
    """
    line = [sys.executable, str(HERE / "peer.py"), kind, str(hz), str(file)]
    # Zeus does not read UUIDs in this variable; the machine has one GPU.
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    process = subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    file.touch()
    process.stdout.readline()
    try:
        yield
    finally:
        end_tree(process)


def energy(part: Part) -> None:
    """Save how counter, integral, a counter that is read apart, and Zeus differ under each load."""
    rows: list[dict[str, object]] = []
    has_zeus = importlib.util.find_spec("zeus") is not None
    part.save(zeus=has_zeus or "not installed", sample_hz=10)
    apart, zeus = part.folder / "counter.csv", part.folder / "zeus.csv"
    with contextlib.ExitStack() as stack:
        load = stack.enter_context(load_process(small=part.sizes.small))
        stack.enter_context(peer("counter", 50, apart))
        if has_zeus:
            stack.enter_context(peer("zeus-windows", 1, zeus))
        for name in part.sizes.loads:
            load(name)
            with tempfile.TemporaryDirectory() as folder:
                recorded = record(Path(folder), 10, part.sizes.record_s)
            readings = np.loadtxt(apart, delimiter=",", dtype=np.int64, ndmin=2)
            lengths_s, report = part.sizes.windows_s, recorded.report
            rows.append(
                {
                    "load": name,
                    "share_of_a_core": recorded.share,
                    "meters": {key: m.model_dump() for key, m in report.meters.items()},
                    "problems": report.problems,
                    "windows": [agreement(recorded, readings, s, 40) for s in lengths_s],
                    "zeus": beside_zeus(recorded, zeus),
                }
            )
            part.save(loads=rows)


class Recording:
    """What a sampler has written about the GPU, and the share of a core that it used."""

    def __init__(self, folder: Path, share: float) -> None:
        text = sampler.report_path(folder, HOST).read_text(encoding="utf-8")
        samples = read_live(sampler.stream_path(folder, HOST), SAMPLES, HOST)
        self.report = SamplerReport.model_validate_json(text)
        self.gpu = samples.filter(pc.field("kind") == "gpu")
        self.share = share

    def energies(self, windows_ns: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        """Return what wattlaw says about the energy of the GPU between pairs of times."""
        rows = [
            {"host": HOST, "start_ns": start, "duration_s": (end - start) / 1e9}
            for start, end in windows_ns
        ]
        facts = {(HOST, device.id): device.facts for device in self.report.devices}
        windows = pa.Table.from_pylist(rows, schema=WINDOWS)
        return list(energy_of_windows(windows, self.gpu, facts).to_pylist())


def record(folder: Path, hz: float, seconds: float) -> Recording:
    """Record the GPU for some seconds."""
    process = start_sampler(folder, hz)
    try:
        share = cores_used(process, 1.5, seconds - 1.5)
    finally:
        end_tree(process)
    return Recording(folder, share)


def agreement(recorded: Recording, readings: Any, length_s: float, count: int) -> dict[str, object]:
    """Return the differences in windows at random times within the recording.

    The counter that was read apart is a straight line between the readings at which it changed.
    """
    edge_ns, length_ns = 500_000_000, round(length_s * 1e9)
    times, (ns, mj) = recorded.gpu["t_ns"], readings.reshape(-1, 2).T
    first, last = pc.min(times).as_py(), pc.max(times).as_py()
    if len(ns):
        first, last = max(first, int(ns[0])), min(last, int(ns[-1]))
    first, last = first + edge_ns, last - edge_ns - length_ns
    if last < first:
        return {"window_s": length_s, "windows": 0, "reason": "the recording is too short"}
    rng = random.Random(0)  # noqa: S311
    windows = [(s, s + length_ns) for s in (rng.randint(first, last) for _ in range(count))]
    rows = recorded.energies(windows)
    apart_j: list[float | None] = [None] * count
    if len(ns):
        changed = np.append(True, np.diff(mj) != 0)
        ends_mj = np.interp(np.array(windows), ns[changed], mj[changed])
        apart_j = list(np.diff(ends_mj)[:, 0] / 1e3)
    integral_j = [row["gpu_energy_integral_j"] for row in rows]
    counter_j = [row["gpu_energy_counter_j"] for row in rows]
    verdicts = [row["energy_verdict"] for row in rows]
    return {
        "window_s": length_s,
        "windows": count,
        "power_mean_w": _median(row["gpu_power_mean_w"] for row in rows),
        "counter_over_integral": _differences(counter_j, integral_j),
        "ours_over_apart": _differences([row["gpu_energy_j"] for row in rows], apart_j),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
        "sources": sorted({row["energy_source"] for row in rows}),
    }


def beside_zeus(recorded: Recording, file: Path) -> dict[str, object] | None:
    """Return how our energies differ from those of Zeus in its windows; None without any."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = [line.split(",") for line in text.splitlines() if line.count(",") == 2]
    first, last = (f(recorded.gpu["t_ns"]).as_py() for f in (pc.min, pc.max))
    inside = [(int(s), int(e), float(j)) for s, e, j in lines if first < int(s) and int(e) < last]
    if not inside:
        return None
    rows = recorded.energies([(start, end) for start, end, _ in inside])
    ours_j = [row["gpu_energy_j"] for row in rows]
    return {"windows": len(rows)} | _differences(ours_j, [joules for *_, joules in inside])


def _differences(
    values: Sequence[float | None], others: Sequence[float | None]
) -> dict[str, float | None]:
    """Return the median and the largest relative difference of the pairs that are known."""
    pairs = zip(values, others, strict=True)
    ratios = [value / other - 1 for value, other in pairs if value and other]
    return {"median": _median(ratios), "largest": max(ratios, key=abs, default=None)}


def _median(values: Iterator[float | None] | Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


# Overhead


def overhead(part: Part) -> None:
    """Save the processor time of the sampler without a load, and the slow-down of a training."""
    rows: list[dict[str, object]] = []
    for hz in (10.0, 100.0):
        with tempfile.TemporaryDirectory() as folder:
            recorded = record(Path(folder), hz, 1.5 + part.sizes.watch_s)
        start_cpu_s = recorded.report.start_cpu_s
        rows.append({"hz": hz, "share_of_a_core": recorded.share, "start_cpu_s": start_cpu_s})
        part.save(idle=rows)
    block = training_block(batch=64, steps=part.sizes.block_steps)
    slowdowns: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        process = start_sampler(Path(folder), 10.0)
        try:
            for number in range(part.sizes.pairs):
                slowdowns += paired_slowdowns(process.pid, block, 1, seed=number)
                low, high = median_interval(slowdowns)
                part.save(
                    slowdown={
                        "training": "digits-cnn, batch 64; the sampler runs in one block of a "
                        "pair and is stopped in the other",
                        "steps_per_block": part.sizes.block_steps,
                        "pairs": len(slowdowns),
                        "median": statistics.median(slowdowns),
                        "median_95": [low, high],
                    }
                )
        finally:
            end_tree(process)


# Throughput


def throughput(part: Part) -> None:
    """Save samples per second, utilisation and energy of our loop and of a plain loop."""
    rows: list[dict[str, Any]] = []
    # Pairs are built together. With more threads than cores they build for minutes.
    at_once = max(1, processes.cores() // 4)
    environment = {"OMP_NUM_THREADS": str(max(1, processes.cores() // (2 * at_once)))}
    for start in range(0, len(part.sizes.cases), at_once):
        cases = part.sizes.cases[start : start + at_once]
        pairs = [open_pair(case, environment, part.sizes.build_limit_s) for case in cases]
        # The threads live until the end: the kernel ends a child with the thread that started it.
        with ThreadPoolExecutor(len(pairs)) as pool:
            opened = [pool.submit(pair.__enter__) for pair in pairs]
            for case, pair, built in zip(cases, pairs, opened, strict=True):
                row = settings(case)
                try:
                    sides = built.result()
                    with contextlib.ExitStack() as stack:
                        stack.push(pair)  # its end frees the memory of the GPU
                        row |= measured_case(part, *sides)
                except LoopError as error:
                    row["failed"] = {"ours": str(error)}
                rows.append(row)
                part.save(cases=rows)


def measured_case(part: Part, ours: Any, other: Any, known: Any) -> dict[str, Any]:
    """Return the rates and energies of both loops, trained in turns."""
    variants = known["variants"][:1]
    with tempfile.TemporaryDirectory() as folder:
        recording = start_sampler(Path(folder), 10.0)
        try:
            blocks, failed = train_in_turns(
                ours, other, variants, rounds=part.sizes.rounds, limit_s=part.sizes.block_limit_s
            )
        finally:
            end_tree(recording)
        row: dict[str, Any] = {"failed": known["failed"] | failed, **compare_rates(blocks)}
        row |= {name: known[name] for name in ("device", "parameters", "flops_per_sample")}
        row["gpu"] = loop_energies(blocks, Recording(Path(folder), 0.0))
    peak = PEAKS.get(str(part.of("facts").get("torch", {}).get("name")))
    if peak and known["flops_per_sample"]:
        rates = row["samples_per_s"]
        used = {name: known["flops_per_sample"] * rate / peak for name, rate in rates.items()}
        row["model_flops_utilisation"] = used
    return row


def loop_energies(blocks: list[dict[str, Any]], recorded: Recording) -> dict[str, dict[str, Any]]:
    """Return GPU energy and utilisation of each loop, over its blocks."""
    by_loop: dict[str, dict[str, Any]] = {}
    for variant in dict.fromkeys(block["variant"] for block in blocks):
        own = [block for block in blocks if block["variant"] == variant]
        starts = [(b["start_ns"], b["start_ns"] + round(b["seconds"] * 1e9)) for b in own]
        rows = recorded.energies(starts)
        joules = [row["gpu_energy_j"] for row in rows]
        by_loop[variant] = {
            "j_per_sample": None
            if None in joules
            else sum(joules) / sum(b["samples"] for b in own),
            "energy_source": sorted({row["energy_source"] for row in rows}),
            "energy_verdict": sorted({row["energy_verdict"] for row in rows}),
        } | {
            name: _median(row[name] for row in rows)
            for name in ("sm_util_mean", "mem_util_mean", "gpu_power_mean_w")
        }
    return by_loop


# Unmodified scripts


def scripts(part: Part) -> None:
    """Save what ``measure`` says about scripts with timers of their own, and what these say."""
    rows: list[dict[str, object]] = []
    for mode in part.sizes.modes:
        try:
            row = measured_script(part, mode)
        except Exception as error:
            row = {"status": "not measured", "reason": f"{type(error).__name__}: {error}"}
        rows.append({"mode": mode} | row)
        part.save(scripts=rows)


def measured_script(part: Part, mode: str) -> dict[str, object]:
    """Return the steps of a script by ``measure`` and by its own timer."""
    store, summary = part.folder / mode, part.folder / f"{mode}.json"
    command = [sys.executable, HERE / "cuda_script.py", mode, part.sizes.script_steps]
    options = ["-o", store, "--json", summary, "--warmup-steps", 10, "--", *command]
    output = run_wattlaw("measure", *options, codes=range(256))
    ours = json.loads(summary.read_text(encoding="utf-8"))
    (run,) = Store(store).records()
    row: dict[str, object] = {"status": run.status, "reason": run.reason}
    names = ("steps", "step_time_p50_s", "gpu_energy_per_step_j", "peak_memory_bytes", "notes")
    row |= {name: ours[name] for name in names}
    for line in output.splitlines():
        if line.startswith("RESULT "):
            own = json.loads(line.removeprefix("RESULT "))
            p50_s = statistics.median(own["times_s"][10:])
            row |= {"own_steps": own["steps"], "own_p50_s": p50_s}
            row["p50_ratio"] = ours["step_time_p50_s"] / p50_s if ours["step_time_p50_s"] else None
    return row


# A study, and predictions of it


def study(part: Part) -> None:
    """Save a full grid of batches and precisions, and a decision on the same settings."""
    size = part.sizes
    content: dict[str, Any] = {
        "name": "batches",
        "workloads": [{"name": "digits-cnn", "options": {"width": size.width}}],
        "sweeps": [{"gpus": [1], "local_batch": [*size.batches], "precision": [*size.precisions]}],
        "measure": {"seconds": size.seconds, "warmup_steps": 10, "evaluate": False},
        "launch": {"kind": "local", "gpus_per_node": 1},
    }
    part.save(study=content)
    grid = run_study(part, "grid", content)
    run_wattlaw("export", grid, "bundle", "-o", part.results.with_name("grid.zip"))
    rows = grid_rows(grid)
    grid_gpu_s = sum(
        (run.finished_at - run.started_at).total_seconds()
        for run in Store(grid).records()
        if run.started_at and run.finished_at
    )
    part.save(grid=rows, grid_gpu_s=grid_gpu_s)
    question = {"minimize": "energy", "tolerance": "5%", "max_global_batch": max(size.batches)}
    question["budget"] = {"runs": size.most_runs}
    decision = wattlaw.open(run_study(part, "decide", content | {"decide": question})).decision
    part.save(question=question, decision=decision)
    energies = {
        (row["local_batch"], row["precision"]): row["energy_per_sample_j"]
        for row in rows
        if row["energy_per_sample_j"]
    }
    chosen = (decision or {}).get("setting") or {}
    energy_j = energies.get((chosen.get("local_batch"), chosen.get("precision")))
    if energy_j is not None:
        part.save(regret_by_the_grid=energy_j / min(energies.values()) - 1)


def run_study(part: Part, name: str, content: Mapping[str, object]) -> Path:
    """Run a study; return its store, and save why runs are not done."""
    path, store = part.folder / f"{name}.yaml", part.folder / name
    path.write_text(yaml.safe_dump(dict(content)), encoding="utf-8")
    run_wattlaw("run", path, "--store", store, codes=(0, 1))
    status = json.loads(run_wattlaw("status", store, "--json"))
    part.save(**{f"{name}_not_done": status["not_done"]})
    return store


def grid_rows(store: Path) -> list[dict[str, Any]]:
    """Return time, power and energy of each run that is done."""
    names = ["precision", "local_batch", *PREDICTED, "energy_is", "energy_verdict"]
    runs = wattlaw.open(store).metrics[names].sort_values(names[:2])
    rows: list[dict[str, Any]] = json.loads(runs.to_json(orient="records"))
    return rows


def predict(part: Part) -> None:
    """Save predictions of ``wattlaw predict`` from the two smallest batches beside the others."""
    grid, seen = part.folder / "grid", part.sizes.batches[:2]
    measured = {(row["local_batch"], row["precision"]): row for row in grid_rows(grid)}
    rows: list[dict[str, object]] = []
    for precision in part.sizes.precisions:  # the command predicts one, that of most runs
        known = part.folder / f"known-{precision}"
        shutil.copytree(grid, known, dirs_exist_ok=True)
        for folder in Store(known).folders():
            run = folder.read()
            setting = None if run is None else run.spec.setting
            if setting is None or (setting.local_batch, setting.precision) not in {
                (batch, precision) for batch in seen
            }:
                shutil.rmtree(folder.path)
        others = ",".join(map(str, part.sizes.batches[2:]))
        words = ("predict", known, "--gpus", 1, "--local-batch", others, "--json")
        for item in json.loads(run_wattlaw(*words)):
            batch = item["local_batch"]
            own = measured.get((batch, precision), {})
            row: dict[str, object] = {"local_batch": batch, "precision": item["precision"]}
            for name in PREDICTED:
                row[name] = compared(own.get(name), item[name], item[f"{name}_ci"])
            rows.append(row)
        part.save(seen=seen, predictions=rows)


def compared(measured: float | None, predicted: float | None, interval: Any) -> dict[str, object]:
    """Return a measured and a predicted value, and the error of the second."""
    has_both = measured is not None and predicted is not None
    return {
        "measured": measured,
        "predicted": predicted,
        "interval": interval,
        "error": predicted / measured - 1 if has_both and measured else None,
        "is_inside": interval[0] <= measured <= interval[1] if has_both and interval else None,
    }


PARTS = {
    function.__name__: function
    for function in (facts, energy, overhead, throughput, scripts, study, predict, unchanged)
}

if __name__ == "__main__":
    name, results, folder, size = sys.argv[1:]
    PARTS[name](Part(name, Path(results), Path(folder), sizes(size)))
