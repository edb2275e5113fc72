"""Rows of a table of known measurements, and which of them compare with a job."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.advise.layout_effects import Measured
from wattlaw.analysis.metrics.result import Result
from wattlaw.hardware.library import find_gpu, gpu_names
from wattlaw.study.setting import Setting

#: Models of up to so many times the parameters, and samples of so many times the tokens, compare.
SIZE_FACTOR, SEQUENCE_FACTOR = 2.0, 4.0
#: Counts of parameters of the same network agree to so much: names and papers round them.
_SAME_COUNT = 0.01
_BOARD = re.compile(r"[a-z]{1,3}\d{1,4}[a-z]{0,2}")
_VENDORS = ("nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "intel")


@dataclass(frozen=True)
class KnownRun(Result):
    """A measurement of the table; ``tflops_per_gpu`` is counted as that of the job. If it
    ``counts_tied_otherwise``, it has the job's parameters with ``tied`` the other way round."""

    source: str
    model: str
    hardware: str
    gpus: int
    parameters_b: float
    setting: Setting | None
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    counts_tied_otherwise: bool = False
    run: Measured | None = field(default=None, repr=False, compare=False)


def board_of(hardware: str) -> str:
    """Return ``H100`` of ``NVIDIA H100 80GB HBM3`` or ``DGX-H100``; else the text itself."""
    gpu = find_gpu(hardware)
    text = (gpu.name if gpu else hardware).lower()
    words = [word for word in re.findall("[a-z0-9]+", text) if word not in _VENDORS]
    return next((word for word in words if _BOARD.fullmatch(word)), " ".join(words)).upper()


def peak_of(hardware: str, precision: str | None) -> float | None:
    """Return the peak in TFLOP/s of a GPU; of a name such as ``NVIDIA H100 80GB HBM3``, that of the
    most similar board of the library; None if there is none."""
    words, board = set(re.findall("[a-z0-9]+", hardware.lower())), board_of(hardware).lower()
    alike = [name for name in gpu_names() if name.partition("-")[0] == board]
    nearest = max(alike, key=lambda name: len(words & {*name.split("-")}), default="")
    gpu = find_gpu(hardware) or find_gpu(nearest)
    peaks: Mapping[Any, float] = {} if gpu is None else gpu.peak_tflops
    return peaks.get(precision or "bf16")


def comparable_rows(
    job: Measured, hardware: str, table: pd.DataFrame
) -> tuple[list[KnownRun], dict[str, int]]:
    """Return the measurements that compare with a job, and how many do not, by the first reason.

    ``table`` is of ``api.known_measurements.read_known``.
    """
    rows, board = table.copy(), board_of(hardware)
    sequence = rows["sequence"].astype(float).fillna(job.network.sequence)
    sizes = rows["params_b"].astype(float) * 1e9
    other = job.network.model_copy(update={"tied": not job.network.tied}).parameters
    rows["otherwise"] = (sizes / other - 1).abs() < _SAME_COUNT
    rows["otherwise"] &= (sizes / job.parameters - 1).abs() > _SAME_COUNT
    # The output's matrix costs the same operations whether the embedding shares it or not.
    ratio = (sizes / job.parameters).mask(rows["otherwise"], 1.0)
    flops = {
        length: job.network.model_copy(update={"sequence": int(length)}).flops_per_token
        for length in sequence.unique()
    }
    rows["flops"] = rows["tokens_per_s_per_gpu"].astype(float) * ratio * sequence.map(flops)
    peak = peak_of(hardware, job.setting.precision) or np.inf
    boards = {name: board_of(name) for name in rows["hardware"].unique()}
    away = sequence / job.network.sequence
    reasons = {
        "of another board": rows["hardware"].map(boards) != board,
        "without a throughput": rows["tokens_per_s_per_gpu"].isna(),
        "without a model size": ~(sizes > 0),
        f"of models beyond a factor of {SIZE_FACTOR:g}": ~ratio.between(
            1 / SIZE_FACTOR, SIZE_FACTOR
        ),
        f"of sequences beyond a factor of {SEQUENCE_FACTOR:g}": ~away.between(
            1 / SEQUENCE_FACTOR, SEQUENCE_FACTOR
        ),
        "with experts": rows["has_experts"],
        "that train adapters only": rows["texts"].str.contains(r"\blora\b", case=False),
        "of another precision": rows["precision"].map(_bits) != _bits(job.setting.precision),
        "above the board's peak": rows["flops"] > peak * 1e12,
    }
    left, counts = pd.Series(data=True, index=rows.index), {}
    for reason, applies in reasons.items():
        if count := int((left & applies).sum()):
            counts[reason] = count
        left &= ~applies
    return [_known(row, job) for row in rows[left].to_dict("records")], counts


def _bits(precision: object) -> int:
    """Return 8, 16 or 32; a precision that is not stated counts as 16."""
    return {"fp32": 32, "tf32": 32, "fp8": 8}.get(str(precision), 16)


def _known(row: Mapping[Any, Any], job: Measured) -> KnownRun:
    setting, run = row["setting"], None
    if setting is not None:
        network = job.network
        if pd.notna(row["sequence"]):
            network = network.model_copy(update={"sequence": int(row["sequence"])})
        count = job.parameters if row["otherwise"] else row["params_b"] * 1e9
        run = Measured(setting, network, count, row["flops"], row["source"])
    return KnownRun(
        row["source"],
        row["model"],
        row["hardware"],
        int(row["gpus"]),
        row["params_b"],
        setting,
        row["tokens_per_s_per_gpu"],
        row["flops"] / 1e12,
        bool(row["otherwise"]),
        run,
    )
