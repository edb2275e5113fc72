"""Is a throughput normal? A job among measurements of the same board and model size.

Rates are compared as operations per second of a GPU: tokens per second times the operations of a
token (``Network.flops_per_token``), for a model of other size in proportion to its parameters.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from wattlaw.analysis.advise.layout_effects import (
    CAUSES,
    LEAST,
    LEAST_GAIN,
    MOST,
    Cause,
    LayoutEffects,
    Measured,
    features,
)
from wattlaw.analysis.metrics.comparable_runs import NOT_DATA_PARALLEL
from wattlaw.analysis.metrics.estimates import Interval
from wattlaw.analysis.metrics.groups import groups
from wattlaw.analysis.metrics.metrics import SETTINGS
from wattlaw.analysis.metrics.result import Result, Rows
from wattlaw.analysis.predict.run_settings import setting_of_row
from wattlaw.common.errors import Refused
from wattlaw.hardware.library import find_gpu, gpu_names
from wattlaw.study.network import Network
from wattlaw.study.setting import LAYOUT, Setting
from wattlaw.study.sources import source_of

#: Measurements at the nearest GPU counts, up to the second factor away, until there are so many.
ENOUGH, GPUS_FACTOR = 8, 4.0
SETTING, BEYOND, NORMAL, UNKNOWN = "setting", "beyond the layout", "normal", "cannot tell"
_NEAREST = 5
#: Models of up to so many times the parameters, and samples of so many times the tokens, compare.
SIZE_FACTOR, SEQUENCE_FACTOR = 2.0, 4.0
#: Counts of parameters of the same network agree to so much: names and papers round them.
_SAME_COUNT = 0.01
_BOARD = re.compile(r"[a-z]{1,3}\d{1,4}[a-z]{0,2}")
_VENDORS = ("nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "intel")
#: What the runs saw of a layout that the study did not ask for.
OBSERVED = ("run_id", *LAYOUT[:-1], "gradient_accumulation", "tokens_per_sample")


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


@dataclass(frozen=True)
class Placement(Result):
    """A job among ``comparable`` measurements of its board and model size.

    ``tied_otherwise`` of them have its parameters with ``tied`` the other way round: the same
    network. ``mfu`` is the share of ``peak_tflops``, that of the board at its highest clock.
    ``below_best`` is the share by which its operations per second are below those of ``best``,
    among ``at_gpus`` measurements at ``gpus_compared``; ``percentile`` is the share of these that
    are slower, with the 95 % interval. ``expected_tflops`` is estimated for its layout, with the
    90 % interval. ``explanation`` is ``setting`` (the first of ``causes``), ``beyond the layout``,
    ``normal`` or ``cannot tell``.
    """

    workload: str
    hardware: str
    board: str
    data_source: str
    setting: Setting
    parameters_b: float
    tokens_per_s_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None
    peak_tflops: float | None
    comparable: int
    tied_otherwise: int
    parameters_range_b: Interval | None
    sources: Mapping[str, int]
    left_out: Mapping[str, int]
    gpus_compared: tuple[int, ...]
    at_gpus: int
    best: KnownRun | None
    below_best: float | None
    percentile: float | None
    percentile_ci: Interval | None
    nearest: tuple[KnownRun, ...]
    with_layout: int
    expected_tflops: float | None
    expected_tflops_ci: Interval | None
    explanation: str
    causes: tuple[Cause, ...]


@dataclass(frozen=True)
class Placements(Rows[Placement]):
    """The fastest setting of each workload and hardware of a store among known measurements."""

    rows: tuple[Placement, ...]


def place(metrics: pd.DataFrame, observed: pd.DataFrame, table: pd.DataFrame) -> Placements:
    """Place the fastest setting of each workload and hardware among the rows of a table.

    ``metrics`` are of ``run_metrics``, ``observed`` has the columns ``OBSERVED`` of the runs, and
    ``table`` is of ``api.known_measurements.read_known``. ``Refused`` if no run names its network
    and the number of its tokens.
    """
    rows = metrics[metrics["emulated_gpus"].isna()].merge(observed, on="run_id")
    if rows.empty:
        raise Refused("compare --reference: no run is done")
    usable = rows[rows["network"].notna() & rows["time_per_sample_s"].notna()]
    if usable.empty:
        named = rows["network"].notna().any()
        missing = "global_batch" if named else "the sizes of the network as model"
        raise Refused(
            f"compare --reference: the runs do not say how many {'samples' if named else 'tokens'} "
            f"they train; state {missing} of the workload in the study"
        )
    fastest: dict[tuple[str, str], tuple[float, Measured, str]] = {}
    names = [name for name in SETTINGS if name not in ("train", "unit", "run_length")]
    for _, repeats in groups(usable, [*names, "network"]):
        row = repeats.iloc[0].to_dict()
        job = _job(row, float(np.exp(np.log(repeats["time_per_sample_s"]).mean())))
        key = str(row["workload"]), str(row["hardware"])
        speed = job.flops_per_s * job.setting.gpus
        if key not in fastest or speed > fastest[key][0]:
            fastest[key] = speed, job, source_of(row["launcher"])
    return Placements(
        tuple(_placement(*key, job, source, table) for key, (_, job, source) in fastest.items())
    )


def _job(row: Mapping[Any, Any], sample_s: float) -> Measured:
    network = Network.model_validate_json(str(row["network"]))
    if network.experts:
        raise Refused("compare --reference: a table does not state active parameters of experts")
    if pd.notna(row["tokens_per_sample"]):
        network = network.model_copy(update={"sequence": round(row["tokens_per_sample"])})
    setting = setting_of_row(row, "sample")
    if pd.isna(row["layout"]):
        seen = {name: row[name] for name in OBSERVED[1:-1] if pd.notna(row[name])}
        if row["parallelism"] in NOT_DATA_PARALLEL and "tp" not in seen:
            kind = row["parallelism"]
            raise Refused(f"compare --reference: {kind} parallelism of unknown sizes; state tp, pp")
        whole: dict[str, Any] = {
            name: value if isinstance(value, str) else int(value) for name, value in seen.items()
        }
        setting = replace(setting, **whole)
    rate = network.sequence / (sample_s * setting.gpus) * network.flops_per_token
    return Measured(setting, network, network.parameters, rate, "")


def _placement(
    workload: str, hardware: str, job: Measured, source: str, table: pd.DataFrame
) -> Placement:
    known, left_out = comparable_rows(job, hardware, table)
    near: list[KnownRun] = []  # at the job's number of GPUs, or at the nearest ones
    away = {item.gpus: abs(np.log(item.gpus / job.setting.gpus)) for item in known}
    for distance in sorted(set(away.values())):
        if len(near) >= ENOUGH or distance > np.log(GPUS_FACTOR):
            break
        near += [item for item in known if away[item.gpus] == distance]
    best = max(near, key=lambda item: item.tflops_per_gpu, default=None)
    tflops = job.flops_per_s / 1e12
    slower = sum(item.tflops_per_gpu < tflops for item in near)
    ends = special.betaincinv(slower + 0.5, len(near) - slower + 0.5, [0.025, 0.975]).tolist()
    peak = peak_of(hardware, job.setting.precision)
    learned = nearest_runs(known, job.setting.gpus)
    effects = LayoutEffects(learned)
    expected, causes = None, tuple[Cause, ...]()
    if len(learned) >= LEAST:
        expected = effects.expected(job)
        causes = effects.causes(job, values_of(known))
    sizes = [item.parameters_b for item in known]
    return Placement(
        workload,
        hardware,
        board_of(hardware),
        source,
        job.setting,
        job.parameters / 1e9,
        job.flops_per_s / job.network.flops_per_token,
        tflops,
        None if peak is None else tflops / peak,
        peak,
        len(known),
        sum(item.counts_tied_otherwise for item in known),
        (min(sizes), max(sizes)) if sizes else None,
        dict(Counter(item.source for item in known).most_common()),
        left_out,
        tuple(sorted({item.gpus for item in near})),
        len(near),
        best,
        None if best is None else 1 - tflops / best.tflops_per_gpu,
        slower / len(near) if len(near) >= ENOUGH else None,
        (ends[0], ends[1]) if len(near) >= ENOUGH else None,
        _nearest_layouts(job, near, best),
        len(learned),
        None if expected is None else expected[0] / 1e12,
        None if expected is None else (expected[1][0] / 1e12, expected[1][1] / 1e12),
        _explanation(tflops, best, expected, causes),
        causes,
    )


def _explanation(
    tflops: float,
    best: KnownRun | None,
    expected: tuple[float, Interval] | None,
    causes: tuple[Cause, ...],
) -> str:
    """Return what explains the distance to the best: the larger of a setting's gain and of what is
    missing to the layout's own throughput."""
    if best is None or expected is None:
        return UNKNOWN
    if tflops > best.tflops_per_gpu * (1 - LEAST_GAIN):
        return NORMAL
    missing = expected[0] / 1e12 / tflops - 1 if tflops < expected[1][0] / 1e12 else 0.0
    if missing and (not causes or missing > causes[0].gain):
        return BEYOND
    return SETTING if causes and causes[0].is_clear else UNKNOWN


def nearest_runs(known: list[KnownRun], gpus: int) -> tuple[Measured, ...]:
    """Return the measurements with a layout, of most GPUs counts near the job's."""
    runs = [item.run for item in known if item.run is not None]
    return tuple(sorted(runs, key=lambda item: abs(np.log(item.setting.gpus / gpus)))[:MOST])


def values_of(known: list[KnownRun]) -> dict[str, set[Any]]:
    settings = [item.setting for item in known if item.setting is not None]
    return {name: {getattr(setting, name) for setting in settings} for name in CAUSES}


def _nearest_layouts(
    job: Measured, near: list[KnownRun], best: KnownRun | None
) -> tuple[KnownRun, ...]:
    """Return the best measurement, and those whose layouts are nearest to the job's."""
    if best is None:
        return ()
    others = [item for item in near if item is not best and item.run is not None]
    places = features([job, *(item.run for item in others if item.run)])[2]
    order = np.argsort(((places[1:] - places[0]) ** 2).sum(axis=1), kind="stable")
    return (best, *(others[index] for index in order[: _NEAREST - 1]))


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
