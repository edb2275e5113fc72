"""Draws from a posterior by sequential Monte Carlo with tempering.

Particles start as draws from a standard normal prior. The likelihood enters in stages: each raises
its exponent until 40 % of the effective particles are left (Jasra et al. 2011, doi
10.1111/j.1467-9469.2010.00723.x), resamples some of them, and makes all particles of the next stage
from the chains that start there (waste-free SMC: Dau and Chopin 2022, doi 10.1111/rssb.12475). A
move of a chain is a Metropolis-Hastings step that is reversible for a normal distribution fitted to
the particles (preconditioned Crank-Nicolson: Cotter et al. 2013, doi 10.1214/13-STS421). Few
points, ridges and several modes need no gradient and no starting value, and what the data do not
determine keeps its prior.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
LogLikelihood = Callable[[Floats], Floats]

#: The share of effective particles that each stage keeps.
_KEPT = 0.4
#: Chains of a stage, and the particles of each.
CHAINS, LENGTH = 200, 12
#: The last stage is longer, so that its draws are good; every so-manieth particle is kept.
_LAST = 4
#: Particles of the prior, relative to those of a stage.
_FIRST = 4
#: Correlations of proposals with the present particle, by turns.
_CORRELATIONS = (0.3, 0.8, 0.95)
_MOST_STAGES = 60


def sample(log_likelihood: LogLikelihood, size: int, seed: int) -> Floats:
    """Return ``CHAINS * LENGTH`` equally weighted draws of ``size`` standard normal parameters.

    Parameters
    ----------
    log_likelihood
        Returns the log likelihood of each row.
    size
        The number of parameters.
    seed
        The seed of the random numbers; equal seeds give equal draws.
    """
    dice = np.random.default_rng(seed)
    particles = dice.standard_normal((CHAINS * LENGTH * _FIRST, size))
    likelihood = log_likelihood(particles)
    exponent = 0.0
    for _ in range(_MOST_STAGES):
        step = _next_step(likelihood, 1 - exponent)
        exponent += step
        weights = _weights(likelihood * step)
        is_last = exponent >= 1 - 1e-9
        chains = _Chains(log_likelihood, particles, likelihood, weights, exponent, dice)
        particles, likelihood = chains.run(LENGTH, _LAST if is_last else 1)
        if is_last:
            break
    return particles


def _weights(log_weights: Floats) -> Floats:
    weights: Floats = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return weights


def _next_step(likelihood: Floats, most: float) -> float:
    """Return the largest step of the exponent that keeps enough effective particles."""
    least = _KEPT * likelihood.size

    def effective(step: float) -> float:
        return float(1 / (_weights(likelihood * step) ** 2).sum())

    if effective(most) >= least:
        return most
    low, high = 0.0, most
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= least else (low, middle)
    return high


class _Chains:
    """Markov chains of one stage, from resampled particles."""

    def __init__(
        self,
        log_likelihood: LogLikelihood,
        particles: Floats,
        likelihood: Floats,
        weights: Floats,
        exponent: float,
        dice: np.random.Generator,
    ) -> None:
        self.log_likelihood, self.exponent, self.dice = log_likelihood, exponent, dice
        self.mean = weights @ particles
        centred = particles - self.mean
        size = particles.shape[1]
        spread = (centred * weights[:, None]).T @ centred + 1e-6 * np.eye(size)
        self.root = np.linalg.cholesky(spread)
        self.inverse = np.linalg.inv(self.root).T
        # Systematic resampling.
        positions = (dice.random() + np.arange(CHAINS)) / CHAINS
        chosen = np.minimum(np.searchsorted(np.cumsum(weights), positions), weights.size - 1)
        self.at, self.likelihood = particles[chosen], likelihood[chosen]
        self.target = self._target(self.at, self.likelihood)

    def run(self, length: int, thinning: int) -> tuple[Floats, Floats]:
        """Return the particles of ``length`` positions of every chain, and their likelihood."""
        positions, values = [], []
        for turn in range(length * thinning):
            self._move(_CORRELATIONS[turn % len(_CORRELATIONS)])
            if turn % thinning == thinning - 1:
                positions.append(self.at)
                values.append(self.likelihood)
        return np.concatenate(positions), np.concatenate(values)

    def _target(self, at: Floats, likelihood: Floats) -> Floats:
        """Return the log of the tempered posterior over the fitted normal density."""
        scaled = (at - self.mean) @ self.inverse
        prior = -0.5 * np.einsum("ij,ij->i", at, at)
        fitted = -0.5 * np.einsum("ij,ij->i", scaled, scaled)
        return np.asarray(self.exponent * likelihood + prior - fitted)

    def _move(self, correlation: float) -> None:
        jump = self.dice.standard_normal(self.at.shape) @ self.root.T
        kept = correlation * (self.at - self.mean)
        proposed = self.mean + kept + np.sqrt(1 - correlation**2) * jump
        likelihood = self.log_likelihood(proposed)
        target = self._target(proposed, likelihood)
        accepted = np.log(self.dice.random(CHAINS)) < target - self.target
        self.at = np.where(accepted[:, None], proposed, self.at)
        self.likelihood = np.where(accepted, likelihood, self.likelihood)
        self.target = np.where(accepted, target, self.target)
