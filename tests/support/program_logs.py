"""Short logs of programs that train large language models.

Those in tests/addons/formats/training_logs were written by the programs; its README says how.
``megatron`` makes logs of Megatron-LM with numbers of our own.
"""

from pathlib import Path


def megatron(
    *, lines: int = 4, begin: int = 0, tp: int = 2, ms: float = 820.0, energy: bool = True,
    total: int = 1000,
) -> str:  # fmt: skip
    """Return a log with ``lines`` lines of ten steps each."""
    arguments = {
        "add_bias_linear": True, "bf16": True, "context_parallel_size": 1,
        "expert_model_parallel_size": 1, "ffn_hidden_size": 3072, "fp16": False,
        "global_batch_size": 16, "group_query_attention": False, "hidden_size": 768,
        "kv_channels": 64, "micro_batch_size": 1, "num_attention_heads": 12, "num_experts": None,
        "num_layers": 12, "num_query_groups": 1, "pipeline_model_parallel_size": 2,
        "position_embedding_type": "learned_absolute", "recompute_granularity": None,
        "seq_length": 512, "sequence_parallel": True, "swiglu": False,
        "tensor_model_parallel_size": tp, "untie_embeddings_and_output_weights": False,
        "use_distributed_optimizer": True, "virtual_pipeline_model_parallel_size": None,
        "world_size": 8,
    }  # fmt: skip
    text = ["-" * 24 + " arguments " + "-" * 24]
    text += [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in arguments.items()]
    text += ["-" * 20 + " end of arguments " + "-" * 21]
    text += [" > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)"]
    second = 0.0
    for index in range(lines):
        own_ms = 1500.0 if index == 0 else ms
        second += own_ms / 100
        step = begin + 10 * (index + 1)
        joules = f" energy per GPU (J/iter/GPU): {own_ms / 2:.1f} | power per GPU (W/GPU): 500.0 |"
        time = f"2026-04-13 23:{41 + int(second) // 60:02}:{int(second) % 60:02}"
        text.append(
            f" [{time}] iteration {step:8d}/{total:8d} | consumed samples: {step * 16:12d} |"
            f" elapsed time per iteration (ms): {own_ms:.1f} |{joules if energy else ''}"
            f" learning rate: 4.000000E-05 | global batch size:    16 | lm loss: 1.07E+01 |"
            " loss scale: 1.0 | number of skipped iterations:   0 |"
        )
        if index == 0:
            text.append(
                f"[Rank 0] (after {step} iterations) memory (MB) | allocated: 1464.33 | max"
                " allocated: 2048.0 | reserved: 2576.0 | max reserved: 2576.0"
            )
    return "\n".join(text) + "\n"


_FOLDER = Path(__file__).parents[1] / "addons" / "formats" / "training_logs"
#: Written by the programs, except for "megatron".
LOGS = {path.stem: path.read_text("utf-8") for path in sorted(_FOLDER.glob("*.log"))} | {
    "megatron": megatron()
}
