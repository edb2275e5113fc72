"""Waiting for the slowest rank: the expected maximum of the ranks' times.

Every step waits for the slowest of N ranks. Ranks differ permanently (boards of one model are not
equally fast) and from step to step (system noise, samples of different size). Both are assumed to
be normal and independent, so that the slowest takes (1 + sigma m(N)) times the mean, with
m(N) the expected maximum of N standard normal numbers (Blom 1958:
m(N) = Phi^-1((N - 0.375) / (N + 0.25)), within 0.026; 0 for N = 1).
"""

from math import sqrt
from statistics import NormalDist

from wattlaw.simulator.parameters import Parameters


def expected_maximum(count: int) -> float:
    """Return the expected maximum of ``count`` standard normal numbers, by Blom's formula."""
    return NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def step_cv(parameters: Parameters, work_cv: float, local_batch: float) -> float:
    """Return the coefficient of variation of one rank's time from step to step.

    Samples of different size contribute ``work_cv / sqrt(local_batch)``, as means of independent
    samples.
    """
    return sqrt(parameters.step_spread**2 + work_cv**2 / local_batch)


def deviation_of_maximum(count: int) -> float:
    """Return the standard deviation of the maximum of ``count`` standard normal numbers.

    Half of the distance between the maximum's quantiles at one standard deviation below and above,
    Phi^-1(p^(1/n)); exact for one number, within 3 % for more.
    """
    normal = NormalDist()
    low, high = (normal.inv_cdf(normal.cdf(side) ** (1 / count)) for side in (-1.0, 1.0))
    return (high - low) / 2


def slowest_over_mean(
    parameters: Parameters, work_cv: float, local_batch: float, ranks: int
) -> float:
    """Return the time of the slowest of ``ranks`` over the mean of all, at least 1."""
    sigma = sqrt(step_cv(parameters, work_cv, local_batch) ** 2 + parameters.gpu_spread**2)
    return 1 + sigma * expected_maximum(ranks)
