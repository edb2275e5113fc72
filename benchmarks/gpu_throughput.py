"""Samples per second, utilisation and energy of our loop and of reference loops on an NVIDIA GPU.

``benchmarks/gpu.py`` calls this program. Both sides train full-size nets on synthetic data with one
GPU, bf16, fused optimisers and channels last for image nets, without and with ``torch.compile``.
Results are written after every case, so that a time limit loses only the cases after it.

``python benchmarks/gpu_throughput.py --device cpu`` runs the same code with tiny nets on a machine
without GPU, as a check. It writes no results, because they would not apply to a GPU.
"""

import argparse
import dataclasses
import json
import os
import re
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from common import end_tree, start_sampler, write_results
from loop_process import Case, LoopError, open_pair
from throughput import BUILD_LIMIT_S, CASES, PACKAGES, compare_rates, settings, train_in_turns
from wattlaw import machine
from wattlaw.store.live import read_live
from wattlaw.store.record import SamplerReport
from wattlaw.store.schema import SAMPLES, WINDOWS
from wattlaw.telemetry import sampler
from wattlaw.telemetry.energy import energy_of_windows

#: Dense bf16 operations per second. H200 SXM: NVIDIA's H200 data sheet (1,979 with sparsity).
PEAKS = {"NVIDIA H200": 989e12}
PEAK_SOURCE = "NVIDIA H200 Tensor Core GPU data sheet: SXM, BFLOAT16, half of that with sparsity"
#: Target rates on an H200, in samples per second. A case below its target is profiled.
TARGETS = {"resnet50": 3500.0, "bert-base": 3500.0}
SAMPLE_HZ = 10.0
ROUNDS = 3
#: Time limit of all cases. No case starts if less than ``LAST_START_S`` of it remains.
LIMIT_S, LAST_START_S = 540.0, 60.0
#: Loader processes pass batches through this folder; a small one cannot hold image batches.
_SHARED, _SHARED_BYTES = Path("/dev/shm"), 16e9  # noqa: S108
_PRINTED = ("failed", "samples_per_s", "model_flops_utilisation", "gpu")
_UTILISATIONS = ("sm_util_mean", "mem_util_mean", "gpu_power_mean_w")


def _images(name: str, steps: int, *, compiled: bool = False) -> Case:
    options = {"train_samples": 256 * steps}
    return _case(name, options, 256, channels_last=True, compile=compiled)


def _case(name: str, options: dict[str, Any], batch: int, **more: Any) -> Case:
    shared = _SHARED.exists() and shutil.disk_usage(_SHARED).total > _SHARED_BYTES
    return Case(name, options, batch, precision="bf16", loader_workers=8 * shared, **more)


def full_size() -> list[Case]:
    """Return the cases, those with a target first; an epoch takes a few seconds."""
    sequences = {"sequence_length": 128, "train_samples": 256 * 40}
    return [
        _images("resnet50", 40),
        _case("bert-base", sequences, 256),
        _images("resnet50", 40, compiled=True),
        _case("bert-base", sequences, 256, compile=True),
        _images("vgg16", 24),
        _images("inceptionv3", 24),
        _case("schnet", {"train_samples": 128 * 60}, 128),
        _case("dimenet", {"train_samples": 128 * 20}, 128),
        _case("fourcastnet", {"train_samples": 4 * 16}, 4),
    ]


def tiny() -> list[Case]:
    """Return the cases of the CPU benchmark with the settings of the GPU benchmark."""
    images = ("vgg16", "inceptionv3", "resnet50")
    return [
        dataclasses.replace(
            case,
            options=case.options | {"train_samples": 2 * case.batch},
            precision="bf16",
            channels_last=case.workload in images,
            compile=case.workload == "bert-base",
            loader_workers=1,
        )
        for case in CASES
    ]


