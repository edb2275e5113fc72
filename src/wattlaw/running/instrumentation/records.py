"""Reads what training processes have recorded of their optimizer steps."""

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from wattlaw.common.errors import BadInput
from wattlaw.common.files import open_regular
from wattlaw.common.text import collapse_whitespace
from wattlaw.running.steps import Floats, Mask
from wattlaw.store.record import Parallelism
from wattlaw.study.base_model import CHECKPOINTINGS, SHARDINGS
from wattlaw.study.network import Network

_NAME = re.compile(r"steps\..+\.jsonl")
_MAX_FILES, _MAX_FILE_BYTES, _MAX_LINE_BYTES = 4096, 160 * 2**20, 8 * 2**20
_MAX_NUMBER, _MAX_OPTIMIZERS, _MAX_PROBLEMS, _MAX_PACKAGES = 2**62, 10_000, 20, 30
#: A hundred years: no process counts more. Samples of one step.
_MAX_US, _MAX_SAMPLES = 3.2e15, 2**40
_TEXTS = ("host", "backend", "parallelism", "precision", "sharding", "checkpointing")
_CHOICES: Mapping[str, Sequence[str]] = {
    "parallelism": get_args(Parallelism),
    "sharding": SHARDINGS,
    "checkpointing": CHECKPOINTINGS,
}
_NUMBERS = (
    "pid", "rank", "world_size", "env_world_size", "local_world_size",
    "launched_rank", "parameters", "gradient_bytes", "gpu_memory_bytes", "peak_memory_bytes",
    "peak_resident_bytes", "dataset_samples", "tp", "pp", "cp", "ep", "dp", "virtual_stages",
    "data_rank", "micro_batch", "accumulation", "pieces", "tokens", "token_samples",
    "threads_per_worker",
)  # fmt: skip
#: Of which the largest that was recorded counts.
_PEAKS = ("peak_memory_bytes", "peak_resident_bytes")
#: Counts of steps that read several loaders, and of steps of any optimizer that got batches.
_MIXED = ("several_loaders", "fed_steps")
#: Optimizers step on batches in turn if so many times the steps of the main one got batches.
_ALTERNATE = 1.5
#: Steps from which the mean number of batches per step shows gradient accumulation.
_ENOUGH_STEPS = 10
#: Columns of the steps of an optimizer: the end in microseconds, the samples, the wait for them in
#: seconds, 1 for a step with an evaluation before it, and the backward passes of DDP until its end.
#: NaN is unknown.
_END_US, _SAMPLES, _WAIT_S, _EVALUATED, _PASSES = range(5)
_EMPTY = np.empty((0, 5))


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """What a process shows of the training; None where it has not shown a value.

    ``backend`` is that of the process group that it has joined, ``gradient_accumulation`` counts
    micro-batches per step. The sizes of the layout are those of ``Setting``.
    """

    backend: str | None = None
    parallelism: str | None = None  # none, ddp, fsdp, deepspeed, tensor or pipeline
    precision: str | None = None  # of the computation: fp32, tf32, bf16, fp16, fp64
    parameters: int | None = None
    gradient_bytes: int | None = None
    gradient_accumulation: int | None = None
    dataset_samples: int | None = None  # of an epoch of all ranks
    gpu_memory_bytes: int | None = None
    peak_memory_bytes: int | None = None  # of a GPU
    peak_resident_bytes: int | None = None  # of the process
    threads_per_worker: int | None = None  # processor threads, by torch
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    dp: int | None = None
    virtual_stages: int | None = None
    sharding: str | None = None
    checkpointing: str | None = None
    micro_batch: int | None = None  # samples of a copy of the model at once
    tokens_per_sample: float | None = None
    software: Mapping[str, str] = field(default_factory=dict)  # versions of what was imported
    network: str | None = None  # sizes of the transformer, JSON of ``study.network.Network``


