"""A training script: two epochs, an evaluation after each, its own timer."""

import argparse

import torch
from own_timer import EPOCHS, Timer, number
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=EPOCHS)
parser.add_argument("--samples", type=int, default=number("SAMPLES", 150))
parser.add_argument("--accumulate", type=int, default=number("ACCUMULATE", 1))
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--bf16", action="store_true")
args = parser.parse_args()

torch.set_num_threads(1)
data = TensorDataset(torch.randn(args.samples, 8), torch.randn(args.samples, 1))
batch = number("BATCH", 10)
loader = DataLoader(data, batch_size=batch, shuffle=True, num_workers=args.loader_workers)
held_out = DataLoader(data, batch_size=50)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
timer = Timer(args.step_s)
for _ in range(args.epochs):
    for batches, (x, y) in enumerate(loader, 1):
        with torch.autocast("cpu", enabled=args.bf16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        timer.add(len(x), 1 / args.accumulate)
        if batches % args.accumulate == 0:
            optimizer.step()
            timer.step()
            optimizer.zero_grad()
            line = f"step {len(timer.times_s)} samples {timer.samples} loss {loss.item():.4f}"
            print(line, flush=True)
    with timer.evaluation():
        for x, _ in held_out:  # under gradients, as people forget
            model(x)
timer.end()
