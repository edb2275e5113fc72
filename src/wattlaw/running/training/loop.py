"""The training loop: epochs of training and evaluation, each a window with synchronised edges."""

import contextlib
import inspect
import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.files import write_text
from wattlaw.running.steps import Moment, Step, StepClock, StepPlan, StepWindow
from wattlaw.running.training import checkpoint
from wattlaw.running.training.checkpoint import Checkpointer, Progress
from wattlaw.running.training.environment import SHARING_WORKERS, WARNS
from wattlaw.running.training.preemption import PreemptionNotice
from wattlaw.running.training.ranks import Ranks, sum_by_name, to_device
from wattlaw.running.training.shared_models import is_shared
from wattlaw.store.live import LiveWriter, write_window
from wattlaw.store.run_folder import RunFolder
from wattlaw.study.model import RunSpec
from wattlaw.workloads.data_loading import Loader, workers_for
from wattlaw.workloads.workload import Batch, Dataset, Shard, Workload

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
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
        local_batch, global_batch = spec.local_batch, spec.global_batch
        if local_batch is None or global_batch is None:
            raise BadInput("a run that is trained here needs a batch size")
        self._workload, self._plain, self._ranks, self._seed = workload, plain, ranks, seed
        self._measure, self._options = spec.measure, spec.train
        self._is_shared, copies = is_shared(spec.setting), ranks.copies
        self._has_ddp = copies > 1 and not self._is_shared
        self._notice = PreemptionNotice(ranks, expected=WARNS in os.environ)
        self._clock = StepClock(ranks.gpu)
        self._precision = Precision(spec.setting.precision or "fp32", ranks.device)
        fraction = spec.setting.dataset_fraction
        parts = spec.gradient_accumulation
        of_copy = global_batch // copies
        self._batch_size = of_copy // parts
        shard = Shard(ranks.copy, copies, of_copy, seed, fraction, parts)
        evaluated = self._evaluation = None
        with ranks.first_before_others():
            self.data = workload.training_data()
            if self._measure.evaluate and not self._measure.is_by_steps:
                evaluated = workload.evaluation_data()
        self.loader = self._loader(self.data, shard, training=True)
        if evaluated is not None:
            self._evaluation = self._loader(evaluated, shard, training=False)
        if not self.loader.steps:
            raise BadInput(
                f"dataset_fraction {fraction:g} of {len(self.data)} samples with "
                f"{copies} copies of the model; allowed: at least one sample for each of them"
            )
        self._format = torch.preserve_format
        if self._options.channels_last:
            self._format = torch.channels_last
            plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._model = self._wrapped()
        fused = self._options.fused_optimizer or None
        self._optimizer = workload.optimizer(plain, global_batch, fused=fused)
        self._epochs = self._measure.epochs or _SCHEDULED_EPOCHS
        self._schedule = workload.schedule(self._optimizer, global_batch, self._epochs)

    def _loader(self, data: Dataset, shard: Shard, *, training: bool) -> Loader:
        workers, on_gpu = self._options.loader_workers, self._ranks.gpu is not None
        if workers is None:
            sharing = int(os.environ.get(SHARING_WORKERS, self._ranks.local_world))
            workers = workers_for(data, sharing, on_gpu=on_gpu)
        return Loader(
            data,
            shard,
            workers,
            training=training,
            prefetch=self._options.prefetch,
            pin_memory=on_gpu,
            handles_sigterm=WARNS not in os.environ,
        )

    def _wrapped(self) -> nn.Module:
        """Return the model for training. A single rank does not communicate gradients."""
        model = self._plain
        if self._has_ddp:
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
        workload's metrics that windows have. A run that is measured by steps has no checkpoint.
        """
        parts = {
            "model": self._plain,
            "optimizer": self._optimizer,
            "schedule": self._schedule,
            "precision": self._precision,
        }
        checkpointer = Checkpointer(folder.checkpoint_path, parts, self._ranks, windows, live)
        if self._measure.is_by_steps:
            stopped_at = self._train_by_steps(windows, live)
        else:
            begin = checkpointer.load(epochs=self._epochs, steps=self.loader.steps)
            stopped_at = self._train_by_epochs(begin, checkpointer, windows, metric)
        if stopped_at is not None:
            saves = not self._measure.is_by_steps and not self._is_shared
            checkpointer.stop(stopped_at, saves=saves)
        elif self._options.save_model and self._ranks.rank == 0:
            checkpoint.save_model(folder.model_path, self._plain)

    def _train_by_steps(self, windows: LiveWriter | None, live: Path | None) -> Progress | None:
        """Train warm-up and measured steps; return the progress at a notice, None without one.

        The boundary of an epoch of the data divides windows that are long enough.
        """
        ranks, group = self._ranks, self._ranks.cpu_group()
        plan = StepPlan(self._measure, lambda values: ranks.largest(values, group))
        self._model.train()
        self._notice.begin()
        window, epoch = self._begin_window(), 0
        while True:
            self._seed_epoch(epoch)
            for step, trained in enumerate(self._train_steps(epoch), 1):
                window.add(trained)
                if self._notice.after_step():
                    return Progress(epoch, step)
                is_warmup, elapsed_s = plan.is_warmup, window.elapsed_s
                if not plan.ends_window(window.steps, elapsed_s) and not (
                    step == self.loader.steps and plan.may_split(window.steps, elapsed_s)
                ):
                    continue
                columns, _ = self._end_window(window)
                columns |= {"from_step": plan.steps - window.steps, "interrupted": False}
                labels = {"epoch": None, "phase": "steps", "warmup": is_warmup}
                write_window(windows, ranks.host, **labels, **columns)
                if not is_warmup:
                    plan.add(window.clock.steps_s(), columns["duration_s"])
                if plan.is_complete:
                    self._average_statistics()
                    # On the first rank: the ranks' steps end together.
                    if live is not None and ranks.rank == 0 and (notes := plan.notes()):
                        write_text(live / f"notes.{ranks.host}.json", json.dumps(notes))
                    return None
                window = self._begin_window()
            self._schedule.after_epoch(None)
            epoch += 1

    def _begin_window(self) -> StepWindow:
        self._ranks.barrier()
        return StepWindow(self._ranks.gpu)

    def _end_window(self, window: StepWindow) -> tuple[dict[str, Any], dict[str, float]]:
        ranks, clock, own = self._ranks, window.clock, window.all
        ranks.barrier()
        duration_s = window.elapsed_s
        waits_s = float(clock.between_s(own.data_waits).sum())
        counted = {"loss": float(own.loss_sum), "samples": own.samples or 0}
        gathered = ranks.all_gather(ranks.once(counted) | {"data_wait_s": waits_s})
        totals = sum_by_name(gathered)
        columns = window.columns() | {
            "start_ns": window.start_ns,
            "duration_s": duration_s,
            "samples": int(sum(values["samples"] for values in ranks.of_host(gathered))),
            "loss": totals["loss"] / totals["samples"] if totals["samples"] else None,
            "data_wait_s": totals["data_wait_s"] / ranks.world,
        }
        if self._has_ddp:  # other ways communicate at many places of a step
            # The last rank of a step does not wait for others: it only communicates.
            each_s = clock.between_s(own.communication)
            least_s, mean_s = (float(values.sum()) for values in ranks.least_and_mean(each_s))
            columns |= {"communication_s": least_s, "rank_wait_s": mean_s - least_s}
        return columns, totals

    def _seed_epoch(self, epoch: int) -> None:
        """Seed an epoch's random numbers, which do not depend on the epochs before."""
        seed = (self._seed * 100_003 + epoch) * 1_000_003 + self._ranks.copy
        torch.manual_seed(seed % 2**64)

    def _train_by_epochs(
        self, begin: Progress, checkpointer: Checkpointer, windows: LiveWriter | None, metric: str
    ) -> Progress | None:
        measure, every = self._measure, self._options.checkpoint_every
        steps, host = self.loader.steps, self._ranks.host
        is_resumed = begin != Progress()
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
        begin = begin or Progress(epoch)
        self._model.train()
        window = self._begin_window()
        self._notice.begin()
        for trained in self._train_steps(epoch, begin.step):
            window.add(trained)
            if self._notice.after_step():
                break
        columns, totals = self._end_window(window)
        progress = Progress(
            epoch,
            begin.step + window.steps,
            begin.loss_sum + totals["loss"],
            begin.samples + int(totals["samples"]),
        )
        return columns | {"from_step": begin.step}, progress

    def _train_steps(self, epoch: int, step: int = 0) -> Iterator[Step]:
        steps = self.loader.steps
        self._schedule.before_step(min(self._epochs, epoch + step / steps))
        batches, trained = self.loader.epoch(epoch, step), Step()
        begin = self._clock.now()
        while (batch := next(batches, None)) is not None:
            trained.data_waits.append((begin, self._clock.now()))
            self._add_gradients(batch, trained)
            if batch.ends_step:
                self._precision.step(self._optimizer)
                step += 1
                self._schedule.before_step(min(self._epochs, epoch + step / steps))
                yield trained
                trained = Step()
            begin = self._clock.now()

    def _add_gradients(self, batch: Batch, step: Step) -> None:
        ranks = self._ranks
        # cuDNN tries its algorithms, for seconds, with each new shape. The rest at the end of an
        # epoch may first come within the measured steps: it does not search.
        torch.backends.cudnn.benchmark = batch.size == self._batch_size
        data = to_device(batch.data, ranks.device, self._format)
        model: Any = self._model
        is_local = self._has_ddp and not batch.ends_step  # gradients stay on their rank
        with model.no_sync() if is_local else contextlib.nullcontext():
            with self._precision.autocast():
                loss = self._workload.loss(self._model, data)
            # After the forward pass, so that new gradients reuse the memory of the old ones.
            if not step.samples:
                self._optimizer.zero_grad(set_to_none=True)
            # DDP averages gradients over copies. This weight gives the average over all samples
            # of the step, also if ranks have different numbers of samples.
            weight = batch.size * ranks.copies / batch.global_size
            weighted: Any = loss if weight == 1 else loss * weight
            ends: list[Moment] = []
            if self._has_ddp and batch.ends_step:
                # This callback runs when all gradients of this rank are computed. DDP enters its
                # own later, which waits for the communication and so runs after this one.
                now = self._clock.now
                weighted.register_hook(lambda _: _ENGINE.queue_callback(lambda: ends.append(now())))
            self._precision.backward(weighted)
            step.communication += [(end, self._clock.now()) for end in ends]
        step.loss_sum = step.loss_sum + loss.detach().double() * batch.size
        step.samples = (step.samples or 0) + batch.size

    def _average_statistics(self) -> None:
        if self._ranks.world > 1:
            for module in self._plain.modules():
                if isinstance(module, _BatchNorm):
                    for statistic in (module.running_mean, module.running_var):
                        if statistic is not None:
                            self._ranks.average(statistic)

    @torch.no_grad()
    def _evaluate(self, loader: Loader, metric: str) -> dict[str, Any]:
        """Without DDP, because ranks may have different numbers of batches.

        Ranks that share a model have equal ones (``planning.check_layout``).
        """
        ranks = self._ranks
        self._plain.eval()
        sums: dict[str, torch.Tensor] = {}
        samples = 0
        begun = self._begin_window()
        for batch in loader.epoch(0):
            data = to_device(batch.data, ranks.device, self._format)
            with self._precision.autocast():
                batch_sums = self._workload.evaluate(self._plain, data)
            for name, value in batch_sums.items():
                sums[name] = sums.get(name, torch.zeros_like(value, dtype=torch.float64)) + value
            samples += batch.size
        ranks.barrier()
        window: dict[str, Any] = {"start_ns": begun.start_ns, "duration_s": begun.elapsed_s}
        local_sums = {name: float(value) for name, value in sums.items()}
        gathered = ranks.all_gather(ranks.once(local_sums | {"samples": samples}))
        totals = sum_by_name(gathered)
        metrics = self._workload.metrics(totals) if totals["samples"] else {}
        return window | {
            "samples": int(sum(values["samples"] for values in ranks.of_host(gathered))),
            "loss": metrics.get("loss"),
            "metric": metrics.get(metric),
            # JSON has finite numbers only.
            "metrics": json.dumps({n: v if math.isfinite(v) else None for n, v in metrics.items()}),
        }


class Precision:
    """One of fp32, tf32, bf16 and fp16; weights and optimiser state stay fp32 in all of them.

    fp32 is IEEE throughout: TF32, which torch uses for convolutions by default, is off. bf16 and
    fp16 are torch's automatic mixed precision; fp16 scales the loss (Micikevicius et al. 2018,
    arXiv 1710.03740), so that small gradients do not vanish.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "tf32" and (device.type != "cuda" or torch.version.hip):
            raise NotAvailable("precision tf32 needs an NVIDIA GPU; allowed here: fp32, bf16, fp16")
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        torch.backends.cudnn.allow_tf32 = name == "tf32"
        self._device, self._dtype = device, _AUTOCAST.get(name)
        self._scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._dtype)

    def backward(self, loss: torch.Tensor) -> None:
        self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make an optimizer step; with fp16 a step whose gradients overflowed is skipped."""
        self._scaler.step(optimizer)
        self._scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self._scaler.load_state_dict(state)
