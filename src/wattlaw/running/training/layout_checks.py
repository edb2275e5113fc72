"""Which layouts the built-in trainer can train; others are refused before they start."""

from typing import Any

from wattlaw.common.errors import BadInput
from wattlaw.study.model import RunSpec
from wattlaw.workloads import catalogue

_SHARDINGS = ("none", "zero2", "zero3", "fsdp")
_CHECKPOINTINGS = ("none", "full")
_OWN = "or a command of your own"


def check_layout(spec: RunSpec) -> None:
    """Raise ``BadInput`` for a layout of a workload that cannot be trained here."""
    setting, name = spec.setting, spec.workload.name
    if spec.workload.command is not None:
        return
    for size in ("pp", "cp", "ep", "virtual_stages"):
        if (given := getattr(setting, size)) != 1:
            raise BadInput(f"{size}: given {given} for {name}; allowed: 1, {_OWN}")
    for choice, allowed in (("sharding", _SHARDINGS), ("checkpointing", _CHECKPOINTINGS)):
        if (given := getattr(setting, choice)) not in allowed:
            text = f"{choice}: given {given} for {name}"
            raise BadInput(f"{text}; allowed: {', '.join(allowed)}, {_OWN}")
    if setting.tp == 1 and setting.sharding == setting.checkpointing == "none":
        return
    if not catalogue.entry(name).shares_layers:
        text = f"tp, sharding and checkpointing: given for {name}"
        raise BadInput(f"{text}; allowed: for gpt, {_OWN}")
    if spec.local_batch is None:
        text = f"global_batch: given {spec.global_batch} for {setting.gpus} GPUs"
        raise BadInput(f"{text}; allowed: a multiple of them, {_OWN}")
    if setting.tp > 1 or setting.sharding != "none":
        _check_shared(spec, catalogue.validated(spec.workload))


def _check_shared(spec: RunSpec, options: Any) -> None:
    setting, measure = spec.setting, spec.measure
    shared = ["heads", "kv_heads", "ffn", "vocabulary"]
    for option in [*shared, "sequence"] if setting.sequence_parallel else shared:
        if (count := getattr(options, option)) % setting.tp:
            raise BadInput(f"tp: given {setting.tp} for {option} {count}; allowed: a divisor of it")
    if measure.evaluate and not measure.is_by_steps and options.evaluation_samples % setting.dp:
        text = f"evaluation_samples: given {options.evaluation_samples} for dp {setting.dp}"
        raise BadInput(f"{text}; allowed: a multiple of it, or measure.evaluate false")
    if setting.precision == "fp16":  # ranks would differ on which steps overflow
        raise BadInput("precision: given fp16 with tp or sharding; allowed: fp32, tf32, bf16")
    if spec.train.save_model or spec.train.checkpoint_every is not None:
        given = "save_model" if spec.train.save_model else "checkpoint_every"
        raise BadInput(f"train.{given}: given with tp or sharding; allowed: without them")
