"""The model, its training recipe in two stages, and its metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from wattlaw.errors import NotAvailable
from wattlaw.workloads.schedules import Cosine
from wattlaw.workloads.torchvision_import import import_torchvision
from wattlaw.workloads.weather import Options
from wattlaw.workloads.weather.scores import (
    anomaly_correlation,
    latitude_weights,
    relative_l2,
    weighted_rmse,
)
from wattlaw.workloads.weather.statistics import read_channel_statistics, read_climatology
from wattlaw.workloads.weather.synthetic import Climate, SyntheticWeather
from wattlaw.workloads.weather.weights import load_weights
from wattlaw.workloads.workload import Dataset, Schedule, means

if TYPE_CHECKING:
    from wattlaw.workloads.weather.era5 import Era5

_DATA_SEED = 0
_FIRST_EVALUATION_YEAR = 37  # of the synthetic ones, after those of training


class Forecaster(nn.Module):
    """Applies a network to its own forecasts, for a number of steps."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, state: torch.Tensor, steps: int = 1) -> tuple[torch.Tensor, ...]:
        """Return the states after each step, float32 under autocast too.

        Parameters
        ----------
        state
            Standardised fields, shape (samples, channels, height, width).
        steps
            How far to go; the gradient goes back through all of them.
        """
        forecasts = []
        for _ in range(steps):
            state = self.network(state).float()
            forecasts.append(state)
        return tuple(forecasts)


class FourCastNet:
    """AFNO with Adam and a cosine schedule; latitude-weighted RMSE and anomaly correlation.

    Pathak et al. 2022 (arXiv 2202.11214), sections on pre-training and fine-tuning. There is no
    batch normalisation and no dropout, so that one and several workers at the same global batch
    compute the same steps.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._size = (options.channels, *options.image_size)
        self._weights = latitude_weights(options.image_size[0])
        self._climate: Climate | None = None
        self._climatology: torch.Tensor | None = None

    def model(self) -> nn.Module:
        """Return the model, new or with the weights that the options name."""
        options = self._options
        import_torchvision()
        try:
            from physicsnemo.models.afno import AFNO
        except ImportError as error:
            raise NotAvailable(
                f'AFNO cannot be imported ({error}); try: pip install "wattlaw[weather]"'
            ) from None
        network = AFNO(
            inp_shape=list(options.image_size),
            in_channels=options.channels,
            out_channels=options.channels,
            patch_size=list(options.patch_size),
            embed_dim=options.embed_dim,
            depth=options.depth,
            num_blocks=options.num_blocks,
        )
        if options.start_from is not None:
            load_weights(network, Path(options.start_from))
        return Forecaster(network)

    def optimizer(
        self,
        model: nn.Module,
        global_batch: int,  # noqa: ARG002
        *,
        fused: bool | None,
    ) -> torch.optim.Optimizer:
        """Return Adam; the rate is the paper's for global batch 64, whatever the batch is."""
        return torch.optim.Adam(model.parameters(), lr=self._options.peak_lr, fused=fused)

    def schedule(
        self,
        optimizer: torch.optim.Optimizer,
        global_batch: int,  # noqa: ARG002
        epochs: int,
    ) -> Schedule:
        """Return half a cosine over the run's epochs."""
        return Cosine(optimizer, epochs)

    def training_data(self) -> Dataset:
        """Return 1979-2015, or as many synthetic samples."""
        if self._options.source == "era5":
            return self._era5("train")
        return self._synthetic(0, self._options.train_samples)

    def evaluation_data(self) -> Dataset:
        """Return 2016 and 2017, or as many synthetic samples of other years."""
        if self._options.source == "era5":
            return self._era5("test")
        return self._synthetic(_FIRST_EVALUATION_YEAR, self._options.evaluation_samples)

    def loss(self, model: nn.Module, data: Any) -> torch.Tensor:
        """Return the mean relative L2 error of a batch, summed over the stage's steps."""
        return self._losses(model(data[0], self._options.steps), data[1:]).mean()

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, torch.Tensor]:
        """Return sums of the loss, and of RMSE and ACC of the first step as means over channels.

        Both stages judge the first step, as the paper's code does, so that they can be compared.
        """
        forecasts, truths = model(data[0], self._options.steps), data[1:]
        device = truths[0].device
        if self._climatology is None or self._climatology.device != device:
            self._weights = self._weights.to(device)
            self._climatology = self._mean_state().to(device)
        first, truth, weights = forecasts[0], truths[0], self._weights
        correlation = anomaly_correlation(first, truth, self._climatology, weights)
        return {
            "loss": self._losses(forecasts, truths).sum(),
            "rmse": weighted_rmse(first, truth, weights).mean(1).sum(),
            "acc": correlation.mean(1).sum(),
        }

    def metrics(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the mean loss, RMSE [standard deviations] and anomaly correlation."""
        return means(sums)

    def _losses(
        self, forecasts: tuple[torch.Tensor, ...], truths: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        pairs = zip(forecasts, truths, strict=True)
        return torch.stack([relative_l2(forecast, truth) for forecast, truth in pairs]).sum(0)

    def _mean_state(self) -> torch.Tensor:
        if self._options.source == "era5":
            return torch.from_numpy(read_climatology(self._stats(), *self._size))
        return self._made_climate().climatology

    def _era5(self, part: str) -> "Era5":
        from wattlaw.workloads.weather.era5 import Era5

        statistics = read_channel_statistics(self._stats(), self._options.channels)
        steps, step = self._options.steps, self._options.step
        return Era5(self._folder() / part, statistics, self._size, steps=steps, step=step)

    def _synthetic(self, first_year: int, samples: int) -> SyntheticWeather:
        return SyntheticWeather(
            self._made_climate(),
            first_year=first_year,
            samples=samples,
            steps=self._options.steps,
            step=self._options.step,
        )

    def _made_climate(self) -> Climate:
        if self._climate is None:
            self._climate = Climate(*self._size, seed=_DATA_SEED)
        return self._climate

    def _folder(self) -> Path:
        return Path(self._options.data or "")

    def _stats(self) -> Path:
        return self._folder() / "stats"
