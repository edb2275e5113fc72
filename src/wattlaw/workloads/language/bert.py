"""The model, its data and its training recipe."""

import contextlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from wattlaw.errors import NotAvailable
from wattlaw.workloads.language import Options
from wattlaw.workloads.language.synthetic import synthetic_blocks
from wattlaw.workloads.schedules import ConstantRate
from wattlaw.workloads.torchvision_import import import_torchvision
from wattlaw.workloads.workload import Dataset, means

_POSITIONS = 512  # BERT has so many, however many are used: the parameters stay the same


class MaskedBert(nn.Module):
    """transformers' BERT for masked language modelling, with its head at predicted tokens only.

    The head is the costliest matrix of the model (hidden_size x vocab_size). Loss and gradients
    do not depend on other scores, so these are not computed. All sequences are full: without an
    attention mask torch uses its fast attention kernels.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.net = _masked_lm(options)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return scores (n, k, vocab_size) of tokens (n, length) at positions (n, k)."""
        hidden = self.net.bert(input_ids).last_hidden_state
        where = positions.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
        scores: torch.Tensor = self.net.cls(hidden.gather(1, where))
        return scores


class Bert(ConstantRate):
    """BERT trained on masked tokens with AdamW at a constant rate; the metric is perplexity.

    Perplexity is that of the predicted tokens: e to the mean of their cross-entropies.
    One and several ranks compute the same steps where ``dropout`` is 0; dropout is drawn by
    each rank for itself.
    """

    def __init__(self, options: Options) -> None:
        self._options = options

    def model(self) -> nn.Module:
        """Return the net."""
        return MaskedBert(self._options)

    def optimizer(
        self,
        model: nn.Module,
        global_batch: int,  # noqa: ARG002
        *,
        fused: bool | None,
    ) -> torch.optim.Optimizer:
        """Return AdamW; as usual for BERT, biases and norms do not decay."""
        parameters = list(model.parameters())
        groups = [
            {
                "params": [p for p in parameters if p.dim() > 1],
                "weight_decay": self._options.weight_decay,
            },
            {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=self._options.lr, fused=fused)

    def training_data(self) -> Dataset:
        """Return the training blocks; reads and tokenises the text where there is one."""
        if self._corpus is None:
            return synthetic_blocks(self._options, training=True)
        blocks: Dataset = self._corpus.training()
        return blocks

    def evaluation_data(self) -> Dataset:
        """Return the validation blocks."""
        if self._corpus is None:
            return synthetic_blocks(self._options, training=False)
        blocks: Dataset = self._corpus.evaluation()
        return blocks

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        """Return the mean cross-entropy of predicted tokens; each sample has as many."""
        scores = model(data["input_ids"], data["positions"])
        return functional.cross_entropy(scores.flatten(0, 1), data["labels"].flatten())

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, torch.Tensor]:
        """Return, each summed over samples, mean cross-entropy and share of tokens guessed."""
        scores, labels = model(data["input_ids"], data["positions"]), data["labels"]
        losses = functional.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), reduction="none"
        ).view_as(labels)
        return {
            "loss": losses.mean(1).sum(),
            "accuracy": (scores.argmax(-1) == labels).double().mean(1).sum(),
        }

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return cross-entropy, perplexity and accuracy of predicted tokens."""
        mean = means(sums)
        with np.errstate(over="ignore"):
            perplexity = float(np.exp(mean["loss"]))
        return {"loss": mean["loss"], "perplexity": perplexity, "accuracy": mean["accuracy"]}

    @cached_property
    def _corpus(self) -> Any:
        options = self._options
        if options.source == "synthetic" or options.data is None:
            return None
        from wattlaw.workloads.language.corpus import Corpus

        return Corpus(options, options.source, Path(options.data))


def _masked_lm(options: Options) -> Any:
    """Return transformers' model with random weights."""
    with contextlib.suppress(NotAvailable):
        import_torchvision()  # transformers imports it if it is there, and stops if that fails
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
        max_position_embeddings=_POSITIONS,
        pad_token_id=None,  # nothing is padded, so every token's embedding is trained
        attn_implementation="sdpa",
    )
    return BertForMaskedLM(config)
