"""Time of an optimizer step of a transformer by its parallel layout.

    step = (k + bubble) (stage + sends) + exposed reduction of gradients + update + overhead

- A stage computes its layers forward and backward: three times the forward work, and once more the
  part that is computed again. The time of a layer is the smooth maximum of a floor (launch of
  kernels) and work: matrices, pairs of tokens, and data that is only read and written, of which a
  part is the same on all GPUs of a tensor-parallel group unless sequences are shared.
- Tensor parallel: two all-reduces forward and two backward in each layer (Shoeybi et al. 2019,
  arXiv:1909.08053), and two more with full recomputation; in a node or between nodes.
- Context parallel: keys and values of the other parts of a sequence. Experts: an exchange of
  tokens.
- Pipeline: k micro-batches and (pp - 1) / virtual stages of bubble (Narayanan et al. 2021, doi
  10.1145/3458817.3476209); the largest stage decides. The last one has the output matrix, and in
  some programs fewer layers for it.
- Limits: a lower clock slows the kernels of a layer, as in ``step_model``, and a share of exchange.
- Power: static + dynamic while kernels run; in gaps between them, while waiting in the bubble and
  while communicating, a share of it.
- Copies: reduction of the gradients of a GPU's part in each step, partly hidden behind the backward
  pass of the last micro-batch; with ZeRO-1 and 2, its second half gathers updated parameters, which
  nothing hides (Rajbhandari et al. 2020, doi 10.1109/SC41405.2020.00024). With ZeRO-3 or FSDP,
  parameters are gathered twice and gradients reduced in each micro-batch behind its
  computing.

Rates are relative to the fastest measured run, so that no board's figures are needed: a byte takes
as long as so many operations.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.predict import parameters
from wattlaw.analysis.predict.observation import Floats
from wattlaw.analysis.predict.parameters import LN, Prior
from wattlaw.analysis.predict.step_model import Step, at_limits
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting


@dataclass(frozen=True)
class Parallel:
    """What each GPU holds, does and sends: arrays with one value for each setting.

    GPUs are numbered as Megatron-LM does: those that share layers (tensor parallel) are neighbours,
    then those that share sequences, then the copies of the model, then the stages of the pipeline.
    Work is in floating-point operations of the forward pass, and data in bytes.
    """

    gpus: Floats
    nodes: Floats
    node_gpus: Floats  # of the fullest node
    tp: Floats
    pp: Floats
    cp: Floats
    ep: Floats
    dp: Floats
    virtual_stages: Floats
    micro_batches: Floats
    layers: Floats
    hidden: Floats
    tokens: Floats  # of a micro-batch that a GPU computes
    value_bytes: Floats  # of a value that is computed with or sent
    layer_flops: Floats  # of a micro-batch, in the matrices of a layer, of one GPU
    attention_flops: Floats  # of pairs of tokens
    head_flops: Floats  # of the output matrix
    inner: Floats  # size of the feed-forward part of a layer that a token uses
    kv_width: Floats
    vocabulary: Floats
    #: Parameters that a GPU holds, of a layer with and without its experts, and of the embedding.
    dense_parameters: Floats
    expert_parameters: Floats
    embedding: Floats
    tied: npt.NDArray[np.bool_]
    experts_per_token: Floats  # 0 without experts
    zero: Floats  # 0 to 3: which states the copies share
    within_node: npt.NDArray[np.bool_]  # they are shared in a node only (hsdp)
    checkpointing: Floats  # 0 none, 1 selective, 2 full
    sequence_parallel: npt.NDArray[np.bool_]
    power_limit_w: Floats  # inf without
    clock_limit_mhz: Floats  # inf without

    @classmethod
    def of(cls, settings: Sequence[Setting], networks: Sequence[Network]) -> "Parallel":
        """Return arrays; ``networks`` are those of the settings, in their order."""
        rows = [_row(*pair) for pair in zip(settings, networks, strict=True)]
        columns = {item.name: np.array([row[item.name] for row in rows]) for item in fields(cls)}
        return cls(**columns)

    @property
    def has_limits(self) -> bool:
        return bool(np.isfinite([self.power_limit_w, self.clock_limit_mhz]).any())

    @property
    def stage_layers(self) -> Floats:
        """Return the layers of the largest stage."""
        return np.ceil(self.layers / self.pp)

    @property
    def copies_on_node(self) -> Floats:
        """Return the copies of a part of the model that share a node."""
        return np.clip(np.floor(self.node_gpus / (self.tp * self.cp)), 1.0, self.dp)

    @property
    def stage_parameters(self) -> Floats:
        return self.stage_layers * (self.dense_parameters + self.expert_parameters) + self.embedding


def _row(setting: Setting, network: Network) -> dict[str, Any]:
    tp, cp, ep = setting.tp, setting.cp, setting.ep
    micro = setting.micro_batch or 1.0
    tokens = micro * network.sequence / cp
    share = network.expert_layers / network.layers
    dense = network.attention_matrices + (1 - share) * network.dense_matrices + network.vectors
    dense += share * network.shared_experts * network.expert_matrices
    experts = share * (network.experts or 0) * network.expert_matrices
    used = network.experts_per_token + network.shared_experts
    inner = (1 - share) * network.inner + share * used * (network.expert_ffn or network.inner)
    placement = setting.gpus_per_node or (setting.gpus,)
    zero = {"none": 0, "zero1": 1, "zero2": 2}.get(setting.sharding, 3)
    pairs = 2 * network.heads * network.head_width * network.sequence  # the causal half of them
    return {
        "gpus": float(setting.gpus), "nodes": float(len(placement)),
        "node_gpus": float(max(placement)), "tp": float(tp), "pp": float(setting.pp),
        "cp": float(cp), "ep": float(ep), "dp": float(setting.dp),
        "virtual_stages": float(setting.virtual_stages),
        "micro_batches": float(setting.gradient_accumulation),
        "layers": float(network.layers), "hidden": float(network.hidden), "tokens": tokens,
        "value_bytes": 4.0 if setting.precision in ("fp32", "tf32") else 2.0,
        "layer_flops": 2 * tokens * network.active_matrices / tp,
        "attention_flops": tokens * pairs / tp,
        "head_flops": 2 * tokens * network.embedding / tp,
        "inner": inner * (1.5 if network.gated else 1.0), "kv_width": float(network.kv_width),
        "vocabulary": float(network.vocabulary),
        "dense_parameters": dense / tp, "expert_parameters": experts / tp / ep,
        "embedding": network.embedding / tp, "tied": network.tied,
        "experts_per_token": share * network.experts_per_token, "zero": float(zero),
        "within_node": setting.sharding == "hsdp",
        "checkpointing": float(("none", "selective", "full").index(setting.checkpointing)),
        "sequence_parallel": setting.sequence_parallel,
        "power_limit_w": setting.power_limit_w or inf,
        "clock_limit_mhz": setting.clock_limit_mhz or inf,
    }  # fmt: skip


Values = dict[str, Floats]
Bools = npt.NDArray[np.bool_]
_NONE = np.zeros((1, 1))

PRIORS = {
    # Rate of matrices, relative to that of the fastest run (which has everything else, too).
    "rate": Prior(0.25, 0.25),
    # Operations in the time of a byte: of memory, of a link in a node, of one between nodes.
    "memory": Prior(LN(150.0), 0.7),
    "inside": Prior(LN(1000.0), 0.8),
    "between": Prior(LN(15000.0), 0.8),
    # Passes over the activations of a layer that all GPUs of a group make, and that they share.
    "unshared_passes": Prior(LN(6.0), 0.8),
    "shared_passes": Prior(LN(6.0), 0.8),
    "pairs": Prior(LN(1.5), 0.6),  # time of an operation of attention over one of a matrix
    "floor": Prior(LN(1.5e-3), 0.8),  # seconds of a layer, forward and backward
    "sharpness": Prior(LN(1.5), 0.6, "above_1"),
    "hop": Prior(LN(1.5e-5), 1.0),  # seconds of a hop of a collective in a node
    "far_hop": Prior(LN(1.5e-4), 1.0),  # between nodes
    "send": Prior(LN(3e-4), 1.0),  # seconds of a micro-batch between stages
    "balance": Prior(0.0, 1.0, "logit"),  # of the output matrix over the stages
    "gradient": Prior(LN(2.0), 0.7),  # time to reduce a byte of gradients over that of a link
    "hidden": Prior(1.5, 1.0, "logit"),  # share of the reduction of gradients behind computing
    "gathered": Prior(LN(2.0), 0.7, "above_1"),  # norm of overlap of gathered parameters
    # Seconds of a layer and hop of the ring of copies in which gradients are reduced.
    "copy_hop": Prior(LN(2e-5), 1.0),
    # Seconds by which reductions hold up a micro-batch of a pipeline over several nodes for each
    # neighbour of a stage, where the copies do not share the optimizer.
    "early": Prior(LN(1e-3), 3.0),
    # Seconds of a GPU's launch of a collective beside the sends of a pipeline between nodes.
    "disturbed": Prior(LN(2e-5), 2.0),
    "update": Prior(LN(20.0), 0.6),  # bytes of an update of a parameter
    "overhead": Prior(LN(0.01), 1.2),  # seconds of a step
    "noise": Prior(LN(0.05), 0.7),
    "session": Prior(LN(0.01), 0.5),  # of a run of the same layout
    "odd": Prior(-3.5, 0.8, "logit"),  # share of runs that something else makes slow
}


#: With power: that of computing relative to the highest observed, and its share while a GPU waits
#: or communicates.
POWER = {"power": Prior(0.02, 0.2), "waiting": Prior(-0.4, 0.7, "logit")}
#: With limits: the clock's effect on time and power.
LIMITS = {
    **parameters.CLOCK,
    **{n: parameters.POWER[n] for n in ("static", "clock_exponent", "knee", "phase_spread")},
    **parameters.COMMUNICATION_POWER,
}


@dataclass(frozen=True)
class Scale:
    """What parameters relate to."""

    rate: float  # operations per second of a GPU in the fastest run
    power_w: float | None = None
    clock_mhz: float = 1.0


def reference_rate(times_s: Floats, parallel: Parallel) -> float:
    """Return the operations per second of a GPU in the fastest run."""
    layer = parallel.layer_flops + parallel.attention_flops
    flops = (
        3
        * parallel.micro_batches
        * (layer * parallel.layers / parallel.pp + parallel.head_flops / parallel.pp)
    )
    return float((flops / times_s).max())


def step(values: Values, parallel: Parallel, scale: Scale) -> Step:
    """Return the parts of a step; the bubble of a pipeline is waiting."""
    p, flop_s = parallel, 1 / (scale.rate * values["rate"])
    passes = np.where(p.checkpointing == 2, 4.0, 3.0)
    memory_s = flop_s * values["memory"]
    kernels_s, floor_s = _kernels(values, p, passes, flop_s, memory_s), values["floor"] * passes / 3
    crosses = (p.nodes > 1) & (p.pp > 1)
    floor_s = floor_s + np.where(crosses & (p.tp > 1), 4 * values["disturbed"] * p.tp, 0.0)
    free_s = layer_s = _norm(kernels_s, floor_s, values["sharpness"])
    exchange_s, head_s = _exchange(values, p, flop_s), 3 * p.head_flops * flop_s
    slowed_s, waiting_w, active_w = kernels_s, values.get("waiting", _NONE), np.ones((1, 1))
    if p.has_limits and scale.power_w is not None:
        static, limit = values["static"], p.power_limit_w / scale.power_w
        gaps = {"floor": floor_s, "wait_power": (waiting_w - static) / (1 - static)}
        slowed_s, dynamic = at_limits(
            values | gaps, limit, p.clock_limit_mhz / scale.clock_mhz, kernels_s
        )
        layer_s = _norm(slowed_s, floor_s, values["sharpness"])
        exchange_s = exchange_s * (1 + values["clocked_communication"] * (layer_s / free_s - 1))
        head_s, active_w = head_s * slowed_s / kernels_s, static + dynamic
        falls = values["clocked_communication_power"] * (1 - dynamic / (1 - static))
        waiting_w = np.minimum(waiting_w - falls * np.maximum(waiting_w - static, 0.0),
                               np.minimum(limit / values["power"], 1.0))  # fmt: skip
    own_s = layer_s + exchange_s
    stage_s = _stage(values["balance"], p, own_s, head_s)
    per_byte = flop_s * np.where(crosses, values["between"], values["inside"])
    sent = 2 * p.tokens * p.hidden * p.value_bytes / np.where(p.sequence_parallel, p.tp, 1.0)
    send_s = np.where(p.pp > 1, values["send"] + sent * per_byte, 0.0) * p.virtual_stages
    both_s = stage_s
    if (p.zero >= 3).any():
        both_s = _norm(stage_s, _gathered(values, p, flop_s), values["gathered"])
    early_s = np.where(
        (p.zero == 0) & (p.dp > 1) & crosses, values["early"] * np.minimum(p.pp - 1, 2.0), 0.0
    )
    each_s = both_s + send_s + early_s
    bubble_s = (p.pp - 1) / p.virtual_stages * each_s
    computing = (p.layers * layer_s + head_s) / (p.layers * own_s + head_s)
    compute_s = p.micro_batches * stage_s * computing
    reduced_s = _reduction(values, p, flop_s, p.dp > p.copies_on_node)
    before_update_s = np.where(p.zero >= 1, reduced_s / 2, reduced_s)
    hidden_s = np.minimum(values["hidden"] * before_update_s, (1 - 1 / passes) * stage_s)
    reduced_s = np.where(p.zero >= 3, 0.0, reduced_s - hidden_s)
    shared_by = np.where(p.zero >= 1, p.dp, 1.0)
    update_s = p.stage_parameters / shared_by * values["update"] * memory_s
    compute_s = compute_s + update_s + values["overhead"]
    total_s = p.micro_batches * each_s + bubble_s + reduced_s + update_s + values["overhead"]
    communication_s = np.maximum(total_s - compute_s - bubble_s, 0.0)
    compute_s = total_s - bubble_s - communication_s
    watts = waiting = idle = None
    if scale.power_w is not None and "waiting" in values:
        busy = compute_s / total_s * slowed_s / layer_s  # kernels run
        top_w = scale.power_w * values["power"]
        watts = top_w * (active_w * busy + waiting_w * (1 - busy))
        waiting, idle = top_w * waiting_w / watts, top_w * waiting_w
    return Step(compute_s, bubble_s, communication_s, _NONE, communication_s / total_s, watts,
                waiting, idle, total_s)  # fmt: skip


def _kernels(
    values: Values, p: Parallel, passes: Floats, flop_s: Floats, memory_s: Floats
) -> Floats:
    """Return the time of a layer's kernels for a micro-batch, forward and backward."""
    again = passes + np.where(p.checkpointing == 1, 1.0, 0.0)
    work_s = passes * p.layer_flops * flop_s
    work_s = work_s + again * p.attention_flops * values["pairs"] * flop_s
    unshared = values["unshared_passes"] / np.where(p.sequence_parallel, p.tp, 1.0)
    size = p.tokens * p.value_bytes
    moved = p.hidden * unshared + (p.hidden + p.inner) * values["shared_passes"] / p.tp
    weights = p.value_bytes * (p.dense_parameters + p.expert_parameters)
    result: Floats = work_s + passes * (size * moved + weights) * memory_s
    return result


