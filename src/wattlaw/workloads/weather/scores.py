"""How far a forecast is from what happened: the loss, and two scores weighted by latitude."""

import torch

from wattlaw.workloads.weather.grid import latitudes


def relative_l2(forecast: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return ||forecast - truth|| / ||truth|| of each sample, over all its channels and points.

    The loss of FourCastNet's code (``LpLoss.rel``), from Li et al. 2021 (arXiv 2010.08895).

    Parameters
    ----------
    forecast, truth
        Standardised fields, shape (samples, channels, height, width).

    Returns
    -------
    torch.Tensor
        Shape (samples,).
    """
    error: torch.Tensor = torch.linalg.vector_norm((forecast - truth).flatten(1), dim=1)
    size: torch.Tensor = torch.linalg.vector_norm(truth.flatten(1), dim=1)
    return error / size


def latitude_weights(height: int) -> torch.Tensor:
    """Return L(i) = cos(lat_i) / mean of cos(lat), the share of the globe that a row stands for.

    Rasp et al. 2020 (WeatherBench, arXiv 2002.00469), equation 2.

    Parameters
    ----------
    height
        Latitude rows, see ``wattlaw.workloads.weather.grid.latitudes``.

    Returns
    -------
    torch.Tensor
        Shape (height, 1), of mean 1, float32.
    """
    weights = torch.from_numpy(latitudes(height)).deg2rad().cos()
    return (weights / weights.mean()).float()[:, None]


def weighted_rmse(
    forecast: torch.Tensor, truth: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return sqrt(mean over the grid of L (forecast - truth)^2) of each sample and channel.

    Rasp et al. 2020 (arXiv 2002.00469), equation 1, for one forecast; also FourCastNet's
    (arXiv 2202.11214, appendix).

    Parameters
    ----------
    forecast, truth
        Shape (samples, channels, height, width).
    weights
        Those of ``latitude_weights``, shape (height, 1).

    Returns
    -------
    torch.Tensor
        Shape (samples, channels), in the fields' unit: 1 is a channel's standard deviation.
    """
    return (weights * (forecast - truth).square()).mean((-2, -1)).sqrt()


def anomaly_correlation(
    forecast: torch.Tensor, truth: torch.Tensor, climatology: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Return sum L f t / sqrt(sum L f^2 sum L t^2) of the differences f, t from the climatology.

    Pathak et al. 2022 (arXiv 2202.11214), appendix. The differences' own mean stays in them.

    Parameters
    ----------
    forecast, truth
        Shape (samples, channels, height, width).
    climatology
        Mean state, which broadcasts to (channels, height, width).
    weights
        Those of ``latitude_weights``, shape (height, 1).

    Returns
    -------
    torch.Tensor
        Shape (samples, channels), from -1 to 1; 0 where there is no difference at all.
    """
    foreseen, happened = forecast - climatology, truth - climatology
    weighted = weights * happened
    together = (weighted * foreseen).sum((-2, -1))
    squares = (weighted * happened).sum((-2, -1)) * (weights * foreseen.square()).sum((-2, -1))
    return together / squares.sqrt().clamp_min(torch.finfo(squares.dtype).tiny)
