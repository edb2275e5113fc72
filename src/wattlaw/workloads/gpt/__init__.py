"""``gpt``: a decoder of language models, from 1 million to 8 billion parameters by its options.

Its tokens are synthetic, so that it needs no files: it measures layouts, not languages.
"""

import json
from typing import Self

from pydantic import Field, model_validator

from wattlaw.workloads.workload import Entry, Work, WorkloadOptions, whole_number


class Options(WorkloadOptions):
    """Options of the workload. The defaults are a model of 1 million parameters.

    Llama 3 8B is layers 32, hidden 4096, heads 32, kv_heads 8, ffn 14336, vocabulary 128256.
    """

    layers: int = whole_number(4, "layers", high=1000)
    hidden: int = whole_number(128, "width of the layers, a multiple of 2 x heads", high=10**6)
    heads: int = whole_number(4, "heads of the attention", high=10_000)
    kv_heads: int = whole_number(2, "heads of keys and values, a divisor of heads", high=10_000)
    ffn: int = whole_number(384, "width of the gated feed-forward net", high=10**7)
    vocabulary: int = whole_number(1024, "different tokens", low=2, high=10**7)
    sequence: int = whole_number(128, "tokens of a sample", low=2, high=10**7)
    lr: float = Field(default=1e-3, gt=0, description="learning rate (a number > 0)")
    train_samples: int = whole_number(4096, "samples of an epoch", high=10**9)
    evaluation_samples: int = whole_number(128, "samples of an evaluation", high=10**9)

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden % (2 * self.heads):
            raise ValueError(
                f"hidden {self.hidden} with {self.heads} heads; "
                "allowed: a multiple of 2 x heads, since positions rotate pairs"
            )
        if self.heads % self.kv_heads:
            raise ValueError(
                f"kv_heads {self.kv_heads} with {self.heads} heads; allowed: a divisor of heads"
            )
        return self

    @property
    def network(self) -> str:
        """Return the sizes as JSON of ``study.network.Network``."""
        names = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocabulary", "sequence")
        return json.dumps({name: getattr(self, name) for name in names})

    @property
    def key_width(self) -> int:
        return self.hidden // self.heads * self.kv_heads

    @property
    def layer_weights(self) -> int:
        """Return the weights of a layer's matrices."""
        return self.hidden * (2 * self.hidden + 2 * self.key_width + 3 * self.ffn)

    @property
    def parameters(self) -> int:
        of_layers = self.layers * (self.layer_weights + 2 * self.hidden)
        return of_layers + self.hidden * (2 * self.vocabulary + 1)

    @property
    def flops_per_sample(self) -> float:
        """As torch's counter counts: it leaves out that the attention is causal.

        A multiplication and an addition are two, and the backward pass is twice the forward one.
        """
        weights = self.layers * self.layer_weights + self.hidden * self.vocabulary
        attention = 2 * self.layers * self.hidden * self.sequence
        return 6.0 * self.sequence * (weights + attention)


ENTRY = Entry(
    name="gpt",
    summary="decoder of language models, 1 million to 8 billion parameters (synthetic tokens)",
    parameters=Options().parameters,
    metric="accuracy",
    options=Options,
    factory="wattlaw.workloads.gpt.decoder:Gpt",
    work=lambda options: Work(
        options.train_samples,
        options.flops_per_sample,
        options.evaluation_samples,
        tokens_per_sample=options.sequence,
    ),
    shares_layers=True,
)
