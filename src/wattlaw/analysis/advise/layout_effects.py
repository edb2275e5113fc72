"""Which one setting of a layout explains a throughput, by measurements of other jobs.

    log(time of an operation) = bubble + recomputation + effects + smooth rest + source + noise

The bubble of a pipeline is (pp - 1) / (virtual stages x micro-batches), and recomputation is a
fourth pass beside three. Effects are linear, with priors; the rest is a Gaussian process over the
layout (Rasmussen & Williams 2006, "Gaussian Processes for Machine Learning", section 2.7), so that
it follows measurements where there are some, and returns to the priors where there are none.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from wattlaw.analysis.metrics.estimates import Floats, Interval
from wattlaw.analysis.metrics.result import Result
from wattlaw.analysis.predict.parallel_step import Parallel
from wattlaw.common.errors import BadInput
from wattlaw.study.network import Network
from wattlaw.study.setting import Setting

#: Settings that may explain a throughput; GPUs and the global batch are what the job is.
CAUSES = (
    "micro_batch",
    "tp",
    "pp",
    "cp",
    "virtual_stages",
    "sharding",
    "checkpointing",
)
#: A cause is named from this probability and gain on.
LEAST_PROBABILITY, LEAST_GAIN = 0.6, 0.05
#: Fewer measurements explain nothing.
LEAST = 8
#: Most measurements that are learned from: a Gaussian process takes the cube of their number.
MOST = 400
#: Length (in doublings) and size of the smooth rest, chosen with half of the rows of two families
#: (benchmarks/layouts.py --explain chosen); differences between sources, and noise, are assumed.
_LENGTH, _REST, _SOURCE, _NOISE = 0.8, 0.25, 0.25, 0.08
#: Residuals of so many times the noise are rare faults of a run: it then counts less.
_RARE = 2.5
#: Priors of effects: small micro-batches; tensor parallel in a node and, for each doubling, between
#: nodes; stages; sharded parameters and optimizer; context parallel; nodes; recomputation; bubble;
#: virtual stages.
_MEAN = np.array([0.5, 0.1, 0.3, 0.03, 0.05, 0.0, 0.1, 0.05, 0.0, 0.0, 0.02])
_DEVIATION = np.array([0.4, 0.1, 0.3, 0.06, 0.1, 0.05, 0.1, 0.05, 0.05, 0.3, 0.05])
#: Tokens of a micro-batch on one GPU that take twice their share of time, before measurements.
_SMALL_TOKENS = 4096.0
#: Distance (in doublings) of a measurement that supports another.
_SUPPORT = 2.0
_DRAWS = 1000


@dataclass(frozen=True)
class Measured:
    """A job and its rate; ``network`` has the sequence of its samples."""

    setting: Setting
    network: Network
    parameters: float
    flops_per_s: float  # of a GPU
    source: str


@dataclass(frozen=True)
class Cause(Result):
    """A setting, and how much more throughput another value of it would bring, as a share.

    The gain is estimated, with its 90 % interval; ``probability`` is that of being the setting
    whose change alone brings most.
    """

    setting: str
    value: Any
    other: Any
    gain: float
    gain_ci: Interval
    probability: float

    @property
    def is_clear(self) -> bool:
        return self.gain >= LEAST_GAIN and self.probability >= LEAST_PROBABILITY


def candidates(
    job: Measured, values: Mapping[str, Collection[Any]]
) -> list[tuple[str, Any, Measured]]:
    """Return the job with one setting changed to each of ``values``, where that can exist."""
    own, found = job.setting, []
    micro = own.micro_batch
    if micro is None or micro != int(micro):
        return []
    for name in CAUSES:
        before = int(micro) if name == "micro_batch" else getattr(own, name)
        for value in sorted(values.get(name, ())):
            if value == before:
                continue
            change = {} if name == "micro_batch" else {name: value}
            if change.get("pp", own.pp) == 1:
                change |= {"virtual_stages": 1}
            samples = int(value if name == "micro_batch" else micro)
            try:
                setting = replace(own, gradient_accumulation=1, **change).in_micro_batches(samples)
            except BadInput:
                continue
            stages = setting.pp * setting.virtual_stages
            if setting == own or stages > job.network.layers or job.network.heads % setting.tp:
                continue
            found.append((name, value, replace(job, setting=setting)))
    return found


@dataclass(frozen=True)
class LayoutEffects:
    known: tuple[Measured, ...]

    @cached_property
    def _parts(self) -> tuple[Any, ...]:
        mean, linear, places = features(self.known)
        times = -np.log([item.flops_per_s for item in self.known])
        rest = times - mean
        middle = float(np.median(rest))
        sources = np.array([item.source for item in self.known])
        shared = _covariance(linear, places, linear, places) + 1.0  # the level is unknown
        shared = shared + _SOURCE**2 * (sources[:, None] == sources)
        noise = np.full(len(times), _NOISE**2)
        for _ in range(3):
            lower = np.linalg.cholesky(shared + np.diag(noise))
            weights = np.linalg.solve(lower.T, np.linalg.solve(lower, rest - middle))
            residual = np.abs(weights * noise)
            noise = _NOISE**2 * np.maximum(1.0, residual / (_RARE * _NOISE)) ** 2
        return linear, places, middle, lower, weights

    def times(self, jobs: Sequence[Measured]) -> tuple[Floats, Floats]:
        """Return the means of the log time of an operation, and their covariance, for a source that
        is not known."""
        linear, places, middle, lower, weights = self._parts
        mean, own_linear, own_places = features(jobs)
        shared = _covariance(own_linear, own_places, linear, places) + 1.0
        solved = np.linalg.solve(lower, shared.T)
        own = _covariance(own_linear, own_places, own_linear, own_places) + 1.0
        return mean + middle + shared @ weights, own - solved.T @ solved

    def expected(self, job: Measured) -> tuple[float, Interval]:
        """Return the operations per second of the job's layout, with the 90 % interval of a run of
        another source."""
        mean, variance = self.times([job])
        half = 1.645 * float(np.sqrt(variance[0, 0] + _SOURCE**2 + _NOISE**2))
        middle = -float(mean[0])
        low, high = np.exp([middle - half, middle + half])
        return float(np.exp(middle)), (float(low), float(high))

    def causes(self, job: Measured, values: Mapping[str, Collection[Any]]) -> tuple[Cause, ...]:
        """Return the settings whose change alone would bring throughput, the likeliest first."""
        changed = candidates(job, values)
        if changed:  # others than those with a measurement near may not even fit in memory
            places = features([item for _, _, item in changed])[2]
            far = ((places[:, None] - self._parts[1][None]) ** 2).sum(axis=-1).min(axis=1)
            near = far <= _SUPPORT**2
            changed = [item for item, is_near in zip(changed, near, strict=True) if is_near]
        if len(self.known) < LEAST or not changed:
            return ()
        means, covariance = self.times([job, *(item for _, _, item in changed)])
        lower = np.linalg.cholesky(covariance + 1e-6 * np.eye(len(means)))
        normal = np.random.default_rng(0).standard_normal((_DRAWS, len(means)))
        draws = means + normal @ lower.T
        gains = draws[:, :1] - draws[:, 1:]
        names = np.array([name for name, _, _ in changed])
        kinds = list(dict.fromkeys(names.tolist()))
        most = np.column_stack([gains[:, names == name].max(axis=1) for name in kinds])
        shares = np.bincount(most.argmax(axis=1), minlength=len(kinds)) / _DRAWS
        causes = []
        for name, share in zip(kinds, shares.tolist(), strict=True):
            at = max(np.flatnonzero(names == name), key=lambda i: means[0] - means[1 + i])
            low, middle, high = np.expm1(np.quantile(gains[:, at], [0.05, 0.5, 0.95])).tolist()
            micro = name == "micro_batch"
            before = int(job.setting.micro_batch or 0) if micro else getattr(job.setting, name)
            causes.append(Cause(name, before, changed[at][1], middle, (low, high), share))
        return tuple(sorted(causes, key=lambda item: -item.probability))


def features(jobs: Sequence[Measured]) -> tuple[Floats, Floats, Floats]:
    """Return what is known of log times, the linear effects, and the places of the smooth rest."""
    p = Parallel.of([item.setting for item in jobs], [item.network for item in jobs])
    sizes = np.array([item.parameters for item in jobs])
    again = np.array([0.0, 0.25, 1.0])[p.checkpointing.astype(int)]
    bubble = np.log1p((p.pp - 1) / (p.virtual_stages * p.micro_batches))
    mean = bubble + np.log1p(again / 3)
    tokens, outside = np.log2(p.tokens), np.log2(np.maximum(p.tp / p.node_gpus, 1))
    tp, pp, cp, stages = map(np.log2, (p.tp, p.pp, p.cp, p.virtual_stages))
    nodes = np.log2(p.nodes)
    small = np.log1p(_SMALL_TOKENS * np.sqrt(p.tp) / p.tokens)
    linear = np.column_stack(
        [
            small,
            tp - outside,
            outside,
            pp,
            p.zero >= 3,
            p.zero >= 1,
            cp,
            nodes,
            again,
            mean,
            stages,
        ]
    )
    places = np.column_stack(
        [
            tokens,
            tp,
            pp,
            nodes,
            np.log2(sizes),
            0.7 * p.zero,
            cp,
            again,
            1.5 * outside,
            np.log2(p.micro_batches),
            stages,
        ]
    )
    return mean + linear @ _MEAN, linear.astype(float), places


def _covariance(linear: Floats, places: Floats, others: Floats, other_places: Floats) -> Floats:
    far = ((places[:, None] - other_places[None]) ** 2).sum(axis=-1)
    near = _REST**2 * np.exp(-far / (2 * _LENGTH**2))
    covariance: Floats = near + (linear * _DEVIATION**2) @ others.T
    return covariance
