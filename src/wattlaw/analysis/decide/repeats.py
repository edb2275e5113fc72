"""The noise of runs, as repeats of a setting show it.

The learned prior is that of GPUs, whose runs differ by about 1 %. Runs on the shared cores of a
virtual machine may differ by 20 %, and a decision that does not know it is too sure.
"""

from collections.abc import Sequence

import numpy as np

from wattlaw.analysis.predict.observation import Observation
from wattlaw.analysis.predict.parameters import COMPUTE, LEARNED, Prior, Priors
from wattlaw.analysis.predict.posterior import Fitted, fit

#: Standard deviation of the noise's prior, in logs, where repeats show it. With 2.0, 25 of 30
#: decisions on 9 settings whose runs vary by 20 % were within a tolerance of 10 %; with 0.7, 21.
_SD = 2.0


def fit_with_repeats(observations: Sequence[Observation], seed: int) -> Fitted:
    repeated = _repeated(observations)
    if not repeated:
        return fit(observations, seed=seed)
    noise = noise_prior(Prior(COMPUTE["noise"].mean, _SD), repeated)
    values = {**LEARNED.values, "noise": (noise.mean, noise.sd)}
    return fit(observations, seed=seed, priors=Priors(values, LEARNED.source))


def noise_of_repeats(posterior: Fitted) -> float:
    """Return the standard deviation of a run's log time; 0 if no setting was measured twice."""
    if not _repeated(posterior.observations):
        return 0.0
    return float(np.median(posterior.values["noise"]))


def noise_prior(prior: Prior, repeated: Sequence[Sequence[float]]) -> Prior:
    """Return the prior of the noise after the logarithms of the times of repeated settings.

    Their pooled variance has the likelihood of normal noise. The posterior of the logarithm of the
    noise is approximated by a normal distribution.

    Examples
    --------
    >>> after = noise_prior(Prior(-4.7, 0.7), [[0.0, 0.2]])
    >>> bool(after.mean > -4)
    True
    """
    freedom = sum(len(values) - 1 for values in repeated)
    squares = sum(float(np.var(values)) * len(values) for values in repeated)
    noise = np.linspace(prior.mean - 4 * prior.sd, prior.mean + 8 * prior.sd, 400)
    score = -0.5 * ((noise - prior.mean) / prior.sd) ** 2
    score -= freedom * noise + 0.5 * squares * np.exp(-2 * noise)
    weights = np.exp(score - score.max())
    mean = float(np.average(noise, weights=weights))
    sd = float(np.sqrt(np.average((noise - mean) ** 2, weights=weights)))
    return Prior(mean, sd, prior.scale)


def _repeated(observations: Sequence[Observation]) -> list[list[float]]:
    by_setting: dict[object, list[float]] = {}
    for item in observations:
        key = item.setting, item.epoch_steps
        by_setting.setdefault(key, []).append(float(np.log(item.healthy_step_s)))
    return [times for times in by_setting.values() if len(times) > 1]
