"""Loads of a GPU; a line on standard input names the next one: idle, steady, pulsed or training.

One process has them all, because starting torch on a GPU takes as long as a measurement.
``--small`` is for a machine without GPU.
"""

import os
import sys
import threading
import time
from collections.abc import Callable

import torch
from torch import nn

from wattlaw.common import processes


def loads(*, small: bool) -> dict[str, Callable[[], None]]:
    """Return for each load a function that keeps the GPU busy for some 10 ms."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size, width, tokens = (256, 32, 16) if small else (8192, 1024, 256)
    matrix = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    layer = nn.TransformerEncoderLayer(width, 8, batch_first=True)
    model = nn.TransformerEncoder(layer, 2 if small else 8, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.randn(4 if small else 32, tokens, width, device=device)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def products() -> None:
        for _ in range(10):
            matrix @ matrix
        wait()

    def pulse() -> None:
        """Load the first half of each second."""
        if time.time() % 1 < 0.5:
            products()
        else:
            time.sleep(0.005)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wait()

    return {
        "idle": lambda: time.sleep(0.01), "steady": products, "pulsed": pulse, "training": step,
    }  # fmt: skip


def main() -> None:
    """Run the load that was named last, until standard input ends."""
    processes.end_with_parent(os.getppid())
    small = "--small" in sys.argv
    if small:
        torch.set_num_threads(1)
    functions, current = loads(small=small), ["idle"]
    for function in functions.values():
        function()

    def read() -> None:
        for line in sys.stdin:
            current[0] = line.strip()
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    print("ready", flush=True)
    while True:
        functions[current[0]]()
        if small:
            time.sleep(0.02)  # others use this machine


if __name__ == "__main__":
    main()
