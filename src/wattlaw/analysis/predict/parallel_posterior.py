"""The posterior of the steps of a transformer's layouts, and step times of others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from wattlaw.analysis.predict.observation import Floats
from wattlaw.analysis.predict.parallel_arrays import Parallel
from wattlaw.analysis.predict.parallel_step import (
    PRIORS,
    ParallelStep,
    Values,
    reference_rate,
    step,
)
from wattlaw.analysis.predict.parameters import Transformation
from wattlaw.analysis.predict.smc import sample
from wattlaw.common.errors import BadInput
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

#: Degrees of freedom of the errors.
_FREEDOM = 4.0
_T_CONSTANT = math.lgamma((_FREEDOM + 1) / 2) - math.lgamma(_FREEDOM / 2)
_T_CONSTANT -= 0.5 * math.log(_FREEDOM * math.pi)
#: Mean of the absolute log error of a run that something else makes slow.
_ODD = 1.0
#: Growth of the error with each doubling of nodes beyond those that ran: in both directions, of all
#: settings and of each, and towards slower steps, where a network may collapse.
_GROWTH, _COLLAPSE = 0.1, 0.03
#: The logarithm of the longest step, in seconds: beyond it, times overflow.
_LONGEST = 30.0
#: Distances, in logs, within which errors are similar: of networks, of sizes of groups, of batches.
_NETWORK, _GROUP, _BATCH, _NODES = 0.7, 0.5, 0.7, 1.0
#: Standard deviations, relative to the noise of the fit, of errors that similar settings share, and
#: of those of each.
_SHARED, _OWN = 1.0, 0.3


@dataclass(frozen=True)
class Run:
    setting: Setting
    network: Network
    step_time_s: float


@dataclass(frozen=True)
class ParallelPosterior:
    runs: tuple[Run, ...]
    rate: float
    values: Values
    seed: int

    def steps(self, settings: Sequence[Setting], networks: Sequence[Network]) -> ParallelStep:
        return step(self.values, Parallel.of(settings, networks), self.rate)

    def times_s(self, settings: Sequence[Setting], networks: Sequence[Network]) -> Floats:
        """Return draws of the step time of future runs, shape (draws, settings)."""
        seen = Parallel.of([r.setting for r in self.runs], [r.network for r in self.runs])
        wanted = Parallel.of(settings, networks)
        measured = np.log([r.step_time_s for r in self.runs])
        missed = measured - np.log(step(self.values, seen, self.rate).step_s)
        model = np.log(step(self.values, wanted, self.rate).step_s)
        rows, others = _features(seen), _features(wanted)
        noise = self.values["noise"]
        dice = np.random.default_rng([self.seed, 5])
        errors = _errors(rows, others, missed, noise, dice)
        shape = model.shape
        odd = dice.random(shape) < self.values["odd"]
        errors = errors + odd * dice.exponential(_ODD, shape)
        far = np.maximum(np.log2(wanted.nodes / seen.nodes.max()), 0.0)
        common = dice.standard_t(_FREEDOM, (len(model), 1))
        own = dice.standard_t(_FREEDOM, shape)
        slower = np.abs(dice.standard_cauchy((len(model), 1)))
        errors = errors + far * (_GROWTH * (common + own) + _COLLAPSE * slower)
        return np.asarray(np.exp(np.minimum(model + errors, _LONGEST)))


def fit(runs: Sequence[Run], seed: int = 0) -> ParallelPosterior:
    """Return the posterior of the runs of networks with layouts on one kind of hardware."""
    if not runs:
        raise BadInput("runs: given none; allowed: at least one measured layout")
    parallel = Parallel.of([run.setting for run in runs], [run.network for run in runs])
    times = np.array([run.step_time_s for run in runs])
    rate = reference_rate(times, parallel)
    transformation = Transformation(list(PRIORS.values()))
    target = partial(_log_likelihood, parallel, transformation, np.log(times), rate)
    # Reductions that hold up a pipeline take as long as its stages, or nothing: two modes.
    names, early = list(PRIORS), PRIORS["early"]
    stage_s = float(np.median(times / parallel.micro_batches))
    guess = {names.index("early"): (math.log(stage_s) - early.mean) / early.sd}
    columns = transformation.values(sample(target, len(PRIORS), seed, guess))
    values = {name: columns[:, i : i + 1] for i, name in enumerate(PRIORS)}
    return ParallelPosterior(tuple(runs), rate, values, seed)


def _log_likelihood(
    parallel: Parallel, transformation: Transformation, log_times: Floats, rate: float,
    normals: Floats,
) -> Floats:  # fmt: skip
    columns = transformation.values(normals)
    values = {name: columns[:, i : i + 1] for i, name in enumerate(PRIORS)}
    residual = log_times - np.log(step(values, parallel, rate).step_s)
    total = log_density(residual, values["noise"], values["odd"]).sum(1)
    return np.where(np.isfinite(total), total, -1e300)


def log_density(residual: Floats, noise: Floats, odd: Floats) -> Floats:
    """Return the log density of an error: Student's t, or for a share of runs a wide one."""
    usual = -(_FREEDOM + 1) / 2 * np.log1p((residual / noise) ** 2 / _FREEDOM) - np.log(noise)
    usual = usual + _T_CONSTANT + np.log1p(-odd)
    wide = np.log(odd) - np.abs(residual) / _ODD - np.log(2 * _ODD)
    return np.asarray(np.logaddexp(usual, wide))


def _features(p: Parallel) -> Floats:
    return np.column_stack([
        np.log(p.tp) / _GROUP, np.log(p.pp) / _GROUP, np.log(p.cp) / _GROUP,
        np.log(p.ep) / _GROUP, np.log(p.tokens) / _BATCH, np.log(p.micro_batches) / (2 * _BATCH),
        np.log(p.nodes) / _NODES, np.log(p.hidden) / _NETWORK, np.log(p.layers) / _NETWORK,
        p.zero, p.checkpointing, p.sequence_parallel * 1.0,
    ])  # fmt: skip


def _errors(
    rows: Floats, others: Floats, missed: Floats, noise: Floats, dice: np.random.Generator
) -> Floats:
    """Return errors of other settings that agree with what the model misses of the runs."""

    def correlation(one: Floats, other: Floats) -> Floats:
        result: Floats = np.exp(-((one[:, None] - other[None]) ** 2).sum(2) / 2)
        return result

    seen = _SHARED**2 * correlation(rows, rows) + _OWN**2 * np.eye(len(rows))
    cross = _SHARED**2 * correlation(rows, others)
    weights = np.linalg.solve(seen, cross)
    missed = np.clip(missed, -3 * noise, 3 * noise)
    left = np.maximum(_SHARED**2 - (cross * weights).sum(0), 0.0) + _OWN**2
    tail = dice.standard_t(_FREEDOM, (len(missed), len(others)))
    result: Floats = missed @ weights + np.sqrt(left) * noise * tail
    return result
