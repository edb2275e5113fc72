"""A training script for torchrun on tokens: fully_shard over the ranks that --tp leaves."""

import argparse

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--tp", type=int, default=1)
parser.add_argument("--micro-batch", type=int, default=2)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--recompute", action="store_true")
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo")
sizes = dist.get_world_size() // args.tp, args.tp
mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
copies = mesh["dp"]
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
if args.tp > 1:
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
if copies.size() > 1:
    fully_shard(model[0], mesh=copies)
    fully_shard(model, mesh=copies)
data = TensorDataset(torch.randint(16, (96, 12)))
sampler = DistributedSampler(data, copies.size(), copies.get_local_rank())
loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for number, (tokens,) in enumerate(loader, 1):
    inputs = torch.nn.functional.one_hot(tokens, 16).float().requires_grad_()
    scores = checkpoint(model, inputs, use_reentrant=False) if args.recompute else model(inputs)
    cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    if number % args.accumulate == 0:
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
