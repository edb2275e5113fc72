"""Learns the priors of one job from other jobs: empirical Bayes with a weak prior of its own.

The mean and variance of a parameter over jobs have a normal-inverse-gamma prior that is worth
``_STRENGTH`` jobs at the weak defaults (Gelman et al., Bayesian Data Analysis, 3rd ed., section
3.3), so that a single job moves a prior half of the way. Expectation-maximization alternates
posteriors of all jobs under the present prior with the prior's update (Dempster, Laird and Rubin
1977).
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from wattlaw.analysis.prediction.parameters import GROUPS, WEAK, Priors
from wattlaw.analysis.prediction.posterior import fit
from wattlaw.analysis.prediction.settings import Observation

_STRENGTH = 1.0
#: Mean and variance of each parameter that a job's observations bear on.
Moments = dict[str, tuple[float, float]]
#: Parameters relative to a job's own reference, whose prior is not a property of jobs.
_OWN = ("compute",)


def learn(
    families: Mapping[str, Sequence[Sequence[Observation]]],
    left_out: Sequence[Collection[str]] = ((),),
    *,
    rounds: int = 2,
    seed: int = 0,
) -> list[Priors]:
    """Return priors learned from jobs, once for each selection of families.

    Parameters
    ----------
    families
        The observations of each job, by family. A family of n jobs has the weight of sqrt(n).
    left_out
        For each result, the families that it must not use.
    rounds
        Rounds of expectation-maximization; all results share the first.
    seed
        The seed of the posteriors.
    """
    first = {
        name: [_moments(observations, WEAK, seed) for observations in jobs]
        for name, jobs in families.items()
    }
    return [_learn(families, first, without, rounds, seed) for without in left_out]


def _learn(
    families: Mapping[str, Sequence[Sequence[Observation]]],
    first: Mapping[str, Sequence[Moments]],
    without: Collection[str],
    rounds: int,
    seed: int,
) -> Priors:
    used = {name: jobs for name, jobs in families.items() if name not in without}
    priors = WEAK
    for turn in range(rounds):
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for name, jobs in used.items():
            found = first[name] if turn == 0 else [_moments(job, priors, seed) for job in jobs]
            for moments in found:
                for parameter, moment in moments.items():
                    rows.setdefault(parameter, []).append((len(jobs) ** -0.5, *moment))
        values = {parameter: _update(parameter, found) for parameter, found in rows.items()}
        priors = Priors(values, f"learned from {', '.join(sorted(used))}")
    return priors


def _moments(observations: Sequence[Observation], priors: Priors, seed: int) -> Moments:
    """Return mean and variance of each parameter that the job's observations bear on."""
    posterior = fit(observations, seed=seed, priors=priors)
    found = {}
    for group, members in GROUPS.items():
        if group in posterior.prior_only:
            continue
        for name, default in members.items():
            prior = priors.apply(name, default)
            draws = prior.mean + prior.sd * posterior.normals[name]
            if name not in _OWN:
                found[name] = (float(draws.mean()), float(draws.var()))
    return found


def _update(name: str, rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    default = next(members[name] for members in GROUPS.values() if name in members)
    weights, means, variances = np.array(rows).T
    count = weights.sum()
    mean = (_STRENGTH * default.mean + (weights * means).sum()) / (_STRENGTH + count)
    squares = (weights * (variances + (means - mean) ** 2)).sum()
    squares += _STRENGTH * (default.sd**2 + (default.mean - mean) ** 2)
    return float(mean), float(np.sqrt(squares / (_STRENGTH + count)))
