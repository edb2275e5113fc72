"""A training script as people have them: plain torch, DDP, and nothing of wattlaw but two lines."""

import argparse

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import wattlaw

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=5)
args = parser.parse_args()

dist.init_process_group("gloo")
images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
sampler = DistributedSampler(data)
net = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

with wattlaw.track() as run:
    for epoch in run.epochs(range(args.epochs)):
        sampler.set_epoch(epoch)
        for x, y in DataLoader(data, args.batch_size, sampler=sampler):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        run.log(samples=len(data), loss=loss.item())
dist.destroy_process_group()
