"""The training recipe: SchNet or DimeNet predicts one property of molecules."""
# ruff: noqa: ARG002 - the arguments of the protocol

from abc import abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from wattlaw.workloads.workload import BaseWorkload, Dataset, Indices
from wattlaw_papers.workloads.molecules import (
    DimeNetOptions,
    Options,
    SchNetOptions,
    Target,
    nets,
    qm9,
)
from wattlaw_papers.workloads.molecules.molecules import MoleculeData, Molecules
from wattlaw_papers.workloads.molecules.synthetic_molecules import synthetic_molecules

_POOL, _EVALUATION_POOL = 3072, 1024
_POOL_SEED, _EVALUATION_POOL_SEED = 1, 2

_Options = TypeVar("_Options", bound=Options)


class _Samples(NamedTuple):
    molecules: Molecules
    chosen: Indices
    samples: int


class _OnQm9(BaseWorkload, Generic[_Options]):
    """Adam at a constant rate. The loss is the mean absolute error in standard deviations of the
    training molecules' property, the metric ``mae`` that in the unit of the property."""

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._column = get_args(Target).index(options.target)

    @abstractmethod
    def _net(self) -> nn.Module: ...

    def _graph(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        return (nets.radius_graph(pos, self._options.cutoff, batch),)  # type: ignore[attr-defined]

    def model(self) -> nn.Module:
        return nets.Standardised(self._net(), *self._statistics)

    def optimizer(
        self, model: nn.Module, global_batch: int, *, fused: bool | None
    ) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=self._options.lr, fused=fused)

    def loss(self, model: nn.Module, data: Any) -> Tensor:
        return self._errors(model, data).mean()

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, Tensor]:
        loss = self._errors(model, data).sum()
        return {"loss": loss, "mae": loss * self._statistics[1]}

    def _errors(self, model: nn.Module, data: Any) -> Tensor:
        *graph, targets = data
        mean, std = self._statistics
        # In double precision, because energies are a thousand times as large as their differences.
        expected = (targets.double() - mean) / std
        predicted = model(*graph, molecules=len(targets))
        return functional.l1_loss(predicted, expected.float(), reduction="none")

    def _data(self, *, training: bool) -> Dataset:
        molecules, chosen, number = self._samples[0 if training else 1]
        return MoleculeData(molecules, chosen, self._column, self._graph, number)

    @cached_property
    def _samples(self) -> tuple[_Samples, _Samples]:
        options = self._options
        sizes = options.train_samples, options.evaluation_samples
        if options.data is None:
            return (
                _synthetic(sizes[0], _POOL, _POOL_SEED),
                _synthetic(sizes[1], _EVALUATION_POOL, _EVALUATION_POOL_SEED),
            )
        data = Path(options.data)
        molecules = qm9.read(data)
        qm9.check_target(data, molecules.targets[:, self._column], options.target)
        parts = qm9.split(data, len(molecules), *sizes)
        training, evaluation = (_Samples(molecules, part, len(part)) for part in parts)
        return training, evaluation

    @cached_property
    def _statistics(self) -> tuple[float, float]:
        molecules, chosen, _ = self._samples[0]
        values = molecules.targets[chosen, self._column].astype(np.float64)
        is_constant = values.min() == values.max()  # a standard deviation of 0 cannot divide
        return float(values.mean()), 1.0 if is_constant else float(values.std())


def _synthetic(samples: int, pool: int, seed: int) -> _Samples:
    molecules = synthetic_molecules(min(samples, pool), seed)
    return _Samples(molecules, np.arange(len(molecules)), samples)


class SchNetOnQm9(_OnQm9[SchNetOptions]):
    def _net(self) -> nn.Module:
        return nets.SchNet(self._options)


class DimeNetOnQm9(_OnQm9[DimeNetOptions]):
    def _net(self) -> nn.Module:
        return nets.DimeNet(self._options)

    def _graph(self, pos: Tensor, batch: Tensor) -> tuple[Tensor, ...]:
        edges, *_ = super()._graph(pos, batch)
        return (edges, *nets.paths(edges, len(pos)))
