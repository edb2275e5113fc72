"""A tiny Llama on tokens with FSDP by two ranks: accelerate or, with --trainer, the Trainer."""

import sys
import tempfile

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.set_num_threads(1)
torch.manual_seed(0)
sizes = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
)  # fmt: skip
model = LlamaForCausalLM(sizes)


def shard_on_cpu() -> None:
    """Have accelerate shard, which it does on accelerators alone; its code runs on a CPU, too."""
    PartialState(cpu=True)
    PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU


tokens = torch.randint(64, (192, 24))
rows = [{"input_ids": row, "labels": row} for row in tokens]
wraps = {"transformer_cls_names_to_wrap": ["LlamaDecoderLayer"]}
if "--trainer" in sys.argv:
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=4,
            gradient_accumulation_steps=2, report_to=[], save_strategy="no", use_cpu=True,
            disable_tqdm=True, fsdp=True,
            fsdp_config={"version": 2, "reshard_after_forward": True, **wraps},
        )  # fmt: skip
        shard_on_cpu()
        Trainer(model, arguments, train_dataset=rows).train()
else:
    shard_on_cpu()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", reshard_after_forward=True,
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
    )  # fmt: skip
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=2)
    optimizer, loader = torch.optim.AdamW(model.parameters()), DataLoader(rows, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
