"""On an NVIDIA GPU: samples per second, utilisation and energy of our loop beside the references.

Called by ``benchmarks/gpu.py``. Full-size nets on made data, one GPU, bf16, fused optimisers,
channels last for the nets of images, without and with ``torch.compile``, the same on both sides.
Results are written after every case, so that a limit of time costs the cases after it alone.

``python benchmarks/gpu_throughput.py --device cpu`` walks the same way with tiny nets on a machine
without GPU, and writes no results: what it finds there says nothing of a GPU.
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

from sides import Case, Lost, opened
from throughput import BUILD_LIMIT_S, CASES, PACKAGES, contest, judged, settings
from watched import end_tree, sampling, write_results
from wattlaw import machine
from wattlaw.store.live import read_live
from wattlaw.store.record import SamplerReport
from wattlaw.store.schema import SAMPLES, WINDOWS
from wattlaw.telemetry import sampler
from wattlaw.telemetry.energy import energy_of_windows

#: Dense bf16 operations per second. H200 SXM: NVIDIA's H200 data sheet (1,979 with sparsity).
PEAKS = {"NVIDIA H200": 989e12}
PEAK_SOURCE = "NVIDIA H200 Tensor Core GPU data sheet: SXM, BFLOAT16, half of that with sparsity"
#: Samples per second to be reached on an H200; where they are not, a profile says why.
TARGETS = {"resnet50": 3500.0, "bert-base": 3500.0}
SAMPLE_HZ = 10.0
ROUNDS = 3
#: The machine is lent for ten minutes a command; no case is begun when less than this is left.
LIMIT_S, LAST_START_S = 540.0, 60.0
#: What the loaders' processes hand over lies here; a small one takes no batches of images.
_SHARED, _SHARED_BYTES = Path("/dev/shm"), 16e9  # noqa: S108
_TOLD = ("failed", "samples_per_s", "model_flops_utilisation", "gpu")
_UTILISATIONS = ("sm_util_mean", "mem_util_mean", "gpu_power_mean_w")


def _images(name: str, steps: int, *, compiled: bool = False) -> Case:
    options = {"train_samples": 256 * steps}
    return _case(name, options, 256, channels_last=True, compile=compiled)


def _case(name: str, options: dict[str, Any], batch: int, **chosen: Any) -> Case:
    shared = _SHARED.exists() and shutil.disk_usage(_SHARED).total > _SHARED_BYTES
    return Case(name, options, batch, precision="bf16", loader_workers=8 * shared, **chosen)


def full_size() -> list[Case]:
    """Return the cases, those that have a target first; an epoch is to take a few seconds."""
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
    """Return the cases of the processor's benchmark, as a GPU would get them."""
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
    """Return what each loop took from the GPU, by its blocks and the sampler's recording."""
    host = socket.gethostname()
    report = SamplerReport.model_validate_json(sampler.report_path(folder, host).read_text())
    facts = {(host, device.id): device.facts for device in report.devices}
    samples = read_live(sampler.stream_path(folder, host), SAMPLES, host)
    gpu = samples.filter(pa.compute.field("kind") == "gpu")
    found: dict[str, dict[str, Any]] = {}
    for how in dict.fromkeys(block["how"] for block in blocks):
        mine = [block for block in blocks if block["how"] == how]
        rows = [
            {"host": host, "start_ns": block["start_ns"], "duration_s": block["seconds"]}
            for block in mine
        ]
        windows = energy_of_windows(
            pa.Table.from_pylist(rows, schema=WINDOWS), gpu, facts
        ).to_pylist()
        joules = [row["gpu_energy_j"] for row in windows]
        known = None not in joules
        found[how] = {
            "j_per_sample": sum(joules) / sum(block["samples"] for block in mine)
            if known
            else None,
            "energy_source": sorted({row["energy_source"] for row in windows}),
            "energy_verdict": sorted({row["energy_verdict"] for row in windows}),
        } | {name: _mean([row[name] for row in windows]) for name in _UTILISATIONS}
    return found


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def measured(
    case: Case, peak: float | None, until_s: float, target: float | None
) -> dict[str, Any]:
    """Return all that is found of one case; a side that is lost leaves the reason."""
    row: dict[str, Any] = settings(case)
    with tempfile.TemporaryDirectory() as name:
        recording = sampling(Path(name), SAMPLE_HZ)
        try:
            with opened(case, {}, BUILD_LIMIT_S) as (ours, reference, told):
                # With torch.compile a variant more is another minute; the eager case has them.
                hows = told["hows"][:1] if case.compile else told["hows"]
                blocks, failed = contest(ours, reference, hows, rounds=ROUNDS, until_s=until_s)
                row["failed"] = told["failed"] | failed
                if not blocks:
                    raise Lost("no time was left for a round")
                row |= {"parameters": told["parameters"], "device": told["device"]}
                row |= judged(blocks)
                if target is not None and row["samples_per_s"]["ours"] < target:
                    row["profile"] = ours.ask(BUILD_LIMIT_S, profile="ours")["profile"]
        except Lost as lost:
            return row | {"failed": {"ours": str(lost)}}
        finally:
            end_tree(recording)
        per_sample = told["flops_per_sample"]
        row |= {"flops_per_sample": per_sample, "gpu": energies(blocks, Path(name))}
    rates: dict[str, float] = row["samples_per_s"]
    row["model_flops_utilisation"] = None
    if peak is not None and per_sample is not None:
        row["model_flops_utilisation"] = {
            how: per_sample * rate / peak for how, rate in rates.items()
        }
    return row | {"target_samples_per_s": target}


def throughput(gpu: str, cases: list[Case], *, limit_s: float = LIMIT_S) -> list[dict[str, Any]]:
    """Measure cases as far as the time reaches, and keep the results file up to date.

    Parameters
    ----------
    gpu
        The GPU's name; empty for a walk without one, which has no target and writes nothing.
    cases
        What to measure, in order.
    limit_s
        How long all of it may take.
    """
    end_s = time.monotonic() + limit_s
    rows: list[dict[str, Any]] = []
    for case in cases:
        left_s = end_s - time.monotonic()
        if left_s < LAST_START_S:
            why = f"not begun: {left_s:.0f} s were left"
            rows.append(settings(case) | {"failed": {"ours": why}})
        else:
            target = TARGETS.get(case.workload) if gpu else float("inf")
            rows.append(measured(case, PEAKS.get(gpu), end_s - LAST_START_S / 2, target))
        told = {name: rows[-1].get(name) for name in _TOLD}
        print(case.workload, "compiled" if case.compile else "eager", json.dumps(told), flush=True)
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
                "order": "random within a round; one epoch of each before is not counted",
                "model_flops_utilisation": "flops_per_sample of our model x samples/s / peak; the "
                "same operations are counted for the reference",
            },
            "loops": rows,
        },
        show=False,
    )


def main() -> None:
    """Walk the way on the processor, or measure on the first GPU."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--workloads", nargs="+")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S)
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    os.environ["CUDA_VISIBLE_DEVICES"] = "" if on_cpu else one_gpu()
    cases = tiny() if on_cpu else full_size()
    wanted = [case for case in cases if case.workload in (options.workloads or case.workload)]
    gpu = ""
    if not on_cpu:
        import torch

        gpu = torch.cuda.get_device_name(0)
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    throughput(gpu, wanted, limit_s=options.limit_s)


def one_gpu() -> str:
    """Return the first GPU that is given to this process: Trainer would take all of them."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


if __name__ == "__main__":
    main()
