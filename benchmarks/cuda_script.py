"""A training script without wattlaw in it: ``python cuda_script.py MODE STEPS``.

It times its own steps, with CUDA events on a GPU. MODE is ``no_set_device`` (the script names its
GPU and never selects it), ``graph`` (forward and backward pass in a CUDA graph), ``step_in_graph``
(the optimizer too) or ``out_of_memory`` (after half of the steps). The last line is ``RESULT`` and
JSON. Without GPU, a function stands for the graph and an exception for the full memory.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

MODE, STEPS = sys.argv[1], int(sys.argv[2])
ON_GPU = torch.cuda.is_available()
BATCH, WIDTH, LAYERS = (512, 4096, 8) if ON_GPU else (16, 64, 2)

torch.set_num_threads(1)
device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if ON_GPU else "cpu"
layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
model = nn.Sequential(*layers).to(device)
in_graph = {"capturable": True} if MODE == "step_in_graph" and ON_GPU else {}
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, **in_graph)
data = torch.randn(8 * BATCH, WIDTH)
loader = DataLoader(TensorDataset(data), batch_size=BATCH, shuffle=True)
fixed = torch.randn(BATCH, WIDTH, device=device)


def backward() -> None:
    model(fixed).square().mean().backward()


def whole_step() -> None:
    optimizer.zero_grad(set_to_none=False)
    backward()
    optimizer.step()


def captured(work: Callable[[], None]) -> Callable[[], None]:
    """Return what replays ``work``, captured as PyTorch's notes on CUDA graphs describe."""
    if not ON_GPU:
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if MODE == "graph":
        optimizer.zero_grad(set_to_none=True)  # the capture makes the gradients, in its own memory
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def fill_memory() -> None:
    if ON_GPU:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.empty(2 * total, dtype=torch.uint8, device=device)
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 160.00 GiB. (rehearsal)")


def end_of_step() -> object:
    if not ON_GPU:
        end_s = time.perf_counter()
        time.sleep(0.01)
        return end_s
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


replay = captured(backward if MODE == "graph" else whole_step) if "graph" in MODE else None
ends: list = []
while len(ends) < STEPS:
    for (batch,) in loader:
        fixed.copy_(batch)
        if MODE == "graph" and not ON_GPU:
            optimizer.zero_grad()
        if replay is None:
            whole_step()
        else:
            replay()
        if MODE == "graph":
            optimizer.step()
        ends.append(end_of_step())
        if MODE == "out_of_memory" and len(ends) == STEPS // 2:
            fill_memory()
if ON_GPU:
    torch.cuda.synchronize()
pairs = list(itertools.pairwise(ends))
times_s = [a.elapsed_time(b) / 1e3 if ON_GPU else b - a for a, b in pairs]
print("RESULT", json.dumps({"steps": len(ends), "times_s": times_s}), flush=True)
