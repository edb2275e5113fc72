"""Trains, forks a process by multiprocessing that trains too, and one that exits at once."""

import multiprocessing
import os

import torch


def train(steps: int) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    print(f"RESULT pid={os.getpid()} steps={steps}", flush=True)


torch.set_num_threads(1)
train(7)
child = multiprocessing.get_context("fork").Process(target=train, args=(5,))
child.start()
child.join()
if not (pid := os.fork()):
    raise SystemExit
os.waitpid(pid, 0)
