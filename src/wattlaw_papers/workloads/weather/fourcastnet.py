"""The model, its training recipe in two stages, and its metrics."""
# ruff: noqa: ARG002 - the arguments of the protocol

import pickle
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wattlaw.common.errors import BadInput, NotAvailable
from wattlaw.common.text import collapse_whitespace
from wattlaw.workloads.workload import BaseWorkload, Dataset, Schedule
from wattlaw_papers.workloads.data_sets import VALIDATION_NAMES, existing
from wattlaw_papers.workloads.schedules import Cosine
from wattlaw_papers.workloads.torchvision_import import import_torchvision
from wattlaw_papers.workloads.weather import Options, scores
from wattlaw_papers.workloads.weather.synthetic_weather import Climate, SyntheticWeather

_DATA_SEED = 0
_FIRST_EVALUATION_YEAR = 37  # of the synthetic years, after those of training
#: The prefixes that DDP, torch.compile and ``Forecaster`` add to the names of weights.
_PREFIXES = re.compile(r"^(?:module\.|_orig_mod\.|network\.)+")


class Forecaster(nn.Module):
    """Applies a network to its own forecasts for a number of steps."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, state: Tensor, steps: int = 1) -> tuple[Tensor, ...]:
        """Return the states after each of ``steps`` steps, float32 under autocast too.

        ``state`` has standardised fields, shape (samples, channels, height, width).
        """
        forecasts = []
        for _ in range(steps):
            state = self.network(state).float()
            forecasts.append(state)
        return tuple(forecasts)


class FourCastNet(BaseWorkload):
    """AFNO with Adam and a cosine schedule; latitude-weighted RMSE and anomaly correlation (Pathak
    et al. 2022, arXiv 2202.11214). Without batch normalisation and dropout, one and several workers
    at the same global batch compute the same steps."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._size = (options.channels, *options.image_size)
        self._weights = scores.latitude_weights(options.image_size[0])
        self._climatology: Tensor | None = None

    def model(self) -> nn.Module:
        options = self._options
        import_torchvision()
        try:
            from physicsnemo.models.afno import AFNO
        except ImportError as error:
            raise NotAvailable(f'{error}; try: pip install "wattlaw[weather]"') from None
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
            _load_weights(network, Path(options.start_from))
        return Forecaster(network)

    def optimizer(
        self, model: nn.Module, global_batch: int, *, fused: bool | None
    ) -> torch.optim.Optimizer:
        """Return Adam; its rate does not depend on the global batch (64 in the paper)."""
        rate = self._options.lr or {"pretrain": 5e-4, "finetune": 1e-4}[self._options.stage]
        return torch.optim.Adam(model.parameters(), lr=rate, fused=fused)

    def schedule(
        self, optimizer: torch.optim.Optimizer, global_batch: int, epochs: int
    ) -> Schedule:
        return Cosine(optimizer, epochs)

    def loss(self, model: nn.Module, data: Any) -> Tensor:
        return _losses(model(data[0], self._options.steps), data[1:]).mean()

    def evaluate(self, model: nn.Module, data: Any) -> dict[str, Tensor]:
        """Return sums of the loss, and of RMSE and ACC of the first step (as in the paper's code,
        so that the stages are comparable) as means over channels."""
        forecasts, truths = model(data[0], self._options.steps), data[1:]
        device = truths[0].device
        if self._climatology is None or self._climatology.device != device:
            self._weights = self._weights.to(device)
            self._climatology = self._mean_state().to(device)
        forecast, truth, weights = forecasts[0], truths[0], self._weights
        correlation = scores.anomaly_correlation(forecast, truth, self._climatology, weights)
        return {
            "loss": _losses(forecasts, truths).sum(),
            "rmse": scores.weighted_rmse(forecast, truth, weights).mean(1).sum(),
            "acc": correlation.mean(1).sum(),
        }

    def _mean_state(self) -> Tensor:
        if self._options.data is None:
            return self._climate.climatology
        from wattlaw_papers.workloads.weather.era5 import read_climatology

        return torch.from_numpy(read_climatology(Path(self._options.data, "stats"), *self._size))

    def _data(self, *, training: bool) -> Dataset:
        options = self._options
        if options.data is None:
            return SyntheticWeather(
                self._climate,
                first_year=0 if training else _FIRST_EVALUATION_YEAR,
                samples=options.train_samples if training else options.evaluation_samples,
                steps=options.steps,
                step=options.step,
            )
        from wattlaw_papers.workloads.weather.era5 import Era5, read_channel_statistics

        data = Path(options.data)
        statistics = read_channel_statistics(data / "stats", options.channels)
        folder = data / "train" if training else existing(data, "test", *VALIDATION_NAMES)
        return Era5(folder, statistics, self._size, steps=options.steps, step=options.step)

    @cached_property
    def _climate(self) -> Climate:
        return Climate(*self._size, seed=_DATA_SEED)


def _losses(forecasts: tuple[Tensor, ...], truths: tuple[Tensor, ...]) -> Tensor:
    pairs = zip(forecasts, truths, strict=True)
    return torch.stack([scores.relative_l2(forecast, truth) for forecast, truth in pairs]).sum(0)


def _load_weights(network: nn.Module, path: Path) -> None:
    """Load a state dict, or one in ``model``; ``BadInput`` if it is not of this network."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        state = state["model"] if isinstance(state.get("model"), dict) else state
        # physicsnemo has an empty buffer for its device, which files of other versions lack.
        weights = dict(network.named_buffers())
        weights |= {_PREFIXES.sub("", name): value for name, value in state.items()}
        network.load_state_dict(weights)
    except (
        AttributeError, EOFError, OSError, RuntimeError, TypeError, ValueError,
        pickle.UnpicklingError,
    ) as error:  # fmt: skip
        reason = collapse_whitespace(str(error))[:300]
        raise BadInput(f"{path}: not a checkpoint of this network: {reason}") from None
