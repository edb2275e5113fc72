"""Imported once by the server from which the processes of ``ranks`` are forked."""

import os

# One small model is compiled: no processes that compile, and no test of the vector instructions.
os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_VEC_ISA_OK": "1"}

import torch
import torch._dynamo

import wattlaw.running.training.loop
from wattlaw_papers.workloads.torchvision_import import import_torchvision

torch.set_num_threads(1)
import_torchvision()

import physicsnemo.models.afno  # noqa: E402
import torch_geometric.nn.models  # noqa: E402
import transformers.models.bert.modeling_bert  # noqa: E402

__all__ = ["physicsnemo", "torch_geometric", "transformers", "wattlaw"]
