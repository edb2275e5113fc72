"""A script for ``accelerate launch``."""

import torch
from accelerate import Accelerator
from own_timer import EPOCHS, Timer
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
timer = Timer()
for _ in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        timer.add(len(x))
        optimizer.step()
        timer.step()
timer.end()
