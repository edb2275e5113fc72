"""The model, its data and its training recipe."""
# ruff: noqa: ARG002 - the arguments of the protocol

import importlib.util
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from wattlaw.workloads.workload import BaseWorkload, Dataset
from wattlaw_papers.workloads.language import MAX_TOKENS, Options
from wattlaw_papers.workloads.language.synthetic_text import synthetic_blocks
from wattlaw_papers.workloads.torchvision_import import import_torchvision


class MaskedBert(nn.Module):
    """transformers' BERT for masked language modelling, with scores of predicted tokens only: the
    head is the largest matrix (hidden_size x vocab_size). All sequences have full length, and
    without an attention mask torch uses its fast attention kernels."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        if importlib.util.find_spec("torchvision") is not None:
            import_torchvision()  # transformers imports it, and must not fail
        from transformers.models.bert.configuration_bert import BertConfig
        from transformers.models.bert.modeling_bert import BertForMaskedLM

        config = BertConfig(
            vocab_size=options.vocab_size,
            hidden_size=options.hidden_size,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            intermediate_size=options.intermediate_size,
            hidden_dropout_prob=options.dropout,
            attention_probs_dropout_prob=options.dropout,
            max_position_embeddings=MAX_TOKENS,  # also for shorter sequences
            pad_token_id=None,  # nothing is padded, so every token's embedding is trained
            attn_implementation="sdpa",
        )
        self.net: Any = BertForMaskedLM(config)

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        hidden = self.net.bert(input_ids).last_hidden_state
        indices = positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        scores: Tensor = self.net.cls(hidden.gather(1, indices))
        return scores


class Bert(BaseWorkload):
    """BERT trained on masked tokens with AdamW at a constant rate; the metric is perplexity, e to
    the mean cross-entropy of the predicted tokens. One and several ranks compute the same steps if
    ``dropout`` is 0."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def model(self) -> nn.Module:
        return MaskedBert(self._options)

    def optimizer(
        self, model: nn.Module, global_batch: int, *, fused: bool | None
    ) -> torch.optim.Optimizer:
        """Return AdamW; as usual for BERT, biases and norms do not decay."""
        parameters, decay = list(model.parameters()), self._options.weight_decay
        groups = [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": decay},
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self._options.lr, fused=fused)

    def loss(self, model: nn.Module, data: Any) -> Tensor:
        scores = model(data["input_ids"], data["positions"])
        return functional.cross_entropy(scores.flatten(0, 1), data["labels"].flatten())

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, Tensor]:
        scores, labels = model(data["input_ids"], data["positions"]), data["labels"]
        losses = functional.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), reduction="none"
        ).view_as(labels)
        return {
            "loss": losses.mean(1).sum(),
            "accuracy": (scores.argmax(-1) == labels).double().mean(1).sum(),
        }

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        mean = super().metrics(sums)
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(mean["loss"]))
        return {"loss": mean["loss"], "perplexity": perplexity, "accuracy": mean["accuracy"]}

    def _data(self, *, training: bool) -> Dataset:
        if self._options.data is None:
            return synthetic_blocks(self._options, training=training)
        blocks: Dataset = self._corpus.blocks(training=training)
        return blocks

    @cached_property
    def _corpus(self) -> Any:
        from wattlaw_papers.workloads.language.corpus import Corpus

        return Corpus(self._options)
