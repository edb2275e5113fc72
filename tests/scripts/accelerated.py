"""A script for ``accelerate launch``."""

import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
steps = samples = 0
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        steps += 1
        samples += len(x)
print(f"RESULT pid={os.getpid()} rank={accelerator.process_index} steps={steps} samples={samples}")
