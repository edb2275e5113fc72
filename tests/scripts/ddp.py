"""A training script for torchrun, with DistributedDataParallel unless --alone is given."""

import argparse

import torch
import torch.distributed as dist
from own_timer import EPOCHS, Timer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--alone", action="store_true")
parser.add_argument("--epochs", type=int, default=EPOCHS)
parser.add_argument("--batch-size", type=int, default=10)
args = parser.parse_args()
torch.set_num_threads(1)
data = TensorDataset(torch.randn(200, 8), torch.randn(200, 1))
model = torch.nn.Linear(8, 1)
if not args.alone:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(model)
sampler = None if args.alone else DistributedSampler(data)
loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
timer = Timer(step_s=0.02)
for _ in range(args.epochs):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        timer.add(len(x))
        optimizer.step()
        timer.step()
timer.end()
if not args.alone:
    dist.destroy_process_group()
