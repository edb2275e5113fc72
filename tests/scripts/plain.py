"""A training script: two epochs, an evaluation after each, its own timer."""

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--samples", type=int, default=150)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--step-s", type=float, default=0.02)
parser.add_argument("--bf16", action="store_true")
args = parser.parse_args()

torch.set_num_threads(1)
data = TensorDataset(torch.randn(args.samples, 8), torch.randn(args.samples, 1))
loader = DataLoader(data, batch_size=10, shuffle=True, num_workers=args.loader_workers)
held_out = DataLoader(data, batch_size=50)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters())
steps, samples, ends_s = 0, 0, []
for _ in range(args.epochs):
    for number, (x, y) in enumerate(loader, 1):
        with torch.autocast("cpu", enabled=args.bf16):
            loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        time.sleep(args.step_s / args.accumulate)
        samples += len(x)
        if number % args.accumulate == 0:
            optimizer.step()
            ends_s.append(time.time())
            optimizer.zero_grad()
            steps += 1
            print(f"step {steps} samples {samples} loss {loss.item():.4f}", flush=True)
    for x, _ in held_out:  # under gradients, as people forget
        model(x)
print(
    f"RESULT pid={os.getpid()} steps={steps} samples={samples}",
    f"first_s={ends_s[0]:.6f} last_s={ends_s[-1]:.6f}",
)
