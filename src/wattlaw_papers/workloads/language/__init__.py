"""``bert-base``: masked-language modelling with BERT-base on WikiText-103.

The setting of Frey et al. 2022 (IEEE HPEC): BERT-base, 110 M parameters, AdamW at 5e-5. They
state no schedule, so the rate is constant. They cite transformers' example ``run_mlm.py``, whose
sequences have the maximum of BERT's tokenizer, 512 tokens. Their other choices are assumed to be
those of Devlin et al. 2019 (arXiv 1810.04805): 15 % of the tokens are predicted, of which 80 % are
masked, 10 % replaced and 10 % unchanged. Nothing is downloaded; weights are random.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from wattlaw.workloads.workload import Entry, whole_number
from wattlaw_papers.workloads.data_sets import DataOptions, work_at_full_size

MAX_TOKENS = 512  # of BERT's tokenizer, and its positions
#: The words of WikiText-103 (Merity et al. 2016, arXiv 1609.07843, table 1), of which a block of
#: 512 tokens has 510. The number of samples is a lower estimate, because words that are not in the
#: vocabulary are several tokens.
WORDS_OF_A_BLOCK = MAX_TOKENS - 2
_TRAINING_WORDS, _VALIDATION_WORDS = 103_227_021, 217_646

#: Forward and backward, as ``training.flops`` counts them.
_FLOPS_PER_SAMPLE = 300_868_300_800

#: Options that change the size of the model.
_SIZES = ("hidden_size", "layers", "heads", "intermediate_size", "vocab_size", "sequence_length")
_OF_FILES = ("tokenizer",)
_OF_SYNTHETIC = ("train_samples", "evaluation_samples")


class Options(DataOptions):
    source: Literal["synthetic", "text"] = Field(
        default="synthetic", description="synthetic or text"
    )
    data: str | None = Field(
        default=None,
        description="with source text a folder with wiki.train.tokens (or wiki.train.raw or "
        "train.txt) and wiki.valid.tokens (.raw, valid.txt or validation.txt); null with source "
        "synthetic",
    )
    tokenizer: str | None = Field(
        default=None,
        description="a folder with tokenizer.json, or null to train WordPiece on the "
        "training text; null with source synthetic",
    )
    train_samples: int = whole_number(
        _TRAINING_WORDS // WORDS_OF_A_BLOCK, "synthetic training sequences; not for files"
    )
    evaluation_samples: int = whole_number(
        _VALIDATION_WORDS // WORDS_OF_A_BLOCK, "synthetic evaluation sequences; not for files"
    )
    sequence_length: int = whole_number(MAX_TOKENS, "tokens of a sequence", 8, MAX_TOKENS)
    vocab_size: int = whole_number(
        30_522, "tokens of the model, at least those of the tokenizer", 64, 1_000_000
    )
    hidden_size: int = whole_number(768, "width, a multiple of heads", 2, 8192)
    layers: int = whole_number(12, "layers", high=96)
    heads: int = whole_number(12, "attention heads; must divide hidden_size", high=128)
    intermediate_size: int = whole_number(3072, "width between two dense layers", high=32_768)
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
    def _options_fit(self) -> Self:
        if self.hidden_size % self.heads:
            raise ValueError(f"heads {self.heads} do not divide hidden_size {self.hidden_size}")
        synthetic = self.source == "synthetic"
        for name in _OF_FILES if synthetic else _OF_SYNTHETIC:
            if getattr(self, name) != type(self).model_fields[name].default:
                other = "text" if synthetic else "synthetic"
                raise ValueError(f"{name} is for source {other}, and the source is {self.source}")
        return self


BERT_BASE = Entry(
    name="bert-base",
    summary="BERT-base masked-language modelling on WikiText-103 (text or synthetic)",
    parameters=109_514_298,
    metric="perplexity",
    better="lower",
    options=Options,
    factory="wattlaw_papers.workloads.language.bert:Bert",
    make_data="wattlaw_papers.workloads.language.synthetic_text:make_data",
    real_input="wattlaw_papers.workloads.real_input:text",
    work=work_at_full_size(_FLOPS_PER_SAMPLE, *_SIZES),
    modules=("torch", "tokenizers", "transformers"),
    extra="language",
)