@dataclass(frozen=True)
class ProcessSteps(TrainingFacts):
    """One training process; a value that it has not shown is None.

    Times are seconds since 1970. ``step_end_s`` is NaN where lost; on CUDA it is when the GPU ended
    the step. Of optimizers that step side by side, it is of the one with the most steps. Samples
    and waits for the data loader are those of this process, NaN if unknown; not of a batch if
    ``is_mixed``: most steps take batches of several loaders, or optimizers take them in turn.
    ``evaluated`` states whether an evaluation lies between the step before and this one.
    ``gradient_wait_s`` is what a step waited for other ranks' gradients when it had computed its
    own, with FSDP also for parameters. ``rank`` is of the process group or else of the launcher.
    """

    host: str
    pid: int
    step_end_s: Floats
    samples_per_step: Floats
    rank: int | None = None
    world_size: int | None = None
    env_world_size: int | None = None  # of environment variables, as the next one
    local_world_size: int | None = None
    launched_rank: int | None = None  # of wattlaw, from which the process descends
    is_ended: bool = False
    error: str | None = None  # that ended the script
    problems: tuple[str, ...] = ()
    evaluated: Mask | None = None
    data_wait_s: Floats | None = None
    gradient_wait_s: Floats | None = None
    is_mixed: bool = False
    data_rank: int | None = None  # the copy of the model that this rank is a part of

    @property
    def steps(self) -> int:
        return len(self.step_end_s)


