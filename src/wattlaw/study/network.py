"""The transformer that a job trains: its sizes, its parameters and its work."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from wattlaw.common.errors import BadInput
from wattlaw.common.text import quote
from wattlaw.study.base_model import Count, Model, field

#: Names of sizes in the ``config.json`` of Hugging Face's models, the usual one first.
_CONFIG = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads",),
    "head_size": ("head_dim",),
    "ffn": ("intermediate_size", "n_inner", "ffn_dim"),
    "vocabulary": ("vocab_size",),
    "sequence": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok",),
    "expert_ffn": ("moe_intermediate_size",),
    "shared_experts": ("n_shared_experts",),
    "dense_layers": ("first_k_dense_replace",),
    "query_rank": ("q_lora_rank",),
    "kv_rank": ("kv_lora_rank",),
    "rope_size": ("qk_rope_head_dim",),
    "value_size": ("v_head_dim",),
}
#: Families (``model_type``) of which the parameters agree with those that transformers 5.23 creates
#: to 2e-4. A feed-forward part has three matrices without biases, or two with them.
_THREE_MATRICES = (
    "cohere", "deepseek_v2", "deepseek_v3", "ernie4_5", "exaone4", "gemma", "gemma2",
    "gemma3_text", "granite", "llama", "mistral", "mixtral", "olmo", "olmo2", "olmoe", "phi3",
    "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3", "stablelm",
)  # fmt: skip
_TWO_MATRICES = ("bloom", "gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "starcoder2")
_FAMILIES = sorted(_THREE_MATRICES + _TWO_MATRICES)
#: Families that learn positions, one vector for each.
_LEARNED_POSITIONS = ("gpt2", "gpt_neo", "opt")
#: Families whose output shares the matrix of the embedding unless their config says otherwise.
_TIED = (
    "bloom", "cohere", "ernie4_5", "gemma", "gemma2", "gemma3_text", "gpt2", "gpt_neo", "opt",
    "smollm3", "starcoder2",
)  # fmt: skip
#: Keys of layers with and without experts in turn, and the values of a network without them.
_IN_TURN: dict[str, tuple[Any, ...]] = {
    "decoder_sparse_step": (1,),
    "moe_layer_freq": (1,),
    "mlp_only_layers": ([], ()),
}


class Network(Model):
    """Sizes of a decoder-only transformer.

    What is left out has the usual value: as many key and value heads as heads, heads that share the
    hidden size, and a feed-forward part of 4 times the hidden size, or 8/3 times if it is gated.

    Examples
    --------
    >>> llama = Network(layers=32, hidden=4096, heads=32, ffn=11008, vocabulary=32000,
    ...                 sequence=4096)
    >>> round(llama.parameters / 1e9, 3)
    6.738
    """

    layers: Count = Field(description="the number of layers, >= 1")
    hidden: Count = Field(description="the size of the hidden state, >= 1")
    heads: Count = Field(description="the number of attention heads, >= 1")
    vocabulary: Count = Field(description="the number of tokens of the vocabulary, >= 1")
    sequence: Count = Field(description="the tokens of a training sample, >= 1")
    kv_heads: Count | None = field(None, "the number of key and value heads, or null for heads")
    head_size: Count | None = field(None, "the size of a head, or null for hidden / heads")
    ffn: Count | None = field(None, "the inner size of the feed-forward part, or null")
    gated: bool = field(True, "true (three matrices, as in Llama) or false (two, as in GPT-2)")
    biases: bool = field(False, "true if linear layers and norms have biases")
    tied: bool = field(False, "true if the output shares the matrix of the embedding")
    learned_positions: bool = field(False, "true if each position has a vector of its own")
    experts: Count | None = field(None, "the experts of a layer, or null without experts")
    experts_per_token: int = field(1, "the experts that each token uses, >= 1", ge=1)
    expert_ffn: Count | None = field(None, "the inner size of an expert, or null for ffn")
    shared_experts: int = field(0, "the experts that every token uses, >= 0", ge=0)
    dense_layers: int = field(0, "the first layers, which have no experts, >= 0", ge=0)
    query_rank: Count | None = field(None, "the rank of compressed queries (MLA), or null")
    kv_rank: Count | None = field(None, "the rank of compressed keys and values (MLA), or null")
    rope_size: int = field(0, "the size of a head's part with positions (MLA), >= 0", ge=0)
    value_size: Count | None = field(None, "the size of a head's values (MLA), or null")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(f"heads: given {self.heads}; allowed: a divisor of {self.hidden}")
        if self.heads % (self.kv_heads or self.heads):
            raise ValueError(f"kv_heads: given {self.kv_heads}; allowed: a divisor of {self.heads}")
        if self.experts is not None and self.experts_per_token > self.experts:
            given = self.experts_per_token
            raise ValueError(f"experts_per_token: given {given}; allowed: 1 to {self.experts}")
        if self.dense_layers > self.layers:
            raise ValueError(
                f"dense_layers: given {self.dense_layers}; allowed: 0 to {self.layers}"
            )
        return self

    @classmethod
    def of_config(cls, config: Mapping[str, Any], sequence: int | None = None) -> Self:
        """Return the network of a Hugging Face ``config.json``.

        ``sequence`` is the length of training samples, by default the longest that the model
        accepts. ``BadInput`` for a family or a structure that cannot be described, and for a size
        that is missing or not a number.
        """
        text = config.get("text_config")
        given: Mapping[str, Any] = text if isinstance(text, Mapping) else config
        family = given.get("model_type")
        if family not in _FAMILIES:
            raise BadInput(f"model_type: given {quote(family)}; allowed: {', '.join(_FAMILIES)}")
        for key, usual in _IN_TURN.items():
            if given.get(key, usual[0]) not in usual:
                raise BadInput(f"{key}: given {quote(given[key])}; allowed: {usual[0]}")
        values: dict[str, Any] = {}
        for name, keys in _CONFIG.items():
            known = [given[key] for key in keys if given.get(key) is not None]
            if known and (type(known[0]) is not int or known[0] < 0):
                raise BadInput(f"{keys[0]}: given {quote(known[0])}; allowed: a whole number")
            if known:
                values[name] = known[0]
        shared, expert = given.get("shared_expert_intermediate_size"), values.get("expert_ffn")
        if isinstance(shared, int) and expert:  # one that is as wide as several
            values["shared_experts"] = shared // expert
        if family.startswith("deepseek") and values.get("kv_rank"):
            values["head_size"] = given.get("qk_nope_head_dim")
        values["gated"] = family not in _TWO_MATRICES
        values["biases"] = family in _TWO_MATRICES
        values["learned_positions"] = family in _LEARNED_POSITIONS
        values["tied"] = bool(given.get("tie_word_embeddings", family in _TIED))
        if sequence is not None:
            values["sequence"] = sequence
        for name in ("layers", "hidden", "heads", "vocabulary", "sequence"):
            if name not in values:
                raise BadInput(f"{_CONFIG[name][0]}: missing; allowed: the config of a transformer")
        try:
            return cls(**values)
        except ValueError as error:
            raise BadInput(f"config: {str(error).splitlines()[0]}") from None

    @property
    def head_width(self) -> int:
        return self.head_size or self.hidden // self.heads

    @property
    def kv_width(self) -> int:
        return (self.kv_heads or self.heads) * self.head_width

    @property
    def inner(self) -> int:
        if self.ffn is not None:
            return self.ffn
        return round(8 * self.hidden / 3) if self.gated else 4 * self.hidden

    @property
    def attention_matrices(self) -> int:
        """Return the weights of the matrices of a layer's attention."""
        hidden, heads = self.hidden, self.heads
        if self.kv_rank is None:
            return hidden * (2 * heads * self.head_width + 2 * self.kv_width)
        value = self.value_size or self.head_width
        keys = self.head_width + self.rope_size
        rank = self.query_rank
        queries = heads * keys * hidden if rank is None else rank * (hidden + heads * keys)
        compressed = hidden * (self.kv_rank + self.rope_size)
        return (
            queries
            + compressed
            + self.kv_rank * heads * (self.head_width + value)
            + (heads * value * hidden)
        )

    @property
    def expert_matrices(self) -> int:
        """Return the weights of the matrices of one expert."""
        return (2 + self.gated) * self.hidden * (self.expert_ffn or self.inner)

    @property
    def dense_matrices(self) -> int:
        """Return the weights of the matrices of a feed-forward part without experts."""
        return (2 + self.gated) * self.hidden * self.inner

    @property
    def expert_layers(self) -> int:
        return 0 if self.experts is None else self.layers - self.dense_layers

    @property
    def vectors(self) -> int:
        """Return the weights of a layer's norms and biases."""
        hidden = self.hidden
        if not self.biases:
            norms = 2 * hidden
            return norms + ((self.kv_rank or 0) + (self.query_rank or 0))
        attention = self.heads * self.head_width + 2 * self.kv_width + hidden
        return 4 * hidden + attention + (1 + self.gated) * self.inner + hidden

    @property
    def embedding(self) -> int:
        """Return the weights of the embedding of tokens."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Return all parameters, of all experts."""
        per_expert_layer = (
            (self.experts or 0) + self.shared_experts
        ) * self.expert_matrices + self.hidden * (self.experts or 0)
        layers = self.layers * (self.attention_matrices + self.vectors)
        layers += (self.layers - self.expert_layers) * self.dense_matrices
        layers += self.expert_layers * per_expert_layer
        ends = (2 - self.tied) * self.embedding + self.hidden * (1 + self.biases)
        return layers + ends + self.learned_positions * self.sequence * self.hidden

    @property
    def active_matrices(self) -> float:
        """Return the weights that a token is multiplied with in an average layer."""
        shared = self.experts_per_token + self.shared_experts
        share = self.expert_layers / self.layers
        expert = shared * self.expert_matrices + self.hidden * (self.experts or 0)
        return self.attention_matrices + share * expert + (1 - share) * self.dense_matrices

    @property
    def flops_per_token(self) -> float:
        """Return floating-point operations of the forward and backward pass of a token.

        Six for each weight of a matrix, and twelve for each pair of a token and another of its
        sequence and channel, of which the causal half counts too (Narayanan et al. 2021, doi
        10.1145/3458817.3476209, appendix; recomputation is not counted).
        """
        pairs = 12 * self.layers * self.heads * self.head_width * self.sequence
        return 6 * (self.layers * self.active_matrices + self.embedding) + pairs
