"""The peak memory of a GPU that trains a part of a transformer, and whether it fits.

    peak = states * (weights + gradients + optimizer) + activations * (layers in flight + one layer)
           + logits + gathered layers + rest

- States: for mixed precision 2 bytes of a weight, 4 of its gradient and 12 of the optimizer (a copy
  and two moments in fp32), shared by the copies of the model as ZeRO does (Rajbhandari et al. 2020,
  doi 10.1109/SC41405.2020.00024).
- Activations of a layer: tokens x hidden x 34 bytes, of which 10 are not shared by the GPUs of a
  tensor-parallel group unless sequences are (Korthikanti et al. 2023, arXiv:2205.05198, with the
  sizes of the feed-forward part and of keys and values as they are). Recomputation keeps the 2
  bytes of a layer's input, and needs one layer at a time. The first stage of a pipeline holds as
  many micro-batches as there are stages.
- Logits of the last stage: in the precision of the network and twice in fp32.

The factors differ between programs (fused kernels, gradients in which precision): they are learned
from measured peaks. A run that was out of memory shows that its peak was above the memory.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import numpy.typing as npt
import pandas as pd

from wattlaw.analysis.predict.observation import Floats
from wattlaw.analysis.predict.parallel_step import Parallel
from wattlaw.analysis.predict.parameters import LN, Prior, Transformation
from wattlaw.analysis.predict.run_settings import setting_of_row
from wattlaw.analysis.predict.smc import CHAINS, LENGTH, sample
from wattlaw.common.machine import cores_of
from wattlaw.hardware.library import find_gpu
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

GIB = 2.0**30
PRIORS = {
    "states": Prior(0.1, 0.12),
    "gradients": Prior(LN(4.0), 0.3),  # bytes of a gradient
    "activations": Prior(0.1, 0.35),
    "unshared": Prior(LN(8.0), 0.5),  # bytes of a token and channel that tp does not divide
    "logits": Prior(LN(7.0), 0.35),  # bytes of each
    "in_flight": Prior(0.0, 0.25),
    "balance": Prior(0.0, 1.0, "logit"),  # of the output matrix over the stages
    "rest": Prior(LN(2.5), 0.6),  # GiB: context, communication, workspaces
    "error": Prior(LN(0.08), 0.5),
}
#: The share of a layer's activations that selective recomputation keeps.
_SELECTIVE = 0.5
#: Degrees of freedom of the error of a peak.
_FREEDOM = 4.0
#: The device of runs without GPUs.
_HOST = ["host"]
#: With more runs, every so manieth counts: inference takes time.
_MOST = 200
#: GiB that a program can use of a board that its vendor names by so many GB: torch reports 31.7 of
#: a V100 of 32 GB, 39.4 of an A100 of 40 GB, 79.1 of an H100 of 80 GB and 139.8 of an H200 of
#: 141 GB (``total_memory`` in public logs).
_USABLE = 0.988


@dataclass(frozen=True)
class Peak:
    """A run of a setting: its peak, or that it was out of memory, or only that it fitted."""

    setting: Setting
    network: Network
    memory_gib: float  # of the GPU
    peak_gib: float | None = None
    fitted: bool = True


def peak_gib(values: dict[str, Floats], parallel: Parallel) -> Floats:
    """Return the peak of the fullest GPU in GiB, a row for each draw."""
    first_layers, last_layers = _ends(values["balance"], parallel)
    first = np.maximum(parallel.micro_batches, 1)
    shared_by = np.where(parallel.within_node, parallel.copies_on_node, parallel.dp)

    def states(parameters: Floats) -> Floats:
        half = parallel.value_bytes < 4
        weights = np.where(half, 2.0, 4.0) / np.where(parallel.zero >= 3, shared_by, 1.0)
        gradients = np.where(half, values["gradients"], 4.0)
        gradients = gradients / np.where(parallel.zero >= 2, shared_by, 1.0)
        optimizer = np.where(half, 12.0, 8.0) / np.where(parallel.zero >= 1, shared_by, 1.0)
        result: Floats = values["states"] * parameters * (weights + gradients + optimizer)
        return result

    hidden, tp = parallel.hidden, parallel.tp
    scale = parallel.value_bytes / 2
    unshared = values["unshared"] / np.where(parallel.sequence_parallel, tp, 1.0)
    shared = 4 * hidden + 4 * parallel.kv_width + 4 * parallel.inner
    layer = values["activations"] * scale * parallel.tokens * (hidden * unshared + shared / tp)
    kept = np.where(parallel.checkpointing == 1, _SELECTIVE * layer, layer)
    kept = np.where(parallel.checkpointing == 2, 2 * scale * parallel.tokens * hidden, kept)
    stages = np.minimum(first, parallel.pp) - 1
    flying = 1 + values["in_flight"] * stages
    working = np.where(parallel.checkpointing == 2, layer, 0.0)
    activations = kept * first_layers * flying + working
    parameters = parallel.dense_parameters + parallel.expert_parameters
    gathered = np.where(parallel.zero >= 3, 2 * parallel.value_bytes * parameters, 0.0)
    logits = values["logits"] * parallel.tokens * parallel.vocabulary / tp
    ends = parallel.embedding * np.where((parallel.pp == 1) & ~parallel.tied, 2.0, 1.0)
    begin = states(first_layers * parameters + ends) + activations
    end = states(last_layers * parameters + ends) + kept * last_layers + working + logits
    result: Floats = (np.maximum(begin, end) + gathered) / GIB + values["rest"]
    return result


def _ends(balance: Floats, parallel: Parallel) -> tuple[Floats, Floats]:
    """Return the layers of the first and of the last stage, which may have fewer."""
    head = parallel.head_flops / (parallel.layer_flops + parallel.attention_flops)
    share = np.ceil((parallel.layers + head) / parallel.pp)
    most = np.where(parallel.pp > 1, np.minimum(share, parallel.layers), parallel.layers)
    least = np.maximum(parallel.layers - (parallel.pp - 1) * most, 0.0)
    even = parallel.stage_layers * (1 - balance)
    return even + most * balance, even + least * balance


@dataclass(frozen=True)
class MemoryModel:
    """Draws of the factors, given the peaks of runs."""

    values: dict[str, Floats]

    def peaks_gib(self, settings: Sequence[Setting], networks: Sequence[Network]) -> Floats:
        """Return draws of the peak of each setting, shape (draws, settings), in GiB."""
        peaks = peak_gib(self.values, Parallel.of(settings, networks))
        dice = np.random.default_rng(0)
        errors = self.values["error"] * dice.standard_t(_FREEDOM, peaks.shape)
        return np.asarray(peaks * np.exp(errors))


def learn(peaks: Sequence[Peak], seed: int = 0) -> MemoryModel:
    """Return the memory model after the peaks of runs; without any, that of the priors."""
    transformation, priors = Transformation(list(PRIORS.values())), len(PRIORS)
    if not peaks:
        normals = np.random.default_rng(seed).standard_normal((CHAINS * LENGTH, priors))
        return _model(transformation.values(normals))
    parallel = Parallel.of([p.setting for p in peaks], [p.network for p in peaks])
    measured = np.array([np.nan if p.peak_gib is None else p.peak_gib for p in peaks])
    memory = np.array([p.memory_gib for p in peaks])
    fitted = np.array([p.fitted for p in peaks])
    target = partial(_log_likelihood, parallel, transformation, np.log(measured), memory, fitted)
    return _model(transformation.values(sample(target, priors, seed)))


def _model(columns: Floats) -> MemoryModel:
    return MemoryModel({name: columns[:, i : i + 1] for i, name in enumerate(PRIORS)})


def _log_likelihood(
    parallel: Parallel, transformation: Transformation, log_peak: Floats, memory: Floats,
    fitted: np.ndarray, normals: Floats,
) -> Floats:  # fmt: skip
    columns = transformation.values(normals)
    values = {name: columns[:, i : i + 1] for i, name in enumerate(PRIORS)}
    log_model = np.log(peak_gib(values, parallel))
    known = ~np.isnan(log_peak)
    scaled = (log_peak - log_model)[:, known] / values["error"]
    total = -(_FREEDOM + 1) / 2 * np.log1p(scaled**2 / _FREEDOM).sum(1)
    total = total - known.sum() * np.log(values["error"][:, 0])
    room = (np.log(memory) - log_model)[:, ~known] / values["error"]
    chance = 1 / (1 + np.exp(-1.7 * np.clip(room, -200, 200)))
    side = np.where(fitted[~known], chance, 1 - chance)
    return np.asarray(total + np.log(np.maximum(side, 0.02)).sum(1))


#: A setting that fits with a lower probability is not proposed to run; one below the second may
#: well be out of memory.
LEAST_FIT, SURE_FIT = 0.05, 0.9


def usable_gib(hardware: str) -> float | None:
    """Return the memory of a board by its name: as in ``80GB``, or of the library."""
    named, gpu = re.search(r"\b(\d{1,3}) ?GB\b", hardware), find_gpu(hardware)
    size = float(named[1]) if named else None if gpu is None else gpu.memory_gb
    return None if size is None else size * _USABLE


@dataclass(frozen=True)
class Memory:
    """What is known of the memory that settings of a job need on a GPU.

    A peak is what torch has allocated on the fullest GPU. Runs on CPUs have none: the resident
    memory of their processes is mostly that of libraries.
    """

    network: Network
    memory_gib: float | None  # that a program can use; None if the board is not known
    peaks: tuple[Peak, ...] = ()  # of runs: measured, out of memory, or known to have fitted

    @cached_property
    def ran(self) -> dict[Setting, bool]:
        """Return whether each setting that ran fitted."""
        return {item.setting: item.fitted for item in self.peaks}

    def peaks_bytes(self, settings: Sequence[Setting], seed: int = 0) -> Floats:
        """Return draws of the peak of each setting, shape (draws, settings)."""
        model = _learned(self.peaks, seed)
        return model.peaks_gib(settings, [self.network] * len(settings)) * GIB

    def fits(self, settings: Sequence[Setting], seed: int = 0) -> npt.NDArray[np.bool_] | None:
        """Return whether each setting fits, in draws: shape (draws, settings); None if the board is
        not known. What ran is known."""
        if self.memory_gib is None:
            return None
        fits = self.peaks_bytes(settings, seed) < self.memory_gib * GIB
        for index, setting in enumerate(settings):
            if setting in self.ran:
                fits[:, index] = self.ran[setting]
        return np.asarray(fits)


def memory_of(runs: pd.DataFrame) -> Memory | None:
    """Return the memory of a job; None without the sizes of its network, or on CPUs.

    ``runs`` are those of one job on one kind of hardware in a store, whatever their status. Done
    runs fitted, and those out of memory did not; simulated ones show neither.
    """
    networks, labels = runs["network"].dropna().unique(), runs["hardware"].dropna().unique()
    on_host = any(ids is not None and list(ids) == _HOST for ids in runs["device_ids"])
    on_host |= any(cores_of(str(label)) is not None for label in labels)
    sizes = runs["gpu_memory_bytes"].dropna()
    if len(networks) != 1 or (on_host and sizes.empty):
        return None
    network = Network.model_validate_json(str(networks[0]))
    rooms = [size for label in labels if (size := usable_gib(str(label))) is not None]
    memory_gib = min(rooms, default=None) if sizes.empty else float(sizes.min()) / GIB
    is_full = runs["out_of_memory"] == "device"
    shown = runs[is_full | (runs["status"] == "done")].assign(is_full=is_full)
    shown = shown[shown["global_batch"].notna() & (shown["launcher"] != "simulated")]
    peaks = []
    for row in shown.to_dict("records"):
        size = None if row["is_full"] else row["peak_memory_bytes"]
        peak_gib = None if pd.isna(size) else float(size) / GIB
        if peak_gib is not None or memory_gib is not None:
            room_gib = memory_gib or np.nan  # of no use beside a peak
            setting = setting_of_row(row, "sample")
            peaks.append(Peak(setting, network, room_gib, peak_gib, not row["is_full"]))
    return Memory(network, memory_gib, tuple(peaks))


@lru_cache(maxsize=16)
def _learned(peaks: tuple[Peak, ...], seed: int) -> MemoryModel:
    return learn(peaks[:: max(1, -(-len(peaks) // _MOST))], seed)
