"""A training script for torchrun, with DistributedDataParallel, --fsdp of a version, or --alone."""

import argparse
import functools
import time

import torch
import torch.distributed as dist
from own_timer import EPOCHS, Timer, number
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

LATE_S = 0.01
parser = argparse.ArgumentParser()
parser.add_argument("--alone", action="store_true")
parser.add_argument("--fsdp", choices=("1", "2"))
parser.add_argument("--epochs", type=int, default=EPOCHS)
parser.add_argument("--batch-size", type=int, default=number("BATCH", 10))
parser.add_argument("--accumulate", type=int, default=number("ACCUMULATE", 1))
args = parser.parse_args()
torch.set_num_threads(1)
samples = number("SAMPLES", 200)
data = TensorDataset(torch.randn(samples, 8), torch.randn(samples, 1))
model = torch.nn.Linear(8, 1)
if not args.alone:
    dist.init_process_group("gloo")
collectives_s = []


def timed(collective):
    @functools.wraps(collective)
    def wait(*arguments, **named):
        begin_s = time.perf_counter()
        collective(*arguments, **named)
        collectives_s.append(time.perf_counter() - begin_s)

    return wait


if args.fsdp:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    for name in dir(dist):
        if name.startswith(("all_gather", "reduce_scatter")) and callable(getattr(dist, name)):
            setattr(dist, name, timed(getattr(dist, name)))
if args.fsdp == "1":
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
elif args.fsdp:
    fully_shard(model)
elif not args.alone:
    model = DistributedDataParallel(model)
    model._set_ddp_runtime_logging_sample_rate(1)
sampler = None if args.alone else DistributedSampler(data)
loader = DataLoader(data, batch_size=args.batch_size, sampler=sampler)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
timer, gradient_waits_s, passes_s = Timer(step_s=0.02), [], []
for _ in range(args.epochs):
    for batches, (x, y) in enumerate(loader, 1):
        begin_s = time.perf_counter()
        loss = torch.nn.functional.mse_loss(model(x), y)
        forward_s = time.perf_counter() - begin_s
        if not args.alone:  # one rank comes late to the backward pass
            time.sleep(LATE_S * dist.get_rank())
        if not (args.alone or args.fsdp):  # what torch has timed in the backward pass before
            torchs = model._get_ddp_logging_data()
            names = ("backward_comm_time", "backward_compute_comm_overlap_time")
            wait_ns, hidden_ns = (torchs.get(name, 0) for name in names)
            gradient_waits_s.append((wait_ns - hidden_ns) / 1e9)
        begin_s = time.perf_counter()
        loss.backward()
        passes_s.append(forward_s + time.perf_counter() - begin_s)
        if args.fsdp:
            gradient_waits_s.append(sum(collectives_s))
            collectives_s.clear()
        timer.add(len(x), 1 / args.accumulate)
        if batches % args.accumulate == 0:
            optimizer.step()
            timer.step()
            optimizer.zero_grad()
if not args.fsdp:  # torch has not shown the last one, and shows a wait in the pass after it
    gradient_waits_s = [*gradient_waits_s[1:], None]
timer.end(gradient_waits_s=gradient_waits_s, passes_s=passes_s)
if not args.alone:
    dist.destroy_process_group()
