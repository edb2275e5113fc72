"""Rows of a table of known measurements, and which of them compare with a job."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from wattlaw.analysis.advise.layout_effects import Measured
from wattlaw.analysis.metrics.result import Result
from wattlaw.common.errors import BadInput
from wattlaw.hardware.library import find_gpu, gpu_names
from wattlaw.study.base_model import SHARDING_ALIASES, SHARDINGS
from wattlaw.study.setting import Setting

#: Columns of a table of measurements: numbers, texts, and those that it must have.
NUMBERS = (
    "gpus",
    "params_b",
    "tokens_per_s_per_gpu",
    "step_time_s",
    "global_batch",
    "seq_len",
    "gpus_per_node",
    "tp",
    "pp",
    "vp",
    "cp",
    "ep",
    "micro_batch",
    "grad_acc",
)
TEXTS = (
    "hardware",
    "source",
    "model",
    "zero_or_fsdp",
    "act_ckpt",
    "precision",
    "status",
    "note",
)
REQUIRED = ("hardware", "gpus", "params_b", "tokens_per_s_per_gpu")
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
    """Return the rows that compare with a job, and how many do not, by the first reason."""
    board, rows = board_of(hardware), table.copy()
    step = rows["global_batch"] * rows["seq_len"] / (rows["step_time_s"] * rows["gpus"])
    tokens = rows["tokens_per_s_per_gpu"].fillna(step)
    sequence = rows["seq_len"].fillna(job.network.sequence)
    sizes = rows["params_b"] * 1e9
    other = job.network.model_copy(update={"tied": not job.network.tied}).parameters
    rows["otherwise"] = (sizes / other - 1).abs() < _SAME_COUNT
    rows["otherwise"] &= (sizes / job.parameters - 1).abs() > _SAME_COUNT
    # The output's matrix costs the same operations whether the embedding shares it or not.
    ratio = (sizes / job.parameters).mask(rows["otherwise"], 1.0)
    flops = {
        length: job.network.model_copy(update={"sequence": int(length)}).flops_per_token
        for length in sequence.unique()
        if length >= 1
    }
    rows["tokens"], rows["flops"] = tokens, tokens * ratio * sequence.map(flops)
    peak = peak_of(hardware, job.setting.precision) or np.inf
    named, note = (rows[name].astype(object).fillna("") for name in ("model", "note"))
    texts = named.astype(str) + " " + note.astype(str)
    boards = {name: board_of(str(name)) for name in rows["hardware"].unique()}
    away = sequence / job.network.sequence
    reasons = {
        "out of memory or crashed": ~rows["status"].astype(object).fillna("ok").eq("ok"),
        "of another board": rows["hardware"].map(boards) != board,
        "without a throughput": ~(tokens > 0) | ~(rows["gpus"] >= 1) | ~np.isfinite(tokens),
        "without a model size": ~(rows["params_b"] > 0),
        f"of models beyond a factor of {SIZE_FACTOR:g}": ~ratio.between(
            1 / SIZE_FACTOR, SIZE_FACTOR
        ),
        f"of sequences beyond a factor of {SEQUENCE_FACTOR:g}": ~away.between(
            1 / SEQUENCE_FACTOR, SEQUENCE_FACTOR
        ),
        "with experts": rows["ep"] > 1,
        "that train adapters only": texts.str.contains(r"\blora\b", case=False),
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
    """Return 4, 8, 16 or 32 of the name of a precision; one that is not stated counts as 16."""
    text = str(precision).lower()
    return 32 if text in ("fp32", "tf32") else 8 if "8" in text else 4 if "fp4" in text else 16


def _known(row: Mapping[Any, Any], job: Measured) -> KnownRun:
    size = float(row["params_b"])
    setting, run = setting_of(row), None
    source = str(row["source"] if pd.notna(row["source"]) else "not stated")
    if setting is not None:
        network = job.network
        if row["seq_len"] >= 1:
            network = network.model_copy(update={"sequence": int(row["seq_len"])})
        count = job.parameters if row["otherwise"] else size * 1e9
        run = Measured(setting, network, count, row["flops"], source)
    model = str(row["model"] if pd.notna(row["model"]) else "")
    return KnownRun(
        source,
        model,
        str(row["hardware"]),
        int(row["gpus"]),
        size,
        setting,
        row["tokens"],
        row["flops"] / 1e12,
        bool(row["otherwise"]),
        run,
    )


def setting_of(row: Mapping[Any, Any]) -> Setting | None:
    """Return the setting of a row; None if it does not state one that can exist."""

    def count(name: str) -> int:
        return int(row[name]) if row[name] >= 1 else 1  # missing values are NaN

    gpus, micro, tp, pp = (row[name] for name in ("gpus", "micro_batch", "tp", "pp"))
    sizes = [count("tp"), count("pp"), count("cp")]
    copies = gpus / np.prod(sizes)
    parts = row["grad_acc"]
    parts = parts if parts >= 1 else row["global_batch"] / (copies * micro)
    if not (micro >= 1 and tp >= 1 and pp >= 1 and parts >= 1) or parts % 1:
        return None
    sharding = str(row["zero_or_fsdp"] or "none").lower().split()[0]
    sharding = SHARDING_ALIASES.get(sharding, sharding)
    again = str(row["act_ckpt"] or "none").lower().split()[0]
    try:
        return Setting.packed(
            int(gpus),
            count("gpus_per_node") if row["gpus_per_node"] >= 1 else int(gpus),
            local_batch=float(micro * parts * copies / gpus),
            gradient_accumulation=int(parts),
            precision="bf16",
            tp=sizes[0],
            pp=sizes[1],
            cp=sizes[2],
            virtual_stages=count("vp"),
            sharding=sharding if sharding in SHARDINGS else "none",
            checkpointing=again if again in ("full", "selective") else "none",
        )
    except BadInput:
        return None
