"""The training recipe: one property of molecules, by SchNet or by DimeNet."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from wattlaw.workloads.molecules import DimeNetOptions, Options, SchNetOptions, Target, qm9
from wattlaw.workloads.molecules.graphs import neighbours, paths
from wattlaw.workloads.molecules.molecules import MoleculeData, Molecules
from wattlaw.workloads.molecules.nets import DimeNet, SchNet, Standardised
from wattlaw.workloads.molecules.synthetic import synthetic_molecules
from wattlaw.workloads.schedules import ConstantRate
from wattlaw.workloads.workload import Dataset, Indices, means

_POOL, _EVALUATION_POOL = 3072, 1024
_POOL_SEED, _EVALUATION_POOL_SEED = 1, 2

_Options = TypeVar("_Options", bound=Options)


class _Samples(NamedTuple):
    """Molecules, which of them are samples, and how many samples there are."""

    molecules: Molecules
    chosen: Indices
    samples: int


class _OnQm9(ConstantRate, ABC, Generic[_Options]):
    """Adam at a constant rate; mean absolute error of the standardised property.

    The loss is in standard deviations of the training molecules' property, the metric ``mae`` in
    the property's own unit. Neither net has batch normalisation or dropout.
    """

    def __init__(self, options: _Options) -> None:
        self._options = options
        self._column = get_args(Target).index(options.target)

    @abstractmethod
    def _net(self) -> nn.Module:
        """Return the net."""

    @abstractmethod
    def _graph(self, pos: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return what the net needs of a batch's graph."""

    def model(self) -> nn.Module:
        """Return the net, which predicts standardised properties."""
        return Standardised(self._net(), *self._statistics)

    def optimizer(
        self,
        model: nn.Module,
        global_batch: int,  # noqa: ARG002
        *,
        fused: bool | None,
    ) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(model.parameters(), lr=self._options.lr, fused=fused)

    def training_data(self) -> Dataset:
        """Return the molecules to train on."""
        return self._dataset(self._samples[0])

    def evaluation_data(self) -> Dataset:
        """Return the molecules to evaluate on."""
        return self._dataset(self._samples[1])

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        """Return the mean absolute error of a batch, in standard deviations."""
        return self._errors(model, data).mean()

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, torch.Tensor]:
        """Return summed absolute errors, in standard deviations and in the property's unit."""
        loss = self._errors(model, data).sum()
        return {"loss": loss, "mae": loss * self._statistics[1]}

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the mean absolute errors."""
        return means(sums)

    def _errors(self, model: nn.Module, data: Any) -> torch.Tensor:
        *graph, targets = data
        mean, std = self._statistics
        # Energies are a thousand times their differences: the mean goes before anything else.
        wanted = (targets.double() - mean) / std
        predicted = model(*graph, molecules=len(targets))
        return functional.l1_loss(predicted, wanted.float(), reduction="none")

    def _dataset(self, samples: _Samples) -> Dataset:
        molecules, chosen, number = samples
        return MoleculeData(molecules, chosen, self._column, self._graph, number)

    @cached_property
    def _samples(self) -> tuple[_Samples, _Samples]:
        """The samples for training and those for evaluation."""
        options = self._options
        train, evaluation = options.train_samples, options.evaluation_samples
        if options.data is None:
            pool = synthetic_molecules(min(train, _POOL), _POOL_SEED)
            evaluation_pool = synthetic_molecules(
                min(evaluation, _EVALUATION_POOL), _EVALUATION_POOL_SEED
            )
            return (
                _Samples(pool, np.arange(len(pool)), train),
                _Samples(evaluation_pool, np.arange(len(evaluation_pool)), evaluation),
            )
        data = Path(options.data)
        molecules = qm9.read(data)
        qm9.check_target(data, molecules.targets[:, self._column], options.target)
        for_training, for_evaluation = qm9.split(data, len(molecules), train, evaluation)
        return (
            _Samples(molecules, for_training, len(for_training)),
            _Samples(molecules, for_evaluation, len(for_evaluation)),
        )

    @cached_property
    def _statistics(self) -> tuple[float, float]:
        """Mean and standard deviation of the training molecules' property."""
        molecules, chosen, _ = self._samples[0]
        values = molecules.targets[chosen, self._column].astype(np.float64)
        same = values.min() == values.max()  # then there is nothing to divide by
        return float(values.mean()), 1.0 if same else float(values.std())


class SchNetOnQm9(_OnQm9[SchNetOptions]):
    """SchNet."""

    def _net(self) -> nn.Module:
        return SchNet(self._options)

    def _graph(self, pos: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (neighbours(pos, batch, self._options.cutoff),)


class DimeNetOnQm9(_OnQm9[DimeNetOptions]):
    """DimeNet."""

    def _net(self) -> nn.Module:
        return DimeNet(self._options)

    def _graph(self, pos: torch.Tensor, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        edges = neighbours(pos, batch, self._options.cutoff)
        return (edges, *paths(edges, len(pos)))
