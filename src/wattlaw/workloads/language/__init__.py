"""``bert-base``: masked-language modelling with BERT-base on WikiText-103.

The setting of Frey et al. 2022 (IEEE HPEC): BERT-base, 110 M parameters, AdamW at 5e-5. They
name no schedule, so the rate is constant. What they leave open is as in Devlin et al. 2019 (arXiv
1810.04805): 15 % of the tokens are predicted, of which 80 % are masked, 10 % replaced and 10 %
kept. Nothing is ever fetched from a network: text, tokenizer and weights come from here.

A small model for a machine without GPU is reached by ``hidden_size``, ``layers``, ``heads``,
``intermediate_size``, ``vocab_size`` and ``sequence_length``.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from wattlaw.workloads.workload import Entry, WorkloadOptions, work_at_full_size

#: WikiText-103 has so many words (Merity et al. 2016, arXiv 1609.07843, table 1); a block of 128
#: tokens holds 126 of them between its two marks. An estimate from below, for words that are not
#: in the vocabulary are more than one token.
_WORDS_OF_A_BLOCK = 128 - 2
_TRAINING_WORDS, _VALIDATION_WORDS = 103_227_021, 217_646

#: Forward and backward, as ``training.flops`` counts them.
_FLOPS_PER_SAMPLE = 69_781_257_216

_OF_FILES = ("data", "tokenizer", "cache")
_OF_SYNTHETIC = ("train_samples", "evaluation_samples")


class Options(WorkloadOptions):
    """Options of the workload."""

    source: Literal["synthetic", "text", "parquet"] = Field(
        default="synthetic", description="synthetic, text or parquet"
    )
    data: str | None = Field(
        default=None,
        description="with source text a folder with wiki.train.tokens (or wiki.train.raw or "
        "train.txt) and wiki.valid.tokens (.raw, valid.txt or validation.txt); with source "
        "parquet one with train-*.parquet and validation-*.parquet; null with source synthetic",
    )
    tokenizer: str | None = Field(
        default=None,
        description="a folder with tokenizer.json or vocab.txt, or null to train WordPiece on the "
        "training text; null with source synthetic",
    )
    cache: str | None = Field(
        default=None,
        description="a folder that caches tokenised text and a trained tokenizer between runs, or "
        "null: every rank tokenises; null with source synthetic",
    )
    train_samples: int = Field(
        default=_TRAINING_WORDS // _WORDS_OF_A_BLOCK,
        ge=1,
        description="synthetic training sequences (a whole number >= 1; not for files)",
    )
    evaluation_samples: int = Field(
        default=_VALIDATION_WORDS // _WORDS_OF_A_BLOCK,
        ge=1,
        description="synthetic evaluation sequences (a whole number >= 1; not for files)",
    )
    sequence_length: int = Field(
        default=128, ge=8, le=512, description="tokens of a sequence (8 to 512)"
    )
    vocab_size: int = Field(
        default=30_522,
        ge=64,
        le=1_000_000,
        description="tokens of the model (64 to 1000000), at least those of the tokenizer",
    )
    hidden_size: int = Field(
        default=768, ge=2, le=8192, description="width (2 to 8192), a multiple of heads"
    )
    layers: int = Field(default=12, ge=1, le=96, description="layers (1 to 96)")
    heads: int = Field(
        default=12,
        ge=1,
        le=128,
        description="attention heads (1 to 128); must divide hidden_size",
    )
    intermediate_size: int = Field(
        default=3072, ge=1, le=32_768, description="width between the two dense layers (1 to 32768)"
    )
    dropout: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="dropout of layers and attention (a number >= 0 and < 1)",
    )
    lr: float = Field(default=5e-5, gt=0, description="learning rate of AdamW (a number > 0)")
    weight_decay: float = Field(
        default=0.0,
        ge=0,
        description="weight decay of matrices, not of biases and norms (a number >= 0)",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}"
            )
        synthetic = self.source == "synthetic"
        if not synthetic and self.data is None:
            raise ValueError(f"source {self.source} needs data: the folder with the files")
        useless = _OF_FILES if synthetic else _OF_SYNTHETIC
        fields = type(self).model_fields
        for name in useless:
            if getattr(self, name) != fields[name].default:
                others = "text or parquet" if synthetic else "synthetic"
                raise ValueError(
                    f"{name} is for source {others}, and the source is {self.source}: "
                    "leave it out or change the source"
                )
        return self


BERT_BASE = Entry(
    name="bert-base",
    summary="BERT-base masked-language modelling on WikiText-103 (text, Parquet or synthetic)",
    parameters=109_514_298,
    metric="perplexity",
    better="lower",
    options=Options,
    factory="wattlaw.workloads.language.bert:Bert",
    make_data="wattlaw.workloads.language.make_data:make_data",
    work=work_at_full_size(
        _FLOPS_PER_SAMPLE,
        "hidden_size",
        "layers",
        "heads",
        "intermediate_size",
        "vocab_size",
        "sequence_length",
    ),
    modules=("torch", "tokenizers", "transformers"),
    extra="language",
)
