"""The training loop: epochs of training and evaluation, each a window with synchronised edges."""

import contextlib
import inspect
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from wattlaw.common.errors import BadInput
from wattlaw.common.files import write_text
from wattlaw.run.instrumentation.step_times import steadiness_notes
from wattlaw.run.training import checkpoint
from wattlaw.run.training.block import Block, TrainedStep, samples_of_host, sum_by_name
from wattlaw.run.training.checkpoint import Checkpointer, Progress
from wattlaw.run.training.environment import SHARING_WORKERS, WARNS
from wattlaw.run.training.precision import Precision
from wattlaw.run.training.preemption import PreemptionNotice
from wattlaw.run.training.ranks import Ranks, to_device
from wattlaw.run.training.step_clock import Moment, StepClock
from wattlaw.run.training.steps import StepGoal
from wattlaw.store.live import LiveWriter, write_window
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec
from wattlaw.workloads.data_loading import Loader, LoaderOptions
from wattlaw.workloads.workload import Batch, Shard, Workload

#: Epochs of the schedule of a run that is measured by steps.
_SCHEDULED_EPOCHS = 100
_ENGINE: Any = torch.autograd.Variable._execution_engine
#: Ranks keep their own running statistics, which are averaged after each epoch. torch 2.13 has
#: renamed the argument.
_NO_BUFFERS: Any = (
    {"forward_sync_buffers": False}
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else {"broadcast_buffers": False}
)


