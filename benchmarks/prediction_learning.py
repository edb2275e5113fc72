"""Learns priors from other jobs: empirical Bayes with a weak prior of its own.

The mean and variance of a parameter over jobs have a normal-inverse-gamma prior that is worth
``_STRENGTH`` jobs at the weak defaults (Gelman et al., Bayesian Data Analysis, 3rd ed., section
3.3). Expectation-maximization (Dempster, Laird and Rubin 1977) alternates the jobs' posteriors
under the present prior with the prior's update. Each job is fitted once, under the weak defaults;
its draws are then weighted by the ratio of priors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prediction_data import Job
from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.parameters import GROUPS, WEAK, Floats, Prior, Priors
from wattlaw.analysis.predict.posterior import fit

_STRENGTH = 1.0
_ROUNDS = 4
#: Evenly chosen jobs of each origin.
_JOBS = 6
_LEAST_FAMILIES = 3
#: The share of effective draws below which the weights are flattened.
_LEAST_EFFECTIVE = 0.1
#: What public series bear on. The other priors stay weak: series of one batch narrow them by what
#: the jobs lack, which costs coverage elsewhere.
_LEARNED = ("unknown placement", "unknown batch")
_DEFAULTS = {name: prior for group in _LEARNED for name, prior in GROUPS[group].items()}


@dataclass(frozen=True)
class JobDraws:
    """Draws of the parameters that a job's observations bear on, under the weak defaults."""

    names: tuple[str, ...]
    draws: Floats  # in the parameters' own scales, shape (draws, names)

    def moments(self, priors: Priors) -> tuple[Floats, Floats]:
        """Return means and variances under other priors."""
        defaults = [_DEFAULTS[name] for name in self.names]
        news = [priors.apply(name, prior) for name, prior in zip(self.names, defaults, strict=True)]
        logs = _log_density(self.draws, news) - _log_density(self.draws, defaults)
        weights = np.exp(logs - logs.max())
        while weights.sum() ** 2 / (weights**2).sum() < _LEAST_EFFECTIVE * weights.size:
            weights = np.sqrt(weights)
        weights /= weights.sum()
        means = weights @ self.draws
        return means, weights @ (self.draws - means) ** 2


def job_draws(observations: Sequence[Observation], seed: int = 0) -> JobDraws:
    """Return the draws of a job."""
    posterior = fit(observations, seed=seed, priors=WEAK)
    names = tuple(
        name for group in _LEARNED if group not in posterior.prior_only for name in GROUPS[group]
    )
    columns = [
        _DEFAULTS[name].mean + _DEFAULTS[name].sd * posterior.normals[name] for name in names
    ]
    return JobDraws(names, np.column_stack(columns))


def learned(jobs: Iterable[Job]) -> dict[str, Priors]:
    """Return the priors that are learned without each origin, and under "" those of all."""
    found: dict[str, list[Job]] = {}
    for job in jobs:
        if len(job.observations) > 1:
            found.setdefault(job.origin, []).append(job)
    families = {}
    for origin, own in found.items():
        count = min(_JOBS, len(own))
        chosen = [own[index * len(own) // count] for index in range(count)]
        families[origin] = [job_draws(job.observations) for job in chosen]
    return {without: learn(families, without) for without in ("", *families)}


def learn(families: Mapping[str, Sequence[JobDraws]], without: str = "") -> Priors:
    """Return priors learned from the jobs of all families but one.

    A family of n jobs has the weight of sqrt(n) jobs. What fewer than three families bear on keeps
    its weak default: one cluster does not show how clusters differ.
    """
    used = {name: jobs for name, jobs in families.items() if name != without}
    sources: dict[str, set[str]] = {}
    for family, jobs in used.items():
        for name in (name for job in jobs for name in job.names):
            sources.setdefault(name, set()).add(family)
    known = {name for name, found in sources.items() if len(found) >= _LEAST_FAMILIES}
    priors = WEAK
    for _ in range(_ROUNDS):
        rows: dict[str, list[tuple[float, float, float]]] = {}
        for jobs in used.values():
            for job in jobs:
                for name, mean, variance in zip(job.names, *job.moments(priors), strict=True):
                    rows.setdefault(name, []).append((len(jobs) ** -0.5, mean, variance))
        values = {name: _update(name, found) for name, found in rows.items() if name in known}
        priors = Priors(values, f"learned from {', '.join(sorted(used))}")
    return priors


def _log_density(draws: Floats, priors: Sequence[Prior]) -> Floats:
    mean = np.array([prior.mean for prior in priors])
    sd = np.array([prior.sd for prior in priors])
    total: Floats = -(0.5 * ((draws - mean) / sd) ** 2 + np.log(sd)).sum(1)
    return total


def _update(name: str, rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    default = _DEFAULTS[name]
    weights, means, variances = np.array(rows).T
    count = weights.sum()
    mean = (_STRENGTH * default.mean + (weights * means).sum()) / (_STRENGTH + count)
    squares = (weights * (variances + (means - mean) ** 2)).sum()
    squares += _STRENGTH * (default.sd**2 + (default.mean - mean) ** 2)
    # The predictive variance of another job: the mean is uncertain too.
    total = _STRENGTH + count
    return float(mean), float(np.sqrt(squares / total * (1 + 1 / total)))
