"""Samples that data loaders give for each step, and evaluations between steps."""

from __future__ import annotations

import functools
import sys
import time
from collections import deque
from typing import Any

_INTEGERS = ("torch.int64", "torch.int32")
#: Module and name of the function of accelerate that reads each batch one ahead.
_READS_AHEAD = ("accelerate.data_loader", "__iter__")


class _Batches:
    def __init__(self, sampler: Any, steps: int) -> None:
        self.sampler = sampler
        self.steps = steps  # that were taken before its first batch
        self.sizes: deque[int | None] = deque()  # drawn and not fetched; None if unknown
        self.fetched = 0
        self.epoch: tuple[int | None, int] = (None, 1)
        self.is_packed = False  # a batch of an iterable data set has fewer rows than samples
        self.ahead: list[int | None] = []  # fetched, but the training does not have it yet


class LoadedSamples:
    """Counts samples from the first one on; a loader's are counted at the step that follows.

    ``unknown`` is the number of steps whose samples are not known, ``fed`` that of steps for which
    a loader was read, and ``several_loaders`` that of steps for which more than one was.
    """

    def __init__(self) -> None:
        self.samples = self.unknown = self.batches = self.evaluations = 0
        self.fed = self.several_loaders = 0
        self.tokens = self.token_samples = 0  # of batches of integers
        self.waited_ns = 0  # in loaders, for batches of training
        # Samples of an epoch, None if unknown, and the ranks that share them: of the loader of the
        # last step, and of the one that was read last.
        self.epoch: tuple[int | None, int] = (None, 1)
        self._epoch = self.epoch
        # Samples and batches since the last step, by iterator; samples are None if unknown.
        self._fetched: dict[int, tuple[int | None, int]] = {}
        self._last_iterator = 0
        self._ended = 0  # the iterator that read ahead and has ended without a step so far

    def totals(self) -> tuple[int, int, int, int]:
        return self.samples, self.unknown, self.evaluations, self.waited_ns

    def step(self) -> None:
        """Count what the loader that was read last has given since the step before."""
        if self._fetched:
            samples, batches = self._fetched.get(self._last_iterator, (0, 0))
            self.unknown += samples is None
            self.samples += samples or 0
            self.batches += batches
            self.fed += 1
            self.epoch = self._epoch
            self.several_loaders += len(self._fetched) > 1
            self._fetched.clear()
            self._ended = 0

    def index_drawn(self, iterator: Any, index: Any, steps: int) -> None:
        noted = iterator.__dict__.get("_wattlaw")
        if noted is None or noted.sampler is not iterator._sampler_iter:
            noted = iterator._wattlaw = _Batches(iterator._sampler_iter, steps)
        noted.sizes.append(len(index) if isinstance(index, (list, tuple)) else None)

    def batch_fetched(
        self, iterator: Any, data: Any, waited_ns: int, *, is_evaluation: bool, is_ahead: bool
    ) -> None:
        """Add a batch, which is an evaluation's if it is read without gradients.

        A loader that is ``is_ahead`` reads a batch before it passes on the one before.
        """
        noted = iterator.__dict__.get("_wattlaw")
        size = noted.sizes.popleft() if noted is not None and noted.sizes else None
        if is_evaluation:
            self.evaluations += 1
            return
        self.waited_ns += waited_ns
        tokens, rows = _tokens(data)
        self.tokens += tokens
        self.token_samples += rows
        if size and iterator._dataset_kind:  # of an iterable data set the last batch may be smaller
            rows = _leading_size(data) or size
            noted.is_packed |= rows < size and not noted.fetched
            size = size if noted.is_packed else min(size, rows)
        if noted is not None:
            if not noted.fetched:
                noted.epoch = _epoch_of(iterator)
            self._epoch = noted.epoch
            noted.fetched += 1
            noted.ahead.append(size)
            if is_ahead and len(noted.ahead) == 1:
                return
            size = noted.ahead.pop(0)
        self._add(iterator, size)

    def _add(self, iterator: Any, size: int | None) -> None:
        if self._ended not in (0, id(iterator)):
            self.evaluations += self._fetched.pop(self._ended, None) is not None
            self._ended = 0
        before, batches = self._fetched.get(id(iterator), (0, 0))
        total = None if size is None or before is None else before + size
        self._fetched[id(iterator)] = (total, batches + 1)
        self._last_iterator = id(iterator)

    def loader_exhausted(self, iterator: Any, steps: int) -> None:
        """Forget a loader that ended without a step since its first batch: it was an evaluation.

        One that reads ahead ends before the step of its last batch: it is forgotten when another
        loader is read before a step.
        """
        noted = iterator.__dict__.get("_wattlaw")
        if noted is None:
            return
        is_ahead = bool(noted.ahead)
        if is_ahead:
            self._add(iterator, noted.ahead.pop())
        if noted.steps == steps and is_ahead:
            self._ended = id(iterator)
        elif noted.steps == steps:
            self.evaluations += self._fetched.pop(id(iterator), None) is not None


