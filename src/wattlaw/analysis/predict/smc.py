"""Draws from a posterior by sequential Monte Carlo between a normal mixture and the posterior.

The prior is standard normal. The best of many prior draws are moved to nearby modes (BFGS with
numerical gradients). Particles start as draws of a mixture of the prior and a normal distribution
around each mode with the curvature there (Laplace). Its density is changed to the posterior in
stages along a geometric path: each stage goes as far as 40 % of the effective particles are left
(Jasra et al. 2011, doi 10.1111/j.1467-9469.2010.00723.x), resamples some of them, and makes all
particles of the next stage from the chains that start there (waste-free SMC: Dau and Chopin 2022,
doi 10.1111/rssb.12475). A move of a chain is a Metropolis-Hastings step that is reversible for a
normal distribution fitted to the particles (preconditioned Crank-Nicolson: Cotter et al. 2013, doi
10.1214/13-STS421).

Few points, ridges and several modes need no starting value, and what the data do not determine
keeps its prior. Many exact observations are as easy as few, because the particles start near them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from wattlaw.analysis.predict.observation import Floats
from wattlaw.common.progress import track

LogLikelihood = Callable[[Floats], Floats]

#: The share of effective particles that each stage keeps.
_KEPT = 0.4
#: Chains of a stage, and the particles of each.
CHAINS, LENGTH = 200, 12
#: The last stage is longer, so that its draws are good; every so-manieth particle is kept.
_LAST = 4
#: Correlations of proposals with the present particle, by turns.
_CORRELATIONS = (0.3, 0.8, 0.95)
_MOST_STAGES = 60
#: Starts of the search for modes, its iterations, and step sizes to try in each.
STARTS, _ITERATIONS = 4, 100
_STEPS = np.array([2.0, 1.0, 0.5, 0.2, 0.05, 0.01, 0.001])
_FARTHEST = 3.0  # of an iteration
#: Step of numerical derivatives.
_DELTA = 1e-4
#: A rise of the log density that is worth another iteration; modes that are lower than the highest
#: by more, and those closer to a higher one (largest difference of a parameter), are dropped.
_RISE, _LOWER, _APART = 1e-3, 15.0, 0.3
#: The share of the prior in the first mixture, and how much wider than the curvature modes are.
_PRIOR_SHARE, _WIDER = 0.3, 1.2


def sample(
    log_likelihood: LogLikelihood, size: int, seed: int, guess: Mapping[int, float] | None = None
) -> Floats:
    """Return ``CHAINS * LENGTH`` equally weighted draws of ``size`` standard normal parameters.

    ``log_likelihood`` returns that of each row. Equal seeds give equal draws. ``guess`` has values
    of some parameters, by column, near which there may be a mode that is too narrow to be found.
    """

    def log_posterior(rows: Floats) -> Floats:
        density: Floats = log_likelihood(rows) - 0.5 * (rows**2).sum(1)
        return density

    dice = np.random.default_rng(seed)
    first = dice.standard_normal((CHAINS * LENGTH, size))
    starts = first[np.argsort(-log_likelihood(first), kind="stable")[:STARTS]]
    if guess:
        guessed = first.copy()
        guessed[:, list(guess)] = list(guess.values())
        best = np.argsort(-log_likelihood(guessed), kind="stable")[:STARTS]
        starts = np.vstack([starts, guessed[best]])
    modes = climb(log_posterior, starts)
    mixture = _Mixture.around(log_posterior, modes)

    def densities(at: Floats) -> Floats:
        """Return the logs of the posterior and of the mixture, shape (2, particles)."""
        return np.array([log_posterior(at), mixture.log_density(at)])

    at, exponent = mixture.draws(dice, first.shape[0]), 0.0
    logs = densities(at)
    for _ in track(range(_MOST_STAGES), "Fitting the prediction model"):
        gain = logs[0] - logs[1]
        step = _next_step(gain, 1 - exponent)
        exponent += step
        is_last = exponent >= 1 - 1e-9
        thinning = _LAST if is_last else 1
        at, logs = _stage(densities, at, logs, _weights(gain * step), exponent, thinning, dice)
        if is_last:
            break
    return at


@dataclass(frozen=True)
class _Mixture:
    """The standard normal prior, and normal distributions around modes in equal shares."""

    means: Floats  # shape (distributions, parameters)
    roots: Floats  # lower triangular, of the covariances
    shares: Floats

    @classmethod
    def around(cls, log_density: LogLikelihood, modes: Sequence[Floats]) -> "_Mixture":
        """Return the mixture, with the curvature at each mode but nowhere wider than the prior."""
        one = np.eye(modes[0].size)
        roots = [one]
        steps = _DELTA * one
        for mode in modes:
            above, below = (_gradients(log_density, mode + move) for move in (steps, -steps))
            slopes = (above - below) / (2 * _DELTA)
            values, vectors = np.linalg.eigh(-(slopes + slopes.T) / 2)
            spread = (vectors * (_WIDER**2 / np.maximum(values, 1.0))) @ vectors.T
            roots.append(np.linalg.cholesky(spread))
        shares = np.array([_PRIOR_SHARE, *[(1 - _PRIOR_SHARE) / len(modes)] * len(modes)])
        return cls(np.array([one[0] * 0, *modes]), np.array(roots), shares)

    @cached_property
    def _whitening(self) -> tuple[Floats, Floats, Floats]:
        """Return what makes rows independent for each distribution, and the logs of densities."""
        inverses = np.asarray(np.linalg.inv(self.roots), dtype=np.float64).transpose(0, 2, 1)
        at_means: Floats = (self.means[:, None] @ inverses)[:, 0]
        logs: Floats = np.log(self.shares) + np.log(np.diagonal(inverses, 0, 1, 2)).sum(1)
        return inverses, at_means, logs

    def draws(self, dice: np.random.Generator, count: int) -> Floats:
        which = dice.choice(len(self.means), size=count, p=self.shares)
        normals = dice.standard_normal((count, self.means.shape[1]))
        for index, (mean, root) in enumerate(zip(self.means, self.roots, strict=True)):
            normals[which == index] = mean + normals[which == index] @ root.T
        return normals

    def log_density(self, rows: Floats) -> Floats:
        inverses, at_means, logs = self._whitening
        scaled = rows @ inverses - at_means[:, None]
        squares = np.einsum("kij,kij->ki", scaled, scaled)
        return np.asarray(np.logaddexp.reduce(logs[:, None] - 0.5 * squares, axis=0))


def climb(log_density: LogLikelihood, starts: Floats) -> list[Floats]:
    """Return the distinct modes near some points, the highest first.

    The points move together by BFGS (Nocedal and Wright 2006, algorithm 6.1), with central
    differences for gradients and the best of a few step sizes in each iteration.
    """
    size = starts.shape[1]
    at, values = starts.copy(), log_density(starts)
    gradients, identity = _gradients(log_density, at), np.eye(size)
    inverse = np.tile(identity, (len(at), 1, 1))
    is_reset = np.ones(len(at), dtype=bool)
    going = np.arange(len(at))
    for _ in range(_ITERATIONS):
        direction = np.einsum("kij,kj->ki", inverse[going], gradients[going])
        length = np.linalg.norm(direction, axis=1, keepdims=True)
        direction *= _FARTHEST / np.maximum(length, _FARTHEST)
        tried = at[going, None] + _STEPS[:, None] * direction[:, None]
        heights = log_density(tried.reshape(-1, size)).reshape(going.size, -1)
        rises = heights.max(1) > values[going] + _RISE
        moved, risen, stayed = tried[rises, heights[rises].argmax(1)], going[rises], going[~rises]
        # A point that does not rise tries its gradient next, and has arrived if that was it.
        going = going[rises | ~is_reset[going]]
        inverse[stayed], is_reset[stayed], is_reset[risen] = identity, True, False
        if not going.size:
            break
        steps, before = moved - at[risen], gradients[risen]
        at[risen], values[risen] = moved, heights[rises].max(1)
        if risen.size:
            gradients[risen] = _gradients(log_density, moved)
        changes = before - gradients[risen]
        products = steps[:, None] @ changes[:, :, None]
        bent = products[:, 0, 0] > 1e-10
        up, product, risen = steps[bent, :, None], products[bent], risen[bent]
        left = identity - up * changes[bent, None] / product
        inverse[risen] = left @ inverse[risen] @ left.transpose(0, 2, 1)
        inverse[risen] += up * up.transpose(0, 2, 1) / product
    order = np.argsort(-values, kind="stable")
    modes: list[Floats] = []
    for index in order:
        is_high = values[index] > values[order[0]] - _LOWER
        if is_high and all(np.abs(at[index] - mode).max() > _APART for mode in modes):
            modes.append(at[index])
    return modes


def _gradients(log_density: LogLikelihood, at: Floats) -> Floats:
    size = at.shape[1]
    steps = _DELTA * np.vstack([np.eye(size), -np.eye(size)])
    heights = log_density((at[:, None] + steps).reshape(-1, size))
    above, below = heights.reshape(-1, 2, size).transpose(1, 0, 2)
    return (above - below) / (2 * _DELTA)


def _weights(log_weights: Floats) -> Floats:
    weights: Floats = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    return weights


def _next_step(gain: Floats, most: float) -> float:
    """Return the largest step along the path that keeps enough effective particles."""
    least = _KEPT * gain.size

    def effective(step: float) -> float:
        return float(1 / (_weights(gain * step) ** 2).sum())

    if effective(most) >= least:
        return most
    low, high = 0.0, most
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if effective(middle) >= least else (low, middle)
    return high


def _stage(
    densities: LogLikelihood, at: Floats, logs: Floats, weights: Floats, exponent: float,
    thinning: int, dice: np.random.Generator,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return the particles of a stage and their densities: of chains from resampled ones."""
    mean = weights @ at
    centred = at - mean
    spread = (centred * weights[:, None]).T @ centred + 1e-6 * np.eye(mean.size)
    root = np.linalg.cholesky(spread)
    path = np.array([exponent, 1 - exponent])
    # Systematic resampling.
    positions = (dice.random() + np.arange(CHAINS)) / CHAINS
    chosen = np.minimum(np.searchsorted(np.cumsum(weights), positions), weights.size - 1)
    # The normal distribution is a standard one in coordinates from its mean by its root.
    normals, logs = centred[chosen] @ np.linalg.inv(root).T, logs[:, chosen]
    heights = path @ logs + 0.5 * np.einsum("ij,ij->i", normals, normals)
    kept = []
    for turn in range(LENGTH * thinning):
        correlation = _CORRELATIONS[turn % len(_CORRELATIONS)]
        jumps = np.sqrt(1 - correlation**2) * dice.standard_normal(normals.shape)
        moved = correlation * normals + jumps
        moved_logs = densities(mean + moved @ root.T)
        moved_heights = path @ moved_logs + 0.5 * np.einsum("ij,ij->i", moved, moved)
        accepted = np.log(dice.random(CHAINS)) < moved_heights - heights
        normals = np.where(accepted[:, None], moved, normals)
        logs = np.where(accepted, moved_logs, logs)
        heights = np.where(accepted, moved_heights, heights)
        if turn % thinning == thinning - 1:
            kept.append((normals, logs))
    every, every_logs = zip(*kept, strict=True)
    return mean + np.concatenate(every) @ root.T, np.hstack(every_logs)
