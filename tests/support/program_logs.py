"""Short logs as programs write them that train large language models.

That of DeepSpeed is from DeepSpeed 0.19.8 on two CPU workers. The others have the format strings of
the programs (docs/formats.md names them) with numbers of our own.
"""


def megatron(
    *, lines: int = 4, begin: int = 0, tp: int = 2, batch: int = 16, ms: float = 820.0,
    energy: bool = True, first_ms: float = 1500.0, total: int = 1000,
) -> str:  # fmt: skip
    """Return a log with ``lines`` lines of ten steps each."""
    arguments = {
        "add_bias_linear": True, "bf16": True, "context_parallel_size": 1,
        "expert_model_parallel_size": 1, "ffn_hidden_size": 3072, "fp16": False,
        "global_batch_size": batch, "group_query_attention": False, "hidden_size": 768,
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
        own_ms = first_ms if index == 0 else ms
        second += own_ms / 100
        step = begin + 10 * (index + 1)
        joules = f" energy per GPU (J/iter/GPU): {own_ms / 2:.1f} | power per GPU (W/GPU): 500.0 |"
        time = f"2026-04-13 23:{41 + int(second) // 60:02}:{int(second) % 60:02}"
        text.append(
            f" [{time}] iteration {step:8d}/{total:8d} | consumed samples: {step * batch:12d} |"
            f" elapsed time per iteration (ms): {own_ms:.1f} |{joules if energy else ''}"
            f" learning rate: 4.000000E-05 | global batch size: {batch:5d} | lm loss: 1.07E+01 |"
            " loss scale: 1.0 | number of skipped iterations:   0 |"
        )
        if index == 0:
            text.append(
                f"[Rank 0] (after {step} iterations) memory (MB) | allocated: 1464.33 | max"
                " allocated: 2048.0 | reserved: 2576.0 | max reserved: 2576.0"
            )
    return "\n".join(text) + "\n"


def torchtitan(*, ranks: int = 1, lines: int = 5) -> str:
    """Return a log of each step, with the lines of several ranks and colours."""
    text = [
        "torchtitan version: 0.3.0 (0.0.0 means __version__ is not defined correctly).",
        "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=4, cp=1, tp=2, ep=1",
        "CUDA capacity: NVIDIA H200 with 139.81GiB memory",
        "\x1b[34mModel llama3 8B \x1b[31msize: 8,030,261,248 total parameters\x1b[0m",
        "Applied selective activation checkpointing to the model",
        "Applied FSDP to the model",
        "Trainer is initialized with local batch size 2, global batch size 16, gradient"
        " accumulation steps 2, sequence length 8192, total steps 5 (warmup 2)",
        "Training starts at step 1",
    ]
    tokens_per_s = [1024, 7000, *[8192] * (lines - 2)]
    for step, tps in enumerate(tokens_per_s, 1):
        text.append(
            f"\x1b[31mstep: {step:2}  \x1b[32mloss:  8.02770  \x1b[38;2;180;60;0mgrad_norm:  1.4604"
            f"  \x1b[36mmemory: 61.25GiB(43.81%)  \x1b[34mtps: {tps:,}  \x1b[36mtflops: 400.00  "
            "\x1b[35mmfu: 40.44%\x1b[39m"
        )
    text.insert(-1, "\x1b[33mvalidate step:  4  loss:  7.1  memory: 60.00GiB(43.0%)  tps: 9,000")
    prefix = "[rank{}]:[titan] 2026-11-25 19:44:58,595 - root - INFO - "
    return "".join(
        prefix.format(rank) + line + "\n"
        for line in [*text, "Training completed"]
        for rank in range(ranks)
    )


def nanotron() -> str:
    text = [
        "Config:",
        "Config(general=GeneralArgs(project='debug',",
        "       parallelism=ParallelismArgs(dp=2,",
        "                                   pp=2,",
        "                                   tp=2,",
        "                                   tp_mode=<TensorParallelLinearMode.REDUCE_SCATTER: 2>,",
        "                                   recompute_layer=False,",
        "                                   expert_parallel_size=1,",
        "                                   context_parallel_size=1),",
        "       model=ModelArgs(model_config=LlamaConfig(hidden_size=16,",
        "                                                intermediate_size=64,",
        "                                                num_attention_heads=4,",
        "                                                num_hidden_layers=2,",
        "                                                num_key_value_heads=4,",
        "                                                tie_word_embeddings=True,",
        "                                                vocab_size=256),",
        "                       dtype=torch.bfloat16,",
        "       tokens=TokensArgs(sequence_length=256,",
        "                         micro_batch_size=2,",
        "                         batch_accumulation_per_replica=4,",
        "       optimizer=OptimizerArgs(zero_stage=1,",
        "[Start training] datetime: 2026-08-31 14:37:26.889276 | mbs: 2 | grad_accum: 4 |"
        " global_batch_size: 16 | sequence_length: 256 | train_steps: 6 | start_iteration_step: 0",
        " Memory usage: 64.15MiB. Peak allocated 309.25MiB. Peak reserved: 496.00MiB",
    ]
    for step, ms in enumerate(("4.71K", "11.8", "10", "10.2", "10", "9.8"), 1):
        text.append(
            f"iteration: {step} / 6 | consumed_tokens: 512 | elapsed_time_per_iteration_ms: {ms} |"
            " tokens_per_sec: 43.2K | tokens_per_sec_per_gpu: 43.2K | global_batch_size: 16 |"
            " lm_loss: 5.32 | lr: 0.00015 | model_tflops_per_gpu: 1.87e-05 | grad_norm: 2.96"
        )
    return "".join(f"08/31/2026 14:37:31 [INFO|DP=0|PP=0|TP=0]: {line}\n" for line in text)


def nemo() -> str:
    text = [
        "[NeMo I 2026-06-18 21:56:00 nemo_logging:393] All tensor model parallel group ranks:"
        " [[0, 1], [2, 3]]",
        "[NeMo I 2026-06-18 21:56:00 nemo_logging:393] All pipeline model parallel group ranks:"
        " [[0], [1], [2], [3]]",
        "[NeMo I 2026-06-18 21:56:00 nemo_logging:393] All context parallel group ranks:"
        " [[0], [1], [2], [3]]",
        "All distributed processes registered. Starting with 4 processes",
    ]
    text += [
        f"0: Training epoch 0, iteration {step}/5 | lr: 6.897e-06 | global_batch_size: 128 |"
        f" global_step: {step} | max_memory_reserved: 127785762816 | max_memory_allocated:"
        f" 115792977920 | reduced_train_loss: 11.96 | train_step_timing in s: {seconds} |"
        f" TFLOPS_per_GPU: 1.249e+03 | consumed_samples: {128 * (step + 1)}"
        for step, seconds in enumerate((20.5, 6.1, 6.08, 6.0, 6.1, 6.2))
    ]
    return "\n".join(text) + "\n"


_PRINT = "[2026-11-27 12:11:24,923] [INFO] [config.py:678:print]   "
DEEPSPEED = f"""\
[2026-11-27 12:11:21,102] [INFO] [logging.py:123:log_dist] [Rank -1] DeepSpeed info: version=0.19.8 , git-hash=unknown, git-branch=unknown
[2026-11-27 12:11:21,103] [INFO] [comm.py:908:init_distributed] Initializing TorchBackend in DeepSpeed with backend gloo
{_PRINT}bfloat16_config .............. enabled=True immediate_grad_update=False check_grad_overflow=True
{_PRINT}float16_config ............... enabled=False auto_cast=False loss_scale=0.0 initial_scale_power=16
{_PRINT}gradient_accumulation_steps .. 2
{_PRINT}train_batch_size ............. 32
{_PRINT}train_micro_batch_size_per_gpu  8
{_PRINT}world_size ................... 2
{_PRINT}zero_optimization_stage ...... 1
[2026-11-27 12:11:25,108] [INFO] [logging.py:123:log_dist] [Rank 0] step=10, skipped=0, lr=[0.001], mom=[0]
[2026-11-27 12:11:25,108] [INFO] [timer.py:264:stop] epoch=0/micro_step=20/global_step=10, RunningAvgSamplesPerSec=1825.3868387544264, CurrSamplesPerSec=1812.3767938848903, MemAllocated=0.5GB, MaxMemAllocated=0.5GB
[2026-11-27 12:11:25,219] [INFO] [timer.py:264:stop] epoch=0/micro_step=40/global_step=20, RunningAvgSamplesPerSec=2340.891200144179, CurrSamplesPerSec=1838.065362793549, MemAllocated=0.5GB, MaxMemAllocated=0.5GB
[2026-11-27 12:11:25,354] [INFO] [timer.py:264:stop] epoch=0/micro_step=60/global_step=30, RunningAvgSamplesPerSec=2360.8357470867227, CurrSamplesPerSec=1673.0956097634114, MemAllocated=0.5GB, MaxMemAllocated=0.5GB
"""  # noqa: E501 - lines of a real log
LOGS = {
    "megatron": megatron(), "torchtitan": torchtitan(ranks=2), "nanotron": nanotron(),
    "nemo": nemo(), "deepspeed": DEEPSPEED,
}  # fmt: skip
