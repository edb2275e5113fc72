"""What programs that train large language models print: a row of a table for each program.

Checked against the source that prints, and logs in repositories and issues (docs/formats.md).
"""

import re
from dataclasses import dataclass, field
from typing import Literal

#: Of the line of a step, the value that its time follows from: milliseconds or seconds of a step,
#: tokens per second, or mean samples per second of all steps since the second.
Timing = Literal["ms", "s", "tokens_per_s", "mean_samples_per_s"]
_GIB, _MIB = 2.0**30, 2.0**20


@dataclass(frozen=True)
class Program:
    """``step`` has the groups ``step`` and ``value``, and if printed ``total``, ``batch`` and
    ``energy`` (J of a GPU and step). ``keys`` are settings by the names that the program prints,
    ``facts`` other lines with settings as groups, ``memory`` peaks of a GPU with their unit."""

    name: str
    hints: tuple[str, ...]  # in logs of this program, and in no others
    word: str  # in lines of steps
    step: re.Pattern[str]
    timing: Timing
    launch: re.Pattern[str]  # a line that begins a training
    memory: tuple[tuple[re.Pattern[str], float], ...]
    is_mean: bool = True  # the time is a mean of the steps since the line before, not of the last
    is_from_0: bool = False  # the number of a step is that of the steps before it
    is_reserved: bool = False  # the memory is what torch has reserved, not allocated
    keys: dict[str, str] = field(default_factory=dict)
    facts: tuple[re.Pattern[str], ...] = ()

    def printed(self, line: str) -> dict[str, str]:
        """Return settings in a line, by our names."""
        known = {
            name: text
            for pattern in self.facts
            if (match := pattern.search(line)) is not None
            for name, text in match.groupdict().items()
            if text is not None
        }
        for name, text in _VALUE.findall(line) if self.keys else ():
            if name in self.keys:
                known.setdefault(self.keys[name], text)
        return known


#: ``name ..... value``, ``name: value``, ``"name": value`` and ``name=value``.
_VALUE = re.compile(r"(?<![\w.])(\w{2,60})['\"]?(?: ?\.{2,99} |: | ?= ?|  {1,60})['\"]?([\w.+-]+)")