def _epoch_of(iterator: Any) -> tuple[int | None, int]:
    """Return the samples of an epoch of all ranks, None if unknown, and how many ranks share them.

    Samplers of torch and accelerate know the ranks. They may draw only a part of the data set.
    """
    batches = iterator._index_sampler
    sampler = getattr(batches, "sampler", getattr(batches, "batch_sampler", None))
    sampler = getattr(sampler, "sampler", sampler)
    ranks = getattr(sampler, "num_replicas", getattr(batches, "num_processes", 1))
    try:
        size = len(iterator._dataset)
        drawn = len(sampler) * getattr(sampler, "num_replicas", 1)  # type: ignore[arg-type]
    except TypeError:  # such as an iterable data set
        return None, ranks
    return min(size, drawn), ranks


def _parts(data: Any) -> list[Any]:
    if isinstance(data, (list, tuple)):
        return [*data]
    if hasattr(data, "shape"):  # a tensor has a method values, too
        return [data]
    return [*data.values()] if hasattr(data, "values") else [data]


def _leading_size(data: Any) -> int | None:
    sizes = {int(part.shape[0]) for part in _parts(data) if getattr(part, "shape", None)}
    return sizes.pop() if len(sizes) == 1 else None


def _tokens(data: Any) -> tuple[int, int]:
    """Return the tokens of a batch and its rows: of the first matrix of integers.

    Tables have integers, too, beside numbers of other kinds.
    """
    tensors = [part for part in _parts(data) if hasattr(part, "is_floating_point")]
    if any(tensor.is_floating_point() for tensor in tensors):
        return 0, 0
    matrices = (t for t in tensors if t.dim() == 2 and str(t.dtype) in _INTEGERS)
    rows, length = next((tuple(t.shape) for t in matrices), (0, 0))
    return rows * length, rows


def count_samples(module: Any, recorder: Any) -> None:
    iterators = module._BaseDataLoaderIter
    next_index, next_batch = iterators._next_index, iterators.__next__
    has_gradients = sys.modules["torch"].is_grad_enabled

    @functools.wraps(next_index)
    def _next_index(self: Any) -> Any:
        index = next_index(self)
        try:
            recorder.loaded.index_drawn(self, index, recorder.steps)
        except Exception as error:
            recorder.fail("samples", error)
        return index

    @functools.wraps(next_batch)
    def __next__(self: Any) -> Any:  # noqa: N807 - the name of what it replaces
        begin_ns = time.perf_counter_ns()
        try:
            data = next_batch(self)
        except StopIteration:
            recorder.loaded.loader_exhausted(self, recorder.steps)
            raise
        try:
            waited_ns = time.perf_counter_ns() - begin_ns
            caller = sys._getframe(1)
            is_ahead = caller.f_globals.get("__name__") == _READS_AHEAD[0]
            recorder.loaded.batch_fetched(
                self,
                data,
                waited_ns,
                is_evaluation=not has_gradients(),
                is_ahead=is_ahead and caller.f_code.co_name == _READS_AHEAD[1],
            )
        except Exception as error:
            recorder.fail("samples", error)
        return data

    iterators._next_index, iterators.__next__ = _next_index, __next__