class Training:
    """The training of a workload on one rank; ``plain`` is its model on this rank's device."""

    def __init__(
        self, workload: Workload, plain: nn.Module, spec: RunSpec, seed: int, ranks: Ranks
    ) -> None:
        self._notice = PreemptionNotice(ranks, expected=WARNS in os.environ)
        self._workload, self._plain, self._ranks, self._seed = workload, plain, ranks, seed
        self._measure, self._options = spec.measure, spec.train
        self._clock = StepClock(ranks.gpu)
        setting = spec.setting
        local_batch, global_batch = spec.local_batch, spec.global_batch
        if local_batch is None or global_batch is None:
            raise BadInput("a run that is trained here needs a batch size")
        self._precision = Precision(setting.precision or "fp32", ranks.device)
        shard = Shard(
            ranks.rank,
            ranks.world,
            local_batch,
            seed=seed,
            fraction=setting.dataset_fraction,
            micro_batches=self._options.gradient_accumulation,
        )
        self._batch_size = local_batch // self._options.gradient_accumulation
        options = LoaderOptions(
            self._options.loader_workers,
            self._options.prefetch,
            pin_memory=ranks.gpu is not None,
            handles_sigterm=WARNS not in os.environ,
        )
        sharing = {"sharing": int(os.environ.get(SHARING_WORKERS, ranks.local_world))}
        evaluates = self._measure.evaluate and not self._measure.is_by_steps
        with ranks.first_before_others():
            self.data = workload.training_data()
            evaluated = workload.evaluation_data() if evaluates else None
        self.loader = Loader(self.data, shard, options, training=True, **sharing)
        self._evaluation = None
        if evaluated is not None:
            self._evaluation = Loader(evaluated, shard, options, training=False, **sharing)
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
            self._plain, global_batch, fused=self._options.fused_optimizer or None
        )
        self._epochs = self._measure.epochs or _SCHEDULED_EPOCHS
        self._schedule = workload.schedule(self._optimizer, global_batch, self._epochs)

    def _wrapped(self) -> nn.Module:
        """Return the model for training. A single rank does not communicate gradients."""
        model = self._plain
        if self._ranks.world > 1:
            on_device = None if self._ranks.gpu is None else [self._ranks.device.index]
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
        self, windows: LiveWriter | None, metric: str, folder: RunFolder, live: Path | None = None
    ) -> None:
        """Train to the end or to a preemption notice, from a checkpoint if there is one.

        Each phase is a window, which the first rank of each host writes. ``metric`` is that of the
        workload's metrics that windows have. After a notice all ranks stop after the same step and
        save a checkpoint. A run that is measured by steps has none: it begins again.

        Raises ``BadInput`` if the checkpoint is not of this run.
        """
        parts: dict[str, checkpoint.Stateful] = {
            "model": self._plain,
            "optimizer": self._optimizer,
            "schedule": self._schedule,
            "precision": self._precision,
        }
        checkpointer = Checkpointer(folder.checkpoint_path, parts, self._ranks, windows, live)
        by_steps = self._measure.is_by_steps
        if by_steps:
            stopped_at = self._train_by_steps(windows, live)
        else:
            begin = checkpointer.load(epochs=self._epochs, steps=self.loader.steps)
            stopped_at = self._train_by_epochs(begin, checkpointer, windows, metric)
        if stopped_at is not None:
            checkpointer.stop(stopped_at, saves=not by_steps)
        elif self._options.save_model and self._ranks.rank == 0:
            checkpoint.save_model(folder.model_path, self._plain)

    def _train_by_steps(self, windows: LiveWriter | None, live: Path | None) -> Progress | None:
        """Train warm-up and measured steps; return the progress at a notice, None without one.

        The boundary of an epoch of the data divides windows that are long enough.
        """
        ranks, measure, group = self._ranks, self._measure, self._ranks.cpu_group()
        goal = StepGoal(measure, lambda values: ranks.largest(values, group))
        notes: list[str] = []
        done = measured = 0  # steps of the run, and those of finished measured windows
        measured_s = 0.0
        is_warmup = measure.warmup_steps > 0
        self._model.train()
        self._notice.begin()
        block, epoch = Block(ranks), 0
        while True:
            self._seed_epoch(epoch)
            block.begins_epoch()
            for step, trained in enumerate(self._train_steps(epoch), 1):
                block.add(trained)
                done += 1
                if self._notice.after_step():
                    return Progress(epoch, step)
                if is_warmup:
                    is_over, ends = False, done == measure.warmup_steps
                else:
                    window_s = block.elapsed_s
                    now = measured + block.steps, measured_s + window_s, window_s
                    is_over = ends = goal.is_reached(*now)
                    if step == self.loader.steps and not is_over:
                        ends = goal.may_split(*now)
                if not ends:
                    continue
                window, _ = block.end()
                window |= {"from_step": done - block.steps, "interrupted": False}
                labels = {"epoch": None, "phase": "steps", "warmup": is_warmup}
                write_window(windows, ranks.host, **labels, **window)
                if not is_warmup:
                    measured, measured_s = measured + block.steps, measured_s + block.duration_s
                    notes += steadiness_notes(block.steps_s(), block.epoch_begins)
                    if is_over:
                        notes += goal.notes(measured, measured_s)
                        self._average_statistics()
                        _write_notes(live, ranks, notes)
                        return None
                is_warmup = False
                block = Block(ranks)
            self._schedule.after_epoch(None)
            epoch += 1

    def _seed_epoch(self, epoch: int) -> None:
        """Seed an epoch's random numbers, which do not depend on the epochs before."""
        seed = (self._seed * 100_003 + epoch) * 1_000_003 + self._ranks.rank
        torch.manual_seed(seed % 2**64)

    def _train_by_epochs(
        self, begin: Progress, checkpointer: Checkpointer, windows: LiveWriter | None, metric: str
    ) -> Progress | None:
        """Train and evaluate to the end; return the progress at a notice, None without one."""
        measure, every = self._measure, self._options.checkpoint_every
        steps, host = self.loader.steps, self._ranks.host
        is_resumed = not begin.is_begin
        for epoch in range(begin.epoch, self._epochs):
            progress = begin if epoch == begin.epoch else Progress(epoch)
            labels: dict[str, Any] = {"epoch": epoch, "warmup": epoch < measure.warmup_epochs}
            if progress.step:
                checkpointer.set_random_state()
            else:
                self._seed_epoch(epoch)
            if progress.step < steps:
                window, progress = self.train_epoch(epoch, progress)
                window["interrupted"] = is_resumed or progress.step < steps
                write_window(windows, host, phase="train", **labels, **window)
                is_resumed = False
                self._average_statistics()
            if progress.step < steps or (self._evaluation and self._notice.now()):
                return progress
            loss = progress.loss
            if self._evaluation is not None:
                window = self._evaluate(self._evaluation, metric)
                window |= {"interrupted": is_resumed, "from_step": 0}
                write_window(windows, host, phase="evaluate", **labels, **window)
                is_resumed, loss = False, window["loss"]
            self._schedule.after_epoch(loss)
            if epoch + 1 < self._epochs and self._notice.now():
                return Progress(epoch + 1)
            if every and (epoch + 1) % every == 0:
                checkpointer.save(Progress(epoch + 1))
        return None

    def train_epoch(
        self, epoch: int, begin: Progress | None = None
    ) -> tuple[dict[str, Any], Progress]:
        """Train an epoch from a progress to its end or a notice; return window and progress."""
        begin = begin or Progress(epoch)
        self._model.train()
        block = Block(self._ranks)
        self._notice.begin()
        for trained in self._train_steps(epoch, begin.step):
            block.add(trained)
            if self._notice.after_step():
                break
        window, totals = block.end()
        progress = Progress(
            epoch,
            begin.step + block.steps,
            begin.loss_sum + totals["loss"],
            begin.samples + int(totals["samples"]),
        )
        return window | {"from_step": begin.step}, progress

    def _train_steps(self, epoch: int, step: int = 0) -> Iterator[TrainedStep]:
        """Train the steps of an epoch from one of them; yield each."""
        steps = self.loader.steps
        self._schedule.before_step(min(self._epochs, epoch + step / steps))
        batches, trained = self.loader.epoch(epoch, step), TrainedStep()
        begin = self._clock.now()
        while (batch := next(batches, None)) is not None:
            trained.data_waits.append((begin, self._clock.now()))
            self._add_gradients(batch, trained)
            if batch.ends_step:
                self._precision.step(self._optimizer)
                step += 1
                self._schedule.before_step(min(self._epochs, epoch + step / steps))
                yield trained
                trained = TrainedStep()
            begin = self._clock.now()

    def _add_gradients(self, batch: Batch, step: TrainedStep) -> None:
        """Add a batch's gradients, loss and samples to those of its step."""
        ranks = self._ranks
        # cuDNN tries its algorithms, for seconds, with each new shape. The rest at the end of an
        # epoch may first come within the measured steps: it does not search.
        torch.backends.cudnn.benchmark = batch.size == self._batch_size
        data = to_device(batch.data, ranks.device, self._format)
        model: Any = self._model
        is_local = ranks.world > 1 and not batch.ends_step  # gradients stay on their rank
        with model.no_sync() if is_local else contextlib.nullcontext():
            with self._precision.autocast():
                loss = self._workload.loss(self._model, data)
            # After the forward pass, so that new gradients reuse the memory of the old ones.
            if not step.samples:
                self._optimizer.zero_grad(set_to_none=True)
            # DDP averages gradients over ranks. This weight gives the average over all samples
            # of the step, also if ranks have different numbers of samples.
            weight = batch.size * ranks.world / batch.global_size
            weighted: Any = loss if weight == 1 else loss * weight
            ends: list[Moment] = []
            if ranks.world > 1 and batch.ends_step:
                # This callback runs when all gradients of this rank are computed. DDP enters its
                # own later, which waits for the communication and so runs after this one.
                now = self._clock.now
                weighted.register_hook(lambda _: _ENGINE.queue_callback(lambda: ends.append(now())))
            self._precision.backward(weighted)
            step.communication += [(end, self._clock.now()) for end in ends]
        step.loss_sum = step.loss_sum + loss.detach().double() * batch.size
        step.samples += batch.size

    def _average_statistics(self) -> None:
        """Average the running statistics of batch normalisation over all ranks."""
        if self._ranks.world > 1:
            for module in self._plain.modules():
                if isinstance(module, _BatchNorm):
                    for statistic in (module.running_mean, module.running_var):
                        if statistic is not None:
                            self._ranks.average(statistic)

    @torch.no_grad()
    def _evaluate(self, loader: Loader, metric: str) -> dict[str, Any]:
        """Evaluate the model; return the window.

        The model without DDP is used, because ranks may have different numbers of batches.
        """
        ranks = self._ranks
        self._plain.eval()
        sums: dict[str, torch.Tensor] = {}
        samples = 0
        ranks.barrier()
        start_ns, start_s = time.time_ns(), time.perf_counter()
        for batch in loader.epoch(0):
            data = to_device(batch.data, ranks.device, self._format)
            with self._precision.autocast():
                batch_sums = self._workload.evaluate(self._plain, data)
            for name, value in batch_sums.items():
                sums[name] = sums.get(name, torch.zeros_like(value, dtype=torch.float64)) + value
            samples += batch.size
        ranks.barrier()
        window: dict[str, Any] = {"start_ns": start_ns, "duration_s": time.perf_counter() - start_s}
        local_sums = {name: float(value) for name, value in sums.items()}
        gathered = ranks.all_gather(local_sums | {"samples": samples})
        totals = sum_by_name(gathered)
        metrics = self._workload.metrics(totals) if totals["samples"] else {}
        return window | {
            "samples": samples_of_host(ranks, gathered),
            "loss": metrics.get("loss"),
            "metric": metrics.get(metric),
            "metrics": json.dumps({name: _finite(value) for name, value in metrics.items()}),
        }


def _write_notes(live: Path | None, ranks: Ranks, notes: list[str]) -> None:
    """Write ``notes.HOST.json``, on the first rank: the ranks' steps end together."""
    if live is not None and ranks.rank == 0 and notes:
        write_text(live / f"notes.{ranks.host}.json", json.dumps(list(dict.fromkeys(notes))))


def _finite(value: float) -> float | None:
    """Return a finite number, or None: JSON has no others."""
    return value if math.isfinite(value) else None
