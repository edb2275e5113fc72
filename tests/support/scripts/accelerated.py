"""A script for ``accelerate launch``."""

import torch
from accelerate import Accelerator
from own_timer import EPOCHS, Timer, number
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
accumulate, samples = number("ACCUMULATE", 1), number("SAMPLES", 64)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(samples, 4), torch.randn(samples, 1))
loader = DataLoader(data, batch_size=number("BATCH", 4))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
timer = Timer()
for _ in range(EPOCHS):
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
            timer.add(len(x), 1 / accumulate)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            timer.step()
timer.end()
