"""The training loop: epochs of training and evaluation, each a window with synchronised edges."""

import contextlib
import inspect
import json
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from wattlaw.errors import BadInput
from wattlaw.store.live import LiveWriter
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec
from wattlaw.telemetry.windows import write_window
from wattlaw.training import checkpoint
from wattlaw.training.checkpoint import Progress
from wattlaw.training.checkpointer import Checkpointer
from wattlaw.training.environment import WARNS
from wattlaw.training.precision import Precision
from wattlaw.training.preemption import PreemptionNotice
from wattlaw.training.ranks import Ranks, to_device
from wattlaw.training.step_clock import StepClock
from wattlaw.workloads.data_loading import Loader, LoaderOptions
from wattlaw.workloads.workload import Batch, Shard, Workload

#: Ranks keep their own running statistics, which are averaged after each epoch. The argument that
#: says so has another name since torch 2.13.
_NO_BUFFERS: Any = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)


class Training:
    """A workload that one rank trains as a run asks.

    Parameters
    ----------
    workload, plain
        What to train: its model on this rank's device.
    spec, seed
        At which setting, from which seed.
    ranks
        This process's place among the others.
    """

    def __init__(
        self, workload: Workload, plain: nn.Module, spec: RunSpec, seed: int, ranks: Ranks
    ) -> None:
        self._warning = PreemptionNotice(ranks, expected=WARNS in os.environ)
        self._workload, self._plain, self._ranks, self._seed = workload, plain, ranks, seed
        self._measure, self._options = spec.measure, spec.train
        setting = spec.setting
        if setting.local_batch is None or setting.global_batch is None:
            raise BadInput("a run that is trained here needs a batch size")
        self._precision = Precision(setting.precision, ranks.device)
        shard = Shard(
            ranks.rank,
            ranks.world,
            setting.local_batch,
            seed=seed,
            fraction=setting.dataset_fraction,
            micro_batches=self._options.gradient_accumulation,
        )
        feed = LoaderOptions(
            self._options.loader_workers,
            self._options.prefetch,
            pin_memory=ranks.device.type == "cuda",
            handles_sigterm=WARNS not in os.environ,
        )
        here = {"ranks_here": ranks.local_world}
        self.data = workload.training_data()
        self.loader = Loader(self.data, shard, feed, training=True, **here)
        self._evaluation = None
        if self._measure.evaluate:
            judged = workload.evaluation_data()
            self._evaluation = Loader(judged, shard, feed, training=False, **here)
        if not self.loader.steps:
            raise BadInput(
                f"dataset_fraction {setting.dataset_fraction:g} of {len(self.data)} samples with "
                f"{ranks.world} gpus; allowed: at least one sample for each of them"
            )
        self._format = torch.preserve_format
        if self._options.channels_last:
            self._format = torch.channels_last
            plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._model = self._wrapped()
        self._optimizer = workload.optimizer(
            self._plain, setting.global_batch, fused=self._options.fused_optimizer or None
        )
        self._schedule = workload.schedule(
            self._optimizer, setting.global_batch, self._measure.epochs
        )

    def _wrapped(self) -> nn.Module:
        """Return the model as it is trained. A single rank has no gradients to exchange."""
        model = self._plain
        if self._ranks.world > 1:
            on_device = [self._ranks.device.index] if self._ranks.device.type == "cuda" else None
            model = DistributedDataParallel(
                model,
                device_ids=on_device,
                bucket_cap_mb=self._options.bucket_mb,
                gradient_as_bucket_view=True,
                **_NO_BUFFERS,
            )
        if self._options.compile:
            compiled: Any = torch.compile(model)
            return compiled  # type: ignore[no-any-return]
        return model

    def run(
        self,
        windows: LiveWriter | None,
        metric: str,
        folder: RunFolder,
        live: Path | None = None,
    ) -> None:
        """Train to the end or to a warning, from a checkpoint if there is one.

        A window per phase is written. After a warning the ranks stop after the same step, and a
        checkpoint is left there.

        Parameters
        ----------
        windows
            Where windows go; None on every rank but the first of its host.
        metric
            Which of the workload's judgements is the metric of its windows.
        folder
            Where the checkpoint is kept.
        live
            The attempt's live folder, where it is told how far checkpoints are.

        Raises
        ------
        BadInput
            The checkpoint that is there is not of this run.
        """
        keeper = Checkpointer(folder.checkpoint_path, self._parts(), self._ranks, windows, live)
        begun = keeper.load(epochs=self._measure.epochs, steps=self.loader.steps)
        stop = self._epochs(begun, keeper, windows, metric)
        if stop is not None:
            keeper.stop(stop)
        elif self._options.save_model and self._ranks.rank == 0:
            checkpoint.save_model(folder.model_path, self._plain)

    def _epochs(
        self, begun: Progress, keeper: Checkpointer, windows: LiveWriter | None, metric: str
    ) -> Progress | None:
        """Train and evaluate to the end; return where a warning stopped it, if one did."""
        measure, every = self._measure, self._options.checkpoint_every
        in_all, host = self.loader.steps, self._ranks.host
        goes_on = not begun.is_begin
        for epoch in range(begun.epoch, measure.epochs):
            done = begun if epoch == begun.epoch else Progress(epoch)
            mark: dict[str, Any] = {"epoch": epoch, "warmup": epoch < measure.warmup_epochs}
            if done.step:
                keeper.set_random_state()
            else:  # so drawn, an epoch's dropout is the same whatever was before
                seed = (self._seed * 100_003 + epoch) * 1_000_003 + self._ranks.rank
                torch.manual_seed(seed % 2**64)
            if done.step < in_all:
                found, done = self.train_epoch(epoch, done)
                found["interrupted"] = goes_on or done.step < in_all
                write_window(windows, host, phase="train", **mark, **found)
                goes_on = False
                self._average_statistics()
            if done.step < in_all or (self._evaluation and self._warning.now()):
                return done
            loss = done.loss
            if self._evaluation is not None:
                found = self._evaluate(self._evaluation, metric)
                found |= {"interrupted": goes_on, "from_step": 0}
                write_window(windows, host, phase="evaluate", **mark, **found)
                goes_on, loss = False, found["loss"]
            self._schedule.after_epoch(loss)
            if epoch + 1 < measure.epochs and self._warning.now():
                return Progress(epoch + 1)
            if every and (epoch + 1) % every == 0:
                keeper.save(Progress(epoch + 1))
        return None

    def _parts(self) -> dict[str, checkpoint.Stateful]:
        return {
            "model": self._plain,
            "optimizer": self._optimizer,
            "schedule": self._schedule,
            "precision": self._precision,
        }

    def train_epoch(
        self, epoch: int, done: Progress | None = None
    ) -> tuple[dict[str, Any], Progress]:
        """Train an epoch from where it is, to its end or a warning; return window and progress."""
        ranks, optimizer = self._ranks, self._optimizer
        done = done or Progress(epoch)
        self._model.train()
        loss_sum = torch.zeros((), dtype=torch.float64, device=ranks.device)
        samples, step, in_all = 0, done.step, self.loader.steps
        begins_step = True
        ranks.barrier()
        start_ns, start_s = time.time_ns(), time.perf_counter()
        step_times = StepClock(ranks.device)
        self._warning.begin()
        self._schedule.before_step(epoch + step / in_all)
        for batch in self.loader.epoch(epoch, step):
            loss_sum += self._add_gradients(batch, first=begins_step) * batch.size
            samples += batch.size
            begins_step = batch.ends_step
            if batch.ends_step:
                self._precision.step(optimizer)
                step += 1
                self._schedule.before_step(epoch + step / in_all)
                step_times.mark()
                if self._warning.after_step():
                    break
        ranks.barrier()
        window: dict[str, Any] = {"start_ns": start_ns, "duration_s": time.perf_counter() - start_s}
        window |= {"from_step": done.step, "steps": step - done.step} | step_times.summary()
        sums = ranks.all_gather({"loss": float(loss_sum), "samples": samples})
        whole = _summed(sums)
        loss = whole["loss"] / whole["samples"] if whole["samples"] else None
        reached = Progress(
            epoch, step, done.loss_sum + whole["loss"], done.samples + int(whole["samples"])
        )
        return window | {"samples": _here(ranks, sums), "loss": loss}, reached

    def _add_gradients(self, batch: Batch, *, first: bool) -> torch.Tensor:
        """Compute a batch's gradients, add them to those of its step; return its mean loss."""
        ranks, last = self._ranks, batch.ends_step
        data = to_device(batch.data, ranks.device, self._format)
        alone = ranks.world == 1 or last
        with contextlib.nullcontext() if alone else self._unsynchronised():
            with self._precision.autocast():
                loss = self._workload.loss(self._model, data)
            if first:  # here, not after the step: the new ones take the memory of the old ones
                self._optimizer.zero_grad(set_to_none=True)
            # DDP averages gradients over ranks. This weight makes the average that of all
            # samples of the step, also when its parts are uneven.
            self._precision.backward(loss * (batch.size * ranks.world / batch.global_size))
        return loss.detach().double()

    def _unsynchronised(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which gradients stay on their rank."""
        model: Any = self._model
        return model.no_sync()  # type: ignore[no-any-return]

    def _average_statistics(self) -> None:
        """Give all ranks the mean of their running statistics of batch normalisation."""
        if self._ranks.world > 1:
            for module in self._plain.modules():
                if isinstance(module, _BatchNorm):
                    for statistic in (module.running_mean, module.running_var):
                        if statistic is not None:
                            self._ranks.average(statistic)

    @torch.no_grad()
    def _evaluate(self, loader: Loader, metric: str) -> dict[str, Any]:
        """Evaluate; return the window. The bare model is used: ranks may have uneven parts."""
        ranks = self._ranks
        self._plain.eval()
        totals: dict[str, torch.Tensor] = {}
        samples = 0
        ranks.barrier()
        start_ns, start_s = time.time_ns(), time.perf_counter()
        for batch in loader.epoch(0):
            data = to_device(batch.data, ranks.device, self._format)
            with self._precision.autocast():
                found = self._workload.evaluate(self._plain, data)
            for name, value in found.items():
                totals[name] = (
                    totals.get(name, torch.zeros_like(value, dtype=torch.float64)) + value
                )
            samples += batch.size
        ranks.barrier()
        window: dict[str, Any] = {"start_ns": start_ns, "duration_s": time.perf_counter() - start_s}
        mine = {name: float(value) for name, value in totals.items()}
        sums = ranks.all_gather(mine | {"samples": samples})
        whole = _summed(sums)
        judged = self._workload.metrics(whole) if whole["samples"] else {}
        return window | {
            "samples": _here(ranks, sums),
            "loss": judged.get("loss"),
            "metric": judged.get(metric),
            "metrics": json.dumps({name: _finite(value) for name, value in judged.items()}),
        }


def _summed(sums: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the sums over ranks; a rank without samples has none but their number."""
    whole: dict[str, float] = {}
    for one in sums:
        for name, value in one.items():
            whole[name] = whole.get(name, 0.0) + value
    return whole


def _finite(value: float) -> float | None:
    """Return a number that JSON knows, or None."""
    return value if math.isfinite(value) else None


def _here(ranks: Ranks, sums: list[dict[str, float]]) -> int:
    """Return the samples that the ranks of this host have seen."""
    return int(sum(one["samples"] for one in ranks.of_host(sums)))
