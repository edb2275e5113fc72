"""Trains, forks a process by multiprocessing that trains too, and one that exits at once."""

import multiprocessing
import os

import torch
from own_timer import Timer


def train(steps: int) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    timer = Timer()
    for _ in range(steps):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        timer.step()
    timer.end()


torch.set_num_threads(1)
train(7)
child = multiprocessing.get_context("fork").Process(target=train, args=(5,))
child.start()
child.join()
if not (pid := os.fork()):
    raise SystemExit
os.waitpid(pid, 0)