def _stage(balance: Floats, p: Parallel, own_s: Floats, head_s: Floats) -> Floats:
    """Return the time of a micro-batch in the slowest stage.

    Layers are split evenly, or so that the last stage has fewer for its output matrix.
    """
    even = np.floor((p.layers + head_s / own_s) / p.pp)
    balanced_s: list[Floats] = []
    for layers in (even, even + 1):
        last = np.maximum(p.layers - (p.pp - 1) * layers, 0.0)
        balanced_s.append(np.maximum(layers * own_s, last * own_s + head_s))
    unbalanced_s = p.stage_layers * own_s + head_s
    result: Floats = np.minimum(*balanced_s) * balance + unbalanced_s * (1 - balance)
    return np.where(p.pp > 1, result, p.layers * own_s + head_s)


def _exchange(values: Values, p: Parallel, flop_s: Floats) -> Floats:
    """Return the time of a layer's collectives: of tensor, context and expert parallel groups."""
    size = p.tokens * p.hidden * p.value_bytes
    count = np.where(p.checkpointing == 2, 6.0, 4.0)
    inner = np.minimum(p.tp, p.node_gpus)
    outer = p.tp / inner
    inside, between = values["inside"] * flop_s, values["between"] * flop_s
    # The GPUs of a group that share a node share its adapters.
    ring_s = 2 * (inner - 1) / inner * size * inside
    ring_s = ring_s + 2 * (outer - 1) / outer * size / inner * between
    hop_s = (inner - 1) * values["hop"] + 2 * (outer - 1) * values["far_hop"]
    total_s = count * (ring_s + hop_s)
    far = np.where(p.cp * p.tp > p.node_gpus, between, inside)
    keys = 3 * 2 * p.tokens * (p.cp - 1) * p.kv_width / p.tp * p.value_bytes
    total_s = total_s + keys * far
    far = np.where(p.ep * p.tp > p.node_gpus, between, inside)
    tokens = 6 * size * p.experts_per_token * (p.ep - 1) / p.ep
    result: Floats = total_s + tokens * far
    return result