def energies(blocks: list[dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Return GPU energy and utilisation of each loop, from its blocks and the sampler's files."""
    host = socket.gethostname()
    report = SamplerReport.model_validate_json(sampler.report_path(folder, host).read_text())
    facts = {(host, device.id): device.facts for device in report.devices}
    samples = read_live(sampler.stream_path(folder, host), SAMPLES, host)
    gpu = samples.filter(pa.compute.field("kind") == "gpu")
    by_loop: dict[str, dict[str, Any]] = {}
    for variant in dict.fromkeys(block["variant"] for block in blocks):
        loop_blocks = [block for block in blocks if block["variant"] == variant]
        rows = [
            {"host": host, "start_ns": block["start_ns"], "duration_s": block["seconds"]}
            for block in loop_blocks
        ]
        windows = energy_of_windows(
            pa.Table.from_pylist(rows, schema=WINDOWS), gpu, facts
        ).to_pylist()
        energies_j = [row["gpu_energy_j"] for row in windows]
        is_known = None not in energies_j
        by_loop[variant] = {
            "j_per_sample": sum(energies_j) / sum(block["samples"] for block in loop_blocks)
            if is_known
            else None,
            "energy_source": sorted({row["energy_source"] for row in windows}),
            "energy_verdict": sorted({row["energy_verdict"] for row in windows}),
        } | {name: _mean([row[name] for row in windows]) for name in _UTILISATIONS}
    return by_loop


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def measure_case(
    case: Case, peak: float | None, until_s: float, target: float | None
) -> dict[str, Any]:
    """Return the results of one case; ``failed`` has the reason if a side fails."""
    row: dict[str, Any] = settings(case)
    with tempfile.TemporaryDirectory() as name:
        recording = start_sampler(Path(name), SAMPLE_HZ)
        try:
            with open_pair(case, {}, BUILD_LIMIT_S) as (ours, reference, facts):
                # Compiling takes a minute per variant, so only the eager case has all variants.
                variants = facts["variants"][:1] if case.compile else facts["variants"]
                blocks, failed = train_in_turns(
                    ours, reference, variants, rounds=ROUNDS, until_s=until_s
                )
                row["failed"] = facts["failed"] | failed
                if not blocks:
                    raise LoopError("no time was left for a round")
                row |= {"parameters": facts["parameters"], "device": facts["device"]}
                row |= compare_rates(blocks)
                if target is not None and row["samples_per_s"]["ours"] < target:
                    row["profile"] = ours.request(BUILD_LIMIT_S, profile="ours")["profile"]
        except LoopError as error:
            return row | {"failed": {"ours": str(error)}}
        finally:
            end_tree(recording)
        per_sample = facts["flops_per_sample"]
        row |= {"flops_per_sample": per_sample, "gpu": energies(blocks, Path(name))}
    rates: dict[str, float] = row["samples_per_s"]
    row["model_flops_utilisation"] = None
    if peak is not None and per_sample is not None:
        row["model_flops_utilisation"] = {
            variant: per_sample * rate / peak for variant, rate in rates.items()
        }
    return row | {"target_samples_per_s": target}


def throughput(gpu: str, cases: list[Case], *, limit_s: float = LIMIT_S) -> list[dict[str, Any]]:
    """Measure cases until the time limit, and update the results file after each.

    Parameters
    ----------
    gpu
        The name of the GPU; empty for a check without one, which writes nothing.
    cases
        The cases in order.
    limit_s
        Time limit of all cases.
    """
    end_s = time.monotonic() + limit_s
    rows: list[dict[str, Any]] = []
    for case in cases:
        left_s = end_s - time.monotonic()
        if left_s < LAST_START_S:
            reason = f"not started: {left_s:.0f} s were left"
            rows.append(settings(case) | {"failed": {"ours": reason}})
        else:
            target = TARGETS.get(case.workload) if gpu else float("inf")
            rows.append(measure_case(case, PEAKS.get(gpu), end_s - LAST_START_S / 2, target))
        printed = {name: rows[-1].get(name) for name in _PRINTED}
        print(
            case.workload, "compiled" if case.compile else "eager", json.dumps(printed), flush=True
        )
        if not gpu:
            print("\n".join(rows[-1].get("profile", [])[:12]), flush=True)
        if gpu:
            _write(gpu, rows)
    return rows


def _write(gpu: str, rows: list[dict[str, Any]]) -> None:
    write_results(
        "throughput",
        re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-"),
        {
            "gpu": gpu,
            "peak_flops": PEAKS.get(gpu),
            "peak_source": PEAK_SOURCE,
            "versions": machine.software((*PACKAGES, "nvidia-cudnn-cu13", "triton")),
            "settings": {
                "rounds": ROUNDS,
                "sample_hz": SAMPLE_HZ,
                "limit_s": LIMIT_S,
                "data": "synthetic",
                "order": "random within a round; a first epoch of each loop is not counted",
                "model_flops_utilisation": "flops_per_sample of our model x samples/s / peak; the "
                "same operations are counted for the reference",
            },
            "loops": rows,
        },
        show=False,
    )


def main() -> None:
    """Measure on the first GPU, or check the code on the CPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--workloads", nargs="+")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if on_cpu else first_gpu()
    cases = tiny() if on_cpu else full_size()
    selected = [case for case in cases if case.workload in (options.workloads or case.workload)]
    gpu = ""
    if not on_cpu:
        import torch

        gpu = torch.cuda.get_device_name(0)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    throughput(gpu, selected, limit_s=options.limit_s)


def first_gpu() -> str:
    """Return the first visible GPU. Trainer would use all visible ones."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


if __name__ == "__main__":
    main()
