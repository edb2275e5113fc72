"""The training loop: epochs of training and evaluation, each a window with synchronised edges."""

import time
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from wattlaw.errors import BadInput
from wattlaw.store.live import LiveWriter
from wattlaw.study.model import RunSpec
from wattlaw.telemetry.windows import write_window
from wattlaw.training.ranks import Ranks, moved
from wattlaw.training.step_clock import StepClock
from wattlaw.workloads.workload import Loader, Shard, Workload


def train(
    workload: Workload,
    plain: nn.Module,
    spec: RunSpec,
    seed: int,
    ranks: Ranks,
    windows: LiveWriter | None,
) -> None:
    """Train a workload as a run asks, and write a window per epoch and phase.

    Parameters
    ----------
    workload, plain, spec, seed
        What to train: its model on this rank's device, at which setting, from which seed.
    ranks
        This process's place among the others.
    windows
        Where windows go; None on every rank but the first of its host.
    """
    setting, measure = spec.setting, spec.measure
    if setting.local_batch is None or setting.global_batch is None:
        raise BadInput("a run that is trained here needs a batch size")
    shard = Shard(
        ranks.rank, ranks.world, setting.local_batch, seed=seed, fraction=setting.dataset_fraction
    )
    training, evaluation = workload.training_loader(shard), workload.evaluation_loader(shard)
    on_device = [ranks.device.index] if ranks.device.type == "cuda" else None
    model = DistributedDataParallel(plain, device_ids=on_device)
    optimizer = workload.optimizer(model, setting.global_batch)
    for epoch in range(measure.epochs):
        mark: dict[str, Any] = {"epoch": epoch, "warmup": epoch < measure.warmup_epochs}
        found = _train_epoch(workload, model, optimizer, training.epoch(epoch), ranks)
        write_window(windows, ranks.host, phase="train", **mark, **found)
        if measure.evaluate:
            found = _evaluate(workload, plain, evaluation, epoch, ranks)
            write_window(windows, ranks.host, phase="evaluate", **mark, **found)


def _train_epoch(
    workload: Workload,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Any,
    ranks: Ranks,
) -> dict[str, Any]:
    """Train one epoch; return the window."""
    model.train()
    loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
    samples = updates = 0
    ranks.meet()
    start_ns, start_s = time.time_ns(), time.perf_counter()
    steps = StepClock(ranks.device)
    for data, size, global_size in batches:
        loss = workload.loss(model, moved(data, ranks.device))
        optimizer.zero_grad(set_to_none=True)
        # DDP averages gradients over ranks. This weight makes the average that of all samples
        # of the update, also when its parts are uneven.
        (loss * (size * ranks.world / global_size)).backward()
        optimizer.step()
        loss_sum += loss.detach().double() * size
        samples += size
        updates += 1
        steps.mark()
    ranks.meet()
    window: dict[str, Any] = {"start_ns": start_ns, "duration_s": time.perf_counter() - start_s}
    window |= {"updates": updates} | steps.summary()
    table = ranks.table([loss_sum, samples])
    return window | _sums(ranks, table) | {"loss": _ratio(table, 0, 1)}


@torch.no_grad()
def _evaluate(
    workload: Workload, model: nn.Module, loader: Loader, epoch: int, ranks: Ranks
) -> dict[str, Any]:
    """Evaluate once; return the window. The bare model is used: ranks may have uneven parts."""
    model.eval()
    loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
    metric_sum = torch.zeros_like(loss_sum)
    samples = 0
    ranks.meet()
    start_ns, start_s = time.time_ns(), time.perf_counter()
    for data, size, _ in loader.epoch(epoch):
        found = workload.evaluate(model, moved(data, ranks.device))
        loss_sum += found.loss
        metric_sum += found.metric
        samples += size
    ranks.meet()
    window: dict[str, Any] = {"start_ns": start_ns, "duration_s": time.perf_counter() - start_s}
    table = ranks.table([loss_sum, samples, metric_sum])
    judged = {"loss": _ratio(table, 0, 1), "metric": _ratio(table, 2, 1)}
    return window | _sums(ranks, table) | judged


def _sums(ranks: Ranks, table: torch.Tensor) -> dict[str, Any]:
    return {"samples": int(ranks.of_host(table)[:, 1].sum())}


def _ratio(table: torch.Tensor, above: int, below: int) -> float | None:
    """Return the ratio of two columns summed over ranks; None where nothing was counted."""
    counted = float(table[:, below].sum())
    return float(table[:, above].sum()) / counted if counted else None
