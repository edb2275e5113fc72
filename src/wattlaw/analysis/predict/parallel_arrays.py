"""Settings of transformers with a parallel layout as arrays: what each GPU holds, does and sends.

GPUs are numbered as Megatron-LM does: those that share layers (tensor parallel) are neighbours,
then those that share sequences, then the copies of the model, then the stages of the pipeline. Work
is in floating-point operations of the forward pass, and data in bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt

from wattlaw.analysis.predict.observation import Floats
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

#: Bytes of a value that is computed with or sent.
BYTES = {"fp32": 4.0, "tf32": 4.0}
_HALF = 2.0


@dataclass(frozen=True)
class Parallel:
    """Arrays with one value for each setting."""

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
    sequence: Floats
    value_bytes: Floats
    layer_flops: Floats  # of a micro-batch, in the matrices of a layer, of one GPU
    attention_flops: Floats  # of pairs of tokens
    head_flops: Floats  # of the output matrix
    inner: Floats  # size of the feed-forward part of a layer that a token uses
    heads: Floats
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

    def only(self, chosen: npt.NDArray[np.bool_ | np.int64]) -> "Parallel":
        return replace(self, **{f.name: getattr(self, f.name)[chosen] for f in fields(self)})

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
        "sequence": float(network.sequence),
        "value_bytes": BYTES.get(str(setting.precision), _HALF),
        "layer_flops": 2 * tokens * network.active_matrices / tp,
        "attention_flops": tokens * pairs / tp,
        "head_flops": 2 * tokens * network.embedding / tp,
        "inner": inner * (1.5 if network.gated else 1.0), "heads": float(network.heads),
        "kv_width": float(network.kv_width), "vocabulary": float(network.vocabulary),
        "dense_parameters": dense / tp, "expert_parameters": experts / tp / ep,
        "embedding": network.embedding / tp, "tied": network.tied,
        "experts_per_token": share * network.experts_per_token, "zero": float(zero),
        "within_node": setting.sharding == "hsdp",
        "checkpointing": float(("none", "selective", "full").index(setting.checkpointing)),
        "sequence_parallel": setting.sequence_parallel,
        "power_limit_w": setting.power_limit_w or inf,
        "clock_limit_mhz": setting.clock_limit_mhz or inf,
    }  # fmt: skip
