"""Errors and scores of forecasts; RMSE and correlation are weighted by latitude.

Forecasts and truths have the shape (samples, channels, height, width), weights are those of
``latitude_weights``. Rows go from the north pole to the south, columns eastwards around the globe.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def latitudes(rows: int) -> npt.NDArray[np.float64]:
    """Return the rows' latitudes [degrees] from +90 to -90; an even number is such a grid without
    its last row, as 720 rows are the first of 721."""
    return np.linspace(90.0, -90.0, rows + 1 - rows % 2)[:rows]


def relative_l2(forecast: Tensor, truth: Tensor) -> Tensor:
    """Return ||forecast - truth|| / ||truth|| of each sample, shape (samples,).

    The loss of FourCastNet's code (``LpLoss.rel``), from Li et al. 2021 (arXiv 2010.08895).
    """
    error: Tensor = torch.linalg.vector_norm((forecast - truth).flatten(1), dim=1)
    size: Tensor = torch.linalg.vector_norm(truth.flatten(1), dim=1)
    return error / size


def latitude_weights(height: int) -> Tensor:
    """Return L(i) = cos(lat_i) / mean of cos(lat): the row's share of the globe, (height, 1).

    Rasp et al. 2020 (WeatherBench, arXiv 2002.00469), equation 2. The weights have mean 1.
    """
    weights = torch.from_numpy(latitudes(height)).deg2rad().cos()
    return (weights / weights.mean()).float()[:, None]


def weighted_rmse(forecast: Tensor, truth: Tensor, weights: Tensor) -> Tensor:
    """Return sqrt(mean over the grid of L (forecast - truth)^2), shape (samples, channels).

    Rasp et al. 2020 (arXiv 2002.00469), equation 1, for one forecast; also FourCastNet's
    (arXiv 2202.11214, appendix). The unit is that of the fields, whose standard deviation is 1.
    """
    return (weights * (forecast - truth).square()).mean((-2, -1)).sqrt()


def anomaly_correlation(
    forecast: Tensor, truth: Tensor, climatology: Tensor, weights: Tensor
) -> Tensor:
    """Return sum L f t / sqrt(sum L f^2 sum L t^2) of the anomalies f, t: (samples, channels).

    Pathak et al. 2022 (arXiv 2202.11214), appendix. The mean of the anomalies is not subtracted.
    The result is from -1 to 1, or 0 if there is no anomaly. The climatology is the mean state, of a
    shape that broadcasts to (channels, height, width).
    """
    forecast, truth = forecast - climatology, truth - climatology
    weighted = weights * truth
    covariance = (weighted * forecast).sum((-2, -1))
    variances = (weighted * truth).sum((-2, -1)) * (weights * forecast.square()).sum((-2, -1))
    return covariance / variances.sqrt().clamp_min(torch.finfo(variances.dtype).tiny)