def _all(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(map(re.compile, patterns))


_NUMBER = r"[\d.]+(?:e[+-]?\d+)?"
MEGATRON = Program(
    name="Megatron-LM",
    hints=("elapsed time per iteration (ms):", "tensor_model_parallel_size ...."),
    word="elapsed time per iteration",
    step=re.compile(
        r"iteration\s{1,20}(?P<step>\d+)/\s{0,20}(?P<total>\d+|infinity) \|.*?"
        r"elapsed time per iteration \(ms\): (?P<value>[\d.]+) \|"
        r"(?:.*?energy per GPU \(J/iter/GPU\): (?P<energy>[\d.]+) \|)?"
        r"(?:.*?global batch size:\s{0,20}(?P<batch>\d+) \|)?"
    ),
    timing="ms",
    launch=re.compile(r"-{6,} arguments -{6,}|Configuration Summary \(Non-Default Values"),
    memory=(
        (re.compile(r"memory \(MB\) \|.*?\| max allocated: ([\d.]+)"), _MIB),
        (re.compile(r"memory \(GB\) \|.*?\| mem-max-allocated-gigabytes: ([\d.]+)"), 1e9),
    ),
    keys={
        "world_size": "gpus", "tensor_model_parallel_size": "tp",
        "pipeline_model_parallel_size": "pp", "context_parallel_size": "cp",
        "expert_model_parallel_size": "ep", "sequence_parallel": "sequence_parallel",
        "virtual_pipeline_model_parallel_size": "virtual_stages",
        "micro_batch_size": "micro_batch", "global_batch_size": "global_batch",
        "seq_length": "sequence", "bf16": "bf16", "fp16": "fp16",
        "recompute_granularity": "checkpointing",
        "use_distributed_optimizer": "distributed_optimizer", "zero_stage": "zero_stage",
        "use_torch_fsdp2": "torch_fsdp", "num_layers": "layers", "hidden_size": "hidden",
        "num_attention_heads": "heads", "ffn_hidden_size": "ffn",
        "group_query_attention": "has_groups", "num_query_groups": "kv_heads",
        "kv_channels": "head_size", "swiglu": "gated", "add_bias_linear": "biases",
        "untie_embeddings_and_output_weights": "untied", "padded_vocab_size": "vocabulary",
        "position_embedding_type": "positions", "num_experts": "experts",
        "moe_router_topk": "experts_per_token", "moe_ffn_hidden_size": "expert_ffn",
        "multi_latent_attention": "is_latent",
    },
    facts=_all(r"padded vocab .*\(new size: (?P<vocabulary>\d+)\)"),
)  # fmt: skip
TORCHTITAN = Program(
    name="torchtitan",
    hints=("[titan] ", "GiB(", "Building device mesh with parallelism:"),
    word="tps: ",
    step=re.compile(
        r"(?<!validate )step:\s{1,20}(?P<step>\d+)  .*?memory:\s{1,9}[\d.]+GiB\([\d.]+%\)  "
        r"(?:tps|wps): (?P<value>[\d,]+)(?=  )"
    ),
    timing="tokens_per_s",
    launch=re.compile(r"torchtitan version:|Starting job:|Building \S+ ?device mesh"),
    memory=((re.compile(r"memory:\s{1,9}([\d.]+)GiB\("), _GIB),),
    is_reserved=True,
    facts=_all(
        r"parallelism: pp=(?P<pp>\d+), dp_replicate=(?P<replicas>\d+), dp_shard=(?P<shards>\d+), "
        r"cp=(?P<cp>\d+), tp=(?P<tp>\d+)(?:, ep=(?P<ep>\d+))?",
        r"-D device mesh with \[(?P<mesh>['\w, ]+)\], \[(?P<mesh_sizes>[\d, ]+)\]",
        r"local batch size (?P<local>\d+), global batch size (?P<global_batch>\d+)"
        r"(?:, gradient.accumulation.steps:? (?P<gradient_accumulation>\d+))?"
        r", sequence length (?P<sequence>\d+)(?:, total steps (?P<total>\d+))?",
        r"Applied (?P<checkpointing>[a-z]+|FullAC|SelectiveAC) activation checkpointing",
        r"Applied (?P<sharding>HSDP|FSDP|DDP|fully_shard) to",
        r"CUDA capacity: (?P<hardware>.{1,60}?) with ",
        r"Model (?P<workload>[\w.-]+ [\w.-]+) .{0,20}size: (?P<parameters>[\d,]+) total",
        r"torchtitan version: (?P<torchtitan>[1-9][\w.+]*|0\.[1-9][\w.+]*)",
        r"mixed_precision_param\W{1,5}(?P<dtype>\w+)",
    ),
)  # fmt: skip
NANOTRON = Program(
    name="nanotron",
    hints=("elapsed_time_per_iteration_ms: ", "|DP=0|PP=0|TP=0"),
    word="elapsed_time_per_iteration_ms",
    step=re.compile(
        r"iteration: (?P<step>\d+) / (?P<total>\d+) \|.*?elapsed_time_per_iteration_ms: "
        r"(?P<value>[\d.]+[KM]?) \|(?:.*? global_batch_size: (?P<batch>[\d.]+[KM]?) \|)?"
    ),
    timing="ms",
    launch=re.compile(r"\]: Config:\s*$|\[Start training\]"),
    memory=((re.compile(r"Peak allocated:? ([\d.]+)MiB"), _MIB),),
    is_mean=False,
    keys={
        "dp": "dp", "tp": "tp", "pp": "pp", "expert_parallel_size": "ep",
        "context_parallel_size": "cp", "zero_stage": "zero_stage", "dtype": "dtype",
        "micro_batch_size": "micro_batch", "sequence_length": "sequence",
        "batch_accumulation_per_replica": "gradient_accumulation", "recompute_layer": "recompute",
        "num_hidden_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads", "intermediate_size": "ffn", "vocab_size": "vocabulary",
        "tie_word_embeddings": "tied",
    },
    facts=_all(
        r"mbs: (?P<micro_batch>\d+) \| grad_accum: (?P<gradient_accumulation>\d+) \| "
        r"global_batch_size: (?P<global_batch>\d+) \| sequence_length: (?P<sequence>\d+)",
        r"TensorParallelLinearMode\.(?P<tp_mode>\w+)",
    ),
)  # fmt: skip
DEEPSPEED = Program(
    name="DeepSpeed",
    hints=("RunningAvgSamplesPerSec=", "DeepSpeed info: version="),
    word="RunningAvgSamplesPerSec",
    step=re.compile(
        rf"global_step=(?P<step>\d+), RunningAvgSamplesPerSec=(?P<value>{_NUMBER}),"
    ),
    timing="mean_samples_per_s",
    launch=re.compile(r"DeepSpeed info: version="),
    memory=((re.compile(r"MaxMemAllocated=([\d.]+) ?GB"), _GIB),),
    keys={
        "world_size": "gpus", "train_batch_size": "global_batch",
        "train_micro_batch_size_per_gpu": "micro_batch",
        "gradient_accumulation_steps": "gradient_accumulation",
        "zero_optimization_stage": "zero_stage", "bfloat16_enabled": "bf16", "fp16_enabled": "fp16",
    },
    facts=_all(
        r"DeepSpeed info: version=(?P<deepspeed>[\w.+]+)",
        r"bfloat16_config \.+ enabled=(?P<bf16>\w+)",
        r"(?<!b)float16_config \.+ enabled=(?P<fp16>\w+)",
    ),
)  # fmt: skip
NEMO = Program(
    name="NeMo",
    hints=("train_step_timing in s",),
    word="train_step_timing in s",
    step=re.compile(
        r"Training epoch \d+, iteration \d+/(?P<total>\d+) \|"
        r"(?:.*? global_batch_size: (?P<batch>\d+) \|)?.*? global_step: (?P<step>\d+) \|"
        rf".*?train_step_timing in s: (?P<value>{_NUMBER})"
    ),
    timing="s",
    launch=re.compile(r"All distributed processes registered"),
    memory=((re.compile(rf"(?:max_memory_allocated|peak_memory_usage): ({_NUMBER})"), 1.0),),
    is_mean=False,
    is_from_0=True,
    facts=_all(
        r"Starting with (?P<gpus>\d+) processes",
        *(
            rf"All {group} parallel group ranks: (?P<{name}_groups>\[\[[\d, \[\]]+\]\])"
            for name, group in (("tp", "tensor model"), ("pp", "pipeline model"), ("cp", "context"))
        ),
    ),
)
#: In the order in which they are tried: Megatron-DeepSpeed prints lines of both.
PROGRAMS = (MEGATRON, NANOTRON, TORCHTITAN, NEMO, DEEPSPEED)
