"""Parameters of networks against the counts that their publishers state."""

import json

import pytest

from wattlaw.common.errors import BadInput
from wattlaw.study.network import Network
from wattlaw.study.plan import read_study, standalone_text

_LLAMA = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
}  # fmt: skip
#: Configurations on Hugging Face, and the parameters of their weight files.
PUBLISHED = {
    "gpt2": ({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12,
              "vocab_size": 50257, "n_positions": 1024}, 124_439_808),
    "gpt2-xl": ({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25,
                 "vocab_size": 50257, "n_positions": 1024}, 1_557_611_200),
    "llama-2-7b": (_LLAMA | {"intermediate_size": 11008}, 6_738_415_616),
    "gemma-7b": (_LLAMA | {"model_type": "gemma", "num_hidden_layers": 28, "hidden_size": 3072,
                           "num_attention_heads": 16, "head_dim": 256,
                           "intermediate_size": 24576, "vocab_size": 256000}, 8_537_680_896),
    "phi-2": (_LLAMA | {"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240,
                        "vocab_size": 51200}, 2_779_683_840),
    "qwen1.5-moe": (_LLAMA | {"model_type": "qwen2_moe", "num_hidden_layers": 24,
                              "hidden_size": 2048, "num_attention_heads": 16,
                              "moe_intermediate_size": 1408, "num_experts": 60,
                              "num_experts_per_tok": 4, "vocab_size": 151936,
                              "shared_expert_intermediate_size": 5632}, 14_315_784_192),
    "llama-3-8b": (_LLAMA | {"num_key_value_heads": 8, "intermediate_size": 14336,
                             "vocab_size": 128256}, 8_030_261_248),
    "mistral-7b": (_LLAMA | {"num_key_value_heads": 8, "intermediate_size": 14336},
                   7_241_732_096),
    "mixtral-8x7b": (_LLAMA | {"num_key_value_heads": 8, "intermediate_size": 14336,
                               "num_local_experts": 8, "num_experts_per_tok": 2},
                     46_702_792_704),
    "gpt-neox-20b": (_LLAMA | {"model_type": "gpt_neox", "num_hidden_layers": 44,
                               "hidden_size": 6144, "num_attention_heads": 64,
                               "intermediate_size": 24576, "vocab_size": 50432},
                     20_554_567_680),
    "qwen2.5-7b": (_LLAMA | {"model_type": "qwen2", "num_hidden_layers": 28,
                             "hidden_size": 3584, "num_attention_heads": 28,
                             "num_key_value_heads": 4, "intermediate_size": 18944,
                             "vocab_size": 152064}, 7_615_616_512),
    "qwen3-30b-a3b": (_LLAMA | {"num_hidden_layers": 48, "hidden_size": 2048,
                                "num_key_value_heads": 4, "head_dim": 128,
                                "intermediate_size": 6144, "moe_intermediate_size": 768,
                                "num_experts": 128, "num_experts_per_tok": 8,
                                "vocab_size": 151936}, 30_532_122_624),
    "deepseek-v3": (_LLAMA | {"model_type": "deepseek_v3", "num_hidden_layers": 61,
                              "hidden_size": 7168, "num_attention_heads": 128,
                              "intermediate_size": 18432, "moe_intermediate_size": 2048,
                              "n_routed_experts": 256, "num_experts_per_tok": 8,
                              "n_shared_experts": 1, "first_k_dense_replace": 3,
                              "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
                              "qk_nope_head_dim": 128, "v_head_dim": 128, "vocab_size": 129280},
                    671_026_404_352),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_network_has_the_parameters_that_its_publisher_counts(name):
    config, parameters = PUBLISHED[name]
    assert Network.of_config(config).parameters == pytest.approx(parameters, rel=5e-5)


def test_the_work_of_a_token_is_that_of_narayanan_2021():
    """Equation 3 of doi 10.1145/3458817.3476209, with recomputation, for one token."""
    layers, hidden, sequence, vocabulary = 96, 12288, 2048, 51200
    network = Network(layers=layers, hidden=hidden, heads=96, vocabulary=vocabulary,
                      sequence=sequence, gated=False)  # fmt: skip
    table = 96 * layers * hidden**2
    table *= 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    recomputed = (network.flops_per_token - 6 * network.embedding) / 3
    assert network.flops_per_token + recomputed == pytest.approx(table, rel=1e-3)


def test_only_the_experts_of_a_token_work():
    config, _ = PUBLISHED["mixtral-8x7b"]
    network = Network.of_config(config, sequence=4096)
    used = network.layers * network.active_matrices + 2 * network.embedding
    assert used == pytest.approx(12.9e9, rel=0.01)  # "uses 13B active parameters", mistral.ai


@pytest.mark.parametrize("change", [{"hidden_size": None}, {"n_head": 7, "hidden_size": "x"},
                                    {"num_attention_heads": 3}, {"model_type": "t5"},
                                    {"decoder_sparse_step": 2}])  # fmt: skip
def test_a_config_that_is_no_transformer_is_refused(change):
    with pytest.raises(BadInput):
        Network.of_config(_LLAMA | change)


@pytest.mark.parametrize(
    ("content", "named", "message"),
    [
        (json.dumps(_LLAMA), "c.json", None),
        (json.dumps(_LLAMA), {"config": "c.json", "sequence": 512}, None),
        (json.dumps(_LLAMA | {"hidden_size": None}), "c.json", "c.json: hidden_size: missing"),
        ("{", "c.json", "c.json: not JSON"),
        (" " * 2**21, "c.json", "c.json: cannot be read"),
        ("{}", "d.json", "d.json: cannot be read"),
    ],
)
def test_a_study_names_a_config_beside_it(write_study, tmp_path, content, named, message):
    (tmp_path / "c.json").write_text(content)
    path = write_study(workloads=[{"name": "t", "command": ["true"], "model": named}])
    if message is not None:
        with pytest.raises(BadInput, match=f"workloads\\[0\\].model: .*{message}"):
            read_study(path)
        return
    study = read_study(path)
    copy = tmp_path / "elsewhere" / "study.yaml"
    copy.parent.mkdir()
    copy.write_text(standalone_text(path, study))
    assert read_study(copy) == study
    sequence = named["sequence"] if isinstance(named, dict) else 4096
    assert study.workloads[0].model == Network.of_config(_LLAMA, sequence)