def _reduction(values: Values, p: Parallel, flop_s: Floats, spans: Bools) -> Floats:
    """Return the time to reduce the gradients of a GPU's part of the model."""
    # Gathered parameters are half of what ZeRO-3 sends, and are not summed.
    size = p.stage_parameters * p.value_bytes * np.where(p.zero >= 3, 1.0, values["gradient"])
    near, copies = p.copies_on_node, p.dp
    nodes = np.maximum(copies / near, 1.0)
    inside_s = 2 * (near - 1) / near * size * values["inside"] * flop_s
    # The GPUs of a node that hold different parts share its adapters.
    between_s = 2 * (nodes - 1) / nodes * size / near * values["between"] * flop_s
    far_s = 2 * size * values["between"] * flop_s
    between_s = np.where(spans, np.where(nodes > 1, between_s, far_s), 0.0)
    hops_s = 2 * (copies - 1) * p.stage_layers * values["copy_hop"]
    result: Floats = inside_s + between_s + np.where(spans, hops_s, 0.0)
    return result


def _gathered(values: Values, p: Parallel, flop_s: Floats) -> Floats:
    """Return the time to gather parameters twice, and to reduce gradients, of a micro-batch."""
    spans = (p.dp > p.copies_on_node) & ~p.within_node
    whole_s = _reduction(values, p, flop_s, spans)
    return np.where((p.zero >= 3) & (p.dp > 1), 1.5 * whole_s, 0.0)


def _norm(one: Floats, other: Floats, sharpness: Floats) -> Floats:
    high, low = np.maximum(one, other), np.minimum(one, other)
    ratio = np.log(np.maximum(low, 1e-300) / np.maximum(high, 1e-300))
    result: Floats = high * np.exp(np.log1p(np.exp(sharpness * ratio)) / sharpness)
    return result
