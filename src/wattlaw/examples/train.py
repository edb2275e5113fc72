"""Train a small network on scikit-learn's digits."""

import argparse
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=100)
args = parser.parse_args()

images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
sampler = None
if "WORLD_SIZE" in os.environ:  # set by torchrun, and by wattlaw
    dist.init_process_group("gloo")
    model, sampler = DistributedDataParallel(model), DistributedSampler(data)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(args.epochs):
    for x, y in DataLoader(data, args.batch_size, sampler=sampler):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
