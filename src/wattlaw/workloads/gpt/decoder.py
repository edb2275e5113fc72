"""The decoder, its tokens and its training recipe."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from wattlaw.workloads.data_loading import splitmix64
from wattlaw.workloads.gpt import Options
from wattlaw.workloads.workload import BaseWorkload, Dataset, Indices, Seeds

#: Of Llama 3 (arXiv 2407.21783, table 3): the base of the rotations; AdamW as of GPT-3
#: (arXiv 2005.14165, appendix B).
_ROTARY_BASE = 500_000.0
_BETAS, _DECAY = (0.9, 0.95), 0.1
#: Positions of a sample's numbers in the generator; those of evaluation samples come later.
_EVALUATION_FROM = 2**40

Plan = dict[str, ParallelStyle]


class Attention(nn.Module):
    """Causal, with rotated positions (arXiv 2104.09864) and grouped heads (arXiv 2305.13245).

    The numbers of heads follow from the tensors: with tensor parallelism they are those of a rank.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._width = options.hidden // options.heads
        self.query = nn.Linear(options.hidden, options.hidden, bias=False)
        self.key = nn.Linear(options.hidden, options.key_width, bias=False)
        self.value = nn.Linear(options.hidden, options.key_width, bias=False)
        self.out = nn.Linear(options.hidden, options.hidden, bias=False)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part(x).unflatten(-1, (-1, self._width)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        found = functional.scaled_dot_product_attention(
            rotated(query, rotation), rotated(key, rotation), value, is_causal=True, enable_gqa=True
        )
        result: torch.Tensor = self.out(found.transpose(1, 2).flatten(2))
        return result


def rotations(positions: int, width: int, device: torch.device) -> torch.Tensor:
    """Return cosines and sines, shape (2, positions, width / 2)."""
    rates = _ROTARY_BASE ** (-torch.arange(0, width, 2, device=device) / width)
    angles = torch.outer(torch.arange(positions, device=device), rates)
    return torch.stack((angles.cos(), angles.sin()))


def rotated(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    (first, second), (cosine, sine) = x.chunk(2, -1), rotation.to(x.dtype)
    return torch.cat((first * cosine - second * sine, first * sine + second * cosine), -1)


class FeedForward(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.gate = nn.Linear(options.hidden, options.ffn, bias=False)
        self.up = nn.Linear(options.hidden, options.ffn, bias=False)
        self.down = nn.Linear(options.ffn, options.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class Layer(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.recomputes = False  # its activations in the backward pass
        self.attention_norm = nn.RMSNorm(options.hidden)
        self.attention = Attention(options)
        self.ffn_norm = nn.RMSNorm(options.hidden)
        self.ffn = FeedForward(options)

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        if self.recomputes and torch.is_grad_enabled():
            result: torch.Tensor = checkpoint(self._layer, x, rotation, use_reentrant=False)
            return result
        return self._layer(x, rotation)

    def _layer(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), rotation)
        result: torch.Tensor = x + self.ffn(self.ffn_norm(x))
        return result


class Decoder(nn.Module):
    """Of the kind of Llama: norms before each part, no biases, a head of its own."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._width = options.hidden // options.heads
        self.embedding = nn.Embedding(options.vocabulary, options.hidden)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.layers))
        self.norm = nn.RMSNorm(options.hidden)
        self.head = nn.Linear(options.hidden, options.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of the next token, shape (samples, positions, vocabulary)."""
        rotation = rotations(tokens.shape[1], self._width, tokens.device)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, rotation)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores

    def tensor_plans(self, *, sequence_parallel: bool) -> tuple[Plan, Plan]:
        """Return how ranks share the model (arXiv 1909.08053), and how they share a layer.

        With ``sequence_parallel`` they also share the positions between the matrices (arXiv
        2205.05198).
        """
        between = Shard(1) if sequence_parallel else Replicate()
        model: Plan = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
        }
        layer: Plan = {
            **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            **{f"ffn.{name}": ColwiseParallel() for name in ("gate", "up")},
            "attention.out": RowwiseParallel(output_layouts=between),
            "ffn.down": RowwiseParallel(output_layouts=between),
        }
        if sequence_parallel:
            model["norm"] = layer["attention_norm"] = layer["ffn_norm"] = SequenceParallel()
            whole = Replicate()
            layer["attention"] = PrepareModuleInput(
                input_layouts=(between, None), desired_input_layouts=(whole, None)
            )
            layer["ffn"] = PrepareModuleInput(
                input_layouts=(between,), desired_input_layouts=(whole,)
            )
        return model, layer


@dataclass(frozen=True)
class Tokens:
    """Samples that count upwards from a number, in steps of 1 to 8: two tokens tell the next one.

    One more token than a sample has: each is the target of the one before.
    """

    samples: int
    length: int
    vocabulary: int
    first: int = 0
    reads_files: bool = False

    def __len__(self) -> int:
        return self.samples

    def batch(self, indices: Indices, seeds: Seeds) -> torch.Tensor:  # noqa: ARG002
        numbers = splitmix64(np.uint64(0), indices[:, None] + self.first)  # type: ignore[arg-type]
        start, stride = numbers % np.uint64(self.vocabulary), numbers >> np.uint64(61)
        counts = np.arange(self.length + 1, dtype=np.uint64)
        tokens = (start + (stride + np.uint64(1)) * counts) % np.uint64(self.vocabulary)
        return torch.from_numpy(tokens.astype(np.int64))


class Gpt(BaseWorkload):
    """AdamW, without decay of the norms; the metric is the share of next tokens that are right."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def model(self) -> Decoder:
        return Decoder(self._options)

    def optimizer(
        self,
        model: nn.Module,
        global_batch: int,  # noqa: ARG002
        *,
        fused: bool | None,
    ) -> torch.optim.Optimizer:
        # Shared matrices are other tensors than norms: a group has tensors of one kind.
        matrices = [p for p in model.parameters() if p.dim() > 1]
        norms = [p for p in model.parameters() if p.dim() == 1]
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": _DECAY},
            {"params": norms, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self._options.lr, betas=_BETAS, fused=fused)

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        scores = model(data[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1), data[:, 1:].flatten())

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, torch.Tensor]:
        scores, following = model(data[:, :-1]), data[:, 1:]
        loss = functional.cross_entropy(scores.transpose(1, 2), following, reduction="none")
        is_right = (scores.argmax(-1) == following).float()
        return {"loss": loss.mean(1).sum(), "accuracy": is_right.mean(1).sum()}

    def _data(self, *, training: bool) -> Dataset:
        options = self._options
        samples = options.train_samples if training else options.evaluation_samples
        first = 0 if training else _EVALUATION_FROM
        return Tokens(samples, options.sequence, options.vocabulary, first)