class StepsFolder:
    """The records of a command's processes, which can be read while they grow.

    Torn and invalid lines are left out. The processes run the user's script: nothing in the
    files is trusted, and sizes are limited.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _File] = {}

    def read(self) -> list[ProcessSteps]:
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(self._folder))[: 2 * _MAX_FILES]:  # noqa: PTH208
                if _NAME.fullmatch(name) and len(self._files) < _MAX_FILES:
                    self._files.setdefault(name, _File(self._folder / name))
        for file in self._files.values():
            file.read_new_lines()
        known = filter(None, (file.process() for file in self._files.values()))
        return sorted(known, key=lambda process: (process.host, process.pid))

    def problems(self) -> list[str]:
        """Return a note for each file without a process, as of one that met a full disk."""
        return [
            f"{name} is incomplete: its process could not write all records"
            for name, file in sorted(self._files.items())
            if file.process() is None
        ]


@dataclass
class _Optimizer:
    blocks: list[Floats] = field(default_factory=list)  # steps in the columns above
    steps: int = 0
    end_us: float = 0.0  # of the last step
    device_us: list[Floats] = field(default_factory=list)
    device_steps: int = 0  # with a duration; -1 after a gap
    device_end_us: float = 0.0  # since the first step
    first_us: float = np.nan  # the end of the first step, by the GPU

    def table(self) -> Floats:
        table = np.concatenate([_EMPTY, *self.blocks])
        known = 1 + min(self.device_steps, len(table) - 1)
        if known > 1:
            since_first_us = np.cumsum(np.concatenate([[0.0], *self.device_us]))[:known]
            ends_us = self.first_us + since_first_us
            table[known:, _END_US] += ends_us[-1] - table[known - 1, _END_US]
            table[:known, _END_US] = ends_us
        return table


class _File:
    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._facts: dict[str, Any] = {}
        self._problems: dict[str, None] = {}
        self._optimizers: dict[int, _Optimizer] = {}
        self._gradient_waits_us: list[Floats] = []  # of backward passes
        self._gradient_waits = 0
        self._base_ns: int | None = None
        self._is_ended = False

    def read_new_lines(self) -> None:
        try:
            with open_regular(self._path, follow_links=False) as file:
                file.seek(self._offset)
                content = file.read(_MAX_FILE_BYTES - self._offset)
        except OSError as error:
            self._problem(f"cannot be read: {error.strerror}")
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                self._take(json.loads(line) if len(line) <= _MAX_LINE_BYTES else None)
            except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
                self._problem("a line cannot be read; steps after lost ones are not counted")

    def _problem(self, text: str) -> None:
        if len(self._problems) < _MAX_PROBLEMS:
            self._problems[text] = None

    def _take(self, record: Any) -> None:
        """Take a record; an exception means that it is invalid."""
        kind = record["type"]
        if kind == "steps":
            self._take_steps(record)
        elif kind == "device":
            self._take_device(record)
        elif kind == "gradient_waits":
            if record["first"] != self._gradient_waits:
                raise ValueError  # those before are lost
            self._gradient_waits_us.append(_durations(record["us"]))
            self._gradient_waits += len(self._gradient_waits_us[-1])
        elif kind in ("process", "facts"):
            self._take_facts(record)
            if kind == "process":
                self._base_ns = _integer(record["base_ns"])
            else:
                self._facts["batches"] = _integer(record["batches"])
                self._facts |= {name: _integer(record.get(name, 0)) for name in _MIXED}
                self._facts["batches_at_step"] = self._most_steps()
        elif kind == "problem":
            self._problem(f"{record['part']}: {record['error']}"[:400])
        elif kind == "end":
            self._is_ended = True
            error = record.get("error")
            self._facts["error"] = (
                collapse_whitespace(error)[:300] if isinstance(error, str) else None
            )

    def _take_facts(self, record: dict[str, Any]) -> None:
        for name in _TEXTS:
            value = record.get(name)
            if isinstance(value, str) and value in _CHOICES.get(name, (value,)):
                self._facts[name] = value[:200]
        if isinstance(config := record.get("config"), dict):
            self._facts["config"] = config
        if isinstance(software := record.get("software"), dict):
            named = [*software.items()][:_MAX_PACKAGES]
            self._facts["software"] = {name[:40]: str(version)[:60] for name, version in named}
        for name in _NUMBERS:
            if record.get(name) is not None:
                number = _integer(record[name])
                before = self._facts.get(name, 0) if name in _PEAKS else 0
                self._facts[name] = max(number, before)

    def _take_steps(self, record: dict[str, Any]) -> None:
        own = self._optimizer(record)
        ends_us, waits_us = np.cumsum(_numbers(record["us"])), _numbers(record["waits_us"])
        samples = record["samples"]
        counts = samples if isinstance(samples, list) else [samples] * len(ends_us)
        counted = np.array([np.nan if n is None else _integer(n) for n in counts], float)
        evaluations = [_integer(number) for number in record.get("evaluations", [])]
        is_in_time = own.end_us <= ends_us[0] and ends_us[-1] <= _MAX_US >= waits_us.max()
        if not len(ends_us) == len(counted) == len(waits_us) or not is_in_time:
            raise ValueError
        if np.nan_to_num(counted).max() > _MAX_SAMPLES:
            raise ValueError
        if _integer(record["first"]) != own.steps:
            raise ValueError  # those before are lost: steps after them have no place
        block = np.full((len(ends_us), 5), np.nan)
        block[:, _END_US], block[:, _SAMPLES] = ends_us, counted
        block[:, _WAIT_S] = np.where(np.isnan(counted), np.nan, waits_us * 1e-6)
        if "passes" in record:
            block[:, _PASSES] = np.cumsum(_numbers(record["passes"]))
        block[:, _EVALUATED] = np.isin(own.steps + np.arange(len(block)), evaluations)
        own.blocks.append(block)
        own.end_us = float(ends_us[-1])
        own.steps += len(block)

    def _take_device(self, record: dict[str, Any]) -> None:
        own = self._optimizer(record)
        durations_us = _durations(record["us"])
        low, high = float(record["low_us"]), float(record["high_us"])
        is_valid = bool(own.device_end_us + durations_us.sum() <= _MAX_US) and all(
            abs(bound) <= _MAX_US for bound in (low, high)
        )
        if own.device_steps < 0 or record["first"] != own.device_steps + 1 or not is_valid:
            own.device_steps = -1
            self._problem("the times of the GPU have a gap; those of the host are used")
            return
        own.device_us.append(durations_us)
        own.device_end_us += float(durations_us.sum())
        own.device_steps += len(durations_us)
        own.first_us = (low + high) / 2 if low <= high else low

    def _optimizer(self, record: dict[str, Any]) -> _Optimizer:
        index = _integer(record["optimizer"])
        if len(self._optimizers) >= _MAX_OPTIMIZERS:
            raise ValueError
        return self._optimizers.setdefault(index, _Optimizer())

    def _most_steps(self) -> int:
        return max((own.steps for own in self._optimizers.values()), default=0)

    def process(self) -> ProcessSteps | None:
        facts = dict(self._facts)
        if self._base_ns is None or not {"host", "pid"} <= facts.keys():
            return None
        table = self._main_steps()
        batches, at_step = facts.pop("batches", 0), facts.pop("batches_at_step", 0)
        per_step = round(batches / at_step) if at_step >= _ENOUGH_STEPS else 0
        stated, pieces = facts.pop("accumulation", None), facts.pop("pieces", 1)
        tokens, token_samples = (facts.pop(name, 0) for name in ("tokens", "token_samples"))
        tokens_per_sample = tokens / token_samples if token_samples else None
        network = _network(facts.pop("config", None), tokens_per_sample)
        is_one = len(table) == self._most_steps()
        several, fed = (facts.pop(name, 0) for name in _MIXED)
        return ProcessSteps(
            step_end_s=self._base_ns / 1e9 + table[:, _END_US] / 1e6,
            samples_per_step=table[:, _SAMPLES],
            data_wait_s=table[:, _WAIT_S],
            evaluated=table[:, _EVALUATED] > 0,
            gradient_wait_s=self._gradient_waits_s(table[:, _PASSES]),
            gradient_accumulation=stated or per_step * pieces or None,
            tokens_per_sample=tokens_per_sample,
            network=network,
            is_mixed=2 * several > at_step or (is_one and fed > _ALTERNATE * at_step),
            is_ended=self._is_ended,
            problems=tuple(self._problems),
            **facts,
        )

    def _gradient_waits_s(self, passes: Floats) -> Floats:
        """Return the waits of each step, by the number of backward passes until its end.

        A step without any has one that was not seen.
        """
        until_us = np.cumsum(np.concatenate([[0.0], *self._gradient_waits_us]))
        known = passes < len(until_us)
        waits_us = np.full(len(passes), np.nan)
        waits_us[known] = until_us[passes[known].astype(int)]
        is_seen = np.diff(passes, prepend=0.0) > 0
        return np.where(is_seen, np.diff(waits_us, prepend=0.0) * 1e-6, np.nan)

    def _main_steps(self) -> Floats:
        """Of optimizers that step side by side, as of a GAN, the one with the most steps counts,
        the first of equals. Optimizers that follow each other add up.
        """
        chosen = [_EMPTY]
        until_us = -np.inf  # the last step of those that step side by side
        tables = [own.table() for own in self._optimizers.values()]
        known = [table for table in tables if not np.isnan(table[:, _END_US]).all()]
        for table in sorted(known, key=lambda table: table[0, _END_US]):
            ends_us = table[:, _END_US]
            if np.nanmin(ends_us) > until_us:
                chosen.append(table)
            elif len(table) > len(chosen[-1]):
                chosen[-1] = table
            until_us = max(until_us, float(np.nanmax(ends_us)))
        return np.concatenate(chosen)


def _network(config: dict[str, Any] | None, tokens_per_sample: float | None) -> str | None:
    if config is None or not tokens_per_sample:
        return None
    try:
        network = Network.of_config(config, round(tokens_per_sample))
    except BadInput:  # of another family
        return None
    return network.model_dump_json(exclude_defaults=True)


def _integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_NUMBER:
        raise ValueError
    return value


def _durations(values: Any) -> Floats:
    durations = np.array(values, dtype=float)
    if durations.ndim != 1 or not (durations >= 0).all() or durations.sum() > _MAX_US:
        raise ValueError
    return durations


def _numbers(values: Any) -> Floats:
    if type(values) is not list or not values:
        raise ValueError
    return np.array([_integer(value) for value in values], dtype=float)
